"""What a person can ask for, a command a function, and how errors are told."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.text import Text

from ... import __version__
from ...__main__ import COMMANDS, PURPOSE
from ...checks import DisconnectedError, InputError, TrainingError, describe_error
from ..terminal import SPEAKS, err, out, show_any_sign, stop_code

if TYPE_CHECKING:
    app: typer.Typer

_PLACES = {
    "init": "inits",
    "run": "runs",
    "plan": "plans",
    "audit": "audits",
    "list": "listings",
    "report": "runs",
    "export": "exports",
    "predict": "exports",
    "watch": "watching",
    "compare": "comparisons",
    "check": "checks",
    "reproduce": "checks",
}
"""The module of each command, which is imported when the command is asked for."""


def app_of(names: Iterable[str]) -> typer.Typer:
    """The command line with these commands."""
    made = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # or [privacy] in a sentence would be taken for a style
    )
    for name in names:
        module = import_module(f".{_PLACES[name]}", __name__)
        command = vars(module)["list_" if name == "list" else name]
        made.command(name, short_help=COMMANDS[name])(command)
    made.callback(help=PURPOSE)(common)
    return made


def __getattr__(name: str) -> Any:
    """The command line with all commands, `app`, when it is used."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    return app_of(COMMANDS)


def _version(wanted: bool) -> bool:
    if wanted:
        out.print(f"coterie {__version__}")
        raise typer.Exit
    return wanted


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
        _asked_app()()
    except (InputError, TrainingError, DisconnectedError) as error:
        _fail(str(error))
    except OSError as error:  # a full disk, a folder that went away
        _fail(f"{error.filename or 'a file'} cannot be used: {error.strerror}.")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        _fail(f"there is not enough memory: {describe_error(error)}.")
    except KeyboardInterrupt as stopped:
        sys.exit(stop_code(stopped))


def _asked_app() -> typer.Typer:
    """The command line with the command that is asked for, if there is such a one."""
    asked = sys.argv[1:2]
    # Torch and pandas take seconds; they are longer where their objects are searched
    # for garbage, of which there is none.
    gc.disable()
    made = app_of(asked if asked and asked[0] in COMMANDS else COMMANDS)
    gc.freeze()
    gc.enable()
    return made


def _fail(message: str) -> NoReturn:
    if not SPEAKS:
        sys.exit(2)
    message = message.replace("\n", "\\n")  # which names from a file may hold
    err.print(Text.assemble(("Error:", "bold red"), " ", message), soft_wrap=True)
    sys.exit(2)
