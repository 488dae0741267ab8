"""Divides the edges of a graph into a few matchings, with at most one edge per node."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor


def colouring(edges: Int[Tensor, "e 2"], n: int) -> Int[Tensor, "m n"]:
    """(m, n) row r has each node's partner in the r-th matching, or the node itself.

    Every edge is in one matching: the first matching in which both its ends are free.
    If d is the largest degree, the result has fewer than 2 d matchings; at least d are
    needed.

    >>> colouring(torch.tensor([[0, 1], [1, 2], [2, 3]]), 4)
    tensor([[1, 0, 3, 2],
            [0, 2, 1, 3]])
    """
    partners: list[list[int]] = []
    busy: list[set[int]] = [set() for _ in range(n)]  # in which matchings
    for v, w in edges.tolist():
        taken = busy[v] | busy[w]
        first = next(r for r in range(len(taken) + 1) if r not in taken)
        if first == len(partners):
            partners.append(list(range(n)))
        partners[first][v], partners[first][w] = w, v
        busy[v].add(first)
        busy[w].add(first)
    return torch.tensor(partners, dtype=torch.long).reshape(-1, n)
