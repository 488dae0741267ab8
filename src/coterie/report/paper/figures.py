"""The main figures of a report as PDF files for a paper.

The figures are vector graphics in the width of a column, with embedded TrueType fonts.
People with the common kinds of colour blindness can tell their colours apart. The same
records give the same bytes. matplotlib draws the figures, because it needs no browser.
plotly, which draws the figures of the report, needs Chrome to write a PDF.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from ...checks import InputError, number
from ...records import Records
from ...records.files import file_name, writing
from ...scores.axes import axis_of
from ...scores.caching import with_cache
from ...scores.finals import (
    Score,
    annotate_label,
    cluster_name,
    is_crowd,
    labels_of,
    local_label,
    population,
    runs_of,
    score_of,
    seed_means,
    sort_by_cluster,
)
from ...scores.gains import gain_of
from ..styles import LABELLED, cluster_runs, styles_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_LOOKS = {
    "font.family": ["STIXGeneral", "DejaVu Sans"],
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # many conferences refuse Type 3 fonts
    "text.parse_math": False,  # a label may have dollar signs
    "text.usetex": False,
}

_DASHES = {"solid": "-", "dash": (0, (4, 2)), "dot": ":", "dashdot": "-."}
_MARKERS = "osD^vPX*"


def write_figures(
    records: Records,
    folder: Path | str,
    *,
    width: float = 3.25,
    overwrite: bool = False,
) -> list[Path]:
    """The paths of the PDF files of the main figures.

    `curves.pdf` has the mean test score by round. `gains-LABEL.pdf` has the gain of
    each client over training alone, for every algorithm except `local`.

    Args:
        records: the records of a run, finished or not.
        folder: the folder for the files; it may exist.
        width: the width of the figures, in inches.
        overwrite: whether files of the same names may be replaced.

    Raises:
        InputError: without results, without matplotlib, or if a file exists.
    """
    number("width", width, at_least=2, at_most=20)
    if records.metrics.empty:
        raise InputError("the records have no results yet, so there are no figures.")
    records, folder = with_cache(records), Path(folder)
    local = local_label(records)
    compared = [a for a in labels_of(records) if a != local] if local else []
    draw: dict[str, Callable[[Figure], None]] = {
        "curves": functools.partial(draw_curves, records)
    }
    for label in compared:
        name = f"gains-{file_name(label, 0).removesuffix('-0')}"
        draw[name] = functools.partial(draw_gains, records, label)
    files = {name: folder / f"{name}.pdf" for name in draw}
    for path in files.values():
        if path.exists() and not overwrite:
            raise InputError(
                f"{path} exists: name another folder, or use --force to replace it."
            )
    with _matplotlib() as figure:
        folder.mkdir(parents=True, exist_ok=True)
        for name, path in files.items():
            made = figure(figsize=(width, 0.62 * width), layout="constrained")
            draw[name](made)
            _save(made, path)
    return list(files.values())


@contextmanager
def _matplotlib() -> Iterator[type[Figure]]:
    """The class of figures of matplotlib, with our style until the context ends."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "figures for a paper need matplotlib: pip install coterie[figures]."
        ) from None
    with matplotlib.rc_context(_LOOKS):
        yield Figure


def _save(figure: Figure, path: Path) -> None:
    """Writes a PDF without the time and place where it was made."""
    about = dict.fromkeys(("CreationDate", "Creator", "Producer"))
    with writing(path) as new, new.open("wb") as file, warnings.catch_warnings():
        # A name may have letters that the fonts lack; they are drawn as boxes.
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        figure.savefig(file, format="pdf", metadata=about)


