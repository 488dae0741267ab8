"""The terminal: printing text safely, and stopping a command.

A line can hold text by other people: labels, names of clients, file names. Control
characters in this text are shown as escapes and have no effect. If nobody reads the
output any more (`coterie run study.toml | head`), a command goes on without output.
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

# All except tab and new line, and the characters that reverse a line's direction.
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def plain(text: str) -> str:
    r"""The text with its control characters written as escapes.

    >>> plain("\x1b[31mred")
    '\\x1b[31mred'
    """
    return _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)


class _Plain:
    """A renderable whose text has no control characters."""

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
class _PipeTolerantConsole(Console):
    """A console that does not end the process if nobody reads its output any more."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        # Otherwise Python would try to write the rest when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


def console(*, stderr: bool = False) -> Console:
    """A console for labels, paths and formulas, in which brackets are not markup."""
    found = _PipeTolerantConsole(
        markup=False, emoji=False, highlight=False, stderr=stderr
    )
    found.push_render_hook(_PlainHook())
    return found


out, err = console(), console(stderr=True)

IS_MAIN_PROCESS = os.environ.get("RANK", "0") == "0"
"""Whether this process prints: the only one, or the first that torchrun started."""


def notice(line: str) -> None:
    """Prints a line to the error stream, in addition to the command's output."""
    if IS_MAIN_PROCESS:
        err.print(line, soft_wrap=True)


def allow_any_character() -> None:
    """Lets the terminal show characters that its encoding lacks, as escapes."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def _stop_on_signals() -> Iterator[None]:
    """A context in which Ctrl-C and SIGTERM raise KeyboardInterrupt, once.

    The exception holds the exit code. A second signal changes nothing: the work is
    still saved. A third signal ends the process at once, and keeps what is saved.
    """
    received: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt(128 + number)
        if len(received) > 2:
            os._exit(128 + number)
        os.write(2, b"Stopping and saving; a third signal stops without saving.\n")

    numbers = [signal.SIGINT, signal.SIGTERM]
    on_main = threading.current_thread() is threading.main_thread()
    # With several processes there are no handlers: the processes end each other by
    # signals, and with handlers they would wait for each other. And only the main
    # thread may set handlers.
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 or not on_main:
        numbers = []
    before = {
        number: signal.signal(number, stop)
        for number in numbers
        # A process in the background may have been started to ignore Ctrl-C.
        if signal.getsignal(number) != signal.SIG_IGN
    }
    try:
        yield
    finally:
        if not received:  # otherwise a signal could interrupt the end of the process
            for number, handler in before.items():
                signal.signal(number, handler)


@contextlib.contextmanager
def interruptible(console: Console, sentence: str) -> Iterator[None]:
    """A context or decorator that ends an interrupted command with a sentence."""
    try:
        with _stop_on_signals():
            yield
    except KeyboardInterrupt as stopped:
        console.print(f"Interrupted: {sentence}", soft_wrap=True)
        raise typer.Exit(stop_code(stopped)) from None


def stop_code(stopped: KeyboardInterrupt) -> Any:
    """The exit code: 130 after Ctrl-C, 143 after SIGTERM."""
    return stopped.args[0] if stopped.args else 130
