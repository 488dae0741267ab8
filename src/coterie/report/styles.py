"""Parts of figures: colours, boxes, boundaries of clusters, menus and layouts."""

from __future__ import annotations

import html
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ..records import Records
from ..scores.finals import cluster_name, labels_of, local_label
from .html import COLOURS, GREY

_DASHES = ("solid", "dash", "dot", "dashdot")
LABELLED = 40  # the most clients that fit as tick labels

PlotSpec = dict[str, Any]
"""A trace or a layout as plotly has it. `finish` validates all of them at once."""


class Style(NamedTuple):
    """The colour and dash of an algorithm in every figure."""

    colour: str
    dash: str

    def faint(self, opacity: float) -> str:
        """The colour with this opacity, as CSS."""
        red, green, blue = (int(self.colour[j : j + 2], 16) for j in (1, 3, 5))
        return f"rgba({red},{green},{blue},{opacity})"


def styles_of(records: Records) -> dict[str, Style]:
    """The style of every algorithm. Training alone is grey."""
    local, styles, used = local_label(records), {}, 0
    for label in labels_of(records):
        if label == local:
            styles[label] = Style(GREY, "dash")
            continue
        lap, place = divmod(used, len(COLOURS))
        styles[label] = Style(COLOURS[place], _DASHES[lap % len(_DASHES)])
        used += 1
    return styles


def escape(text: object) -> str:
    """The text escaped for a figure, because plotly reads names and titles as HTML."""
    return html.escape(str(text), quote=False)


def heading(label: str) -> str:
    """The label escaped and cut to the width of a title."""
    return escape(label if len(label) <= 40 else label[:39] + "…")


def bold(text: str) -> str:
    """The text in bold."""
    return f"<b>{text}</b>"


def wrap_label(label: str) -> list[str]:
    """The label in at most three short lines.

    >>> wrap_label("adaptive (paper's estimator)")
    ["adaptive (paper's", 'estimator)']
    """
    return textwrap.wrap(label, 22, max_lines=3, placeholder=" …") or [label]


def boxes(
    values: dict[str, pd.Series], styles: dict[str, Style], *, dots: bool
) -> tuple[list[PlotSpec], PlotSpec]:
    """Traces of a horizontal box per algorithm, and the vertical axis.

    With `dots`, there is also a dot per client, with its name.
    """
    traces: list[PlotSpec] = []
    for place, (label, series) in enumerate(values.items()):
        finite = series[np.isfinite(series)]
        if finite.empty:
            continue
        low, lower, middle, upper, high = np.quantile(finite, [0, 0.25, 0.5, 0.75, 1])
        box = {"q1": lower, "median": middle, "q3": upper}
        box |= {"lowerfence": low, "upperfence": high, "y": place}
        trace: PlotSpec = {
            "type": "box",
            "orientation": "h",
            "width": 0.6,
            "name": escape(label),
            "line": {"color": styles[label].colour, "width": 1.5},
            "fillcolor": styles[label].faint(0.12),
            "showlegend": False,
        }
        traces.append(trace | {key: [value] for key, value in box.items()})
        if dots:
            # The golden ratio spreads dots evenly, and always in the same way.
            shift = 0.4 * (np.arange(len(finite)) * 0.618034 % 1 - 0.5)
            look = {"color": styles[label].colour, "size": 6, "opacity": 0.7}
            trace = {
                "type": "scatter",
                "x": finite.to_numpy(),
                "y": place + shift,
                "mode": "markers",
                "marker": look,
                "hovertext": [escape(str(name)) for name in finite.index],
                "hovertemplate": "%{hovertext}<br>%{x:.4g}",
                "name": escape(label),
                "showlegend": False,
            }
            traces.append(trace)
    axis = {
        "tickvals": list(range(len(values))),
        "ticktext": ["<br>".join(map(escape, wrap_label(label))) for label in values],
        "range": [len(values) - 0.5, -0.5],
        "showgrid": False,
        "zeroline": False,
    }
    return traces, axis


