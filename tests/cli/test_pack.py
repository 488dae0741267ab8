"""Claims about `coterie pack`, and about `coterie run` of what it wrote."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import sys
import zipfile
from pathlib import Path

import pytest
import typer

from coterie.checks import InputError
from coterie.cli import archives
from coterie.cli.own_modules import read_study_file
from support.called import called, refused

METHOD = """
from pathlib import Path
from own_parts import rate
from coterie.algorithms.local import local

Path(__file__).with_name("ran").write_text("")
Path("ran").write_text("by whoever runs it")

def method(*, lr: float = 0.1):
    return local(lr=rate * lr)
"""
STUDY = """
name = "sent"
[data]
name = "linear"
clients = 3
dimension = 2
samples = 20
[model]
name = "linear"
[run]
rounds = 2
batch_size = 4
baselines = false
[[algorithm]]
name = "own_method:method"
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """An empty folder, and no module of anybody's own."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    forget_modules()


def forget_modules() -> None:
    for name in [n for n in sys.modules if n.startswith("own_")]:
        del sys.modules[name]


@pytest.fixture
def archive(here, monkeypatch) -> Path:
    """What the author of a method has sent."""
    with monkeypatch.context() as patch:
        (here / "author").mkdir()
        patch.chdir(here / "author")
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "meta_path", [*sys.meta_path])
        Path("own_method.py").write_text(METHOD)
        Path("own_parts.py").write_text("rate = 0.5\n")
        Path("study.toml").write_text(STUDY)
        assert called("run", "study.toml", "--quiet")[0] == 0
        (folder,) = Path("runs").glob("[!.]*")
        code, output, _ = called("pack", str(folder), "--out", "../sent.zip", "--json")
        assert code == 0
        assert json.loads(output)["archive"] == "../sent.zip"
    forget_modules()
    return here / "sent.zip"


def test_an_archive_repeats_its_run_where_its_code_is_trusted(archive, here):
    code, _, errors = called(
        "run", "sent.zip", "--trust", "own_method", "--quiet", "--runs", "mine"
    )
    assert code == 0, errors
    assert "All scores are those in the archive, digit by digit." in errors
    (theirs,) = (here / "author" / "runs").glob("[!.]*")
    mine = here / "mine" / theirs.name
    assert (mine / "metrics.csv").read_bytes() == (theirs / "metrics.csv").read_bytes()
    assert (mine / "code" / "own_parts.py").read_text() == "rate = 0.5\n"
    assert (here / "ran").exists()


def test_results_that_were_there_before_are_not_called_a_repetition(archive, here):
    run = ("run", "sent.zip", "--trust", "own_method", "--quiet", "--runs", "mine")
    said = "not trained again, because mine has them"
    assert said not in called(*run)[2]
    forget_modules()
    again = called(*run)[2]
    assert f"1 result was {said}: to repeat everything, name an empty folder" in again


def test_no_code_of_an_archive_runs_before_somebody_trusts_it(archive, here):
    message = refused("run", "sent.zip")
    assert message == (
        "sent.zip runs code of own_method (files in it: code/own_method.py (10 lines), "
        "code/own_parts.py (1 line)): if you trust all of it, say --trust own_method."
    )
    refused("run", "sent.zip", "--trust", "own_parts")
    assert not (here / "ran").exists()
    assert not any(name.startswith("own_") for name in sys.modules)


@pytest.mark.parametrize("answer", [True, False])
def test_at_a_terminal_coterie_asks(archive, here, monkeypatch, answer):
    asked = []
    monkeypatch.setattr(archives.sys, "stdin", Terminal())
    monkeypatch.setattr(
        typer, "confirm", lambda text, **how: asked.append(text) or answer
    )
    with archives_context(answer):
        with archives.study_of_archive(Path("sent.zip"), ()) as (study, _):
            assert study.is_file()
    assert asked == ["Do you trust it?"]
    assert not (here / "ran").exists()


class Terminal:
    def isatty(self) -> bool:
        return True


def archives_context(answer: bool):
    if answer:
        return contextlib.nullcontext()
    return pytest.raises(InputError, match=r"nothing of sent\.zip was run")


def test_a_study_without_own_code_needs_no_trust_and_logs_nowhere(here):
    text = STUDY.replace("own_method:method", "local")
    Path("study.toml").write_text(text)
    assert called("run", "study.toml", "--quiet", "--runs", "first")[0] == 0
    (folder,) = Path("first").glob("[!.]*")
    assert called("pack", str(folder))[0] == 0
    name = f"{folder.name}.zip"
    code, _, errors = called("run", name, "--quiet", "--runs", "second")
    assert code == 0
    assert "digit by digit" in errors
    # The same with a log, which the author may have added.
    with zipfile.ZipFile(name) as zipped:
        files = {n: zipped.read(n) for n in zipped.namelist()}
    study = files["study.toml"].replace(b"[run]\n", b'[run]\nlog = ["wandb"]\n')
    about = json.loads(files["manifest.json"])
    about["files"]["study.toml"] = archives_sum(study)
    files |= {"study.toml": study, "manifest.json": json.dumps(about).encode()}
    with zipfile.ZipFile("logs.zip", "w") as zipped:
        for n, content in files.items():
            zipped.writestr(n, content)
    assert called("run", "logs.zip", "--quiet", "--runs", "third")[0] == 0
    code, _, errors = called(
        "run", name, "--set", "run.rounds=3", "--quiet", "--runs", "fourth"
    )
    assert code == 0
    assert "Scores differ from those in the archive by at most" in errors


UNASKED = {
    "name": ('name = "sent"', 'name = "own_trap:x"'),
    "target": ("samples = 20", 'samples = 20\ntarget = "own_trap:x"'),
    "a list": ("samples = 20", 'samples = 20\ndrop = ["own_trap:x"]'),
}


@pytest.mark.parametrize("case", UNASKED)
def test_a_text_that_is_no_code_brings_no_module_of_an_archive(here, case):
    """An archive could hide a package, such as scikit-learn, behind its own module."""
    study = STUDY.replace("own_method:method", "local").replace(*UNASKED[case])
    files = {"study.toml": study, "code/own_trap.py": "open('ran', 'w')\n"}
    sums = {name: archives_sum(text.encode()) for name, text in files.items()}
    about = {"format": 1, "name": "sent", "modules": {}, "versions": {}, "files": sums}
    with zipfile.ZipFile("sent.zip", "w") as zipped:
        for name, text in {"manifest.json": json.dumps(about), **files}.items():
            zipped.writestr(name, text)
    places = [*sys.path], [*sys.meta_path]
    with archives.study_of_archive(Path("sent.zip"), ()) as (path, _):
        # A study that cannot run may still have changed where Python finds modules.
        with contextlib.suppress(InputError):
            read_study_file(path, None)
        assert importlib.util.find_spec("own_trap") is None
    assert places == (sys.path, sys.meta_path)


def archives_sum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
