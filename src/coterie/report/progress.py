"""Scores during training, against rounds, gradients or bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from markupsafe import Markup

from ..checks import InputError
from ..records import Records
from ..scores.axes import axis_of
from ..scores.finals import Score, labels_of, runs_of, score_of, seed_means
from ..scores.words import in_bytes
from .html import render
from .styles import (
    PlotSpec,
    button,
    escape,
    finish,
    log_ticks,
    merge_specs,
    nest_keys,
    panel,
    panels,
    row_of,
    styles_of,
)

_COUNTS = {
    "updates": "updates: answers of clients that arrived",
    "gradients": "per-sample gradient evaluations, all clients",
    "bytes": "bytes sent and received, all clients (logarithmic)",
}


class Reach(NamedTuple):
    """The range of bytes on a logarithmic axis."""

    zero: float  # the position that stands for 0 bytes
    low: float
    high: float


def curves(records: Records, against: str | None = None) -> go.Figure:
    """Mean test score and loss over time, with buttons that change the horizontal axis.

    Lines are means over clients and seeds, and bands reach from the lowest to the
    highest seed. Costs are means over seeds. Bytes have a logarithmic axis that begins
    with 0. An algorithm that sends nothing has a horizontal line at its last score. By
    default, the axis is rounds, or virtual time if the study has [time].

    Raises:
        InputError: if the records do not have this axis.
    """
    score, own = score_of(records), axis_of(records)
    counts = {name: words for name, words in _COUNTS.items() if name in records.rounds}
    titles = {own.name: own.title} | counts
    axes = list(titles)
    against = own.name if against is None else against
    if against not in axes:
        raise InputError(f"`against` must be one of {axes}, but is {against!r}.")
    columns = dict.fromkeys([score.column, "test_loss"])
    shown = [column for column in columns if column in records.metrics]
    lines: list[PlotSpec] = []
    views: dict[str, list[PlotSpec]] = {axis: [] for axis in axes}
    means = {
        label: [seed_means(runs_of(records, label), column) for column in shown]
        for label in labels_of(records)
    }
    spent = {
        label: _axis_values(records, label, some[0]) for label, some in means.items()
    }
    reach = _reach(spent, {label: some[0].index for label, some in means.items()})
    for label, some in means.items():
        for row, one in enumerate(some, start=1):
            lines += _curve(records, label, one, row)
            for axis, traces in views.items():
                traces += _traces_along(spent[label][axis], one, axis, reach)
    layouts = {axis: _layout(titles, axis, reach, len(shown)) for axis in axes}
    drawn = [a | b for a, b in zip(lines, views[against], strict=True)]
    buttons = [
        button(
            f"by {axis}",
            {key: [trace[key] for trace in traces] for key in traces[0]},
            layouts[axis],
        )
        for axis, traces in views.items()
    ]
    menu = row_of(buttons, active=axes.index(against))
    looks = merge_specs(panels(len(shown), 0.06), nest_keys(layouts[against]))
    looks = merge_specs(looks, _upward(score, shown, drawn)) | {"updatemenus": [menu]}
    height = 380 + 240 * (len(shown) - 1)
    return finish(drawn, looks, "Mean over clients during training", height, menu=True)


def _curve(
    records: Records, label: str, means: pd.DataFrame, row: int
) -> list[PlotSpec]:
    """The traces of a mean, without x: with several seeds a band, then a line."""
    style = styles_of(records)[label]
    place = {"xaxis": f"x{panel(row)}", "yaxis": f"y{panel(row)}"}
    common = {"type": "scatter", "legendgroup": escape(label), **place}
    line = {
        "mode": "lines+markers" if len(means) <= 30 else "lines",
        "name": escape(label),
        "showlegend": row == 1,
        "line": {"color": style.colour, "dash": style.dash, "width": 2},
        "marker": {"size": 4},
    }
    if means.shape[1] <= 1:
        return [common | line]
    band = {
        "mode": "lines",
        "fill": "toself",
        "fillcolor": style.faint(0.15),
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
        "name": f"{escape(label)}, range of seeds",
    }
    return [common | band, common | line]


def _traces_along(
    spent: pd.Series, means: pd.DataFrame, axis: str, reach: Reach | None
) -> list[PlotSpec]:
    """The positions along an axis that the traces of `_curve` need."""
    x, words = spent.reindex(means.index), None
    if axis == "bytes" and reach is not None:
        words = [in_bytes(value) for value in x]
        if not (x > 0).any():
            x, means = pd.Series([reach.zero, reach.high]), means.iloc[[-1, -1]]
            words = ["nothing is sent; the last score"] * 2
        x = x.mask(x == 0, reach.zero)
    places = _json_list(x)
    line: dict[str, object] = {
        "x": places,
        "y": _json_list(means.mean(axis=1, skipna=False)),
        "hovertext": words,
        "hovertemplate": "%{hovertext}<br>%{y}" if words else None,
    }
    if means.shape[1] <= 1:
        return [line]
    ends = [*_json_list(means.max(axis=1)), *_json_list(means.min(axis=1))[::-1]]
    band = dict.fromkeys(line) | {"x": [*places, *places[::-1]], "y": ends}
    return [band, line]


def _axis_values(records: Records, label: str, means: pd.DataFrame) -> pd.DataFrame:
    """Positions of the evaluated rounds of an algorithm, a column for each axis."""
    own = axis_of(records)
    mine = records.rounds[records.rounds["algorithm"] == label]
    mine = mine[mine["seed"].isin(means.columns)]
    counts = [name for name in _COUNTS if name in mine]
    evaluated = runs_of(records, label)["round"].unique()
    table = mine.groupby("round")[counts].mean().reindex(evaluated)
    return table.assign(**{own.name: [own.place(t) for t in table.index]})


def _reach(
    spent: dict[str, pd.DataFrame], evaluated: dict[str, pd.Index]
) -> Reach | None:
    """The range of bytes, or None if no algorithm sends any."""
    found = [
        table["bytes"].reindex(evaluated[label])
        for label, table in spent.items()
        if "bytes" in table
    ]
    sent = pd.concat([pd.Series(dtype=float), *found])
    low, high = float(sent[sent > 0].min()), float(sent.max())
    if not low > 0:
        return None
    return Reach(low / max(2.0, (high / low) ** 0.15), low, high)


def _layout(
    titles: dict[str, str], axis: str, reach: Reach | None, panels: int
) -> dict[str, object]:
    """Title, scale and ticks of an axis, for all panels."""
    scale: dict[str, object] = {"type": "linear", "tickmode": "auto", "autorange": True}
    if axis == "bytes" and reach is not None:
        ticks = log_ticks(reach.low, reach.high)
        scale |= {"type": "log", "tickmode": "array", "tickvals": [reach.zero, *ticks]}
        scale |= {"ticktext": ["0", *map(in_bytes, ticks)]}
    names = ["xaxis", *(f"xaxis{panel}" for panel in range(2, panels + 1))]
    layout = {f"{name}.{key}": value for name in names for key, value in scale.items()}
    # Algorithms have no common positions on the axis of bytes.
    hover = "x unified" if scale["type"] == "linear" else "closest"
    return layout | {f"{names[-1]}.title.text": titles[axis], "hovermode": hover}


def _json_list(values: pd.Series) -> list[float | None]:
    """The values as a list for JSON, with None for those that are not finite."""
    return [float(v) if np.isfinite(v) else None for v in values]


def _upward(score: Score, shown: list[str], drawn: list[PlotSpec]) -> PlotSpec:
    """The vertical axes. That of losses is logarithmic if they differ a hundredfold."""
    axis = {"zeroline": False, "title": {"text": escape(score.axis)}}
    looks: PlotSpec = {"yaxis": axis | {"tickformat": score.ticks}}
    looks["yaxis"]["hoverformat"] = score.hover
    if len(shown) > 1:
        loss = {"title": {"text": "test loss"}, "hoverformat": ".4g"}
        looks["yaxis2"] = axis | loss
    if "test_loss" in shown:
        row = panel(shown.index("test_loss") + 1)
        losses = [trace["y"] for trace in drawn if trace["yaxis"] == f"y{row}"]
        values = np.array([v for y in losses for v in y if v is not None])
        if values.size and values.min() > 0 and values.max() > 100 * values.min():
            title = {"text": "test loss (logarithmic)"}
            looks[f"yaxis{row}"] |= {"type": "log", "title": title}
    return looks


def sharpness(records: Records) -> go.Figure:
    """The sharpness of training losses over time. Dotted lines are 2 / step size.

    Lines are means over clients and seeds. Bands reach from the flattest to the
    sharpest client, each a mean over seeds.
    """
    axis, traces = axis_of(records), list[PlotSpec]()
    for label in labels_of(records):
        style = styles_of(records)[label]
        mine = records.metrics[records.metrics["algorithm"] == label]
        seen = mine.dropna(subset="sharpness").groupby(["round", "seed"])["sharpness"]
        table = seen.agg(["mean", "min", "max"]).groupby("round").mean()
        rounds = records.rounds[records.rounds["algorithm"] == label]
        means = rounds.groupby("round").mean(numeric_only=True).loc[table.index]
        place = table.index if axis.name == "round" else means[axis.name]
        line = {"color": style.colour, "dash": style.dash, "width": 2}
        common = {"type": "scatter", "legendgroup": escape(label)}
        quiet = common | {"hoverinfo": "skip", "showlegend": False}
        band = {
            "x": [*place, *place[::-1]],
            "y": [*table["max"], *table["min"][::-1]],
            "fill": "toself",
            "fillcolor": style.faint(0.15),
            "line": {"width": 0},
        }
        mean = {"x": place, "y": table["mean"], "mode": "lines", "line": line}
        dotted = line | {"dash": "dot", "width": 1}
        edge = mean | {"y": means["stable_below"], "line": dotted}
        named = common | {"name": escape(label)}
        traces += [quiet | band, named | mean, quiet | edge]
    down = {"title": {"text": "largest curvature"}, "type": "log"}
    looks = {"xaxis": {"title": {"text": axis.title}}, "yaxis": down}
    return finish(traces, looks, "Sharpness of clients' training losses", 380)


def sharpness_section(records: Records) -> Markup:
    """The section about sharpness, or nothing if the study did not record it."""
    if "sharpness" not in records.metrics or records.metrics["sharpness"].isna().all():
        return Markup()
    return render("sharpness.html", drawn=sharpness(records))
