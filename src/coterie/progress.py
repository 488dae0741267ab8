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

from . import experiment


@contextlib.contextmanager
def study_progress(
    console: Console, name: str, *, quiet: bool = False
) -> Iterator[Callable[[experiment.Progress], None]]:
    """Shows a bar meanwhile; gives the function to call after every round.

    The bar begins with the first round, so that it is not in the way of mistakes.
    """
    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=quiet,
    )
    task = bar.add_task(name, total=None)

    def show(p: experiment.Progress) -> None:
        bar.start()
        score = "" if p.score is None else f" validation {p.score:.3f}"
        text = f"{p.label}, seed {p.seed}{score}"
        bar.update(task, completed=p.done, total=p.total, description=text)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()
