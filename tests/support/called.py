"""Commands as a person calls them."""

from __future__ import annotations

from typer.testing import CliRunner

from coterie.cli import commands as cli


def called(*words: str) -> tuple[int, str, str]:
    """Exit code, standard output and errors of a command that ends well or badly."""
    result = CliRunner().invoke(cli.app, words)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr
