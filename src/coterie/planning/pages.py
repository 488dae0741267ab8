"""A plan as a page that opens offline."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from markupsafe import Markup
from plotly.offline import get_plotlyjs
from scipy.cluster.hierarchy import leaves_list, linkage

from ..data.federation import short_name
from ..report.html import render
from ..report.matrices import CATEGORIES, heat_map, names_on_both_axes
from ..report.styles import client_ticks, escape, finish, merge_specs
from .plans import advice, worth_of
from .prospects import structure_of

if TYPE_CHECKING:
    from .plans import Plan

_COLOURS = {
    "join": "#009E73",
    "do not join": "#999999",
    "collect first": "#E69F00",
    "cannot tell": "#0072B2",
}


def plan_page(plan: Plan) -> str:
    """The plan as HTML: sentences, a table of clients, scores, and partners."""
    return render(
        "plan.html",
        room="planning",
        name=plan.study.name,
        seed=plan.seed,
        summary=plan.summary(),
        measure=plan.measure,
        rows=_client_rows(plan),
        scores=_scores(plan),
        links=_links(plan),
        training=", ".join(f"{key} {value:g}" for key, value in plan.training.items()),
        library=Markup(get_plotlyjs()),
    )


def _scores(plan: Plan) -> go.Figure:
    """Expected score of each client alone and together, with intervals."""
    table = plan.table().sort_values("worth", ascending=False, ignore_index=True)
    traces = []
    for verdict, colour in _COLOURS.items():
        mine = table[table["verdict"] == verdict]
        for name, symbol in (("alone", "circle-open"), ("together", "circle")):
            trace = {
                "type": "scatter",
                "x": mine.index + (0.15 if name == "together" else -0.15),
                "y": mine[name],
                "mode": "markers",
                "name": f"{verdict}, {name}",
                "showlegend": bool(len(mine)),
                "marker": {"color": colour, "size": 9, "symbol": symbol},
                "error_y": {
                    "array": mine[f"{name}_most"] - mine[name],
                    "arrayminus": mine[name] - mine[f"{name}_least"],
                    "color": colour,
                    "thickness": 1.5,
                    "width": 3,
                },
                "customdata": mine[[f"{name}_least", f"{name}_most"]],
                "hovertext": [escape(client) for client in mine["name"]],
                "hovertemplate": f"%{{hovertext}}, {name}<br>%{{y:.3f}}, from "
                "%{customdata[0]:.3f} to %{customdata[1]:.3f}<extra></extra>",
            }
            traces.append(trace)
    names = [escape(short_name(plan.names, client)) for client in table["client"]]
    measure = plan.measure
    ticks = ".0%" if measure.share else None
    down = {"title": {"text": escape(measure.name)}, "tickformat": ticks}
    looks = {"xaxis": client_ticks(names, single=True), "yaxis": down}
    title = f"Expected {escape(measure.name)} alone and together, with 90 % intervals"
    return finish(traces, looks, title, 460)


def _links(plan: Plan) -> go.Figure:
    """The suggested weights, with similar clients next to each other."""
    place = structure_of(plan.findings).place
    order = np.arange(len(place))
    if place.shape[1] and len(place) > 2:
        order = leaves_list(linkage(place, "average", optimal_ordering=True))
    weights = plan.weights[np.ix_(order, order)]
    names = [escape(short_name(plan.names, plan.clients[i])) for i in order]
    looks = merge_specs(CATEGORIES, names_on_both_axes(names))
    return finish([heat_map(weights[None], names)], looks, "Suggested weights", 560)


def _client_rows(plan: Plan) -> list[list[str]]:
    """A row of cells for each client."""
    measure = plan.measure
    return [
        [
            row["name"],
            advice(row),
            textwrap.shorten(row["partners"] or "nobody", 60, placeholder=" ..."),
            *(
                text.replace(" to ", "–")  # so that all columns are seen
                for text in (
                    measure.interval_of(row, "alone"),
                    measure.interval_of(row, "together"),
                    worth_of(row, interval=True),
                )
            ),
            row["sure"],
            f"{row['samples']:,}",
        ]
        for row in plan.table().to_dict("records")
    ]
