"""Accelerated steps of pairs of nodes that meet at random.

Each edge e has a clock that rings at the rate q_e. mu is the smallest positive
eigenvalue of the Laplacian with weights q, and R the largest effective resistance R_e
of an edge,

    R_e = (e_v - e_w)' Laplacian(q)^+ (e_v - e_w).

Between rings, every node mixes its two vectors at the rate eta. When a clock rings, the
second vectors of both nodes move by alpha times the difference of their first vectors:

    eta = sqrt(mu / (2 R)),    alpha = 1 / sqrt(2 mu R).

In s seconds without an event, each vector of a node moves towards the other by the
share (1 - exp(-2 eta s)) / 2 of their difference. So the code computes this move only
when an event happens. The method stays stable if we take a smaller mu or a larger R.
With a larger mu or a smaller R, it may diverge.

References:
    Even, Berthier, Bach, Flammarion, Hendrikx, Gaillard, Massoulié, Taylor,
    "Continuized accelerations of deterministic and stochastic gradient descents, and of
    gossip algorithms", NeurIPS 2021, arXiv 2106.07644.

Differences (each with a test; see docs/errata.md): the printed differential equation
has sqrt(2 mu / R) in place of eta, which diverges on a line of 20 nodes.
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
    """The mu and R of a graph, for given rates of clocks."""

    gap: float  # mu
    resistance: float  # R

    @property
    def eta(self) -> float:
        """How fast a node's two vectors mix, per second; also the convergence rate."""
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
    """The two rows x and z of every node, as they were at its last event."""

    x: Tensor  # (N, D)
    z: Tensor  # (N, D)
    since: list[float]  # the time of that event
    eta: float = 0.0  # how fast they mix

    def at(self, v: int, time: float) -> tuple[Tensor, Tensor]:
        """Both rows of node v at a time, if it has no event before this time."""
        share = -math.expm1(-2 * self.eta * (time - self.since[v])) / 2
        move = share * (self.z[v] - self.x[v])
        return self.x[v] + move, self.z[v] - move

    def move(self, v: int, time: float, dx: Tensor, dz: Tensor) -> None:
        """Adds dx and dz to the rows of node v at a time."""
        x, z = self.at(v, time)
        self.x[v], self.z[v], self.since[v] = x + dx, z + dz, time

    def latest(self) -> Tensor:
        """(N, D) the x of all nodes, at the time of the last event of any node."""
        since = torch.tensor(self.since, dtype=torch.float64)
        share = share_of_way(since.max() - since, self.eta).to(self.x)
        return self.x + share[:, None] * (self.z - self.x)


def companions(start: Float[Tensor, "n d"], eta: float = 0.0) -> Companions:
    """`Companions` at time 0: both rows of every node are its row of `start`."""
    return Companions(start.clone(), start.clone(), [0.0] * len(start), eta)


def share_of_way(spans: Float64[Tensor, "*s"], eta: float) -> Float64[Tensor, "*s"]:
    """The shares of their difference by which two rows approach in these times."""
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
    """The step sizes of Theorem 2.6, for clocks of edges with these rates.

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
