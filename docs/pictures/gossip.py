"""Draws gossip.png: three pairs of ways to average over a graph.

    python docs/pictures/gossip.py        half a minute

A grid of 400 nodes with random numbers, and an expander of 60, a tenth of whose edges
is a hundred times slower. Every point is measured, in one run of each.
"""

from __future__ import annotations

import plotly.graph_objects as go
import torch
from canvas import laid_out, named, photograph
from plotly.subplots import make_subplots

from coterie.graphs import delayed_shares, edges_of, gossip_matrix
from coterie_theory import gossip

REAL = torch.float64
SLOW, FAST = "#D55E00", "#0072B2"
TITLES = ("In rounds", "By random pairs", "Messages take time")
Curve = tuple[str, str, list[float], list[float]]


def left(x: torch.Tensor, start: torch.Tensor) -> list[float]:
    """|x - x_bar|^2 over that at the start, at all times."""
    spread = [(y - y.mean(-2, keepdim=True)).square().sum((-2, -1)) for y in (x, start)]
    return (spread[0] / spread[1]).tolist()


def numbers(n: int) -> torch.Tensor:
    """Random rows."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, 1, generator=rng, dtype=REAL)


def in_rounds() -> list[Curve]:
    """Plain and Chebyshev gossip on the grid."""
    n, ticks = 400, list(range(0, 201, 5))
    matrix, x = gossip_matrix(edges_of("grid", n), n), numbers(n)
    curves = []
    for name, way, colour in (
        ("plain", gossip.plain, SLOW),
        ("Chebyshev", gossip.chebyshev, FAST),
    ):
        rows = torch.stack([way(x, matrix, rounds=t) for t in ticks])
        curves.append((name, colour, [float(t) for t in ticks], left(rows, x)))
    return curves


def by_pairs() -> list[Curve]:
    """Randomised and accelerated gossip on the grid."""
    n = 400
    edges, x = edges_of("grid", n), numbers(n)
    rates = torch.full((len(edges),), 1 / len(edges), dtype=REAL)
    at = torch.linspace(0, 250 * n, 81, dtype=REAL)
    rng = torch.Generator().manual_seed(0)
    rings = gossip.poisson_rings(rates, float(at[-1]), rng)
    pace = gossip.pace(edges, rates)
    ways = {
        "randomised": (SLOW, gossip.randomised(x, edges, rings, at)),
        "accelerated": (FAST, gossip.accelerated(x, edges, rings, at, pace).x),
    }
    ticks = (at / n).tolist()
    return [(name, c, ticks, left(rows, x)) for name, (c, rows) in ways.items()]


def with_delays() -> list[Curve]:
    """Waiting for the slowest message, and delayed gossip, with rates 1 / tau."""
    n = 60
    edges, x = edges_of("expander(4)", n), numbers(n)
    rng = torch.Generator().manual_seed(1)
    slow = torch.rand(len(edges), generator=rng) < 0.1
    delays = torch.where(slow, 1.0, 0.01).to(REAL)
    rates = 1 / delays
    at = torch.linspace(0, 4, 81, dtype=REAL)
    rings = gossip.poisson_rings(rates, 4.0, rng)
    shares = delayed_shares(edges, rates, delays)
    rows = gossip.delayed(x, edges, rings, at, delays=delays, shares=shares)
    matrix = gossip_matrix(edges, n)
    rounds = torch.stack([gossip.plain(x, matrix, rounds=t) for t in range(5)])
    steps = [float(t) for t in range(5)]
    return [
        ("synchronous", SLOW, steps, left(rounds, x)),
        ("delayed", FAST, at.tolist(), left(rows, x)),
    ]


def drawn() -> go.Figure:
    """The picture."""
    titles = [f"<b>{title}</b>" for title in TITLES]
    figure = make_subplots(cols=3, subplot_titles=titles, horizontal_spacing=0.09)
    panels = (in_rounds(), by_pairs(), with_delays())
    for column, curves in enumerate(panels, 1):
        for name, colour, x, y in curves:
            line = {"color": colour, "width": 2.5}
            line["dash"] = "dash" if colour == SLOW else "solid"
            figure.add_scatter(x=x, y=y, mode="lines", line=line, row=1, col=column)
            at = x[len(x) * 2 // 3], _log(y[len(y) * 2 // 3])
            named(figure, name, colour, *at, yshift=12, row=1, col=column)
    laid_out(figure, l=70, r=60, t=60, b=70)
    figure.update_yaxes(
        type="log", exponentformat="power", dtick=2, gridcolor="#e8e8e8"
    )
    figure.update_yaxes(title="deviation, squared", col=1)
    for column, title in enumerate(("rounds", "meetings / nodes", "seconds"), 1):
        figure.update_xaxes(title=title, row=1, col=column)
    return figure


def _log(value: float) -> float:
    return float(torch.tensor(value).log10())


if __name__ == "__main__":
    photograph(drawn(), __file__)
