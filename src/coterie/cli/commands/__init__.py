"""What a person can ask for, a command a function, and how errors are told."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer
from rich.text import Text

from ... import __version__
from ...__main__ import COMMANDS, PURPOSE
from ...checks import Disconnected, InputError, TrainingError, raised
from ..tables import SPEAKS, err, out
from ..terminal import show_any_sign, stop_code
from .audits import audit
from .checks import check, reproduce
from .comparisons import compare
from .exports import export, predict
from .inits import init
from .listings import list_
from .plans import plan
from .runs import report, run
from .watching import watch

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # or [privacy] in a sentence would be taken for a style
)
for _command in (
    *(init, run, plan, audit, list_, report, export),
    *(predict, watch, compare, check, reproduce),
):
    _name = _command.__name__.rstrip("_")
    app.command(_name, short_help=COMMANDS[_name])(_command)


def _version(wanted: bool) -> bool:
    if wanted:
        out.print(f"coterie {__version__}")
        raise typer.Exit
    return wanted


@app.callback(help=PURPOSE)
def common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Has the options of all commands."""


def main() -> None:
    """The command `coterie`: mistakes give one sentence and exit code 2."""
    show_any_sign()
    try:
        app()
    except (InputError, TrainingError, Disconnected) as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder that went away
        _fail(f"{error.filename or 'a file'} cannot be used: {error.strerror}.")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        _fail(f"there is not enough memory: {raised(error)}.")
    except KeyboardInterrupt as stopped:
        sys.exit(stop_code(stopped))


def _fail(message: str) -> NoReturn:
    if not SPEAKS:
        sys.exit(2)
    message = message.replace("\n", "\\n")  # which names from a file may hold
    err.print(Text.assemble(("Error:", "bold red"), " ", message), soft_wrap=True)
    sys.exit(2)
