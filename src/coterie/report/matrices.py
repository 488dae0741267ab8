"""Matrices of clients: who learns from whom over time, and who is near whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from ..checks import InputError
from ..records import Records
from ..scores.axes import Axis, axis_of, in_seconds
from ..scores.finals import CROWD, is_crowd, labels_of, local_label, sort_by_cluster
from ..scores.summaries import favourite_of, ranking
from ..similarity.distances import Distances
from ..similarity.partners import NEAR, UNDECIDED, classify_pairs, gap_threshold
from ..types import ALONE
from .figures import network
from .html import render
from .styles import (
    LABELLED,
    PlotSpec,
    client_ticks,
    cluster_runs,
    colour_bar,
    escape,
    finish,
    heading,
    merge_specs,
    row_of,
    styles_of,
    tick_names,
)
from .tables import partner_counts, reliability_of

_PIXELS = 400_000
"""The most matrix entries shown per algorithm, all snapshots and seeds together."""

_GROUPS = 20
"""The most groups with a row each, if there are too many clients for matrices."""

_LINKS = {
    NEAR: ("near, supported by the data", "circle", "#D55E00"),
    UNDECIDED: ("undecided", "x-thin-open", "#CC79A7"),
}


def collaboration(
    records: Records, algorithm: str | None = None, seed: int | None = None
) -> go.Figure:
    """One algorithm's collaboration matrix over time, with a slider and a play button.

    Row i shows from whom client i learns. If there are many snapshots, the figure shows
    some of them, evenly spaced. The colour scale ends at the largest weight between two
    different clients with this seed, so that a heavy diagonal hides nothing. By
    default, the figure shows the first algorithm and seed with snapshots.

    Raises:
        InputError: without snapshots, or with more than CROWD clients.
    """
    keys = [key for key in records.weights if algorithm in (None, key[0])]
    if not keys:
        raise InputError(f"there are no collaboration matrices of {algorithm!r}.")
    if is_crowd(records):
        raise InputError(f"matrices of more than {CROWD} clients are not drawn.")
    label = keys[0][0]
    seeds = [own for other, own in keys if other == label]
    seed = seeds[0] if seed is None else seed
    if seed not in seeds:
        raise InputError(f"`seed` must be one of {seeds} of {label!r}, got {seed!r}.")
    clients = sort_by_cluster(records.clients[records.clients["seed"] == seed])
    rows = np.searchsorted(np.sort(clients["client"]), clients["client"])
    count = len(records.weights[label, seed].rounds)
    kept = shown_snapshots(count, len(clients), len(seeds))
    rounds = records.weights[label, seed].rounds[kept]
    matrices = records.weights[label, seed].matrices[kept][:, rows][:, :, rows]
    names = [escape(records.name_of(client)) for client in clients["client"]]
    ticks = {"showgrid": False, "zeroline": False, "constrain": "domain"}
    texts = tick_names(records, clients["client"], 16)
    if len(clients) <= LABELLED:
        ticks |= {"tickvals": list(range(len(clients))), "tickfont": {"size": 10}}
        ticks |= {"ticktext": texts}
    else:
        ticks |= {"showticklabels": False, "ticks": ""}
    angle = -60 if records.names else 0
    letters = max(map(len, texts)) if records.names else 0
    times = [str(int(t)) for t in rounds]
    looks = slider(times, axis_of(records), letters)
    # Without names below the squares, the title would overlap them.
    title = "learns from" if len(clients) <= LABELLED else ""
    across = ticks | {"title": {"text": title}, "tickangle": angle}
    down = ticks | {"title": {"text": "client"}, "autorange": "reversed"}
    axes = {"xaxis": across, "yaxis": down | {"scaleanchor": "x"}}
    looks |= {"shapes": cluster_lines(clients), **merge_specs(CATEGORIES, axes)}
    frames = [
        {"data": [{"type": "heatmap", "z": matrix.astype(np.float32)}], "name": t}
        for t, matrix in zip(times, matrices, strict=True)
    ]
    traces = [heat_map(matrices, names)]
    title = f"Who learns from whom: {heading(label)}, seed {seed}"
    return finish(traces, looks, title, 660, menu=True, frames=frames)


def partners(records: Records) -> go.Figure:
    """The mean number of partners per client over time.

    If true clusters are known, solid lines count partners inside the client's own
    cluster, and dotted lines count partners outside.
    """
    table, axis = partner_counts(records), axis_of(records)
    known = bool(table["inside"].notna().any())
    kinds = {"inside": "solid", "outside": "dot"} if known else {"all": "solid"}
    traces = []
    for label, style in styles_of(records).items():
        mine = table[table["algorithm"] == label]
        for kind, dash in kinds.items() if len(mine) else ():
            trace = {
                "type": "scatter",
                "x": axis.period * mine["round"].to_numpy(),
                "y": mine[kind].to_numpy(),
                "mode": "lines+markers",
                "name": escape(label) + (f", {kind}" if known else ""),
                "line": {"color": style.colour, "dash": dash, "width": 2},
                "marker": {"size": 5},
            }
            traces.append(trace)
    down = {"title": {"text": "partners per client"}, "rangemode": "tozero"}
    looks = {"xaxis": {"title": {"text": axis.title}}, "yaxis": down}
    return finish(traces, looks, "Number of partners", 400)


def _colours(title: str) -> PlotSpec:
    """A colour scale that is white at 0 and then darkens."""
    return {
        "zmin": 0,
        "colorscale": [[0, "#ffffff"], [0.5, "#6baed6"], [1, "#08306b"]],
        "colorbar": colour_bar(title),
    }


CATEGORIES = {"xaxis": {"type": "category"}, "yaxis": {"type": "category"}}
"""The layout of a heat map. With it, plotly reads names as words, even if numeric."""


def heat_map(matrices: np.ndarray, names: list[str]) -> PlotSpec:
    """A heat map of the last matrix, with a colour scale that fits all matrices."""
    away = matrices[:, ~np.eye(len(names), dtype=bool)]
    largest = float(np.nanmax(away, initial=0.0))
    trace = {
        "type": "heatmap",
        "x": names,
        "y": names,
        "z": matrices[-1].astype(np.float32),
        "zmax": largest if largest > 0 else 1,
        "hovertemplate": "%{y} learns from %{x}<br>weight %{z:.4f}<extra></extra>",
    }
    return trace | _colours("weight")


def names_on_both_axes(names: list[str]) -> PlotSpec:
    """A layout with the clients of a matrix on both axes, from the top down."""
    ticks = client_ticks(names, single=True)
    rows = ticks | {"autorange": "reversed", "tickangle": 0}
    return {"xaxis": ticks, "yaxis": rows}


def shown_snapshots(count: int, n: int, seeds: int) -> np.ndarray:
    """Which of `count` snapshots of n clients to show: also the first and the last."""
    most = int(np.clip(_PIXELS // (n**2 * seeds), 4, 60))
    return np.unique(np.linspace(0, count - 1, min(count, most)).round().astype(int))


def slider(names: list[str], axis: Axis, letters: int) -> dict[str, object]:
    """A layout with a slider over frames, named by rounds, and a button to play them.

    The slider leaves room for tick names of up to `letters` letters.
    """
    if len(names) < 2:
        return {}
    still = {"mode": "immediate", "transition": {"duration": 0}}
    jump = still | {"frame": {"duration": 0, "redraw": True}}
    play = still | {"frame": {"duration": 400, "redraw": True}}
    labels = [
        in_seconds(axis.place(int(name))) if axis.has_clock else name for name in names
    ]
    steps = [
        {"label": label, "method": "animate", "args": [[name], jump]}
        for label, name in zip(labels, names, strict=True)
    ]
    buttons: list[dict[str, object]] = [
        {"label": "Play", "method": "animate", "args": [names, play]},
        {"label": "Pause", "method": "animate", "args": [[None], jump]},
    ]
    line = {
        "steps": steps,
        "active": len(names) - 1,
        "currentvalue": {"prefix": "virtual time " if axis.has_clock else "round "},
        "pad": {"t": 60 + 4 * letters},
    }
    menu = row_of(buttons) | {"pad": {"b": 6}, "showactive": False}
    return {"sliders": [line], "updatemenus": [menu]}


def cluster_lines(table: pd.DataFrame) -> list[dict[str, object]]:
    """Shapes for the boundaries of clusters on a matrix."""
    shapes: list[dict[str, object]] = []
    for _, first, _ in cluster_runs(table)[1:]:
        place = first - 0.5
        looks = {"type": "line", "line": {"color": "#D55E00", "width": 1.5}}
        across = {"x0": place, "x1": place, "y0": 0, "y1": 1, "yref": "y domain"}
        down = {"y0": place, "y1": place, "x0": 0, "x1": 1, "xref": "x domain"}
        shapes += [looks | {"xref": "x"} | across, looks | {"yref": "y"} | down]
    return shapes


def graph_section(records: Records) -> Markup:
    """The section about the graph, or nothing if the study has none."""
    if records.graph.empty:
        return Markup()
    edges = records.graph[records.graph["seed"] == records.graph["seed"].min()]
    count = pd.concat([edges["v"], edges["w"]]).value_counts()
    return render(
        "graph.html",
        family=records.study.get("graph", {}).get("edges", ""),
        clients=len(count),
        edges=len(edges),
        neighbours=(int(count.min()), count.mean(), int(count.max())),
        drawn=network(records),
    )


def partners_section(records: Records) -> Markup:
    """The section on who learned with whom."""
    told = {label for label, _ in [*records.weights, *records.groups]}
    labels = [label for label in labels_of(records) if label in told]
    if not labels:
        return render("partners.html", labels=[])
    last = partner_counts(records).groupby("algorithm").last().loc[labels]
    known, crowd = bool(last["inside"].notna().any()), is_crowd(records)
    columns = ["all", "inside", "outside"] if known else ["all"]
    return render(
        "partners.html",
        labels=labels,
        axis=axis_of(records),
        ranked=ranking(last["all"], 1),
        known=known,
        clustered=bool((records.clients["cluster"] >= 0).any()),
        rows=[
            [str(label), *(f"{row[name]:.1f}" for name in columns)]
            for label, row in last.iterrows()
        ],
        most=CROWD,
        groups=[_groups_by_size(records, label) for label in labels] if crowd else [],
        matrices=None if crowd else _matrices(records, labels),
        drawn=partners(records),
    )


class LargestGroups(NamedTuple):
    """An algorithm's groups at the end with one seed, the largest first."""

    label: str
    seed: int
    rows: list[list[str]]