def panels(count: int, gap: float) -> PlotSpec:
    """The layout of panels on top of each other, with a common horizontal scale."""
    looks: PlotSpec = {}
    height = (1 - gap * (count - 1)) / count
    for row in range(1, count + 1):
        number = panel(row)
        low = (count - row) * (height + gap)
        across: PlotSpec = {"anchor": f"y{number}", "domain": [0, 1]}
        if row < count:
            across |= {"matches": f"x{count}", "showticklabels": False}
        looks[f"xaxis{number}"] = across
        looks[f"yaxis{number}"] = {
            "anchor": f"x{number}",
            "domain": [low, 1 if row == 1 else low + height],
        }
    return looks


def panel(row: int) -> str:
    """The number at the end of the names of a panel's axes, "" for the top panel."""
    return "" if row == 1 else str(row)


def vertical_line(place: float, line: Mapping[str, object], row: int = 1) -> PlotSpec:
    """The shape of a vertical line through a panel."""
    ends = {"x0": place, "x1": place, "xref": f"x{panel(row)}"}
    ends |= {"y0": 0, "y1": 1, "yref": f"y{panel(row)} domain"}
    return {"type": "line", "line": line, **ends}


def cluster_runs(table: pd.DataFrame) -> list[tuple[int, int, int]]:
    """Every cluster with its first and last place among clients sorted by cluster."""
    cluster = table["cluster"].to_numpy()
    places = {c: np.flatnonzero(cluster == c) for c in dict.fromkeys(cluster)}
    return [(int(c), int(own[0]), int(own[-1])) for c, own in places.items()]


def cluster_bounds(table: pd.DataFrame, rows: int = 1) -> PlotSpec:
    """A layout with boundaries and names of clusters, for clients along the x axis."""
    runs = cluster_runs(table)
    if len(runs) == 1:
        return {}
    line = {"color": "#999999", "width": 1, "dash": "dot"}
    firsts = [first for _, first, _ in runs if first]
    shapes = [vertical_line(f - 0.5, line, k + 1) for f in firsts for k in range(rows)]
    look = {"y": 1, "yref": "paper", "yanchor": "bottom", "showarrow": False}
    names = [cluster_name(cluster) for cluster, _, _ in runs]
    if len(runs) > 4:
        names = [name.removeprefix("cluster ") for name in names]
    named: list[PlotSpec] = [
        {"x": (first + last) / 2, "text": name, **look}
        | {"font": {"size": 12, "color": "#555555"}}
        for name, (_, first, last) in zip(names, runs, strict=True)
    ]
    return {"shapes": shapes, "annotations": named if len(runs) <= 12 else []}


def tick_names(records: Records, clients: Iterable[int], most: int = 24) -> list[str]:
    """The names of clients on an axis, cut to `most` characters."""
    names = [records.short_name(int(client)) for client in clients]
    return [escape(n if len(n) <= most else f"{n[: most - 1]}…") for n in names]


def client_ticks(names: list[str], *, single: bool) -> PlotSpec:
    """An axis of clients or clusters, without names if there are too many clients."""
    if single and len(names) > LABELLED:
        return {
            "showticklabels": False,
            "showgrid": False,
            "title": {"text": "clients, by cluster"},
        }
    return {
        "tickvals": list(range(len(names))),
        "ticktext": names,
        # Slanted names end at their ticks, so the last one is not cut off.
        "tickangle": -45 if max(map(len, names), default=0) > 3 else 0,
        "showgrid": False,
        "title": {"text": "client" if single else ""},
    }


def button(label: str, *change: Mapping[str, object]) -> dict[str, object]:
    """A button that changes the traces and the layout."""
    return {"label": escape(label), "method": "update", "args": list(change)}


def menu_of(buttons: Sequence[object], active: int = 0) -> dict[str, object]:
    """A menu above the figure, on the left."""
    return {
        "buttons": buttons,
        "active": active,
        "x": 0,
        "xanchor": "left",
        "y": 1,
        "yanchor": "bottom",
        "pad": {"b": 26},
        "bgcolor": "#ffffff",
        "bordercolor": "#999999",
    }


def row_of(
    buttons: Sequence[Mapping[str, object]], active: int = 0
) -> dict[str, object]:
    """A menu as buttons side by side if they fit on a phone, or as a list."""
    if len("".join(str(one["label"]) for one in buttons)) + 3 * len(buttons) > 42:
        return menu_of(buttons, active)
    return menu_of(buttons, active) | {"type": "buttons", "direction": "right"}


