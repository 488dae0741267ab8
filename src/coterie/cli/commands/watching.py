"""The command `watch`: a live table of a run, or a page that reloads itself."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ...records import replacing
from ...records.files import in_use
from ...records.standings import RunStanding, Standings, standings_of
from ...scores.finals import score_named
from ...scores.words import percent
from ..terminal import err, out, plain, stop_code
from .options import RunFolder

_EVERY = 2.0
"""Seconds between two updates."""

_POINTS = 10
"""The most points of a curve in the terminal."""

_BARS = "▁▂▃▄▅▆▇█"


def watch(
    folder: RunFolder,
    page: Annotated[
        bool, typer.Option("--page", help="Also write RUN/watch.html, which reloads.")
    ] = False,
) -> None:
    """Show the progress of a run until it ends."""
    try:
        _watch(folder, page=page)
    except KeyboardInterrupt as stopped:
        err.print("Stopped watching; the run itself goes on.")
        raise typer.Exit(stop_code(stopped)) from None


def _watch(folder: Path, *, page: bool) -> None:
    """Shows the progress of a run until it ends."""
    standings_of(folder)  # refuses a bad folder before anything is shown
    with Live(console=out, auto_refresh=False, transient=True) as live:
        while True:
            running = in_use(folder)  # asked before we read, so that we miss nothing
            found = standings_of(folder)
            goes_on = running or (running is None and not found.is_finished)
            live.update(_table(found), refresh=True)
            if page:
                _write_page(found, folder, goes_on=bool(goes_on))
            if not goes_on:
                break
            time.sleep(_EVERY)
    out.print(_table(found))
    if page:
        out.print(f"page: {folder / 'watch.html'}", soft_wrap=True)
    err.print(_end(found, folder), soft_wrap=True)


def _end(found: Standings, folder: Path) -> str:
    """A sentence that says why there is nothing more to watch."""
    if not found.is_finished:
        return (
            "Nobody runs it: it stopped before its end. Run the study again to "
            "continue."
        )
    report = folder / "report.html"
    return f"The run has ended{f': see {report}' if report.exists() else ''}."


def _table(found: Standings) -> Group:
    """A table with a row for each algorithm and seed, which cuts no name."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("algorithm", overflow="fold")
    for name in ("seed", "round", f"validation\n{found.measure_words or 'score'}"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("curve", no_wrap=True)
    low, high = _limits(found)
    for cell in found.cells:
        curve = "" if len(cell.scores) < 2 else spark(cell.scores, low, high)
        cells = (str(cell.seed), _round(cell, found), _score(cell, found), curve)
        table.add_row(plain(cell.label), *cells)
    return Group(Text(f"{found.name}: {_heading(found)}"), table)


def _heading(found: Standings) -> str:
    done = sum(cell.round for cell in found.cells)
    share = done / max(1, found.last * len(found.cells))
    way = "higher" if found.higher_is_better else "lower"
    measure = f"; {found.measure_words}, {way} is better" if found.measure else ""
    return f"{percent(share)} of the rounds{measure}"


def _round(cell: RunStanding, found: Standings) -> str:
    if cell.trials_done and not cell.rounds:
        return f"tuning {cell.trials_done}"
    return f"{cell.round}/{found.last}" if cell.rounds else "-"


def _score(cell: RunStanding, found: Standings) -> str:
    if not cell.scores or not found.measure:
        return "-"
    return score_named(found.measure, found.higher_is_better).show(cell.scores[-1])


def _limits(found: Standings) -> tuple[float, float]:
    """The smallest and the largest of all scores, so that curves share one scale."""
    scores = [s for cell in found.cells for s in cell.scores if math.isfinite(s)]
    return (min(scores), max(scores)) if scores else (0.0, 1.0)


def spark(scores: Sequence[float], low: float, high: float) -> str:
    """A curve as a line of bars.

    >>> spark([0.0, 0.5, 1.0, float("nan")], 0.0, 1.0)
    '▁▅█ '
    """
    count = min(len(scores), _POINTS)
    places = [round(j * (len(scores) - 1) / max(1, count - 1)) for j in range(count)]
    return "".join(
        _BARS[_step(scores[j], low, high, len(_BARS) - 1)]
        if math.isfinite(scores[j])
        else " "
        for j in places
    )


def _step(score: float, low: float, high: float, steps: int) -> int:
    """The step from `low` to `high` that is nearest to a score; halves round up."""
    share = (score - low) / (high - low) if high > low else 0.5
    return math.floor(share * steps + 0.5)


def _write_page(found: Standings, folder: Path, *, goes_on: bool) -> None:
    """Replaces watch.html, which reloads itself while the run goes on."""
    with replacing(folder / "watch.html") as file:
        file.write_text(_document(found, folder, goes_on=goes_on), encoding="utf-8")


def _document(found: Standings, folder: Path, *, goes_on: bool) -> str:
    from ...report.html import COLOURS, render

    labels = dict.fromkeys(cell.label for cell in found.cells)
    colours = {a: COLOURS[k % len(COLOURS)] for k, a in enumerate(labels)}
    return render(
        "watch.html",
        room="cli",
        name=found.name,
        heading=_heading(found),
        state="" if goes_on else "ended" if found.is_finished else "stopped",
        reported=(folder / "report.html").exists()
        and found.is_finished
        and not goes_on,
        done=sum(cell.round for cell in found.cells),
        total=max(1, found.last * len(found.cells)),
        measure=found.measure,
        measure_words=found.measure_words,
        picture=_picture(found, colours),
        cells=[
            (colours[c.label], c.label, c.seed, _round(c, found), _score(c, found))
            for c in found.cells
        ],
        reload=round(_EVERY) if goes_on else 0,
    )


class Picture(NamedTuple):
    """Mean validation scores over rounds, in units of the picture."""

    width: int
    height: int
    left: int  # where lines begin, to the right of their numbers
    levels: list[tuple[float, str]]  # height and score of each line
    rounds: list[tuple[float, str]]  # place and number of each round on the axis
    curves: list[tuple[str, str]]  # colour and points, for each algorithm and seed


def _picture(found: Standings, colours: dict[str, str]) -> Picture | None:
    """The curves of all algorithms and seeds; None if there are none yet."""
    if not any(len(cell.scores) > 1 for cell in found.cells):
        return None
    width, height, left, below = 900, 320, 70, 40
    low, high = _limits(found)
    span, score = high - low or 1.0, score_named(found.measure, found.higher_is_better)

    def x(t: float) -> float:
        return round(left + (width - left - 20) * t / max(1, found.last), 1)

    def y(value: float) -> float:
        return round(12 + (height - below - 12) * (1 - (value - low) / span), 1)

    shares = (0.0, 0.25, 0.5, 0.75, 1.0)
    values = [low + share * span for share in shares]
    rounds = [share * found.last for share in shares]
    curves = [
        " ".join(
            f"{x(t)},{y(value)}"
            for t, value in zip(cell.rounds, cell.scores, strict=True)
            if math.isfinite(value)
        )
        for cell in found.cells
    ]
    return Picture(
        width,
        height,
        left,
        [(y(value), score.show(value)) for value in values],
        [(x(t), f"{t:.0f}") for t in rounds if t == round(t)],
        [
            (colours[c.label], points)
            for c, points in zip(found.cells, curves, strict=True)
        ],
    )