def _groups_by_size(records: Records, label: str) -> LargestGroups | None:
    """The largest groups of an algorithm, or None if it has no groups."""
    seeds = sorted(seed for name, seed in records.groups if name == label)
    if not seeds:
        return None
    found = records.groups[label, seeds[0]]
    member, uses = found.member[-1], found.uses[-1]
    names, sizes = np.unique(member[member >= 0], return_counts=True)
    order = np.argsort(-sizes, kind="stable")
    rows = []
    for number, place in enumerate(order[:_GROUPS], 1):
        here = member == names[place]
        use = [int((here & (uses == kind)).sum()) for kind in (names[place], ALONE)]
        rows.append([str(number), f"{sizes[place]:,}", *(f"{k:,}" for k in use)])
    rest = order[_GROUPS:]
    if len(rest):
        here = np.isin(member, names[rest])
        use = [int((here & of).sum()) for of in (uses == member, uses == ALONE)]
        numbers = (int(sizes[rest].sum()), *use)
        rows.append([f"{len(rest):,} more", *(f"{k:,}" for k in numbers)])
    return LargestGroups(label, seeds[0], rows)


class Matrices(NamedTuple):
    """Figures of all algorithms and seeds."""

    labels: list[str]
    seeds: list[int]
    first: int  # the algorithm that is shown at the beginning
    figures: list[list[go.Figure | None]]  # by algorithm and seed; None: not recorded


