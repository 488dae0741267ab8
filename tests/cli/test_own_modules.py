"""Claims about modules next to a study: it finds those that it names, and no others."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import tomli_w

from support.called import called
from support.tiny_studies import LINEAR

TRAP = "from pathlib import Path\nPath('{}.ran').touch()\nraise RuntimeError\n"
OWN = """
import beside_too
import torch
from coterie.algorithms.local import local
from coterie.data.synthetic import linear

def data():
    return linear(clients=4, samples=20)

def model(shape, outputs):
    return torch.nn.Linear(shape[0], outputs)

def method(*, lr: float = 0.1):
    return local(lr=lr * beside_too.FACTOR)
"""


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with files that have the names of installed packages."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    for name in ("sklearn", "joblib"):
        Path(f"{name}.py").write_text(TRAP.format(name))
        for module in [m for m in sys.modules if m.split(".")[0] == name]:
            monkeypatch.delitem(sys.modules, module)
    Path("beside_own.py").write_text(OWN)
    Path("beside_too.py").write_text("FACTOR = 2.0\n")
    Path("beside_bad.py").write_text("def model(*_): raise KeyError")
    return tmp_path


def write(name: str = "study.toml", **tables: object) -> None:
    run = {**LINEAR["run"], "rounds": 1}
    Path(name).write_text(tomli_w.dumps({**LINEAR, "run": run, **tables}))


def test_a_study_that_names_no_module_runs_no_file_beside_it(here):
    split = {"name": "iid", "clients": 3, "max_samples": 30}
    write(data={"name": "digits"}, split=split, model={"name": "linear"})
    before = [*sys.path]
    code, _, errors = called("run", "study.toml", "--quiet")
    assert (code, errors) == (0, "")
    assert not list(here.glob("*.ran"))
    assert sys.path == before


def test_a_study_that_names_one_runs_it_and_what_it_imports_from_its_own_folder(here):
    (here / "inner").mkdir()
    for name in ("beside_own.py", "beside_too.py"):
        Path(name).rename(here / "inner" / name)
    own = {"data": {"name": "beside_own:data"}, "model": {"name": "beside_own:model"}}
    method = {"name": "beside_own:method", "label": "sklearn:own"}
    write("inner/study.toml", **own, algorithm=[method])
    code, output, errors = called("run", "inner/study.toml", "--quiet")
    assert (code, errors) == (0, "")
    assert "sklearn:own" in output
    assert not list(here.glob("*.ran"))


def test_a_module_may_be_named_by_an_override_or_to_check(here):
    write(model={})
    words = ["--set", "model.name=beside_bad:model", "--quiet"]
    with pytest.raises(ValueError, match="raised KeyError"):
        called("run", "study.toml", *words)
    with pytest.raises(ValueError, match="cannot be imported: No module named 'nota"):
        called("check", "nota_module:method")
    assert not list(here.glob("*.ran"))
