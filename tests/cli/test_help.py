"""Claims about `coterie --help`: it is that of the commands, and does not wait."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from coterie.__main__ import COMMANDS
from coterie.checks import InputError
from coterie.cli.commands import app
from coterie.cli.examples import example_named, installed
from coterie.study.config import read_study

PROGRAM = """
import sys
from coterie.__main__ import main
sys.argv = ["coterie", *sys.argv[1:]]
try:
    main()
finally:
    heavy = {"torch", "pandas", "numpy", "scipy"} & set(sys.modules)
    print("imported:", *sorted(heavy))
"""


@pytest.mark.parametrize("words", [["--help"], []])
def test_help_is_that_of_the_commands_and_imports_nothing_heavy(words):
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    shown, imported = run.stdout.rsplit("imported:", 1)
    assert imported.strip() == ""
    full = CliRunner().invoke(app, words, prog_name="coterie")
    assert shown + run.stderr == full.output
    assert run.returncode == full.exit_code


def test_every_purpose_fits_its_line():
    shown = CliRunner().invoke(app, ["--help"]).output
    for name, purpose in COMMANDS.items():
        assert f"  {name:<11}{purpose}\n" in shown


@pytest.mark.parametrize("words", [[], ["study.toml", "--example", "digits"]])
def test_run_takes_a_study_or_an_example(words):
    refused = CliRunner().invoke(app, ["run", *words]).exception
    assert str(refused) == "`run` needs a study or --example, and not both."


def test_every_example_can_be_named_and_is_a_study(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [path.stem for path in sorted(installed("examples").glob("*.toml"))]
    assert {"digits", "hospitals", "private", "stragglers"} <= set(names)
    for name in names:
        assert read_study(example_named(name)).name == name
    with pytest.raises(InputError, match=r"`example` must be .* Did you mean"):
        example_named("digit")


def test_an_example_runs_from_any_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["run", "--example", "hospitals", "--set", "run.rounds=1"]
    words += ["--set", "run.seeds=[0]", "--quiet"]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert [path.name[:9] for path in (tmp_path / "runs").glob("h*")] == ["hospitals"]