def _matrices(records: Records, labels: list[str]) -> Matrices:
    local, first = local_label(records), labels[0]
    # Training alone comes last, because its matrix says the least.
    labels = sorted(labels, key=lambda a: a == local)
    if labels != [local]:
        # The algorithm of the figures above, if it has a matrix.
        first = next((a for a in labels if a == favourite_of(records)), labels[0])
    seeds = sorted({seed for _, seed in records.weights})
    figures = [
        [
            collaboration(records, label, seed)
            if (label, seed) in records.weights
            else None
            for seed in seeds
        ]
        for label in labels
    ]
    return Matrices(labels, seeds, labels.index(first), figures)


def similarity_map(
    distances: Distances,
    threshold: float | None = None,
    *,
    confidence: float = 0.95,
    names: Sequence[str] | None = None,
) -> go.Figure:
    """Distances of all pairs as a heat map, with marks on near and undecided pairs.

    The data support that pairs without a mark are far apart.

    Args:
        distances: squared, with their errors.
        threshold: limit of squared distances; None takes `gap_threshold`.
        confidence: the confidence of one decision, see `classify_pairs`.
        names: the names of the clients; None numbers them.
    """
    n = len(distances.squared)
    names = [str(i) for i in range(n)] if names is None else list(names)
    if len(names) != n:
        raise InputError(f"`names` must have {n} entries, got {len(names)}.")
    if threshold is None:
        threshold = gap_threshold(distances)
    verdict = classify_pairs(distances, threshold, confidence=confidence).cpu().numpy()
    squared = distances.squared.double().cpu().numpy()
    error = distances.error.double().cpu().numpy()
    shown = [escape(name) for name in names]
    words = np.array([[(a, b) for b in shown] for a in shown], dtype=object)
    numbers = np.stack([squared, error], 2).astype(object)
    heat = {
        "type": "heatmap",
        "z": np.sqrt(squared.clip(min=0)),
        "customdata": np.concatenate([words, numbers], 2),
        "hovertemplate": "%{customdata[0]} and %{customdata[1]}<br>squared distance "
        "%{customdata[2]:.3g} ± %{customdata[3]:.2g}<extra></extra>",
    }
    traces = [heat | _colours("distance")]
    for kind, (label, symbol, colour) in _LINKS.items():
        row, column = ((verdict == kind) & ~np.eye(n, dtype=bool)).nonzero()
        look = {"symbol": symbol, "color": colour, "size": max(3, min(9, 300 // n))}
        if symbol.endswith("open"):
            look["line"] = {"width": 1.5}
        trace = {
            "type": "scatter",
            "x": column,
            "y": row,
            "mode": "markers",
            "marker": look,
            "name": f"{label} ({len(row) // 2} pairs)",
            "hoverinfo": "skip",
        }
        traces.append(trace)
    title = f"Distances, threshold {threshold**0.5:.3g}"
    return finish(traces, names_on_both_axes(shown), title, 560)


def reliability(records: Records) -> go.Figure:
    """A figure of how often final models are right, by confidence in test samples.

    Raises:
        InputError: if no labels were predicted.
    """
    if records.calibration.empty:
        raise InputError("the records have no predictions of labels.")
    line = {"color": "#222222", "width": 1, "dash": "dot"}
    ideal = {"type": "scatter", "x": [0, 1], "y": [0, 1], "mode": "lines"}
    traces: list[PlotSpec] = [ideal | {"line": line, "name": "calibrated"}]
    for label, style in styles_of(records).items():
        bins = reliability_of(records, label)
        trace = {
            "type": "scatter",
            "x": bins["confidence"],
            "y": bins["accuracy"],
            "customdata": bins["count"],
            "mode": "lines+markers",
            "line": {"color": style.colour, "dash": style.dash},
            "name": escape(label),
            "hovertemplate": "sure of %{x:.1%}, right in %{y:.1%}, of %{customdata}",
        }
        traces.append(trace)
    share = {"tickformat": "~%", "range": [0, 1.02]}
    words = {"xaxis": "confidence in the predicted class"}
    words |= {"yaxis": "share that is right"}
    looks = {axis: share | {"title": {"text": text}} for axis, text in words.items()}
    return finish(traces, looks, "Confidence, and how often it is right", 460)
