"""The commands, one function each, and how their errors are shown."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.text import Text

from ... import __version__
from ...__main__ import COMMANDS, GROUPS, PURPOSE
from ...checks import (
    DisconnectedError,
    InputError,
    Problems,
    TrainingError,
    describe_error,
)
from ..completion import add_group
from ..terminal import IS_MAIN_PROCESS, allow_any_character, err, out, stop_code

if TYPE_CHECKING:
    app: typer.Typer


def build_app(names: Iterable[str]) -> typer.Typer:
    """The command line with these commands."""
    app = typer.Typer(
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # otherwise [privacy] in a text is a style
    )
    for name in names:
        place, purpose = COMMANDS[name]
        module = import_module(f".{place}", __name__)
        if name in GROUPS:
            add_group(app, name, vars(module))
            continue
        command = vars(module)["list_" if name == "list" else name]
        app.command(name, short_help=purpose)(command)
    app.callback(help=PURPOSE)(common)
    return app


def __getattr__(name: str) -> Any:
    """The command line with all commands, `app`, made when it is first used."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    return build_app(COMMANDS)


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
    """Takes the options of all commands."""


def main() -> None:
    """Runs the command `coterie`: a mistake gives one sentence and exit code 2."""
    allow_any_character()
    try:
        _requested_app()()
    except Problems as problems:
        _fail(*problems.sentences)
    except (InputError, TrainingError, DisconnectedError) as error:
        _fail(str(error))
    except OSError as error:  # such as a full disk, or a folder that is gone
        _fail(f"{error.filename or 'a file'} cannot be used: {error.strerror}.")
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
        _fail(f"there is not enough memory: {describe_error(error)}.")
    except KeyboardInterrupt as stopped:
        sys.exit(stop_code(stopped))


def _requested_app() -> typer.Typer:
    """The command line with the command in `sys.argv`; with all if there is none."""
    words = sys.argv[1:2]
    # Importing torch and pandas takes seconds, and longer with garbage collection,
    # which would find nothing.
    gc.disable()
    app = build_app(words if words and words[0] in COMMANDS else COMMANDS)
    gc.freeze()
    gc.enable()
    return app


def _fail(*messages: str) -> NoReturn:
    if not IS_MAIN_PROCESS:
        sys.exit(2)
    for message in messages:
        line = message.replace("\n", "\\n")  # names from a file may hold new lines
        err.print(Text.assemble(("Error:", "bold red"), " ", line), soft_wrap=True)
    sys.exit(2)
