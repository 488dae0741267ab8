"""Claims about help and completion: they match the commands, and are fast."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie.__main__ import COMMANDS
from coterie.cli.commands import app, listings
from coterie.cli.completion import KINDS, examples, light_app, run_folders
from coterie.cli.examples import example_named, installed_folder
from coterie.study.config import read_study
from support.called import called
from support.refusals import refusal, refuses

PROGRAM = """
import sys
from coterie.__main__ import main
sys.argv = ["coterie", *sys.argv[1:]]
try:
    main()
finally:
    heavy = {"torch", "pandas", "numpy", "scipy"} & set(sys.modules)
    print("imported:", *sorted(heavy), file=sys.stderr)
"""


def run_main(*words: str, heavy=(), **options) -> subprocess.CompletedProcess:
    """What a call of `coterie` prints; raises if it imports torch or its like.

    It may import only those heavy packages that are named.
    """
    command = [sys.executable, "-c", PROGRAM, *words]
    found = subprocess.run(command, capture_output=True, text=True, **options)
    errors, _, imported = found.stderr.rpartition("imported:")
    assert imported.split() == [*heavy], found
    found.stderr = errors
    return found


def completions(line: str, folder: Path) -> list[str]:
    """The words with which bash completes the last word of a line.

    Args:
        line: as it is typed, with a space where a new word begins.
        folder: the current folder.
    """
    request = {"COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
    request |= {"_COTERIE_COMPLETE": "complete_bash"}
    return run_main(env=os.environ | request, cwd=folder).stdout.split()


def folder_of_run(path: Path) -> None:
    path.mkdir(parents=True)
    (path / "study.toml").write_text("")


@pytest.fixture(scope="module")
def here(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("here")
    for name in ("runs/digits-1", "runs/digits-2", "runs/plan-x", "old/mine-3"):
        folder_of_run(folder / name)
    (folder / "runs" / "plan-x" / "study.toml").unlink()
    return folder


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("coterie re", ["report", "reproduce"]),
        ("coterie run --ex", ["--example"]),
        ("coterie run --example dig", ["digits"]),
        ("coterie list m", ["models", "measures"]),
        ("coterie report ", ["runs/digits-1", "runs/digits-2"]),
        ("coterie compare runs/digits-1 old/", ["old/mine-3"]),
        ("coterie run st", []),  # names of files, which the shell knows
    ],
)
def test_the_shell_is_told_what_can_follow_without_torch(here, line, expected):
    assert completions(line, here) == expected


def test_every_command_has_the_same_help_without_torch():
    light = light_app()
    for name in COMMANDS:
        words = [name, "--help"]
        full = CliRunner().invoke(app, words, prog_name="coterie")
        assert full.exit_code == 0
        assert CliRunner().invoke(light, words, prog_name="coterie").output == (
            full.output
        )


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_a_shell_asks_by_our_variable(shell, tmp_path):
    words = [sys.executable, "-m", "coterie"]
    asked = os.environ | {"_COTERIE_COMPLETE": f"source_{shell}"}
    found = subprocess.run(words, capture_output=True, text=True, env=asked)
    assert f"_COTERIE_COMPLETE=complete_{shell}" in found.stdout


def test_kinds_are_what_can_be_listed():
    assert tuple(listings.KINDS) == KINDS


def test_run_folders_are_found_where_the_word_points(here, monkeypatch):
    monkeypatch.chdir(here)
    assert run_folders("runs/digits-") == ["runs/digits-1", "runs/digits-2"]
    assert run_folders("nowhere/") == run_folders("x") == []
    monkeypatch.chdir(here / "old")
    assert run_folders("mi") == ["mine-3"]


def test_examples_are_studies():
    assert {"digits", "hospitals"} <= set(examples(""))


@pytest.mark.parametrize("words", [["--help"], []])
def test_help_is_that_of_the_commands_and_imports_nothing_heavy(words):
    run = run_main(*words)
    full = CliRunner().invoke(app, words, prog_name="coterie")
    assert run.stdout + run.stderr == full.output
    assert run.returncode == full.exit_code


def test_init_does_not_wait_for_torch(tmp_path):
    words = ["init", str(installed_folder("examples") / "hospitals.csv")]
    words += ["--out", str(tmp_path / "study.toml")]
    assert run_main(*words, heavy=("numpy", "pandas")).returncode == 0
    assert (tmp_path / "study.toml").is_file()


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_no_opposite_of_a_flag_and_no_list_of_python(name):
    shown = called(name, "--help")[1]
    assert "--no-" not in shown and "list[str]" not in shown


def test_help_says_when_one_needs_resume_and_an_error_says_what_can_be_listed():
    shown = " ".join(called("run", "--help")[1].split())
    assert "needed only if it was moved or renamed" in shown
    said = refusal(called, "list", "modles")
    assert said.startswith("`coterie list` cannot list 'modles', only algorithms, ")
    assert said.endswith(", servers. Did you mean 'models'?")


def test_every_purpose_fits_its_line():
    shown = CliRunner().invoke(app, ["--help"]).output
    for name, (_, purpose) in COMMANDS.items():
        assert f"  {name:<11}{purpose}\n" in shown


@pytest.mark.parametrize("words", [[], ["study.toml", "--example", "digits"]])
def test_run_takes_a_study_or_an_example(words):
    refused = CliRunner().invoke(app, ["run", *words]).exception
    assert str(refused) == "`run` needs either a study or --example."


def test_every_example_can_be_named_and_is_a_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [path.stem for path in sorted(installed_folder("examples").glob("*.toml"))]
    assert {"digits", "hospitals", "private", "stragglers"} <= set(names)
    for name in names:
        assert read_study(example_named(name)).name == name
    refuses(r"`example` must be .* Did you mean", example_named, "digit")


def test_an_example_runs_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "--example", "hospitals", "--set", "run.rounds=1"]
    words += ["--set", "run.seeds=[0]", "--quiet"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert [path.name[:9] for path in (tmp_path / "runs").glob("h*")] == ["hospitals"]
