"""The progress of a study: a bar on a terminal, lines in a file."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from rich.text import Text

from ..privacy.mechanisms.noise import SIMULATION_ONLY
from ..scores.finals import score_named
from ..study import experiment
from .terminal import plain

_SECONDS = 10.0
"""Seconds between lines without a terminal; the end of an algorithm always has one."""

Update = Callable[[int, int, str, bool, bool], None]
"""Takes the work that is done, all work, and a text; then whether an algorithm has
ended, and whether it was trained before."""


@contextlib.contextmanager
def study_progress(
    console: Console, name: str, *, quiet: bool = False
) -> Iterator[Callable[[experiment.Progress], None]]:
    """A context that shows progress; its value is to be called after every round."""
    with _display(console, name, quiet=quiet) as update:
        last = ("", 0, "")  # algorithm, seed and text of the last score

        def show(p: experiment.Progress) -> None:
            nonlocal last
            if p.score is not None:
                last = (p.label, p.seed, _score_text(p, p.score))
            score = last[2] if last[:2] == (p.label, p.seed) else ""
            when = "" if p.time is None else f", virtual time {p.time:.4g} s"
            if p.epsilon is not None:
                only = f" ({SIMULATION_ONLY})" * (p.noise_source == "seed")
                when += f", epsilon {p.epsilon:.3g}{only}"
            text = f"{p.label}, seed {p.seed}: round {p.t} of {p.rounds}{when}{score}"
            update(p.done, p.total, text, p.t == p.rounds, p.reused)

        yield show


def _score_text(p: experiment.Progress, score: float) -> str:
    """The score in the units of the report, and whether higher or lower is better."""
    shown = score_named(p.measure, p.higher_is_better).show(score)
    way = "higher" if p.higher_is_better else "lower"
    return f", validation {p.measure_words or p.measure} {shown} ({way} is better)"


@contextlib.contextmanager
def plain_progress(
    console: Console, name: str, *, quiet: bool = False, unit: str = "rounds"
) -> Iterator[Callable[[int, int], None]]:
    """A context that shows progress; its value is to be called with (done, total)."""
    with _display(console, name, quiet=quiet, unit=unit) as update:
        yield lambda done, total: update(done, total, name, False, False)


@contextlib.contextmanager
def _display(
    console: Console, name: str, *, quiet: bool, unit: str = "rounds"
) -> Iterator[Update]:
    if quiet:
        yield lambda done, total, text, ends, reused: None
    elif console.is_terminal:
        with _bar(console, name) as update:
            yield update
    else:
        yield _lines(console, unit)


@contextlib.contextmanager
def _bar(console: Console, name: str) -> Iterator[Update]:
    """A bar below a text. The text has its own lines, so that no name is cut.

    The bar appears at the first round, so that an early error is easy to read.
    """
    bar = Progress(BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    task = bar.add_task(name, total=None)
    live = Live(console=console)

    def update(done: int, total: int, text: str, ends: bool, reused: bool) -> None:
        bar.update(task, completed=done, total=total)
        live.update(Group(Text(plain(text), overflow="fold"), bar))
        live.start()

    try:
        yield update
    finally:
        if live.is_started:
            live.stop()


def _lines(console: Console, unit: str) -> Update:
    """Prints a line when an algorithm ends, and every few seconds."""
    before = printed = time.monotonic()
    rounds, seconds = 0, 0.0  # of training, without what was trained before

    def update(done: int, total: int, text: str, ends: bool, reused: bool) -> None:
        nonlocal before, printed, rounds, seconds
        now = time.monotonic()
        if not reused:
            rounds, seconds = rounds + 1, seconds + now - before
        before = now
        if ends or now - printed >= _SECONDS:
            line = f"{text}; {done} of {total} {unit} in all"
            if rounds:
                line += f", {time_text(seconds / rounds * (total - done))} left"
            console.print(line, soft_wrap=True)
            printed = now

    return update


def time_text(seconds: float) -> str:
    """A time in words.

    >>> time_text(0.2), time_text(75), time_text(600), time_text(9000)
    ('about 0 s', 'about 75 s', 'about 10 min', 'about 2.5 h')
    """
    if seconds < 100:
        return f"about {seconds:.0f} s"
    if seconds < 6000:
        return f"about {seconds / 60:.0f} min"
    return f"about {seconds / 3600:.1f} h"
