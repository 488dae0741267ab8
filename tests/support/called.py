"""Commands as a person calls them."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from typer.testing import CliRunner

from coterie.cli import commands as cli


def called(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output and errors of a command that ends well or badly."""
    result = CliRunner().invoke(cli.app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


def refused(*words: str) -> str:
    """The one sentence of a command that fails; raises unless it is one, on stderr."""
    before, output, errors = _files(), io.StringIO(), io.StringIO()
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(SystemExit) as caught,
        redirect_stdout(output),
        redirect_stderr(errors),
    ):
        patch.setattr(sys, "argv", ["coterie", *words])
        cli.main()
    assert caught.value.code == 2
    assert output.getvalue() == ""
    lines = errors.getvalue().strip().splitlines()
    assert len(lines) == 1, lines
    message = lines[0].removeprefix("Error: ")
    assert "Traceback" not in message
    assert message.endswith((".", "?"))
    # A suggestion is a second sentence; there is no other.
    assert not re.search(r"\w\. [A-Z]", message.split(" Did you mean")[0]), message
    assert _files() == before, "something was written"
    return message


def _files() -> list[Path]:
    """All below this folder, but for what Python keeps of modules that it imports."""
    return sorted(path for path in Path().rglob("*") if "__pycache__" not in path.parts)
