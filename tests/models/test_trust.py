"""Claims about code that a folder names: none runs unless its module is trusted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from torch import nn

from coterie.checks import InputError
from coterie.models import refuse_untrusted, trusted_factory, trusted_modules
from support.refusals import refuses

OWN = """
from pathlib import Path
from subprocess import run
from torch import nn
Path({mark!r}).touch()

def net(shape, outputs):
    return nn.Linear(shape[0], outputs)
"""


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder on Python's path with a module that leaves a mark where it runs."""
    here = tmp_path / "path"
    here.mkdir()
    mark = tmp_path / "ran"
    (here / "trust_own.py").write_text(OWN.format(mark=str(mark)))
    monkeypatch.syspath_prepend(str(here))
    yield mark
    for name in [m for m in sys.modules if m.startswith("trust_")]:
        del sys.modules[name]


def test_without_trust_nothing_is_imported(place, tmp_path):
    for trust in ((), ["trust"], ["trust_owner"], ["trust_own.nets"]):
        with pytest.raises(InputError, match=r"not run: .* --trust trust_own "):
            trusted_factory("trust_own:net", trusted_modules(trust), tmp_path / "x")
    assert not place.exists() and "trust_own" not in sys.modules


def test_a_trusted_module_gives_its_own_factories_and_no_other(place, tmp_path):
    make = trusted_factory("trust_own:net", ("trust_own",), tmp_path / "x")
    assert place.exists() and isinstance(make((2,), 1), nn.Linear)
    with pytest.raises(InputError, match="run belongs to the module subprocess"):
        trusted_factory("trust_own:run", ("trust_own",), tmp_path / "x")
    assert trusted_factory("mlp", (), tmp_path / "x") is not None


def test_a_module_in_the_folder_itself_is_never_run(place, tmp_path, monkeypatch):
    folder = tmp_path / "stranger"
    (folder / "inner").mkdir(parents=True)
    text = OWN.format(mark=str(place))
    for file in ("trust_planted.py", "__init__.py", "inner/trust_deep.py"):
        (folder / file).write_text(text)
    (tmp_path / "link").symlink_to(folder)
    monkeypatch.chdir(folder)
    for entry in ("", ".", str(folder), str(tmp_path / "link"), str(folder / "inner")):
        monkeypatch.setattr(sys, "path", [entry, *sys.path])
    monkeypatch.syspath_prepend(str(tmp_path))  # where `stranger` is a package
    before = [*sys.path]
    for name in ("trust_planted", "trust_deep", "stranger.trust_planted"):
        with pytest.raises(InputError, match=r"lies in|cannot be imported: No module"):
            trusted_factory(f"{name}:net", (name, "stranger"), Path())
    assert not place.exists() and sys.path == before
    # The same module elsewhere on the path is found, past the one that was planted.
    (tmp_path / "path" / "trust_planted.py").write_text(text)
    assert trusted_factory("trust_planted:net", ("trust_planted",), folder)
    assert sys.modules["trust_planted"].__file__ == str(
        tmp_path / "path" / "trust_planted.py"
    )


@pytest.mark.parametrize(
    "tables",
    [
        {"model": {"name": "trust_own:net"}},
        {"model": {"loss": "trust_own:net"}},
        {"model": {"measures": ["accuracy", "trust_own:net"]}},
        {"data": {"name": "trust_own:net"}},
        {"algorithm": [{"name": "local"}, {"name": "trust_own:net"}]},
        {"algorithm": [{"name": "x", "tune": {"criterion": ["trust_own:net"]}}]},
        {"tune": {"space": {"criterion": ["trust_own:net"]}}},
        {"new": {"table": [{"of": " trust_own:net"}]}},
    ],
)
def test_a_study_in_a_run_folder_is_searched_whole_for_code(place, tmp_path, tables):
    folder = tmp_path / "run"
    (folder / "cells").mkdir(parents=True)
    path = folder / "study.toml"
    refuses(r"names code.*which is not run", refuse_untrusted, path, tables, ())
    assert not place.exists()
    refuse_untrusted(tmp_path / "study.toml", tables, ())  # one's own
    harmless = {"name": "a:b", "data": {"target": "a:b", "path": "a:b.csv"}}
    refuse_untrusted(path, {**harmless, "algorithm": [{"label": "os:abort"}]}, ())


def test_what_is_no_module_cannot_be_trusted():
    assert trusted_modules("mymodels") == ("mymodels",)
    for bad in ("", "a b", "a/b", "a:b", ".", "a."):
        refuses("`trust` must name modules", trusted_modules, [bad])
