"""Loss networks: how often edges should start exchanges, and how often they succeed.

Every edge has a clock that rings at random times. A ring starts an exchange, which
keeps both ends of the edge busy for some time, its length. If an end is already busy,
the ring has no effect, and nobody waits.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, 5.5.2, hal tel-04877971.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ..checks import positive
from .families import degrees, nodes_of


class RingTimes(NamedTuple):
    """Rings of all edges of a graph, in the order of their times."""

    times: Float64[Tensor, " m"]
    which: Int[Tensor, " m"]  # positions of their edges


_TURNS = 1000
"""Iterations of `exchange_rates`; on a tree, as many as its diameter are enough."""


def exchange_rates(
    edges: Int[Tensor, "e 2"],
    rates: Float64[Tensor, " e"],
    lengths: Float64[Tensor, " e"],
) -> Float64[Tensor, " e"]:
    """How often per second each edge rings while both its ends are free.

    In a loss network, let rho_e = rate_e length_e. The probability that exactly the
    exchanges of a set M of edges are in progress is proportional to the product of
    rho_e over M. This holds for any distribution of the lengths. The probability that v
    is not busy with a neighbour other than w is

        u_vw = 1 / (1 + sum_{w' != w} rho_vw' u_w'v).

    Both ends of e = {v, w} are free with probability u_vw u_wv / (1 + rho_e u_vw u_wv).
    This is exact on a tree and approximate on other graphs.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> exchange_rates(torch.tensor([[0, 1]]), one, one)
    tensor([0.5000], dtype=torch.float64)
    """
    v = torch.cat([edges[:, 0], edges[:, 1]])
    rho, e = (rates * lengths).repeat(2), len(edges)
    u = torch.ones_like(rho)  # of v without w, both ways
    for _ in range(_TURNS):
        load = rho * u.roll(e)  # that w puts on v
        around = torch.zeros(int(edges.max()) + 1, dtype=u.dtype).index_add(0, v, load)
        before, u = u, 1 / (1 + around[v] - load)
        if float((u - before).abs().max()) < 1e-12:
            break
    both = u[:e] * u[e:]
    return rates * both / (1 + rho[:e] * both)


def loss_rates(
    edges: Int[Tensor, "e 2"], busy: Float[Tensor, " e"]
) -> Float[Tensor, " e"]:
    """How often each edge should ring, computed from its neighbourhood (Theorem 5.5).

    `p_vw = min(1 / max_{e' ~ vw} tau'_e', 1 / (2 (max(d_v, d_w) - 1) tau'_vw))`. If the
    clock of each node has the rate `sum_w p_vw / 2`, an edge with free ends rings at
    the rate p_vw.
    """
    longest = most_around(edges, positive("busy", busy, len(edges)))
    crowd = 2 * (degrees(edges)[edges].amax(1) - 1)
    return 1 / torch.maximum(longest, crowd * busy)


def most_around(edges: Tensor, values: Tensor) -> Tensor:
    """For each edge, the largest value of the edges that share a node with it."""
    at = values.new_zeros(nodes_of(edges))
    at.scatter_reduce_(0, edges.flatten(), values.repeat_interleave(2), "amax")
    return at[edges].amax(1)
