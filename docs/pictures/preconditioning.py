"""Draws preconditioning.png: rounds that a reference sample saves.

    python docs/pictures/preconditioning.py        half a minute

Logistic regression in 50 dimensions with 20,000 samples whose spectrum falls as 1/i.
Left, rounds to a precision of 1e-8 by the size of the reference sample. Right, the gap
by rounds. Every point is measured.
"""

from __future__ import annotations

from importlib import import_module

import plotly.graph_objects as go
import torch
from canvas import SIZE, photograph
from plotly.subplots import make_subplots

from coterie.cli import items_of

items_of("even2024")
chapter10 = import_module("reproduce_even2024.preconditioning")

COLOURS = {
    "gradient descent": "#666666",
    "accelerated gradient": "#CC79A7",
    "preconditioned_gradient": "#D55E00",
    "spag": "#0072B2",
}


def drawn() -> go.Figure:
    """The picture."""
    one = chapter10.race(1, 1.0, 0)
    sizes, last = list(one.parts), list(one.parts.values())[-1]
    figure = make_subplots(
        1, 2, subplot_titles=["rounds to a gap of 1e-8", "gap"], horizontal_spacing=0.12
    )
    flat = {"gradient descent": one.descent, "accelerated gradient": one.accelerated}
    by_size = {
        name: [len(part[place]) for part in one.parts.values()]
        for name, place in (("preconditioned_gradient", 1), ("spag", 2))
    }
    courses = {**flat, "preconditioned_gradient": last[1], "spag": last[2]}
    for name, colour in COLOURS.items():
        rounds = by_size.get(name) or [len(flat[name])] * len(sizes)
        style = {"color": colour, "width": 3}
        left = go.Scatter(x=sizes, y=rounds, name=name, line=style)
        figure.add_trace(left, row=1, col=1)
        right = go.Scatter(y=courses[name], name=name, line=style, showlegend=False)
        figure.add_trace(right, row=1, col=2)
    figure.update_xaxes(title="samples of the reference", type="log", col=1)
    figure.update_xaxes(title="rounds", type="log", col=2)
    figure.update_xaxes(tickvals=sizes, ticktext=[str(n) for n in sizes], col=1)
    figure.update_yaxes(type="log", exponentformat="power", dtick=1)
    figure.update_layout(
        width=SIZE[0],
        height=SIZE[1],
        template="plotly_white",
        legend={"orientation": "h", "y": -0.25},
        font={"size": 15},
    )
    return figure


if __name__ == "__main__":
    torch.set_num_threads(1)
    photograph(drawn(), __file__)
