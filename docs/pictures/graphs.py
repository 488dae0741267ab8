"""Draws graphs.png: eight graphs of 36 nodes, and how fast gossip is on each.

    python docs/pictures/graphs.py

Numbers are the gaps rho of Metropolis weights, computed as the picture is drawn.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from canvas import laid_out, photograph
from plotly.subplots import make_subplots

from coterie.graphs import edges_of, gossip_matrix, places, spectral_gap

NODES = 36
FAMILIES = (
    "line",
    "ring",
    "grid",
    "torus",
    "geometric(0.3)",
    "small_world(4, 0.2)",
    "random_regular(4)",
    "complete",
)


def title(text: str) -> str:
    """The name of a graph, and its gap."""
    rho = spectral_gap(gossip_matrix(edges_of(text, NODES), NODES))
    return f"{text}<br>rho = {rho:.2g}"


def picture() -> go.Figure:
    """All graphs, four in a row."""
    figure = make_subplots(
        rows=2, cols=4, subplot_titles=[title(text) for text in FAMILIES]
    )
    for number, text in enumerate(FAMILIES):
        edges = edges_of(text, NODES)
        place = places(edges, NODES)
        where = {"row": number // 4 + 1, "col": number % 4 + 1}
        ends = place[edges.numpy()]
        broken = np.concatenate([ends, np.full((len(ends), 1, 2), np.nan)], 1)
        x, y = broken.reshape(-1, 2).T
        line = {"color": "#bbbbbb", "width": 1.2 if text != "complete" else 0.3}
        figure.add_scatter(x=x, y=y, mode="lines", line=line, **where)
        dots = {"color": "#0072B2", "size": 7}
        figure.add_scatter(
            x=place[:, 0], y=place[:, 1], mode="markers", marker=dots, **where
        )
    figure.update_xaxes(visible=False, range=[-1.15, 1.15])
    figure.update_yaxes(visible=False, range=[-1.15, 1.15])
    return laid_out(figure, l=10, r=10, t=50, b=10)


if __name__ == "__main__":
    photograph(picture(), __file__)
