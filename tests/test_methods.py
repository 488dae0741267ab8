"""Claims about `co.methods`: what editors, `help` and type checkers see of a method."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys

import mypy.api
import pytest

import coterie as co
from coterie.algorithms import ALGORITHMS, GROUPS
from coterie.checks import parameters_of

# Signatures are read from the source; torch itself need not be.
CONFIG = """
[mypy]
disable_error_code = misc
[mypy-torch.*,numpy.*,jaxtyping.*,scipy.*,networkx.*]
follow_imports = skip
ignore_missing_imports = true
"""
USED = """
from torch import ones
import coterie as co
from coterie.methods import fedavg
from coterie.options import Formula

co.methods.ditto(ones(3), lr=0.3, momentum=0.9, steps=5, late="adaptive")
fedavg(ones(3), lr=Formula("adam(0.005)"))
co.methods.local().init
"""
REFUSED = {
    'co.methods.ditto(ones(3), lr="no")': 'Argument "lr" to "ditto" has incompatible',
    "co.methods.ditto(ones(3), nonsense=1)": 'Unexpected keyword argument "nonsense"',
    'co.methods.ditto(ones(3), late="never")': 'Argument "late" to "ditto" has',
    "co.methods.ditto()": 'Missing positional argument "sizes"',
    "co.methods.nothing": 'Module has no attribute "nothing"',
    "fedavg(ones(3), steps=0.5)": 'Argument "steps" to "fedavg" has incompatible',
    "co.methods.coteries(ones(3), sure=None)": 'Argument "sure" to "coteries" has',
}


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> list[str]:
    """What mypy says of calls of methods, right ones and then wrong ones."""
    folder = tmp_path_factory.mktemp("typed")
    (folder / "mypy.ini").write_text(CONFIG, encoding="utf-8")
    (folder / "used.py").write_text(USED + "\n".join(REFUSED), encoding="utf-8")
    words = ["--config-file", str(folder / "mypy.ini")]
    words += ["--cache-dir", str(folder / "cache"), str(folder / "used.py")]
    out, problem, _ = mypy.api.run(words)
    assert not problem, problem
    return [line for line in out.splitlines() if ": error: " in line]


def test_a_type_checker_refuses_wrong_options_and_accepts_right_ones(told):
    first = len(USED.splitlines()) + 1
    for line, (call, message) in enumerate(REFUSED.items(), start=first):
        found = [error for error in told if f"used.py:{line}: " in error]
        assert len(found) == 1 and message in found[0], (call, found)
    assert len(told) == len(REFUSED), told


def test_every_method_is_there_by_name():
    assert dir(co.methods) == sorted(ALGORITHMS)
    for name, factory in ALGORITHMS.items():
        assert getattr(co.methods, name) is factory
        assert factory.__name__ == name


def test_every_method_is_in_exactly_one_group():
    names = [name for group in GROUPS for name in group.methods]
    assert sorted(names) == sorted(ALGORITHMS)
    assert len({group.title for group in GROUPS}) == len(GROUPS)
    for group in GROUPS:
        assert set(group.also) <= ALGORITHMS.keys() - set(group.methods), group.title
        assert group.methods or group.also, group.title


def test_help_shows_a_readable_signature_and_what_options_mean():
    text = pydoc.plain(pydoc.render_doc(co.methods.ditto))
    assert "momentum: float = 0.0" in text and "steps: int = 1" in text
    assert "Ditto: personal models that are pulled to a global model." in text
    for name in inspect.signature(co.methods.ditto).parameters:
        assert f"        {name}: " in text
    assert len(str(inspect.signature(co.methods.coteries))) < 300


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_the_signature_that_is_shown_is_the_one_that_studies_read(name):
    shown = inspect.signature(ALGORITHMS[name])
    assert "Annotated" not in str(shown) and "partial" not in str(shown)
    options = parameters_of(ALGORITHMS[name])
    assert {n: shown.parameters[n].default for n in options} == {
        n: option.default for n, option in options.items()
    }


def test_methods_are_imported_when_they_are_used_first():
    script = "import sys, coterie; dir(coterie); print('torch' in sys.modules)"
    script += "; coterie.methods.local; print('torch' in sys.modules)"
    words = [sys.executable, "-c", script]
    found = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert found.split() == ["False", "True"]
