"""The picture of the first screen: each client's gain over training alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from ...records import Records
from ...scores.finals import CROWD, population
from ...scores.gains import gain_of
from ..styles import LABELLED, PlotSpec, escape, finish, tick_names, vertical_line
from .notices import FEW
from .nouns import Amounts, amounts_of, client_nouns, round_up

_ROWS = 16
"""Up to this number, each client has a row; with more, they stand side by side."""

_KINDS = {
    "gains": ("better, and we are sure", "#0072B2"),
    "cannot tell": ("we are not sure", "#999999"),
    "loses": ("worse, and we are sure", "#D55E00"),
}

_SURE = ("gains", "loses")


def client_gains(records: Records, label: str) -> go.Figure:
    """Each client's gain over training alone with one method, with intervals.

    Up to 16 clients have a row each with their name, and more stand side by side. Above
    CROWD, the figure shows their distribution. Intervals that are much longer than
    others are cut: `clients_with_cut_intervals` names these clients.
    """
    table, amounts = gain_table(records, label), amounts_of(records)
    if len(table) > CROWD:
        return _distribution(records, table, amounts)
    rows = len(table) <= _ROWS
    low, high = axis_limits(table)
    places = np.arange(len(table))
    across, along = ("x", "y") if rows else ("y", "x")
    traces: list[PlotSpec] = []
    for verdict, (words, colour) in _KINDS.items():
        mine = table[table["verdict"] == verdict]
        if mine.empty:
            continue
        ends = mine[["low", "high"]].clip(low, high)
        trace: PlotSpec = {
            "type": "scatter",
            "mode": "markers+text" if rows else "markers",
            across: mine["mean"].to_numpy(),
            along: places[table["verdict"] == verdict],
            "marker": {"color": colour, "size": 11 if rows else 8},
            f"error_{across}": {
                "array": (ends["high"] - mine["mean"]).to_numpy(),
                "arrayminus": (mine["mean"] - ends["low"]).to_numpy(),
                "color": colour,
                "thickness": 2,
                "width": 4 if rows else 2,
            },
            "name": words,
            "text": [_gain_label(mean, amounts) for mean in mine["mean"]],
            "textposition": "top center",
            "textfont": {
                "size": 12,
                "color": colour if verdict in _SURE else "#555555",
            },
            "hovertext": [_hover(row, amounts) for _, row in mine.iterrows()],
            "hovertemplate": "%{hovertext}<extra></extra>",
        }
        traces.append(trace)
    traces += _arrows(table, low, high, rows=rows)
    looks = _looks(records, table, amounts, (low, high), rows=rows)
    height = 140 + 32 * len(table) if rows else 420
    title = "Better or worse than training alone, on each client's own test data"
    return finish(traces, looks, title, height).update_layout(
        margin={"t": 60, "b": 84}, showlegend=True
    )


def gain_table(records: Records, label: str) -> pd.DataFrame:
    """One row per client that can be compared, the largest gain first.

    Columns: `name`, number of `test` samples, `verdict`, and the gain's `mean`, `low`
    and `high` in the unit in which gains are shown.
    """
    table = gain_of(records, label).clients.copy()
    table = table[table["mean"].notna()]
    numbers = ["mean", "low", "high"]
    table[numbers] *= amounts_of(records).score.unit
    table["name"] = [records.name_of(int(client)) for client in table.index]
    table["test"] = population(records).set_index("client")["test"]
    return table.sort_values("mean", ascending=False, kind="stable")


def axis_limits(table: pd.DataFrame) -> tuple[float, float]:
    """The ends of the axis, beyond which intervals are cut.

    The axis holds all intervals, unless unusual intervals would take up more than a
    third of the axis. An interval is unusual if its client has few test samples, or if
    it is more than three times as long as the median.
    """
    width = table["high"] - table["low"]
    known = table[np.isfinite(width)]
    width = width[known.index]
    usual = known[(known["test"] >= FEW) & (width <= 3 * width.median())]
    if usual.empty:
        usual = known[width <= 3 * width.median()]
    (low, high), whole = (_ends(table, some) for some in (usual, known))
    return whole if whole[1] - whole[0] <= 1.5 * (high - low) else (low, high)


def _ends(table: pd.DataFrame, some: pd.DataFrame) -> tuple[float, float]:
    """The smallest and the largest among 0, all means, and the intervals of `some`."""
    means = table["mean"].to_numpy()
    ends = [0.0, *means, *some["low"], *some["high"]]
    low, high = float(np.min(ends)), float(np.max(ends))
    if not high > low:  # no client, or an unknown mean
        return (-1.0, 1.0)
    # A point at the very end would hide the arrow of its interval.
    more = 0.03 * (high - low)
    return min(low, float(means.min()) - more), max(high, float(means.max()) + more)


def clients_with_cut_intervals(records: Records, label: str) -> list[str]:
    """Clients whose interval is cut, with their numbers of test samples."""
    table = gain_table(records, label)
    if len(table) > CROWD or table.empty:
        return []
    low, high = axis_limits(table)
    cut = table[(table["low"] < low) | (table["high"] > high)]
    return [f"{row['name']} ({row['test']:,.0f})" for _, row in cut.iterrows()]


def _gain_label(mean: float, amounts: Amounts) -> str:
    shown = amounts.show_gain(mean / amounts.score.unit) if mean else "no change"
    return escape(shown)


def _hover(row: pd.Series, amounts: Amounts) -> str:
    unit = amounts.score.unit
    mean, low, high = (row[k] / unit for k in ("mean", "low", "high"))
    known = bool(np.isfinite(high - low))
    interval = amounts.interval(low, high) if known else "unknown"
    lines = (
        f"{row['name']}: {amounts.show_gain(mean)}",
        f"95 % interval: {interval}",
        f"{row['test']:,.0f} test samples",
    )
    return "<br>".join(map(escape, lines))


def _arrows(
    table: pd.DataFrame, low: float, high: float, *, rows: bool
) -> list[PlotSpec]:
    """Arrow heads where an interval is cut."""
    places, found = np.arange(len(table)), []
    below, above = table["low"] < low, table["high"] > high
    beyond = [(below, low, "left", "down"), (above, high, "right", "up")]
    for mine, end, sideways, upwards in beyond:
        if not mine.any():
            continue
        across, along = ("x", "y") if rows else ("y", "x")
        colours = [_KINDS[verdict][1] for verdict in table.loc[mine, "verdict"]]
        head = f"triangle-{sideways if rows else upwards}"
        found.append(
            {
                "type": "scatter",
                "mode": "markers",
                across: np.full(int(mine.sum()), end),
                along: places[mine],
                "marker": {"color": colours, "symbol": head, "size": 9},
                "hoverinfo": "skip",
                "showlegend": False,
                "cliponaxis": False,
            }
        )
    return found


def _looks(
    records: Records,
    table: pd.DataFrame,
    amounts: Amounts,
    ends: tuple[float, float],
    *,
    rows: bool,
) -> PlotSpec:
    """The layout: gains along one axis, clients along the other."""
    names = tick_names(records, table.index)
    whose = client_nouns(records)[1]
    # In rows, there is text above the points, half of which needs room at the ends.
    room = (0.06 if rows else 0.03) * (ends[1] - ends[0])
    step = round_up((ends[1] - ends[0]) / 7)
    ticks = step * np.arange(np.ceil(ends[0] / step), np.floor(ends[1] / step) + 1)
    gains: PlotSpec = {
        "title": {"text": f"better → ({escape(amounts.axis)})"},
        "range": [ends[0] - room, ends[1] + room],
        "zeroline": True,
        "zerolinecolor": "#222222",
        "tickvals": ticks,
        "ticktext": [f"{tick:+,.6g}" if tick else "alone" for tick in ticks],
    }
    clients: PlotSpec = {"showgrid": False, "zeroline": False}
    if rows:
        ends_of_rows = [len(table) - 0.4, -0.7]
        clients |= {"tickvals": list(range(len(table))), "range": ends_of_rows}
        clients["ticktext"] = names
        zero = vertical_line(0, {"color": "#222222", "width": 1})
        return {"xaxis": gains, "yaxis": clients, "shapes": [zero]}
    clients["title"] = {"text": f"{len(table)} {whose}, largest gain first"}
    if len(table) <= LABELLED:
        clients |= {"tickvals": list(range(len(table))), "ticktext": names}
        clients["tickangle"] = -45 if max(map(len, names)) > 3 else 0
    else:
        clients["showticklabels"] = False
    return {"yaxis": gains, "xaxis": clients}


def _distribution(records: Records, table: pd.DataFrame, amounts: Amounts) -> go.Figure:
    """A histogram of gains, for very many clients."""
    many = client_nouns(records)[1]
    bars = {"type": "histogram", "x": table["mean"].to_numpy(), "nbinsx": 60}
    bars |= {"marker": {"color": _KINDS["gains"][1]}, "showlegend": False}
    across = {"title": {"text": f"better → ({escape(amounts.axis)})"}}
    looks: PlotSpec = {"xaxis": across, "yaxis": {"title": {"text": many}}}
    looks["shapes"] = [vertical_line(0, {"color": "#222222", "width": 1})]
    title = "Better or worse than training alone, on each client's own test data"
    return finish([bars], looks, title, 360)
