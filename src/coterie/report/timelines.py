"""Figures in virtual time: when clients computed, and the delays of answers."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..checks import InputError
from ..records import Records
from ..scores.finals import labels_of
from ..scores.words import percent
from .styles import (
    PlotSpec,
    bold,
    button,
    escape,
    finish,
    heading,
    menu_of,
    merge_specs,
    panel,
    panels,
    styles_of,
    tick_names,
)
from .waiting import (
    Timeline,
    delay_counts,
    delayed_labels,
    idle_share,
    mean_delay,
    timeline_of,
)

_IDLE = "#e9e9e9"
_BINS = 60
_WIDE = 3
"""A delay above this multiple of the number of clients needs a logarithmic axis."""


def timeline(records: Records) -> go.Figure:
    """When each client computed, at the beginning of a run, one view per algorithm.

    Each row is a client, with the slowest client at the top. A bar is one computation;
    in a gap between bars, the client was idle. All views have the same clients and
    seconds (see `waiting.timeline_of`). The first view shows the algorithm with the
    most idle time.

    Raises:
        InputError: if too little was recorded.
    """
    drawn = timeline_of(records)
    if drawn is None:
        raise InputError("the records do not say when clients computed.")
    there = set(drawn.spans["algorithm"])
    labels = [label for label in labels_of(records) if label in there]
    idle = {label: idle_share(records, label) for label in labels}
    first = max(labels, key=lambda a: idle[a] if np.isfinite(idle[a]) else -1)
    traces, buttons, titles = [_idle_rows(drawn)], [], []
    for label in labels:
        traces.append(_bars(records, drawn, label) | {"visible": label == first})
        share = idle[label]
        known = f": idle {percent(share)} of the time"
        titles.append(bold(heading(label) + (known if np.isfinite(share) else "")))
        seen = [True, *(other == label for other in labels)]
        buttons.append(button(label, {"visible": seen}, {"title.text": titles[-1]}))
    place = labels.index(first)
    rows = len(drawn.clients)
    across = {"title": {"text": "virtual seconds"}, "range": [0, drawn.until]}
    down = {
        "title": {"text": "client"},
        "tickvals": list(range(rows)),
        "ticktext": tick_names(records, drawn.clients),
        "range": [rows - 0.4, -0.6],
        "showgrid": False,
        "zeroline": False,
    }
    looks: PlotSpec = {"barmode": "overlay", "bargap": 0.15, "yaxis": down}
    looks["xaxis"] = across | {"showgrid": False}
    if len(labels) > 1:
        looks["updatemenus"] = [menu_of(buttons, active=place)]
    height = 230 + 17 * rows
    return finish(traces, looks, titles[place], height, menu=len(labels) > 1)


def _idle_rows(drawn: Timeline) -> PlotSpec:
    """Bars for the whole time of each client, behind its computations."""
    return {
        "type": "bar",
        "x": [drawn.until] * len(drawn.clients),
        "y": list(range(len(drawn.clients))),
        "orientation": "h",
        "marker": {"color": _IDLE},
        "name": "idle",
        "hoverinfo": "skip",
        "showlegend": True,
    }


def _bars(records: Records, drawn: Timeline, label: str) -> PlotSpec:
    """Bars for the computations of an algorithm."""
    mine = drawn.spans[drawn.spans["algorithm"] == label]
    place = {client: row for row, client in enumerate(drawn.clients)}
    names = [escape(records.name_of(int(client))) for client in mine["client"]]
    return {
        "type": "bar",
        "base": mine["begin"].to_numpy(),
        "x": (mine["end"] - mine["begin"]).to_numpy(),
        "y": mine["client"].map(place).to_numpy(),
        "orientation": "h",
        "marker": {
            "color": styles_of(records)[label].colour,
            "line": {"color": "#ffffff", "width": 0.7},
        },
        "name": "computes",
        "customdata": mine[["begin", "end"]].to_numpy(float),
        "hovertext": names,
        "hovertemplate": "%{hovertext}: %{customdata[0]:.4g} to %{customdata[1]:.4g} s"
        "<extra></extra>",
        "showlegend": True,
    }


def delays(records: Records) -> go.Figure:
    """The delays of answers, one panel per algorithm that takes late answers.

    A delay is the number of answers that arrived since a client began, including its
    own. Every answer that arrives adds one to the delays of all answers under way, and
    each client has at most one answer under way. So the mean delay is at most the
    number of clients (the dotted line), even if some clients are slow. If some delays
    are far above this line, axes are logarithmic.

    Raises:
        InputError: if no algorithm takes late answers.
    """
    labels = delayed_labels(records)
    if not labels:
        raise InputError("the records have no delays: no algorithm takes late answers.")
    counts = {label: delay_counts(records, label) for label in labels}
    clients = int(records.clients.groupby("seed").size().max())
    largest = int(max(count.index.max() for count in counts.values()))
    wide = largest > _WIDE * clients
    edges = _edges(max(largest, clients), wide=wide)
    shares = {label: _shares(count, edges) for label, count in counts.items()}
    # The mean is marked above the highest bar.
    top = max(float(share.max()) for share in shares.values())
    low = 0.5 * min(float(share[share > 0].min()) for share in shares.values())
    mark = top * (top / low) ** 0.12 if wide else 1.12 * top
    top = top * (top / low) ** 0.24 if wide else 1.24 * top
    titles = [
        f"{heading(label)}<br>mean {mean_delay(count):.1f}, largest "
        f"{count.index.max():,}"
        for label, count in counts.items()
    ]
    traces: list[PlotSpec] = []
    looks = panels(len(labels), min(0.12, 0.4 / len(labels)))
    across, down = _axes(edges, [low, top], wide=wide)
    for row, label in enumerate(labels, start=1):
        number = panel(row)
        both = {f"xaxis{number}": across, f"yaxis{number}": down}
        looks = merge_specs(looks, both)
        colour = styles_of(records)[label].colour
        reach = [low if wide else 0.0, top]
        three = [_histogram(shares[label], edges, colour)]
        three += [_client_line(clients, reach, row)]
        three += [_mean_mark(mean_delay(counts[label]), mark, row)]
        place = {"xaxis": f"x{number}", "yaxis": f"y{number}"}
        traces += [trace | place for trace in three]
    looks["annotations"] = [
        _panel_title(title, looks[f"yaxis{panel(row)}"]["domain"][1])
        for row, title in enumerate(titles, start=1)
    ]
    looks[f"xaxis{panel(len(labels))}"]["title"] = {"text": "delay, in answers"}
    height = 150 + 170 * len(labels)
    return finish(traces, looks, "How late answers arrived", height)


def _panel_title(title: str, height: float) -> PlotSpec:
    """The title of a panel, as an annotation at this height."""
    place = {"x": 0, "xref": "paper", "xanchor": "left", "align": "left"}
    place |= {"y": height, "yref": "paper", "yanchor": "bottom"}
    return {"text": title, "font": {"size": 13}, "showarrow": False, **place}


def _edges(largest: int, *, wide: bool) -> np.ndarray:
    """The edges of bins of whole numbers, of equal widths or (`wide`) equal ratios."""
    if wide:
        return np.unique(np.geomspace(1, largest + 1, _BINS // 2).round())
    width = -(-largest // _BINS)
    return np.arange(1, largest + 1 + width, width)


def _shares(counts: pd.Series, edges: np.ndarray) -> np.ndarray:
    """The share of all answers in each bin."""
    found, _ = np.histogram(counts.index, bins=edges - 0.5, weights=counts)
    return found / found.sum()


def _histogram(shares: np.ndarray, edges: np.ndarray, colour: str) -> PlotSpec:
    lower, upper = edges[:-1], edges[1:]
    words = [
        f"delay {a:.0f}" if b - a == 1 else f"delay {a:.0f} to {b - 1:.0f}"
        for a, b in zip(lower, upper, strict=True)
    ]
    return {
        "type": "bar",
        "x": lower - 0.5,  # whole numbers stand in the middle of their bins
        "y": np.where(shares > 0, shares, np.nan),
        "offset": 0,
        "width": upper - lower,
        "marker": {"color": colour, "line": {"color": "#ffffff", "width": 0.5}},
        "hovertext": words,
        "hovertemplate": "%{hovertext}: %{y:.2%} of the answers<extra></extra>",
        "showlegend": False,
    }


def _client_line(clients: int, reach: list[float], row: int) -> PlotSpec:
    return {
        "type": "scatter",
        "x": [clients, clients],
        "y": reach,
        "mode": "lines",
        "line": {"color": "#222222", "dash": "dot", "width": 2},
        "name": f"number of clients, {clients:,}",
        "legendgroup": "clients",
        "showlegend": row == 1,
        "hoverinfo": "skip",
    }


def _mean_mark(mean: float, height: float, row: int) -> PlotSpec:
    return {
        "type": "scatter",
        "x": [mean],
        "y": [height],
        "mode": "markers",
        "marker": {"symbol": "diamond", "size": 11, "color": "#222222"},
        "name": "mean delay",
        "legendgroup": "mean",
        "showlegend": row == 1,
        "hovertemplate": "mean delay: %{x:.4g}<extra></extra>",
    }


def _axes(
    edges: np.ndarray, reach: list[float], *, wide: bool
) -> tuple[PlotSpec, PlotSpec]:
    """The two axes, which are the same for every algorithm."""
    ends = [float(edges[0]) - 0.5, float(edges[-1]) - 0.5]
    down: PlotSpec = {"tickformat": "~%", "title": {"text": "share of answers"}}
    if wide:
        ends, reach = ([math.log10(v) for v in some] for some in (ends, reach))
        across: PlotSpec = {"type": "log", "tickvals": _decades(float(edges[-1]))}
        down |= {"type": "log", "dtick": 1, "range": reach}
        return across | {"range": ends}, down
    few = {"dtick": 1} if edges[-1] <= 10 else {}
    return few | {"range": ends}, down | {"range": [0, reach[1]]}


def _decades(largest: float) -> list[int]:
    """Round numbers at about equal distances on a logarithmic axis."""
    powers = range(int(math.log10(largest)) + 1)
    return [digit * 10**power for power in powers for digit in (1, 3)]