def colour_bar(title: str) -> dict[str, object]:
    """The legend of a colour scale, above the figure on the right."""
    return {
        "title": {"text": title, "side": "top"},
        "orientation": "h",
        "thickness": 10,
        "len": 0.45,
        "x": 1,
        "xanchor": "right",
        "y": 1,
        "yanchor": "bottom",
        "nticks": 4,
    }


def log_ticks(low: float, high: float) -> list[float]:
    """Up to about six round numbers along a logarithmic axis.

    >>> log_ticks(0.001, 1), log_ticks(2, 40)
    ([0.001, 0.01, 0.1, 1.0], [2.0, 5.0, 10.0, 20.0])
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [float(f"{d}e{power}") for power in powers for d in digits]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= 6:
            return ticks if len(ticks) > 1 else [low, high]
    return ticks[:: math.ceil(len(ticks) / 6)]


def finish(
    traces: Sequence[PlotSpec],
    looks: PlotSpec,
    title: str,
    height: int,
    rows: list[str] | None = None,
    *,
    menu: bool = False,
    frames: Sequence[PlotSpec] = (),
) -> go.Figure:
    """The figure with its title, size and our common layout.

    All settings are given in one call, because in plotly every later change takes as
    long as making the figure.

    Args:
        traces: the traces of the figure.
        looks: layout of this figure, which is added to the common layout.
        title: above the figure.
        height: the height in pixels.
        rows: lines of text; each adds to the height.
        menu: whether to leave room for a menu above the figure.
        frames: the frames of a slider.
    """
    title = title if title.startswith("<b>") else bold(title)
    heading = {"text": title, "x": 0, "xref": "paper", "y": 0.98, "yanchor": "top"}
    legend = {"orientation": "h", "x": 0, "yref": "container", "y": 0}
    common: PlotSpec = {
        "template": "none",
        "title": heading | {"font": {"size": 15}},
        "height": height + 46 * len(rows or []),
        "margin": {"l": 64, "r": 16, "t": 110 if menu else 64, "b": 60},
        "font": {"family": "system-ui, sans-serif", "size": 13, "color": "#222222"},
        "legend": legend | {"yanchor": "bottom", "traceorder": "normal"},
        "modebar": {"color": "#bbbbbb", "activecolor": "#555555"},
        "hoverlabel": {"namelength": 28},
    }
    grid = {"gridcolor": "#e8e8e8", "automargin": True}
    grid |= {"title": {"font": {"size": 13}, "standoff": 12}}
    for name in dict.fromkeys(["xaxis", "yaxis", *looks]):
        if name.startswith("xaxis"):
            common[name] = grid | {"zeroline": False}
        elif name.startswith("yaxis"):
            common[name] = grid
    return go.Figure(list(traces), merge_specs(looks, common), list(frames))


def merge_specs(old: Mapping[str, Any], new: Mapping[str, Any]) -> PlotSpec:
    """Both nested mappings together. If they differ, `new` wins.

    >>> merge_specs({"xaxis": {"dtick": 1}}, {"xaxis": {"type": "log"}})
    {'xaxis': {'dtick': 1, 'type': 'log'}}
    """
    both = dict(old)
    for key, value in new.items():
        there = both.get(key)
        deeper = isinstance(there, Mapping) and isinstance(value, Mapping)
        both[key] = merge_specs(there or {}, value) if deeper else value
    return both


def nest_keys(changes: Mapping[str, object]) -> PlotSpec:
    """Changes of a layout with dotted keys, written as nested dictionaries.

    >>> nest_keys({"xaxis.title.text": "round", "xaxis.type": "log"})
    {'xaxis': {'title': {'text': 'round'}, 'type': 'log'}}
    """
    looks: PlotSpec = {}
    for path, value in changes.items():
        *outer, last = path.split(".")
        place = looks
        for key in outer:
            place = place.setdefault(key, {})
        place[last] = value
    return looks


def whiskers(found: pd.DataFrame) -> dict[str, object]:
    """Error bars for the known intervals of means."""
    up, down = found["high"] - found["mean"], found["mean"] - found["low"]
    return {
        "array": up.where(np.isfinite(up), 0).to_numpy(),
        "arrayminus": down.where(np.isfinite(down), 0).to_numpy(),
        "color": "#444444",
        "thickness": 1,
        "width": 2 if len(found) <= LABELLED else 0,
    }
