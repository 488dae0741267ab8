"""Claims about `coterie --help`: it is that of the commands, and does not wait."""

from __future__ import annotations

import subprocess
import sys

import pytest
from typer.testing import CliRunner

from coterie.__main__ import COMMANDS
from coterie.cli.commands import app

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
