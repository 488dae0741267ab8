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
    """Shows a bar meanwhile; gives the function to call after every round."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, disable=quiet) as bar:
        task = bar.add_task(name, total=None)

        def show(p: experiment.Progress) -> None:
            score = "" if p.score is None else f" validation {p.score:.3f}"
            text = f"{p.label}, seed {p.seed}{score}"
            bar.update(task, completed=p.done, total=p.total, description=text)

        yield show
