"""`python -m coterie` is the command line, and so is `coterie`."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

from . import __version__


def main() -> None:
    """The command `coterie`, which can also be stopped before it has begun."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _leave)
    if sys.argv[1:] == ["--version"]:
        return print(f"coterie {__version__}")
    _leave_out_this_folder()
    # Torch and pandas take seconds; they are longer where their objects are searched
    # for garbage, of which there is none.
    gc.disable()
    from .cli import main as begin

    gc.freeze()
    gc.enable()
    begin()


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
