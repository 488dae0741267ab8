"""Accelerated steps of pairs of nodes that meet at random.

Edge e rings at rate q_e; mu is the smallest positive eigenvalue of the Laplacian with
weights q, and R the largest effective resistance of an edge,

    R_e = (e_v - e_w)' Laplacian(q)^+ (e_v - e_w).

Between rings every node mixes two vectors at rate eta, and a ring moves the second one
by alpha times the difference:

    eta = sqrt(mu / (2 R)),    alpha = 1 / sqrt(2 mu R).

In s seconds without an event, each vector of a node moves towards the other by the
share (1 - exp(-2 eta s)) / 2 of their difference. So the code computes this move only
when an event happens. The method is stable if mu is chosen too small or R too large. It
may diverge if mu is too large or R too small.

References:
    Even, Berthier, Bach, Flammarion, Hendrikx, Gaillard, Massoulié, Taylor,
    "Continuized accelerations of deterministic and stochastic gradient descents, and of
    gossip algorithms", NeurIPS 2021, arXiv 2106.07644.

Differences (each with a test; see docs/errata.md): the printed ODE has
sqrt(2 mu / R), which diverges on a line of 20 nodes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ..checks import number
from ..graphs.resistances import resistances
from ..graphs.spectra import eigengap


class MeetingRates(NamedTuple):
    """The mu and R of a graph whose edges ring."""

    gap: float  # mu
    resistance: float  # R

    @property
    def eta(self) -> float:
        """How fast the two vectors of a node mix, per second; also the rate."""
        return math.sqrt(self.gap / (2 * self.resistance))

    @property
    def alpha(self) -> float:
        """How far a ring moves the second vector."""
        return 1 / math.sqrt(2 * self.gap * self.resistance)


def meetings(edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"]) -> MeetingRates:
    """The mu and R of a connected graph.

    >>> found = meetings(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0.5, 0.5]))
    >>> round(found.gap, 6), round(found.resistance, 6), round(found.eta, 6)
    (0.5, 2.0, 0.353553)
    """
    gap, used = eigengap(edges, rates), rates > 0
    return MeetingRates(gap, float(resistances(edges[used], rates[used]).max()))


@dataclass
class Companions:
    """Two rows of every node, as they were at its last event."""

    x: Tensor  # (N, D)
    z: Tensor  # (N, D)
    since: list[float]  # the time of that event
    eta: float = 0.0  # how fast they mix

    def at(self, v: int, time: float) -> tuple[Tensor, Tensor]:
        """Both rows of a node at a time, if nothing happens to it until then."""
        share = -math.expm1(-2 * self.eta * (time - self.since[v])) / 2
        move = share * (self.z[v] - self.x[v])
        return self.x[v] + move, self.z[v] - move

    def move(self, v: int, time: float, dx: Tensor, dz: Tensor) -> None:
        """Adds dx and dz to the rows of a node at a time."""
        x, z = self.at(v, time)
        self.x[v], self.z[v], self.since[v] = x + dx, z + dz, time

    def latest(self) -> Tensor:
        """(N, D) the x of all nodes at the last event of any."""
        since = torch.tensor(self.since, dtype=torch.float64)
        share = share_of_way(since.max() - since, self.eta).to(self.x)
        return self.x + share[:, None] * (self.z - self.x)


def companions(start: Float[Tensor, "n d"], eta: float = 0.0) -> Companions:
    """Both rows of every node at these rows, at time 0."""
    return Companions(start.clone(), start.clone(), [0.0] * len(start), eta)


def share_of_way(spans: Float64[Tensor, "*s"], eta: float) -> Float64[Tensor, "*s"]:
    """By what share of their difference a row moves to the other row in these times."""
    return -torch.expm1(-2 * eta * spans) / 2


class DualSteps(NamedTuple):
    """The step sizes of `coterie.algorithms.dual_accelerated`."""

    eta: float  # how fast y and z mix
    shares: Float64[Tensor, " e"]  # steps of y at each edge
    jump: float  # step of z


def dual_steps(
    edges: Int[Tensor, "e 2"],
    rates: Float[Tensor, " e"],
    *,
    smoothness: float,
    curvature: float,
) -> DualSteps:
    """The steps of Theorem 2.6, for edges that ring at these rates.

    For losses that are m-strongly convex and L-smooth, eta is sqrt(m mu / (2 L R)), a
    share is m R_e / (2 R), and the jump is sqrt(m L / (2 mu R)). This needs all
    resistances, so it works for up to a few thousand nodes.
    """
    number("smoothness", smoothness, above=0)
    number("curvature", curvature, above=0, at_most=smoothness)
    each = resistances(edges, rates)
    gap, largest = meetings(edges, rates).gap, float(each.max())
    flat, steep = gap / smoothness, 2 * largest / curvature  # of the dual problem
    return DualSteps(math.sqrt(flat / steep), each / steep, 1 / math.sqrt(flat * steep))
