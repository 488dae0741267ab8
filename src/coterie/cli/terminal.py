"""The terminal: what may be printed on it, and how it tells a command to stop.

A line can hold what somebody else wrote: labels, names of clients, file names. Control
characters in it are shown, not obeyed. Where nobody reads what is printed any more
(`coterie run study.toml | head`), a command goes on without a word.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, final

import typer
from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

# All but tab and new line; and what turns the direction of a line.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    r"""The text with control characters as one would write them.

    >>> plain("\x1b[31mred")
    '\\x1b[31mred'
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


class _Plain:
    """Something to print, without control characters in its text."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self.inner = inner

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> Iterator[Segment]:
        for text, style, control in console.render(self.inner, options):
            yield Segment(text if control else plain(text), style, control)


class _PlainHook(RenderHook):
    def process_renderables(
        self, renderables: list[ConsoleRenderable]
    ) -> list[ConsoleRenderable]:
        return [_Plain(each) for each in renderables]


@final
class _GoesOn(Console):
    """A console as rich has it, which ends nothing where nobody reads any more."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # What Python has not written yet, it would try to write at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def console(*, stderr: bool = False) -> Console:
    """What is printed on it holds labels, paths and formulas, which are no markup."""
    made = _GoesOn(markup=False, emoji=False, highlight=False, stderr=stderr)
    made.push_render_hook(_PlainHook())
    return made


out, err = console(), console(stderr=True)

SPEAKS = os.environ.get("RANK", "0") == "0"
"""Of several processes that torchrun started, the first one speaks for all."""


def notice(line: str) -> None:
    """Prints a line beside what was asked for."""
    if SPEAKS:
        err.print(line, soft_wrap=True)


def show_any_sign() -> None:
    """Writes signs that the terminal's encoding lacks as numbers, and goes on."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _told_to_stop() -> Iterator[None]:
    """Meanwhile, SIGTERM stops what is under way as Ctrl-C does: once, to save.

    A second signal waits for that; a third ends the process at once, which leaves what
    was saved before. The exception knows the exit code.
    """
    told: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        told.append(number)
        if len(told) == 1:
            raise KeyboardInterrupt(128 + number)
        if len(told) > 2:
            os._exit(128 + number)
        os.write(2, b"Ending: what is under way is saved; once more ends at once.\n")

    numbers = [signal.SIGINT, signal.SIGTERM]
    on_main = threading.current_thread() is threading.main_thread()
    # Several processes end each other by signals, and would wait for each other here;
    # and only the main thread may say what signals do.
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or not on_main:
        numbers = []
    before = {
        number: signal.signal(number, stop)
        for number in numbers
        # Who starts a process in the background may have it ignore Ctrl-C.
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        if not told:  # or the end of the process would be interrupted, too
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def interruptible(console: Console, sentence: str) -> Iterator[None]:
    """Ends a command that is told to stop with a sentence; also decorates one."""
    try:
        with _told_to_stop():
            yield
    except KeyboardInterrupt as stopped:
        console.print(f"Interrupted: {sentence}", soft_wrap=True)
        raise typer.Exit(stop_code(stopped)) from None


def stop_code(stopped: KeyboardInterrupt) -> Any:
    """The exit code: 130 after Ctrl-C, 143 after SIGTERM."""
    return stopped.args[0] if stopped.args else 130
