"""Draws neighbours.png: a graph, the links that are kept, and how many are left when.

    python docs/pictures/neighbours.py        half a minute

Twenty clients of the digits, of whom every other one names the classes differently; the
federation "two groups" of the bench of structures. Every point is measured.
"""

from __future__ import annotations

import sys

import numpy as np
import plotly.graph_objects as go
from canvas import captioned, laid_out, photograph
from plotly.subplots import make_subplots

import coterie as co
from coterie.cli import items_of
from coterie.data import load
from coterie.graphs import edges_of, gossip_matrix
from coterie.models import build, ravel

items_of("coterie")
bench = sys.modules["reproduce_coterie.bench"]

GRAPH, SEED = "expander(6)", 2000
COLOURS = ("#0072B2", "#E69F00")
SAME, BETWEEN = "#009E73", "#D55E00"


def kept_by_round(federation: co.data.Federation) -> np.ndarray:
    """(R, N, N) which links are kept after each round."""
    n = len(federation)
    mixing = gossip_matrix(edges_of(GRAPH, n), n)
    lr = bench.LR["digits"]
    algorithm = co.methods.neighbours(mixing, lr=lr, steps=bench.STEPS)
    shape = tuple(federation.features.shape[1:])
    module = build(lambda: co.models.mlp(shape, 10, hidden=(32,)), SEED)
    simulation = co.Simulation(federation, module, batch_size=bench.BATCH, seed=SEED)
    x, found = ravel(module).repeat(n, 1), []
    for r in co.run_rounds(algorithm, simulation, x, rounds=bench.ROUNDS, seed=SEED):
        found.append(r.info["weights"].numpy() != 0)
    return np.stack(found)


def drawn() -> go.Figure:
    """The picture: the graph before, after, and links by round."""
    family = sys.modules["reproduce_coterie.structures"].FAMILIES["two groups"]
    federation = bench.federation_of(family, load("digits"), SEED)
    kept, group = kept_by_round(federation), federation.clusters.numpy()
    edges = edges_of(GRAPH, len(group)).numpy()
    last = kept[-1][edges[:, 0], edges[:, 1]]
    titles = ["Before: everybody has six neighbours", "After: links that were kept"]
    figure = make_subplots(
        cols=3,
        subplot_titles=[f"<b>{title}</b>" for title in (*titles, "Links by round")],
        horizontal_spacing=0.06,
        column_widths=[0.36, 0.36, 0.28],
    )
    place = places(group)
    for col, shown in ((1, np.ones_like(last)), (2, last)):
        for (v, w), here in zip(edges, shown, strict=True):
            between = group[v] != group[w]
            line = {"color": BETWEEN if between else SAME, "width": 2 if here else 1}
            if not here:
                line = {"color": "#d0d0d0", "width": 1, "dash": "dot"}
            x, y = place[[v, w]].T
            figure.add_scatter(x=x, y=y, mode="lines", line=line, row=1, col=col)
        marker = {"size": 17, "color": [COLOURS[g] for g in group]}
        figure.add_scatter(
            x=place[:, 0], y=place[:, 1], mode="markers", marker=marker, row=1, col=col
        )
    inside = group[edges[:, 0]] == group[edges[:, 1]]
    counts = kept[:, edges[:, 0], edges[:, 1]]
    rounds = np.arange(1, len(kept) + 1)
    for who, colour, name in (
        (inside, SAME, "within a group"),
        (~inside, BETWEEN, "between groups"),
    ):
        y = counts[:, who].sum(1)
        line = {"color": colour, "width": 2.5}
        figure.add_scatter(x=rounds, y=y, mode="lines", line=line, row=1, col=3)
        figure.add_annotation(
            x=len(rounds),
            y=y[-1],
            text=name,
            font={"color": colour},
            showarrow=False,
            xanchor="right",
            yshift=14,
            row=1,
            col=3,
        )
    return looks(figure)


def places(group: np.ndarray) -> np.ndarray:
    """(N, 2) where clients are drawn: on two circles, one for each group."""
    place = np.zeros((len(group), 2))
    for g in (0, 1):
        here = np.flatnonzero(group == g)
        angle = 2 * np.pi * np.arange(len(here)) / len(here)
        place[here] = np.stack([0.8 * np.cos(angle) + 2.2 * g, np.sin(angle)], 1)
    return place


def looks(figure: go.Figure) -> go.Figure:
    """Sizes, axes and the line below."""
    laid_out(figure, l=20, r=40, t=70, b=100)
    for col in (1, 2):
        figure.update_xaxes(visible=False, col=col)
        figure.update_yaxes(visible=False, col=col)
    figure.update_xaxes(title="round", title_standoff=8, col=3)
    figure.update_yaxes(gridcolor="#e8e8e8", rangemode="tozero", col=3)
    return captioned(
        figure,
        "Colours of clients are the true groups, which nobody is told. Green "
        "links join a group, red ones two, dotted ones were dropped. One seed.",
    )


if __name__ == "__main__":
    photograph(drawn(), __file__)
