"""`python -m coterie` is the command line, and so is `coterie`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

from . import __version__

PURPOSE = "Personalised collaborative learning: one model per client."

COMMANDS = {
    "init": "Look at a file of your own, and write a study of it.",
    "run": "Compare the algorithms of a study, and write a report.",
    "plan": "Say how much learning together can help, before training.",
    "audit": "Attack a study: is it as private as its [privacy] says?",
    "list": "List what a study can name, with options and defaults.",
    "report": "Write the report of a run anew.",
    "export": "Write one client's model as files that run elsewhere.",
    "predict": "Say what an exported model predicts for new rows.",
    "watch": "Show where a run stands, until it ends.",
    "compare": "Show several runs side by side.",
    "check": "Run the conformance suite on an algorithm.",
    "reproduce": "Run a published experiment, ours next to theirs.",
}
"""What each command is for. It stands here so that help need not wait for torch."""


def main() -> None:
    """The command `coterie`, which can also be stopped before it has begun."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    if sys.argv[1:] == ["--version"]:
        return print(f"coterie {__version__}")
    _leave_out_this_folder()
    if sys.argv[1:] in ([], ["--help"]):
        return _help()
    # Torch and pandas take seconds; they are longer where their objects are searched
    # for garbage, of which there is none.
    gc.disable()
    from .cli import main as begin

    gc.freeze()
    gc.enable()
    begin()


def _help() -> None:
    """Shows the commands as `coterie.cli` would, without importing them."""
    import typer

    app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None)
    for name, purpose in COMMANDS.items():
        app.command(name, short_help=purpose)(lambda: None)

    @app.callback(help=PURPOSE)
    def common(version: bool = typer.Option(False, "--version")) -> None:
        """Has the options of all commands."""

    app()


def _leave_out_this_folder() -> None:
    """Takes the current folder off Python's path, where `python -m` puts it.

    A file of it that is called `torch.py` would run in place of torch.
    """
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    try:
        mine = os.path.samefile(sys.path[0] or ".", ".")
        needed = os.path.samefile(".", package)
    except (OSError, IndexError):
        return
    if mine and not needed and not sys.flags.safe_path:
        del sys.path[0]


def _leave(number: int, frame: FrameType | None) -> None:
    """Ends the process: what is half imported cannot be left in another way."""
    os.write(2, b"Interrupted before anything was begun.\n")
    os._exit(128 + number)


if __name__ == "__main__":
    main()
