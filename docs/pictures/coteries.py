"""Draws coteries.png: groups that divide, and what that is worth.

    python docs/pictures/coteries.py        half a minute

Twenty clients share the digits and name the classes in six different ways, in groups of
different sizes; one federation of the bench of structures. Every point is measured.
"""

from __future__ import annotations

import sys

import numpy as np
import plotly.graph_objects as go
from canvas import captioned, laid_out, named, photograph
from plotly.subplots import make_subplots

import coterie as co
from coterie.cli import items_of
from coterie.data import load
from coterie.models import build, ravel

items_of("coterie")
bench = sys.modules["reproduce_coterie.bench"]

FAMILY, SEED = "six unequal groups", 2000
LINES = {
    "oracle": ("told the groups", "#009E73", "dot"),
    "coteries": ("coteries", "#0072B2", "solid"),
    "local": ("local", "#666666", "dashdot"),
    "fine-tuned": ("fine-tuned FedAvg", "#D55E00", "dash"),
    "fedavg": ("FedAvg", "#CC79A7", "dash"),
}
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")


def groups_by_round(federation: co.data.Federation) -> np.ndarray:
    """(N, R) the group of each client after each round, sorted by true group."""
    algorithm = bench.QUICK["coteries"](federation, bench.LR["digits"])
    shape = tuple(federation.features.shape[1:])
    module = build(lambda: co.models.mlp(shape, 10, hidden=(32,)), SEED)
    simulation = co.Simulation(federation, module, batch_size=bench.BATCH, seed=SEED)
    x, found = ravel(module).repeat(len(federation), 1), []
    for r in co.run_rounds(algorithm, simulation, x, rounds=bench.ROUNDS, seed=SEED):
        found.append(r.state.standing.member.numpy())
    order = np.argsort(federation.clusters.numpy(), kind="stable")
    return np.stack(found, 1)[order]


def drawn() -> go.Figure:
    """The picture: groups on the left, accuracy on the right."""
    family = sys.modules["reproduce_coterie.structures"].FAMILIES[FAMILY]
    federation = bench.federation_of(family, load("digits"), SEED)
    figure = make_subplots(
        cols=2,
        subplot_titles=[
            "<b>Groups divide until they are the true ones</b>",
            "<b>Who learns with its own kind learns more</b>",
        ],
        horizontal_spacing=0.13,
    )
    groups, rounds = groups_by_round(federation), np.arange(1, bench.ROUNDS + 1)
    scale = [[j / 6, colour] for j, colour in enumerate(COLOURS)]
    figure.add_heatmap(
        z=groups, x=rounds, colorscale=scale, zmin=0, zmax=6, showscale=False, ygap=1
    )
    sizes = np.bincount(federation.clusters.numpy())
    for edge in sizes.cumsum()[:-1]:
        figure.add_hline(edge - 0.5, line={"color": "black", "width": 2}, row=1, col=1)
    above = np.inf
    ends = {}
    for name, (_, colour, dash) in LINES.items():
        run = bench.course(bench.QUICK[name], federation, bench.LR["digits"], SEED)
        score = run.test.mean(1)
        ends[name] = float(score[-1])
        line = {"color": colour, "dash": dash, "width": 2.5}
        figure.add_scatter(x=rounds, y=score, mode="lines", line=line, row=1, col=2)
    for name in sorted(ends, key=lambda name: -ends[name]):
        title, colour, _ = LINES[name]
        above = min(ends[name], above - 0.055)
        place = {"xshift": 8, "row": 1, "col": 2}
        named(figure, title, colour, bench.ROUNDS, above, **place)
    return looks(figure)


def looks(figure: go.Figure) -> go.Figure:
    """Sizes, axes and the line below."""
    laid_out(figure, l=64, r=150, t=70, b=100)
    figure.update_xaxes(title="round", title_standoff=8)
    figure.update_xaxes(range=[1, bench.ROUNDS], col=2)
    figure.update_yaxes(title="clients, by true group", showticklabels=False, col=1)
    figure.update_yaxes(
        title="test accuracy", tickformat=".0%", gridcolor="#e8e8e8", col=2
    )
    return captioned(
        figure,
        "Left: colours are the groups found; black lines part the true ones. "
        "20 clients of the digits, six names for every class; one seed.",
    )


if __name__ == "__main__":
    photograph(drawn(), __file__)
