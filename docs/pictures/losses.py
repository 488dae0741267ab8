"""Draws losses.png: what a node of a graph learns of others, formula and truth.

    python docs/pictures/losses.py        a quarter of a minute

Algorithm 6.1 with Metropolis weights, for the thesis's number of rounds; node 0 looks.
Every point is the mean over all nodes at so many steps.
"""

from __future__ import annotations

import math

import plotly.graph_objects as go
import torch
from canvas import laid_out, photograph
from plotly.subplots import make_subplots

from coterie.graphs import contraction, edges_of, gossip_matrix
from coterie.privacy import Observer
from coterie_theory.decentralised import muffliato as theory
from coterie_theory.privacy import (
    by_distance,
    exact_losses,
    hops,
    muffliato,
    printed_losses,
)

PRINTED, EXACT = "#D55E00", "#0072B2"
GRAPHS = {"hypercube": 512, "ring": 64, "grid": 400}


def curves(name: str, n: int) -> dict[str, tuple[list[int], list[float]]]:
    """Means of both accounts by distance from node 0."""
    edges = edges_of(name, n)
    matrix = gossip_matrix(edges, n)
    rounds = theory.stopping_time(math.sqrt(1 - contraction([matrix])), n, 1.0)
    rng = torch.Generator().manual_seed(0)
    ledger = muffliato.synchronous(
        torch.zeros(n, 1), matrix, rounds=rounds, clip=0.5, noise=1.0, rng=rng
    ).ledger
    far = hops(edges, n)[0]
    exact = exact_losses(ledger, [Observer((0,))]).share[:, 0]
    plain = muffliato.time_varying(
        torch.zeros(n, 1), [matrix] * rounds, clip=0.5, noise=1.0, rng=rng
    ).ledger
    printed = printed_losses(plain, [(0,)], capped=True).share[:, 0]
    found = {}
    for label, values in (("thesis's formula", printed), ("exact", exact)):
        rows = by_distance(values, far)
        found[label] = ([row.steps for row in rows], [row.mean for row in rows])
    return found


def drawn() -> go.Figure:
    """The picture."""
    titles = [f"<b>{name}, {n} nodes</b>" for name, n in GRAPHS.items()]
    figure = make_subplots(cols=3, subplot_titles=titles, horizontal_spacing=0.07)
    for column, (name, n) in enumerate(GRAPHS.items(), 1):
        both = zip(curves(name, n).items(), (PRINTED, EXACT), strict=True)
        for (label, (x, y)), colour in both:
            line = {"color": colour, "width": 2.5}
            line["dash"] = "dash" if colour == PRINTED else "solid"
            figure.add_scatter(
                x=x,
                y=y,
                name=label,
                line=line,
                showlegend=column == 1,
                row=1,
                col=column,
            )
    laid_out(figure, l=70, r=30, t=60, b=110)
    figure.update_layout(showlegend=True, legend={"orientation": "h", "y": -0.2})
    figure.update_yaxes(
        type="log", exponentformat="power", range=[-6, 0.2], gridcolor="#e8e8e8"
    )
    figure.update_yaxes(title="loss, 1 is local privacy", col=1)
    figure.update_xaxes(title="steps from the observer")
    return figure


if __name__ == "__main__":
    photograph(drawn(), __file__)
