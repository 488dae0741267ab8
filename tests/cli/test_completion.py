"""Claims about help and completion: they are those of the commands, and do not wait."""

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


def answered(line: str, folder: Path) -> list[str]:
    """What bash is told to complete the last word of a line; raises if torch is used.

    Args:
        line: as it is typed, with a space where a new word begins.
        folder: where.
    """
    words = line.split(" ")
    asked = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    asked |= {"_COTERIE_COMPLETE": "complete_bash"}
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | asked,
        cwd=folder,
    )
    assert found.stderr == "imported:\n"
    return found.stdout.split()


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
    assert answered(line, here) == expected


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
