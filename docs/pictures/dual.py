"""Draws dual.png: dual methods on a graph, beside SGD that exchanges models.

    python docs/pictures/dual.py        half a minute

Linear regressions that differ between 8 clients on a ring, exact gradients of a second
each. Left, messages take no time; right, they take a minute. Edges ring as often as
studies let them. Every point is measured.
"""

from __future__ import annotations

import math

import plotly.graph_objects as go
import torch
from canvas import captioned, laid_out, named, photograph
from decentralised import REAL, optimum, regressions
from plotly.subplots import make_subplots

import coterie as co
from coterie.engine.clocks import Delays, Rings, clock
from coterie.engine.events import EventLoop
from coterie.graphs import edges_of, gossip_matrix

N, POINTS = 8, 40
SECONDS = {1: 2000, 2: 8000}  # left and right
BOWL = {"lr": 0.2, "curvature": 0.7}
LINES = {
    "loss_network": ("loss network, lr 0.1", "#D55E00", {"lr": 0.1}),
    "ddo": ("DDO", "#009E73", BOWL),
    "dual_accelerated": ("dual, accelerated", "#0072B2", BOWL),
}


def distances(
    name: str, clients: co.Simulation, best: torch.Tensor, panel: int
) -> list[float]:
    """Root mean square distance to the optimum of all, against seconds."""
    edges, options = edges_of("ring", N), LINES[name][2]
    method = getattr(co.methods, name)(gossip_matrix(edges, N), **options)
    length = method.flow.kinds[0].passes or 1.0
    travel = 60.0 if panel == 2 else 0.0
    rate = 1 / length if name == "ddo" else 1 / (3 * (length + travel))
    rings = Rings(edges, torch.full((N,), rate, dtype=REAL))
    links = Delays(f"constant({travel})") if travel else None
    x = torch.ones(N, 5, dtype=REAL)
    run = EventLoop(
        method, clients, x, clock=clock("constant(1)"), rings=rings, links=links
    )
    found = []
    for point in range(POINTS + 1):
        list(run.until(point * SECONDS[panel] / POINTS))
        away = (run.personal() - best).square().sum(1).mean().sqrt()
        found.append(float(away))
    return found


def drawn() -> go.Figure:
    """The picture: instant messages on the left, slow ones on the right."""
    titles = ["<b>Messages take no time</b>", "<b>Messages take a minute</b>"]
    figure = make_subplots(cols=2, subplot_titles=titles, horizontal_spacing=0.26)
    clients = regressions(N)
    best = optimum(clients)
    for panel, seconds in SECONDS.items():
        times = [seconds * point / POINTS for point in range(POINTS + 1)]
        for name, (label, colour, _) in LINES.items():
            values = distances(name, clients, best, panel)
            place = {"row": 1, "col": panel}
            line = {"color": colour, "width": 2.5}
            figure.add_scatter(x=times, y=values, mode="lines", line=line, **place)
            place |= {"xshift": 8, "yshift": 12 if name == "loss_network" else -4}
            named(figure, label, colour, seconds, math.log10(values[-1]), **place)
        figure.update_xaxes(title="seconds", range=[0, seconds], col=panel)
    return looks(figure)


def looks(figure: go.Figure) -> go.Figure:
    """Sizes, axes and the line below."""
    laid_out(figure, l=80, r=150, t=70, b=100)
    figure.update_yaxes(
        title="distance to the optimum of all",
        type="log",
        gridcolor="#e8e8e8",
        exponentformat="power",
        dtick=1,
    )
    return captioned(
        figure,
        "8 regressions that differ, on a ring; a gradient takes a second, a dual one "
        "about ten of them; the best known smoothness and curvature.",
    )


if __name__ == "__main__":
    photograph(drawn(), __file__)
