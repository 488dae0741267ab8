"""A plan as a page that opens offline."""

from __future__ import annotations

import textwrap
from html import escape
from typing import TYPE_CHECKING

import numpy as np
import plotly.graph_objects as go
from plotly.offline import get_plotlyjs
from scipy.cluster.hierarchy import leaves_list, linkage

from ..data.federation import short_name
from ..report.html import page, plot, table_of
from ..report.matrices import heat_map, name_both_axes
from ..report.styles import client_ticks, finish
from .prospects import structure_of

if TYPE_CHECKING:
    from .plans import Plan

_COLOURS = {"join": "#009E73", "alone": "#999999", "cannot tell": "#E69F00"}


def plan_page(plan: Plan) -> str:
    """The plan as HTML: sentences, a figure of gains, of partners, and a table."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in plan.summary())
    sections = {
        "gains": ("Who gains", plot(_gains(plan), "gain", "Gains of clients")),
        "partners": (
            "With whom",
            "<p>Row i is how client i should weigh the gradients of the others, if the "
            "likely prospect is right. Clients that resemble each other stand together."
            f"</p>{plot(_links(plan), 'links', 'Suggested weights', group='matrix')}",
        ),
        "clients": ("Client by client", _clients(plan)),
        "made": ("How this was found", _made(plan)),
    }
    return page(f"Plan: {plan.study.name}", lines, sections, get_plotlyjs())


def _gains(plan: Plan) -> go.Figure:
    """Gain of each client with its interval, the largest first."""
    from .plans import WORTHWHILE

    table = plan.table().sort_values("gain", ascending=False, ignore_index=True)
    figure = go.Figure()
    for name, colour in _COLOURS.items():
        mine = table[table["verdict"] == name]
        figure.add_scatter(
            x=mine.index,
            y=mine["gain"],
            mode="markers",
            name=f"{name} ({len(mine)})",
            marker={"color": colour, "size": 9},
            error_y={
                "array": mine["gain_most"] - mine["gain"],
                "arrayminus": mine["gain"] - mine["gain_least"],
                "color": colour,
                "thickness": 1.5,
                "width": 3,
            },
            customdata=mine[["gain_least", "gain_most", "alone", "together"]],
            hovertext=[escape(name) for name in mine["name"]],
            hovertemplate="%{hovertext}<br>gain %{y:.2f}, from "
            "%{customdata[0]:.2f} to %{customdata[1]:.2f}<br>%{customdata[2]} samples "
            "alone, %{customdata[3]} together<extra></extra>",
        )
    names = [escape(short_name(plan.names, client)) for client in table["client"]]
    figure.update_xaxes(client_ticks(names, single=True))
    figure.update_yaxes(title="times one's own samples", type="log")
    figure.add_hline(WORTHWHILE, line={"color": "#999999", "dash": "dot", "width": 1})
    title = "What learning with the others is worth, with 90 % intervals"
    return finish(figure, title, 460)


def _links(plan: Plan) -> go.Figure:
    """The suggested weights, with clients in an order that shows groups."""
    place = structure_of(plan.findings).place
    order = np.arange(len(place))
    if place.shape[1] and len(place) > 2:
        order = leaves_list(linkage(place, "average", optimal_ordering=True))
    weights = plan.prospects.likely.weights[np.ix_(order, order)]
    names = [escape(short_name(plan.names, plan.clients[i])) for i in order]
    figure = heat_map(weights[None], np.zeros(1), names)
    figure.frames = ()
    name_both_axes(figure, names)
    return finish(figure, "Suggested weights", 560)


def _clients(plan: Plan) -> str:
    table = plan.table()
    headers = ["client", "verdict", "worth", "interval", "alone", "together"]
    headers += ["interval", "partners"]
    rows = [
        [
            row["name"],
            row["verdict"],
            f"{row['gain']:.2f}",
            f"{row['gain_least']:.2f} to {row['gain_most']:.2f}",
            str(row["alone"]),
            str(row["together"]),
            f"{row['together_least']} to {row['together_most']}",
            textwrap.shorten(row["partners"] or "nobody", 60, placeholder=" ..."),
        ]
        for row in table.to_dict("records")
    ]
    caption = (
        "Worth: times one's own samples. Alone and together: samples of each client "
        "with which training alone and learning with others are equally precise."
    )
    return table_of(headers, rows, caption)


def _made(plan: Plan) -> str:
    how = ", ".join(f"{key} {value:g}" for key, value in plan.training.items())
    return (
        f"<p>Study {escape(plan.study.name)}, seed {plan.seed}. The training samples "
        "of each client were dealt out into quarters; a common model was trained on "
        f"two of them ({escape(how)}), and gradients of the other two compared at that "
        "model; then the other way round. Test and validation data were not used. "
        "Intervals of single clients rest on their own data alone; the likely values "
        "take all clients to differ alike from what they have in common. What the "
        "numbers are about is the precision of gradients at a common model: where "
        "training alone would lead to a very different model, they are a guide and no "
        "promise.</p>"
    )
