"""A bar on the terminal that shows where a study stands."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)

from ..study import experiment
from .terminal import plain


@contextlib.contextmanager
def study_progress(
    console: Console, name: str, *, quiet: bool = False
) -> Iterator[Callable[[experiment.Progress], None]]:
    """Shows a bar meanwhile; gives the function to call after every round.

    The bar begins with the first round, so that it is not in the way of mistakes.
    """
    with _bar(console, name, quiet=quiet) as update:

        def show(p: experiment.Progress) -> None:
            score = "" if p.score is None else f" validation {p.score:.3f}"
            when = "" if p.time is None else f", time {p.time:.4g}"
            update(p.done, p.total, f"{p.label}, seed {p.seed}{when}{score}")

        yield show


@contextlib.contextmanager
def plain_progress(
    console: Console, name: str, *, quiet: bool = False
) -> Iterator[Callable[[int, int], None]]:
    """Shows a bar meanwhile; gives the function to call with what is done of all."""
    with _bar(console, name, quiet=quiet) as update:
        yield lambda done, total: update(done, total, name)


@contextlib.contextmanager
def _bar(
    console: Console, name: str, *, quiet: bool
) -> Iterator[Callable[[int, int, str], None]]:
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet,
    )
    task = bar.add_task(name, total=None)

    def update(done: int, total: int, text: str) -> None:
        bar.start()
        bar.update(task, completed=done, total=total, description=plain(text))

    try:
        yield update
    finally:
        if bar.live.is_started:
            bar.stop()
