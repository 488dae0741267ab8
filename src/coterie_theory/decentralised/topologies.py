"""How long agreement on a graph takes, if messages and computations take time.

A message on edge e takes the time s_e (`lengths`, or tau_e), and a computation at node
v the time tau_v (`computing`). Information from v reaches w after

    dist(v, w) = tau_v + tau_w + smallest sum of s_e over paths from v to w,

and the largest of these distances is the time diameter D.

References:
    Even, PhD thesis, 2024, sections 1.3.2, 1.3.3 and 4.1, tel-04877971.
    Scaman, Bach, Bubeck, Lee, Massoulié, "Optimal algorithms for smooth and strongly
    convex distributed optimization in networks", ICML 2017, arXiv:1702.08704.

Differences: for the typical time of asynchronous gossip, the thesis prints `1 /
lambda_2(p)`, with probabilities p in place of the rates 1 / s.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import dijkstra
from torch import Tensor

from coterie import checks
from coterie.graphs.families import degrees, nodes_of, not_negative, refuse_apart
from coterie.graphs.spectra import eigengap

_AT_ONCE = 256
"""The number of sources in one block of distances."""


def distances_from(
    sources: Int[Tensor, " m"],
    edges: Int[Tensor, "e 2"],
    lengths: Float[Tensor, " e"],
    computing: Float[Tensor, " n"] | None = None,
) -> Float64[Tensor, "m n"]:
    """(M, n) dist(v, w) from each source v to all nodes w, 0 to itself.

    >>> line = torch.tensor([[0, 1], [1, 2]])
    >>> distances_from(torch.tensor([0]), line, torch.tensor([2.0, 3.0]))
    tensor([[0., 2., 5.]], dtype=torch.float64)
    """
    n = nodes_of(edges)
    refuse_apart("edges", edges, n)
    checks.positive("lengths", lengths, len(edges))
    ends, values = edges.cpu().numpy().T, lengths.double().cpu().numpy()
    links = coo_array((values, tuple(ends)), shape=(n, n)).tocsr()
    found = torch.from_numpy(
        np.atleast_2d(dijkstra(links, directed=False, indices=sources.cpu().numpy()))
    )
    if computing is not None:
        own = not_negative("computing", computing, n, of="node").double()
        found = found + own[sources][:, None] + own
        found[torch.arange(len(sources)), sources] = 0.0
    return found


def time_diameter(
    edges: Int[Tensor, "e 2"],
    lengths: Float[Tensor, " e"],
    computing: Float[Tensor, " n"] | None = None,
) -> float:
    """The largest distance D; if all `lengths` are 1, the diameter of the graph.

    Every node is a source in turn. This takes seconds for 1,000 nodes, and a minute for
    10,000.
    """
    parts = torch.arange(nodes_of(edges)).split(_AT_ONCE)
    return max(
        float(distances_from(part, edges, lengths, computing).max()) for part in parts
    )


def synchronous_lower_bound(
    edges: Int[Tensor, "e 2"],
    lengths: Float[Tensor, " e"],
    condition: float,
    accuracy: float,
) -> float:
    """The bound `s_max Diam(G) sqrt(kappa) ln(1 / eps)` of (4.2), up to a constant.

    It is a lower bound on the time of any method in rounds, where each round takes as
    long as the slowest link.
    """
    ones = torch.ones(len(edges), dtype=torch.float64)
    way = float(lengths.max()) * time_diameter(edges, ones)
    return way * _precision(condition, accuracy)


def lower_bound(
    edges: Int[Tensor, "e 2"],
    lengths: Float[Tensor, " e"],
    condition: float,
    accuracy: float,
    computing: Float[Tensor, " n"] | None = None,
) -> float:
    """(4.3): `D sqrt(kappa) ln(1 / eps)`, up to a constant, for any algorithm."""
    way = time_diameter(edges, lengths, computing)
    return way * _precision(condition, accuracy)


def _precision(condition: float, accuracy: float) -> float:
    checks.number("condition", condition, at_least=1)
    checks.number("accuracy", accuracy, above=0, at_most=1)
    return math.sqrt(condition) * math.log(1 / accuracy)


def synchronous_time(edges: Int[Tensor, "e 2"], lengths: Float[Tensor, " e"]) -> float:
    """`d / lambda_2(1 / s_max)`: the typical time with rounds that last s_max; 1.3.2.

    d is the largest degree, as in `W = I - (D - A) / d`.
    """
    slowest = checks.positive("lengths", lengths, len(edges)).max()
    rates = (1 / slowest.double()).repeat(len(edges))
    return int(degrees(edges).max()) / eigengap(edges, rates)


def asynchronous_time(edges: Int[Tensor, "e 2"], lengths: Float[Tensor, " e"]) -> float:
    """`1 / lambda_2(1 / s)`: the typical time if pairs meet 1 / s_e times a second.

    This is a heuristic: it assumes that exchanges take no time, and that a node can use
    all its links at once.
    """
    rates = 1 / checks.positive("lengths", lengths, len(edges)).double()
    return 1 / eigengap(edges, rates)
