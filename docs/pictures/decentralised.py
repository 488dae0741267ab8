"""Draws decentralised.png: bias and exactness in rounds, acceleration in time.

    python docs/pictures/decentralised.py        half a minute

Left, linear regressions that differ between 12 clients on a ring, exact gradients, the
same step for all. Right, pure averaging on a line of 30 clients whose pairs meet once a
second, eight seeds. Every point is measured.
"""

from __future__ import annotations

import plotly.graph_objects as go
import torch
from canvas import captioned, laid_out, named, photograph
from plotly.subplots import make_subplots

import coterie as co
from coterie.data import divide, load
from coterie.engine.clocks import Rings, clock
from coterie.engine.events import EventLoop
from coterie.graphs import edges_of, gossip_matrix
from coterie.models import build

REAL = torch.float64
ROUNDS, SECONDS, SEEDS = 150, 120, 8
ROUND_LINES = {
    "decentralised_sgd": ("decentralised SGD", "#D55E00"),
    "extra": ("EXTRA", "#0072B2"),
    "gradient_tracking": ("gradient tracking", "#009E73"),
}
TIME_LINES = {
    "agraf": ("pairs (agraf)", "#D55E00"),
    "accelerated_gossip_sgd": ("accelerated", "#0072B2"),
}


def regressions(n: int) -> co.Simulation:
    """Everybody has a best model of its own."""
    table = load("linear", clients=n, clusters=n, dimension=5, samples=40, spread=1.0)
    federation = divide(table, "natural", seed=0)
    module = build(lambda: co.models.linear((5,), 1, bias=False), 0, REAL)
    return co.Simulation(federation, module, batch_size=0, dtype=REAL)


def optimum(simulation: co.Simulation) -> torch.Tensor:
    """Of the mean of all losses, whose gradients are linear."""
    n, origin = len(simulation), torch.zeros(len(simulation), 5, dtype=REAL)
    oracle = simulation.at(1)
    start = oracle.grads(origin)
    columns = [
        (oracle.grads(origin + row) - start).mean(0) for row in torch.eye(5, dtype=REAL)
    ]
    return torch.linalg.solve(torch.stack(columns, 1), -start.mean(0)).expand(n, 5)


def distances(name: str, simulation: co.Simulation, best: torch.Tensor) -> list[float]:
    """Root mean square distance to the optimum of all, after every round."""
    n = len(simulation)
    matrix = gossip_matrix(edges_of("ring", n), n)
    method = getattr(co.methods, name)(matrix, lr=0.1)
    x = torch.zeros(n, 5, dtype=REAL)
    return [
        float((r.state.x - best).square().sum(1).mean().sqrt())
        for r in co.run_rounds(method, simulation, x, rounds=ROUNDS)
    ]


def disagreements(name: str, simulation: co.Simulation) -> list[float]:
    """Mean over seeds of the mean square distance to the mean, every second."""
    n = len(simulation)
    edges = edges_of("line", n)
    options = {"mix": "pairs"} if name == "agraf" else {}
    method = getattr(co.methods, name)(gossip_matrix(edges, n), **options)
    x = torch.linspace(-1, 1, n, dtype=REAL)[:, None].expand(n, 5)
    total = torch.zeros(SECONDS + 1, dtype=REAL)
    for seed in range(SEEDS):
        rings = Rings(edges, torch.ones(len(edges), dtype=REAL), seed=seed)
        run = EventLoop(
            method, simulation, x, clock=clock("constant(1e6)"), rings=rings
        )
        for second in range(SECONDS + 1):
            list(run.until(float(second)))
            total[second] += run.personal().square().mean() / SEEDS
    return total.tolist()


def drawn() -> go.Figure:
    """The picture: rounds on the left, time on the right."""
    figure = make_subplots(
        cols=2,
        subplot_titles=[
            "<b>Where data differ, two methods are exact</b>",
            "<b>On a long graph, acceleration pays</b>",
        ],
        horizontal_spacing=0.26,
    )
    few, many = regressions(12), regressions(30)
    best = optimum(few)
    curves = [
        (1, label, colour, distances(name, few, best))
        for name, (label, colour) in ROUND_LINES.items()
    ]
    curves += [
        (2, label, colour, disagreements(name, many))
        for name, (label, colour) in TIME_LINES.items()
    ]
    for column, label, colour, values in curves:
        line = {"color": colour, "width": 2.5}
        place = {"row": 1, "col": column}
        figure.add_scatter(y=values, mode="lines", line=line, **place)
        end = torch.tensor(values[-1]).log10().item()
        named(figure, label, colour, len(values) - 1, end, xshift=8, **place)
    return looks(figure)


def looks(figure: go.Figure) -> go.Figure:
    """Sizes, axes and the line below."""
    laid_out(figure, l=80, r=150, t=70, b=100)
    axis = {
        "type": "log",
        "gridcolor": "#e8e8e8",
        "exponentformat": "power",
        "dtick": 1,
    }
    figure.update_yaxes(title="distance to the optimum of all", **axis, col=1)
    figure.update_yaxes(title="mean square disagreement", **axis, col=2)
    figure.update_xaxes(title="round", title_standoff=8, range=[0, ROUNDS], col=1)
    figure.update_xaxes(title="seconds", title_standoff=8, range=[0, SECONDS], col=2)
    return captioned(
        figure,
        "Left: 12 regressions that differ, on a ring, the same step, exact "
        "gradients. Right: a line of 30, every pair meets once a second, mean of 8 "
        "seeds.",
    )


if __name__ == "__main__":
    photograph(drawn(), __file__)
