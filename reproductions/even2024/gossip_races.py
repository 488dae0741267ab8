"""Chapters 2 and 4 of Even's thesis: gossip, accelerated or not, with delays or not.

Many runs are one: copies of a graph beside each other, whose edges ring independently.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import networkx as nx
import numpy as np
import torch
from torch import Tensor

from coterie.cli import Claim, Line, Panel, draw_panels
from coterie.graphs import edges_of, eigengap
from coterie.seeds import generator, key
from coterie_theory import gossip
from coterie_theory.decentralised import gossip as theory

REAL = torch.float64


def copies(edges: Tensor, n: int, runs: int) -> Tensor:
    """So many graphs beside each other."""
    return (edges + n * torch.arange(runs)[:, None, None]).reshape(-1, 2)


def deviations(x: Tensor, n: int) -> Tensor:
    """|x - x_bar|^2 of each run, (times, runs), of rows (times, runs n, 1)."""
    rows = x.reshape(len(x), -1, n)
    return (rows - rows.mean(2, keepdim=True)).square().sum(2)


def slowest(edges: Tensor, rates: Tensor) -> Tensor:
    """The eigenvector of the eigengap, from which averaging takes longest, (n, 1)."""
    n = int(edges.max()) + 1
    a = torch.zeros(len(edges), n, dtype=REAL)
    a.scatter_(1, edges, torch.tensor([1.0, -1.0], dtype=REAL).expand(len(edges), 2))
    return torch.linalg.eigh(a.T @ (rates[:, None] * a))[1][:, 1:2]


# E2b: small graphs, exact rates, and means of many runs.


class Row(NamedTuple):
    """A graph, with the exact rates of an independent computation."""

    graph: str
    n: int
    randomised: float
    accelerated: float
    printed: float  # accelerated, with the eta of the thesis


ROWS = (
    Row("line", 10, 0.010795, 0.034761, 0.026275),
    Row("line", 20, 0.001295, 0.008964, -0.00208),
    Row("ring", 10, 0.036549, 0.059691, 0.055044),
    Row("grid", 16, 0.023647, 0.038581, 0.035799),
    Row("star", 8, 0.098323, 0.105514, 0.104719),
    Row("complete", 8, 0.142857, 0.142857, 0.142857),
)


def uniform(edges: Tensor) -> Tensor:
    """Rates that sum to 1: time is the number of meetings."""
    return torch.full((len(edges),), 1 / len(edges), dtype=REAL)


def gossip_claims(share: float, seed: int) -> list[Claim]:
    """E2b: randomised and accelerated gossip, exact rates, bounds and fitted slopes."""
    claims = []
    for row in ROWS:
        edges = edges_of(row.graph, row.n)
        rates = uniform(edges)
        eta, gamma = gossip.pace(edges, rates)
        twice = gossip.GossipPace(2 * eta, gamma)
        found = (
            theory.exact_randomised_rate(edges, rates),
            theory.exact_accelerated_rate(edges, rates),
            theory.exact_accelerated_rate(edges, rates, twice),
        )
        near = np.allclose(found, row[2:], rtol=1e-3, atol=1e-5)
        claims.append(
            Claim(
                f"E2b, {row.graph} {row.n}: exact rates, randomised, accelerated, "
                "with the printed eta",
                ", ".join(f"{value:.6f}" for value in row[2:]),
                ", ".join(f"{value:.6f}" for value in found),
                bool(near),
                "equal to the digits given",
            )
        )
        claims += _means(row, edges, rates, share, seed)
    return claims


def _means(
    row: Row, edges: Tensor, rates: Tensor, share: float, seed: int
) -> list[Claim]:
    """Means of many runs from the slowest start: below the bound, and their slopes."""
    n, runs = row.n, max(20, int(1000 * share))
    theta = theory.accelerated_rate(edges, rates)
    claims = []
    for name, rate, bound in (
        ("randomised", row.randomised, theory.randomised_rate(edges, rates)),
        ("accelerated", row.accelerated, theta),
    ):
        at = torch.linspace(0, 4 / rate, 17, dtype=REAL)
        left = _left(name, edges, rates, at, runs, seed)
        mean, error = left.mean(1), left.std(1) / math.sqrt(runs)
        factor = 1.0 if name == "randomised" else 2.0
        below = mean - 3 * error <= factor * torch.exp(-bound * at)
        holds = bool(below[1:].all())
        # The second half, in which what fades sooner has faded.
        slope = -float(np.polyfit(at[8:], mean[8:].log(), 1)[0])
        claims += [
            Claim(
                f"E2b, {row.graph} {n}, {name}: E |x - x_bar|^2 at 16 times",
                "at most its bound",
                "below it" if holds else "above it",
                holds,
                f"{runs} runs, less three standard errors",
            ),
            Claim(
                f"E2b, {row.graph} {n}, {name}: slope of its logarithm",
                f"{rate:.6f}",
                f"{slope:.6f}",
                0.8 <= slope / rate <= 1.25 if share == 1 else None,
                "means of squares have heavy tails, and slopes of finite times "
                "differ: a quarter is allowed",
            ),
        ]
    return claims


def _left(
    name: str, edges: Tensor, rates: Tensor, at: Tensor, runs: int, seed: int
) -> Tensor:
    """What is left of |x - x_bar|^2 at these times in each run."""
    x = slowest(edges, rates)
    many, rng = rates.repeat(runs), generator(seed, "E2b", name, len(x))
    rings = gossip.poisson_rings(many, float(at[-1]), rng)
    apart = copies(edges, len(x), runs)
    start = x.repeat(runs, 1)
    if name == "randomised":
        return deviations(gossip.randomised(start, apart, rings, at), len(x))
    pace = gossip.pace(edges, rates)
    return deviations(gossip.accelerated(start, apart, rings, at, pace).x, len(x))


# A thousand nodes: time until a millionth is left.


class Race(NamedTuple):
    """Times until a millionth of |x - x_bar|^2 is left, in meetings."""

    graph: str
    rates: tuple[float, float]  # mu and theta
    randomised: float
    accelerated: float
    seen: float  # what randomised gossip had left when it was stopped


LEFT = 1e-6
_MOST = 6_000_000
"""Meetings of randomised gossip; a line would take 1.4e9, which is an hour."""


def geometric(n: int, seed: int) -> Tensor:
    """Random points of a square, joined up to a distance at which all are joined."""
    places = np.random.default_rng(key(seed, "geometric") & (2**63 - 1)).random((n, 2))
    radius = math.sqrt(2 * math.log(n) / (math.pi * n))
    where = dict(enumerate(map(tuple, places)))
    drawn = nx.random_geometric_graph(n, radius, pos=where)
    while not nx.is_connected(drawn):  # few points may need a longer distance
        radius *= 1.1
        drawn = nx.random_geometric_graph(n, radius, pos=where)
    return torch.tensor(sorted(tuple(sorted(edge)) for edge in drawn.edges))


def race(graph: str, n: int, seed: int) -> Race:
    """Both kinds of gossip on the same rings, from the slowest start."""
    edges = geometric(n, seed) if graph == "geometric" else edges_of(graph, n)
    rates = uniform(edges)
    pace = gossip.pace(edges, rates)
    mu, x = eigengap(edges, rates), slowest(edges, rates)
    until = min(1.1 * math.log(1 / LEFT) / mu, _MOST)
    until = max(until, 12 / pace.eta)
    rings = gossip.poisson_rings(rates, until, generator(seed, "race", graph))
    at = torch.linspace(0, until, 401, dtype=REAL)
    plain = deviations(gossip.randomised(x, edges, rings, at), n)[:, 0]
    soon = at * 12 / (pace.eta * until)
    fast = deviations(gossip.accelerated(x, edges, rings, soon, pace).x, n)[:, 0]
    return Race(
        graph,
        (mu, pace.eta),
        _arrival(at, plain),
        _arrival(soon, fast),
        float(plain[-1]),
    )


def _arrival(at: Tensor, left: Tensor) -> float:
    """When a millionth is left; where it is not seen, at the pace that is."""
    below = (left <= LEFT).nonzero()
    if not len(below):
        return math.log(LEFT) / math.log(float(left[-1])) * float(at[-1])
    last = int(below[0])
    high, low = left[last - 1].log(), left[last].log()
    part = (high - math.log(LEFT)) / (high - low)
    return float(at[last - 1] + part * (at[last] - at[last - 1]))


def thousand_claims(share: float, seed: int) -> list[Claim]:
    """Side by side: how much sooner a thousand nodes agree, next to what rates say."""
    n = max(25, int(40 * math.sqrt(share)) * int(25 * math.sqrt(share)))
    # A single mode has exp(-2 theta t) (1 + theta t)^2 left, if mu is far below theta.
    sharp = 9.2376 / math.log(1 / LEFT)
    claims = []
    for graph in ("line", "ring", "grid", "geometric"):
        found = race(graph, n, seed)
        mu, theta = found.rates
        gain, said = found.randomised / found.accelerated, 2 * theta / mu
        seen = (
            "both run to the end"
            if found.seen <= LEFT
            else f"randomised gossip was stopped where {found.seen:.3f} was left, and "
            "goes on at that pace"
        )
        claims.append(
            Claim(
                f"E2b, {graph} {n}: time to 1e-6, randomised over accelerated",
                f"{said:.4g} by mu/2 and theta; {theta / mu / sharp:.4g} by the mean",
                f"{gain:.4g} ({found.randomised:.3g} over {found.accelerated:.3g})",
                1 / 1.5 <= gain / said <= 1.5 if share == 1 else None,
                f"a factor of 1.5 is allowed, it is {gain / said:.2f}, and "
                f"{gain / (theta / mu / sharp):.2f} of that by the mean; {seen}",
            )
        )
    return claims


def draw_gossip(folder: Path, share: float, seed: int) -> None:
    """Curves of E |x - x_bar|^2 over the number of meetings, a graph in each panel."""
    panels = []
    for row in ROWS:
        edges = edges_of(row.graph, row.n)
        rates = uniform(edges)
        at = torch.linspace(0, 6 / row.accelerated, 49, dtype=REAL)
        lines = []
        for name in ("randomised", "accelerated"):
            left = _left(name, edges, rates, at, max(20, int(300 * share)), seed)
            lines.append(Line(name, at.tolist(), left.mean(1).tolist()))
        labels = f"{row.graph}, {row.n} nodes", "meetings", "mean of |x - x_bar|^2"
        panels.append(Panel(lines, *labels, log_y=True))
    draw_panels(folder / "gossip.html", panels, height=320)
