"""Effective resistances between nodes of a graph.

With conductances nu, `R(v, w) = (e_v - e_w)' Delta(nu)^+ (e_v - e_w)`. We compute the
resistances exactly, up to rounding, in two steps:

- A node with few neighbours is replaced by links between its neighbours (star and
  mesh). Let c_i be the conductances to its neighbours, and C their sum. Then the
  conductance between neighbours i and k increases by `c_i c_k / C`. The resistances
  between the other nodes do not change. Afterwards, with p = c / C, the removed node v
  has the resistances `R(v, j) = 1 / C + sum_i p_i R(i, j) - sum_ik p_i p_k R(i, k) /
  2`. This removes all nodes of rings and trees, and most nodes of every sparse graph.
- The remaining nodes have many neighbours. We invert their dense matrix.

10,000 nodes take seconds, even in an expander, where some 3,500 nodes remain after the
first step.

References:
    Doyle, Snell, "Random walks and electric networks", 1984, arXiv:math/0001057.
    Foster, "The average impedance of an electrical network", 1949.
"""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from .. import checks
from ..checks import InputError
from .families import nodes_of, refuse_apart

_FEW = 24
"""The largest number of neighbours of a node that is replaced."""


class _RemovedNode(NamedTuple):
    """A node that was replaced, its neighbours at that time, and its conductances."""

    node: int
    near: list[int]
    given: list[float]


def resistances(
    edges: Int[Tensor, "e 2"],
    weights: Float[Tensor, " e"],
    pairs: Int[Tensor, "p 2"] | None = None,
) -> Float64[Tensor, " p"]:
    """(P,) the effective resistance of each pair, by default of each edge.

    >>> triangle = torch.tensor([[0, 1], [0, 2], [1, 2]])
    >>> resistances(triangle, torch.ones(3))  # 1 ohm and 2 ohms in parallel
    tensor([0.6667, 0.6667, 0.6667], dtype=torch.float64)

    Args:
        edges: they must connect all nodes 0, ..., n - 1.
        weights: positive conductances, such as how often an edge is used.
        pairs: any nodes; many pairs that are not edges take long.

    Raises:
        InputError: if a node cannot be reached, or a weight is not positive.
    """
    n = nodes_of(edges)
    refuse_apart("edges", edges, n)
    checks.positive("weights", weights, len(edges))
    pairs = edges if pairs is None else pairs
    if len(pairs) and not 0 <= int(pairs.min()) <= int(pairs.max()) < n:
        raise InputError(f"`pairs` must name nodes 0 to {n - 1}.")
    links: list[dict[int, float]] = [{} for _ in range(n)]
    for (v, w), value in zip(edges.tolist(), weights.tolist(), strict=True):
        links[v][w] = links[w][v] = value
    wanted = [(min(pair), max(pair)) for pair in pairs.tolist()]
    for v, w in {*wanted}:
        if v != w and w not in links[v]:  # a link that conducts nothing
            links[v][w] = links[w][v] = 0.0
    replaced = _replace(links)
    found = _of_the_rest(links, replaced)
    _go_back(found, replaced)
    result = [0.0 if v == w else found[v, w] for v, w in wanted]
    return torch.tensor(result, dtype=torch.float64)


def _replace(links: list[dict[int, float]]) -> list[_RemovedNode]:
    """Replaces nodes with few neighbours, the fewest first; returns them in order."""
    queue = [(len(near), v) for v, near in enumerate(links) if len(near) <= _FEW]
    heapq.heapify(queue)
    replaced: list[_RemovedNode] = []
    gone: set[int] = set()
    while queue and len(gone) < len(links) - 1:
        count, v = heapq.heappop(queue)
        if v in gone or count != len(links[v]):
            continue
        near, given = list(links[v]), list(links[v].values())
        total = sum(given)
        for j, (i, c) in enumerate(zip(near, given, strict=True)):
            mine = links[i]
            del mine[v]
            for k, other in zip(near[j + 1 :], given[j + 1 :], strict=True):
                links[k][i] = mine[k] = mine.get(k, 0.0) + c * other / total
        for i in near:
            if len(links[i]) <= _FEW:
                heapq.heappush(queue, (len(links[i]), i))
        links[v] = {}
        gone.add(v)
        replaced.append(_RemovedNode(v, near, given))
    return replaced


Found = dict[tuple[int, int], float]


def _of_the_rest(links: list[dict[int, float]], replaced: list[_RemovedNode]) -> Found:
    """The resistances of all links between nodes that were not replaced."""
    rest = sorted({*range(len(links))} - {step.node for step in replaced})
    place, m = {v: k for k, v in enumerate(rest)}, len(rest)
    # With 1/m added to every entry, the Laplacian has an inverse and the same
    # resistances.
    matrix = np.full((m, m), 1 / m)
    for v in rest:
        row, near = place[v], links[v]
        columns = [place[w] for w in near]
        values = np.fromiter(near.values(), float, len(near))
        matrix[row, columns] -= values
        matrix[row, row] += values.sum()
    factor, _ = scipy.linalg.lapack.dpotrf(matrix, overwrite_a=True)
    inverse, _ = scipy.linalg.lapack.dpotri(factor, overwrite_c=True)  # upper half
    own = inverse.diagonal()
    return {
        (v, w): own[place[v]] + own[place[w]] - 2 * inverse[place[v], place[w]]
        for v in rest
        for w in links[v]
        if v < w
    }


def _go_back(found: Found, replaced: list[_RemovedNode]) -> None:
    """Adds resistances of replaced nodes to their neighbours, the last node first."""
    for node, near, given in reversed(replaced):
        total = sum(given)
        p = [c / total for c in given]
        drop, means = 0.0, [0.0] * len(near)
        for j, i in enumerate(near):
            for k in range(j):
                other = near[k]
                r = found[(other, i) if other < i else (i, other)]
                drop += p[j] * p[k] * r
                means[j] += p[k] * r
                means[k] += p[j] * r
        for i, mean in zip(near, means, strict=True):
            pair = (node, i) if node < i else (i, node)
            found[pair] = 1 / total + mean - drop
