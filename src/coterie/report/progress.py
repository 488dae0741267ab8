"""Scores during training, against what a reader counts: rounds, gradients or bytes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..checks import InputError
from ..records import Records
from ..scores.axes import axis_of
from ..scores.finals import labels_of, runs_of, score_of, seed_means
from ..scores.words import in_bytes
from .styles import button, escape, finish, log_ticks, plot, row_of, styles_of

_COUNTS = {
    "updates": "updates: answers of clients that arrived",
    "gradients": "per-sample gradient evaluations, all clients",
    "bytes": "bytes sent, all clients (logarithmic)",
}


class Reach(NamedTuple):
    """From where to where bytes are drawn."""

    zero: float  # where nothing is sent: there is no 0 on a logarithmic axis
    low: float
    high: float


def curves(records: Records, against: str | None = None) -> go.Figure:
    """Mean test score and loss over time, with buttons that change the horizontal axis.

    Lines are means over clients and seeds; bands reach from the lowest to the highest
    seed. Against a count, a point stands at its mean over the seeds. Bytes are on a
    logarithmic axis that begins with 0; who sends nothing has a level line at its last
    score.

    Args:
        records: of the study.
        against: an axis; None takes virtual time where there is [time], and rounds
            elsewhere. In virtual time rounds are ticks, and no axis.

    Raises:
        InputError: when the records hold no such axis.
    """
    score, own, reach = score_of(records), axis_of(records), _reach(records)
    counts = {name: words for name, words in _COUNTS.items() if name in records.rounds}
    titles = {own.name: own.title} | counts
    axes = list(titles)
    against = own.name if against is None else against
    if against not in axes:
        raise InputError(f"`against` must be one of {axes}, but is {against!r}.")
    columns = dict.fromkeys([score.column, "test_loss"])
    shown = [column for column in columns if column in records.metrics]
    figure = make_subplots(
        rows=len(shown), cols=1, shared_xaxes=True, vertical_spacing=0.06
    )
    views: dict[str, list[dict[str, object]]] = {axis: [] for axis in axes}
    for label in labels_of(records):
        for row, column in enumerate(shown, start=1):
            means = seed_means(runs_of(records, label), column)
            _add_curve(figure, records, label, means, row)
            for axis, traces in views.items():
                traces += _placed(records, label, means, axis, reach)
    layouts = {axis: _layout(titles, axis, reach, len(shown)) for axis in axes}
    for trace, place in zip(figure.data, views[against], strict=True):
        trace.update(place)
    buttons = [
        button(
            f"by {axis}",
            {key: [trace[key] for trace in traces] for key in traces[0]},
            layouts[axis],
        )
        for axis, traces in views.items()
    ]
    menu = row_of(buttons, active=axes.index(against))
    figure.update_layout(layouts[against], updatemenus=[menu])
    figure.update_yaxes(zeroline=False, hoverformat=".4g")
    looks = {"tickformat": score.ticks, "hoverformat": score.hover}
    figure.update_yaxes(**looks, title=score.words, row=1)
    if len(shown) > 1:
        figure.update_yaxes(title="test loss", row=2)
    _use_logarithm_if_wide(figure, shown)
    height = 380 + 240 * (len(shown) - 1)
    return finish(figure, "Mean over clients during training", height, menu=True)


def _add_curve(
    figure: go.Figure, records: Records, label: str, means: pd.DataFrame, row: int
) -> None:
    """Adds the mean line and, given several seeds, their band, without places."""
    style = styles_of(records)[label]
    common = {"legendgroup": escape(label), "row": row, "col": 1}
    if means.shape[1] > 1:
        figure.add_scatter(
            mode="lines",
            fill="toself",
            fillcolor=style.faint(0.15),
            line={"width": 0},
            hoverinfo="skip",
            showlegend=False,
            name=f"{escape(label)}, range of seeds",
            **common,
        )
    figure.add_scatter(
        mode="lines+markers" if len(means) <= 30 else "lines",
        name=escape(label),
        showlegend=row == 1,
        line={"color": style.colour, "dash": style.dash, "width": 2},
        marker={"size": 4},
        **common,
    )


def _placed(
    records: Records, label: str, means: pd.DataFrame, axis: str, reach: Reach | None
) -> list[dict[str, object]]:
    """What the traces of `_add_curve` show along an axis."""
    x, words = _spent(records, label, means, axis), None
    if axis == "bytes" and reach is not None:
        words = [in_bytes(value) for value in x]
        if not (x > 0).any():
            x, means = pd.Series([reach.zero, reach.high]), means.iloc[[-1, -1]]
            words = ["nothing is sent; the last score"] * 2
        x = x.mask(x == 0, reach.zero)
    places = _listed(x)
    line: dict[str, object] = {
        "x": places,
        "y": _listed(means.mean(axis=1, skipna=False)),
        "hovertext": words,
        "hovertemplate": "%{hovertext}<br>%{y}" if words else None,
    }
    if means.shape[1] <= 1:
        return [line]
    ends = [*_listed(means.max(axis=1)), *_listed(means.min(axis=1))[::-1]]
    band = dict.fromkeys(line) | {"x": [*places, *places[::-1]], "y": ends}
    return [band, line]


def _spent(records: Records, label: str, means: pd.DataFrame, axis: str) -> pd.Series:
    """Where the evaluations of an algorithm stand on an axis."""
    own = axis_of(records)
    if axis == own.name:
        return pd.Series([own.place(t) for t in means.index])
    mine = records.rounds[records.rounds["algorithm"] == label]
    mine = mine[mine["seed"].isin(means.columns)]
    return mine.groupby("round")[axis].mean().reindex(means.index)


def _reach(records: Records) -> Reach | None:
    """From where to where bytes reach; None where nobody sends any."""
    if "bytes" not in records.rounds:
        return None
    column, found = score_of(records).column, [pd.Series(dtype=float)]
    for label in labels_of(records):
        means = seed_means(runs_of(records, label), column)
        found.append(_spent(records, label, means, "bytes"))
    sent = pd.concat(found)
    low, high = float(sent[sent > 0].min()), float(sent.max())
    if not low > 0:
        return None
    return Reach(low / max(2.0, (high / low) ** 0.15), low, high)


def _layout(
    titles: dict[str, str], axis: str, reach: Reach | None, panels: int
) -> dict[str, object]:
    """Title, scale and ticks of an axis, of all panels."""
    scale: dict[str, object] = {"type": "linear", "tickmode": "auto", "autorange": True}
    if axis == "bytes" and reach is not None:
        ticks = log_ticks(reach.low, reach.high)
        scale |= {"type": "log", "tickmode": "array", "tickvals": [reach.zero, *ticks]}
        scale |= {"ticktext": ["0", *map(in_bytes, ticks)]}
    names = ["xaxis", *(f"xaxis{panel}" for panel in range(2, panels + 1))]
    layout = {f"{name}.{key}": value for name in names for key, value in scale.items()}
    # In bytes, points of different algorithms are nowhere above each other.
    hover = "x unified" if scale["type"] == "linear" else "closest"
    return layout | {f"{names[-1]}.title.text": titles[axis], "hovermode": hover}


def _listed(values: pd.Series) -> list[float | None]:
    """A list as JSON can hold it, with None for what is not finite."""
    return [float(v) if np.isfinite(v) else None for v in values]


def _use_logarithm_if_wide(figure: go.Figure, shown: list[str]) -> None:
    """Turns the loss axis logarithmic where losses differ a hundredfold."""
    if "test_loss" not in shown:
        return
    row = shown.index("test_loss") + 1
    panel = "y" if row == 1 else f"y{row}"
    traces = [t.y for t in figure.data if (t.yaxis or "y") == panel]
    values = np.array([v for y in traces for v in y if v is not None], dtype=float)
    if values.size and values.min() > 0 and values.max() > 100 * values.min():
        figure.update_yaxes(type="log", title="test loss (logarithmic)", row=row)


def sharpness(records: Records) -> go.Figure:
    """How sharp training losses are along a run, and 2 over the step size, dotted.

    Lines are means over clients and seeds, bands reach from the flattest to the
    sharpest client, both means over seeds.
    """
    figure, axis = go.Figure(), axis_of(records)
    for label in labels_of(records):
        style = styles_of(records)[label]
        mine = records.metrics[records.metrics["algorithm"] == label]
        seen = mine.dropna(subset="sharpness").groupby(["round", "seed"])["sharpness"]
        table = seen.agg(["mean", "min", "max"]).groupby("round").mean()
        rounds = records.rounds[records.rounds["algorithm"] == label]
        means = rounds.groupby("round").mean(numeric_only=True).loc[table.index]
        place = table.index if axis.name == "round" else means[axis.name]
        both = {"legendgroup": escape(label), "hoverinfo": "skip", "showlegend": False}
        figure.add_scatter(
            x=[*place, *place[::-1]],
            y=[*table["max"], *table["min"][::-1]],
            fill="toself",
            fillcolor=style.faint(0.15),
            line={"width": 0},
            **both,
        )
        line = {"color": style.colour, "dash": style.dash, "width": 2}
        named = {"legendgroup": escape(label), "name": escape(label)}
        figure.add_scatter(x=place, y=table["mean"], mode="lines", line=line, **named)
        edge = line | {"dash": "dot", "width": 1}
        figure.add_scatter(
            x=place, y=means["stable_below"], mode="lines", line=edge, **both
        )
    figure.update_xaxes(title=axis.title)
    figure.update_yaxes(title="largest curvature", type="log")
    return finish(figure, "Sharpness of clients' training losses", 380)


def sharpness_section(records: Records) -> str:
    """Sharpness and steps; nothing where a study did not ask for it."""
    if "sharpness" not in records.metrics or records.metrics["sharpness"].isna().all():
        return ""
    text = (
        "The largest curvature of each client's training loss at its own model. "
        "Gradient descent with a step above 2 over the curvature does not stay where "
        "it is: a line near its dotted one, 2 over the step size, is at the edge of "
        "what is stable, and above it a smaller step is due. Bands reach from the "
        "flattest to the sharpest client. Algorithms without a step size have no "
        "dotted line."
    )
    figure = plot(sharpness(records), "sharpness-figure", "Sharpness along the run")
    return f"<p>{text}</p>{figure}"
