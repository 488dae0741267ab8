"""Claims about the files that a module uses, and the source that made a cell."""

from __future__ import annotations

import importlib
import math
import shutil
import sys
from pathlib import Path

import pytest
import torch

import coterie
from coterie.checks import import_object
from coterie.records import versions as made
from coterie.records.versions import sources_of, versions

PACKAGE = Path(coterie.__file__).parent
FILES = {
    "own.py": "import math, torch\nimport beside\nfrom ownpack import deep\n",
    "beside.py": "def f():\n    import late\n",
    "late.py": "from own import *\n",  # in a circle
    "stranger.py": "",
    "ownpack/__init__.py": "",
    "ownpack/deep.py": "from . import flat\nfrom .lower.under import g\n",
    "ownpack/flat.py": "from .constants import C as D\n",
    "ownpack/constants.py": "C = 1\n",
    "ownpack/unused.py": "",
    "ownpack/lower/__init__.py": "from .. import up\n",
    "ownpack/lower/under.py": "from ..two import up as g\nfrom .. import flat\n",
    "ownpack/two.py": "up = 3\n",
    "ownpack/up.py": "",
}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A module that imports others in all possible ways."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_the_sources_of_a_module_are_all_beside_it_that_it_may_import(own):
    importlib.import_module("own")
    wanted = {"own", "beside", "late", "ownpack", "ownpack.deep", "ownpack.flat"}
    wanted |= {"ownpack.constants", "ownpack.lower.under", "ownpack.two"}
    wanted |= {"ownpack.lower", "ownpack.up"}  # which an import of .lower.under runs
    importlib.import_module("ownpack.unused")  # by somebody else
    found = sources_of("own")
    assert set(found) == wanted
    assert found["ownpack"] == own / "ownpack" / "__init__.py"
    assert found["ownpack.two"] == own / "ownpack" / "two.py"


def test_names_are_counted_from_the_top_of_a_package(own):
    importlib.import_module("ownpack.lower")
    assert set(sources_of("ownpack.lower")) == {
        "ownpack.lower",
        "ownpack",
        "ownpack.up",
    }


def test_of_what_is_installed_the_own_file_counts():
    assert sources_of(math.__name__) == {} or len(sources_of(math.__name__)) == 1
    assert sources_of("json") == {"json": Path(sys.modules["json"].__file__)}
    assert sources_of("torch") == {"torch": Path(torch.__file__)}
    assert sources_of("nobody") == {}


def test_the_source_of_a_method_is_what_it_imports_and_no_other_method():
    found = sources_of("coterie.algorithms.karula")
    assert {"coterie.algorithms.karula", "coterie.optim.projections"} <= set(found)
    assert "coterie.algorithms.ditto" not in found


@pytest.mark.parametrize(
    ("file", "matters"),
    [
        ("clients/simulation.py", True),
        ("seeds.py", True),
        ("study/training.py", True),
        ("privacy/mechanisms/per_sample/tapes.py", True),
        ("algorithms/ditto.py", False),
        ("report/pages.py", False),
        ("report/privacy/section.py", False),
        ("cli/commands/runs.py", False),
    ],
)
def test_the_source_is_another_where_what_makes_a_cell_is(
    tmp_path, monkeypatch, file, matters
):
    copy = tmp_path / "coterie"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(made, "PACKAGE", copy)
    # Its cache must not keep what it finds here.
    monkeypatch.setattr(made, "method_files", made.method_files.__wrapped__)
    before = made._source.__wrapped__("coterie.algorithms.local")
    (copy / file).write_text((copy / file).read_text() + "\nanother = 1\n")
    assert (made._source.__wrapped__("coterie.algorithms.local") != before) == matters


def test_versions_name_software_hardware_and_source():
    found = versions(torch.device("cpu"), "coterie.algorithms.local")
    assert found["torch"] == torch.__version__
    assert set(found) == {
        "coterie", "source", "python", "torch", "numpy", "system", "device"
    }  # fmt: skip
    ditto = versions(torch.device("cpu"), "coterie.algorithms.ditto")
    assert {name for name in found if found[name] != ditto[name]} == {"source"}


ELSEWHERE = {
    "by statement": "from far import scale",
    "by name": "import importlib\nscale = importlib.import_module('far').scale",
    "by a name that is made": "scale = __import__('f' + 'ar').scale",
    "in a function": "def late():\n    return __import__('beside')",
    "by its path": """
import importlib.util, pathlib
spec = importlib.util.spec_from_file_location(
    "loaded", pathlib.Path(__file__).with_name("beside.py"))
helper = importlib.util.module_from_spec(spec)
spec.loader.exec_module(helper)
""",
    "by a path that is made": """
import importlib.util, pathlib
def loaded(name):
    path = pathlib.Path(__file__).with_name(name + ".p" + "y")
    spec = importlib.util.spec_from_file_location("loaded", path)
    helper = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(helper)
    return helper
double = loaded("beside").double
""",
    "a class": "from importlib import import_module as f\nKind = f('fa' + 'r').Kind",
    "an object": "import importlib as i\nkind = i.import_module('fa' + 'r').Kind()",
    "part of a function": """
import functools
from importlib import import_module as f
double = functools.partial(f('fa' + 'r').double, 3)
""",
}
HELPER = "scale = 1.0\nclass Kind: pass\ndef double(x): return 2 * x\n"


@pytest.mark.parametrize("way", ELSEWHERE)
@pytest.mark.parametrize("before", [False, True])
def test_helpers_are_found_in_whatever_way_they_are_loaded(
    tmp_path, monkeypatch, way, before
):
    """Also if all was imported before and the module holds an object of a helper."""
    if way == "by a name that is made" and before:
        pytest.skip("a number alone does not say where it comes from.")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    files = {"dynamic.py": ELSEWHERE[way], "beside.py": HELPER, "unrelated.py": ""}
    files |= {"other/far.py": HELPER + "import further\n", "other/further.py": ""}
    (tmp_path / "other").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "other")
    monkeypatch.syspath_prepend(tmp_path)
    loaded = set(sys.modules)
    for name in ("unrelated", *(("far", "dynamic") if before else ())):
        importlib.import_module(name)
    import_object("model.name", "dynamic:__name__")
    found = set(sources_of("dynamic").values())
    for name in set(sys.modules) - loaded:
        del sys.modules[name]
    far = {"other/far.py", "other/further.py"}
    helpers = {"beside.py"} if "beside" in ELSEWHERE[way] else far
    assert found == {tmp_path / name for name in {"dynamic.py", *helpers}}