def draw_curves(records: Records, figure: Figure) -> None:
    """Draws the mean test score over clients and seeds, by round or virtual time.

    Bands reach from the lowest to the highest seed.
    """
    axes, axis, score = figure.add_subplot(), axis_of(records), score_of(records)
    unit = score.unit
    for place, (label, style) in enumerate(styles_of(records).items()):
        means = seed_means(runs_of(records, label), score.column) * unit
        x = [axis.place(t) for t in means.index]
        shown = annotate_label(label, label in records.oracles)
        axes.plot(
            x,
            means.mean(axis=1, skipna=False),
            label=shown,
            color=style.colour,
            linestyle=_DASHES[style.dash],
            linewidth=1.2,
            marker=_MARKERS[place % len(_MARKERS)],
            markersize=3,
            # Marks of different lines are at different places.
            markevery=(place % 5, max(1, len(x) // 6)),
        )
        if means.shape[1] > 1:
            low, high = means.min(axis=1), means.max(axis=1)
            axes.fill_between(x, low, high, color=style.colour, alpha=0.15, linewidth=0)
    axes.set_xlabel(axis.title)
    axes.set_ylabel(_score_title(score))
    axes.margins(x=0.02)
    _legend_above(figure, axes)


def _score_title(score: Score) -> str:
    """The title of an axis of scores."""
    return f"{score.words} (%)" if score.ticks else score.axis


def _legend_above(figure: Figure, axes: Axes) -> None:
    """A legend above the axes, for which the figure grows."""
    handles, labels = axes.get_legend_handles_labels()
    width, height = figure.get_size_inches()
    each = 0.42 + 0.047 * max(map(len, labels))  # inches
    columns = max(1, min(len(labels), int(width / each)))
    figure.set_size_inches(width, height + 0.15 * -(-len(labels) // columns))
    figure.legend(
        handles,
        labels,
        loc="outside upper left",
        ncols=columns,
        handlelength=2.2,
        columnspacing=1.0,
        borderpad=0.1,
        labelspacing=0.25,
    )


def draw_gains(records: Records, label: str, figure: Figure) -> None:
    """Draws how much better each client is than alone, with 95 % intervals.

    Clients are sorted by true cluster, and inside each cluster by their gain. A bar is
    faint if its interval contains 0. Above CROWD clients, a line has the sorted gains
    and a band their intervals. All algorithms have the same vertical scale.
    """
    axes, score = figure.add_subplot(), score_of(records)
    colour, gain = styles_of(records)[label].colour, gain_of(records, label)
    table = sort_by_cluster(population(records))
    group = (table["cluster"] != table["cluster"].shift()).cumsum()
    means = gain.clients["mean"].reindex(table["client"]).to_numpy()
    table = table.iloc[np.lexsort((-means, group))].reset_index(drop=True)
    shown = gain.clients.reindex(table["client"])
    shown[["mean", "low", "high"]] *= score.unit
    if is_crowd(records):
        ranked = shown.sort_values("mean", ascending=False)
        place = np.arange(1, len(ranked) + 1)
        axes.plot(place, ranked["mean"], color=colour, linewidth=1.2)
        low, high = (ranked[end].where(np.isfinite(ranked[end])) for end in _ENDS)
        axes.fill_between(place, low, high, color=colour, alpha=0.2, linewidth=0)
        axes.set_xlabel("clients, by gain")
        pad = 4.0
    else:
        _draw_bars(axes, shown, colour)
        pad = _name_clients(axes, records, table, figure.get_size_inches()[0])
    axes.axhline(0, color="#222222", linewidth=0.6)
    axes.set_ylabel(score.gain)
    axes.set_ylim(*_gain_range(records))
    more, less, unsure = gain.counts().values()
    axes.set_title(
        f"{label}: {more} gain, {less} lose, {unsure} not sure", loc="left", pad=pad
    )


_ENDS = ("low", "high")


def _draw_bars(axes: Axes, shown: pd.DataFrame, colour: str) -> None:
    """Draws a bar for each row, with a whisker where the interval is known."""
    place = np.arange(len(shown))
    sure = shown["verdict"].isin(["gains", "loses"]).to_numpy()
    for some, opacity in ((sure, 1.0), (~sure, 0.35)):
        axes.bar(place[some], shown["mean"][some], 0.75, color=colour, alpha=opacity)
    known = np.isfinite(shown[["mean", *_ENDS]].to_numpy()).all(axis=1)
    axes.vlines(
        place[known],
        shown["low"][known],
        shown["high"][known],
        color="#333333",
        linewidth=0.7,
    )


def _name_clients(
    axes: Axes, records: Records, table: pd.DataFrame, width: float
) -> float:
    """Names clients below the axes if there is room, and clusters above the axes.

    It returns the room between the axes and their title, in points.
    """
    names = [records.short_name(int(client)) for client in table["client"]]
    names = [name if len(name) <= 16 else f"{name[:15]}…" for name in names]
    axes.grid(False, axis="x")
    axes.set_xlabel("client")
    room = width / max(1, len(names))
    if len(names) <= LABELLED and room > 0.13:
        upright = max(map(len, names)) * 0.07 > room
        axes.set_xticks(range(len(names)), names, rotation=90 if upright else 0)
    else:
        axes.set_xticks([])
    runs = cluster_runs(table)
    for _, first, _ in runs[1:]:
        axes.axvline(first - 0.5, color="#777777", linewidth=0.6, linestyle=":")
    if 1 < len(runs) <= 6:
        for cluster, first, last in runs:
            axes.annotate(
                cluster_name(cluster),
                ((first + last) / 2, 1),
                xycoords=axes.get_xaxis_transform(),
                ha="center",
                va="bottom",
                color="#555555",
                fontsize=7,
            )
        return 11.0
    return 4.0


def _gain_range(records: Records) -> tuple[float, float]:
    """The vertical range that holds the gains and intervals of all algorithms."""
    local, unit = local_label(records), score_of(records).unit
    tables = [gain_of(records, a).clients for a in labels_of(records) if a != local]
    values = np.concatenate([t[["mean", *_ENDS]].to_numpy().ravel() for t in tables])
    values = np.append(values[np.isfinite(values)] * unit, 0.0)
    room = 0.08 * max(float(np.ptp(values)), 1e-9)
    return float(values.min()) - room, float(values.max()) + room
