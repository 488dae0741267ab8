"""Randomised gossip: when an edge {v, w} rings, both ends take the mean of their rows.

    x_v, x_w <- (x_v + x_w) / 2                                       (4.4)

The mean of all rows does not change. `E |x(t) - x_bar|^2` falls at least as fast as
`exp(-lambda_2 t / 2)`, with the eigengap lambda_2 of the Laplacian of the rates.

References:
    Boyd, Ghosh, Prabhakar, Shah, "Randomized gossip algorithms", IEEE Transactions on
    Information Theory 52(6), 2006.
    Even, PhD thesis, 2024, 1.2.2 and 4.2.1, tel-04877971.

Differences: the thesis leaves out the factor 1/2 in the rate; see docs/errata.md.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from coterie.graphs.capacities import RingTimes

from .rings import layers, pieces, rows, until_each


def randomised(
    x: Float[Tensor, "n d"],
    edges: Int[Tensor, "e 2"],
    rings: RingTimes,
    at: Float64[Tensor, " k"],
) -> Float[Tensor, "k n d"]:
    """All rows at each of these times, with the effect of one ring after the other.

    Each connected part of the graph goes to its own mean.

    >>> rings = RingTimes(torch.tensor([1.0, 2.0]).double(), torch.tensor([0, 1]))
    >>> line, at = torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.5, 3.0]).double()
    >>> randomised(torch.tensor([[4.0], [0.0], [0.0]]), line, rings, at)[..., 0]
    tensor([[2., 2., 0.],
            [2., 1., 1.]])

    Args:
        x: the first rows.
        edges: pairs of positions of rows.
        rings: times, ascending, and positions of edges, as from `poisson_rings`.
        at: times, ascending; rings at such a time are included.
    """
    x, found = rows(x, edges), []
    for some in until_each(edges, rings, at):
        ends = edges[rings.which[some]]
        for layer in layers(ends, len(x)):
            for piece in pieces(layer, x.shape[1]):
                v, w = ends[piece].to(x.device).unbind(1)
                mean = x.index_select(0, v).add_(x.index_select(0, w)).mul_(0.5)
                x.index_copy_(0, v, mean).index_copy_(0, w, mean)
        found.append(x.clone())
    return torch.stack(found)
