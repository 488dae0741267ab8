"""Draws tokens.png: a model that walks, and what it needs in messages.

    python docs/pictures/tokens.py        half a minute

Left, how many of 64 clients on a grid a token has met, by three walks. Right, logistic
regression of these clients, whose data differ: how near each method is after so many
models sent. Every point is measured.
"""

from __future__ import annotations

from importlib import import_module

import numpy as np
import plotly.graph_objects as go
import torch
from canvas import captioned, laid_out, named, photograph
from plotly.subplots import make_subplots

from coterie.cli import items_of
from coterie.graphs import edges_of, walk_on
from coterie.seeds import generator

items_of("even2024")
races = import_module("reproduce_even2024.token_races")

N, SIDE = 64, 8
WALKS = {
    "simple": ("simple", "#D55E00", -4),
    "metropolis": ("metropolis", "#E69F00", -4),
    "non_backtracking": ("non_backtracking", "#0072B2", 6),
}
LINES = {
    "MC-SAG": ("token_sag", "#0072B2", "solid", 0),
    "MC-SGD": ("token_sgd", "#D55E00", "dash", 2),
    "waiting": ("token_sgd, which<br>waits to mix", "#CC79A7", "dot", 14),
    "gossip": ("gossip (DSGD)", "#666666", "dashdot", -10),
}
BUDGETS = (500, 1000, 2000, 4000, 8000)
RUNS = 40


def met(kind: str, steps: int = 400) -> np.ndarray:
    """How many of all clients a token has met after each step, mean over walks."""
    walk, counts = walk_on(kind, edges_of("grid", N), N), np.zeros(steps)
    for run in range(RUNS):
        rng, at, seen = generator(run, "picture", kind), 0, {0}
        trail = walk.trail(at)
        for t in range(steps):
            at, trail = walk.following(at, trail, rng)
            seen.add(at)
            counts[t] += len(seen) / RUNS
    return counts


def drawn() -> go.Figure:
    """The picture: clients met on the left, precision by messages on the right."""
    figure = make_subplots(
        cols=2,
        subplot_titles=[
            "<b>A walk that does not turn back meets more clients</b>",
            "<b>Who remembers gradients needs fewest messages</b>",
        ],
        horizontal_spacing=0.22,
    )
    for kind, (title, colour, up) in WALKS.items():
        counts = met(kind)
        figure.add_scatter(
            x=np.arange(1, 401),
            y=counts,
            mode="lines",
            line={"color": colour, "width": 2.5},
        )
        beside(figure, 400, counts[-1], title, colour, 1, up)
    ends = {budget: races.raced("grid", N, 1.0, budget, 0)[0] for budget in BUDGETS}
    for name, (title, colour, dash, up) in LINES.items():
        y = [ends[budget][name] for budget in BUDGETS]
        line = {"color": colour, "dash": dash, "width": 2.5}
        figure.add_scatter(
            x=BUDGETS, y=y, mode="lines+markers", line=line, row=1, col=2
        )
        beside(figure, np.log10(BUDGETS[-1]), np.log10(y[-1]), title, colour, 2, up)
    return looks(figure)


def beside(
    figure: go.Figure, x: float, y: float, text: str, colour: str, col: int, up: int
) -> None:
    """The name of a line at its end."""
    place = {"align": "left", "xshift": 8, "yshift": up, "row": 1, "col": col}
    named(figure, text, colour, x, y, **place)


def looks(figure: go.Figure) -> go.Figure:
    """Sizes, axes and the line below."""
    laid_out(figure, l=64, r=140, t=70, b=100)
    figure.update_yaxes(gridcolor="#e8e8e8")
    figure.update_xaxes(
        title="steps of the walk", title_standoff=8, range=[0, 400], col=1
    )
    figure.update_yaxes(title="clients met, of 64", range=[0, 66], col=1)
    values = list(BUDGETS)
    figure.update_xaxes(
        title="models sent",
        title_standoff=8,
        type="log",
        range=[np.log10(450), np.log10(8000)],
        tickvals=values,
        ticktext=[str(value) for value in values],
        col=2,
    )
    figure.update_yaxes(
        title="|gradient|²", type="log", exponentformat="power", dtick=2, col=2
    )
    return captioned(
        figure,
        "A grid of 64 clients. Left: means of 40 walks. Right: logistic "
        "regression, data that differ, the best of eight steps each; one seed.",
    )


if __name__ == "__main__":
    torch.set_num_threads(1)
    photograph(drawn(), __file__)
