"""How far pairs of nodes that meet at random can be accelerated.

Edge e rings at rate q_e; mu is the smallest positive eigenvalue of the Laplacian with
weights q, and R the largest effective resistance of an edge,

    R_e = (e_v - e_w)' Laplacian(q)^+ (e_v - e_w).

Between rings every node mixes two vectors at rate eta, and a ring moves the second one
by alpha times the difference:

    eta = sqrt(mu / (2 R)),    alpha = 1 / sqrt(2 mu R).

Smaller mu and larger R are safe; the contrary may diverge.

References:
    Even, Berthier, Bach, Flammarion, Hendrikx, Gaillard, Massoulié, Taylor,
    "Continuized accelerations of deterministic and stochastic gradient descents, and of
    gossip algorithms", NeurIPS 2021, arXiv 2106.07644.

Differences (each with a test; see docs/errata.md): the printed ODE has
sqrt(2 mu / R), which diverges on a line of 20 nodes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ..graphs.families import nodes_of
from ..graphs.resistances import resistances
from ..graphs.spectra import eigengap


class Meetings(NamedTuple):
    """What acceleration needs to know of a graph whose edges ring."""

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


def meetings(edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"]) -> Meetings:
    """The mu and R of a connected graph.

    >>> found = meetings(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0.5, 0.5]))
    >>> round(found.gap, 6), round(found.resistance, 6), round(found.eta, 6)
    (0.5, 2.0, 0.353553)
    """
    gap, used = eigengap(edges, rates), rates > 0
    return Meetings(gap, float(resistances(edges[used], rates[used]).max()))


def incidence(edges: Int[Tensor, "e 2"]) -> Float64[Tensor, "n e"]:
    """Column e is e_v - e_w for the edge {v, w}."""
    columns = torch.arange(len(edges))
    result = torch.zeros(nodes_of(edges), len(edges), dtype=torch.float64)
    result[edges[:, 0], columns], result[edges[:, 1], columns] = 1.0, -1.0
    return result
