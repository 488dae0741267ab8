"""Losses of pairs of clients by their distance on the graph."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import shortest_path
from torch import Tensor

from coterie.checks import InputError


class LossesAtDistance(NamedTuple):
    """The losses of all pairs at one distance."""

    steps: int
    pairs: int
    mean: float
    least: float
    most: float


def hops(edges: Int[Tensor, "e 2"], n: int) -> Int[Tensor, "n n"]:
    """(n, n) the number of edges on the shortest path between nodes; -1 without one."""
    v, w = edges.cpu().numpy().T
    graph = coo_array((np.ones(len(v)), (v, w)), shape=(n, n)).tocsr()
    found = shortest_path(graph, directed=False, unweighted=True)
    return torch.from_numpy(np.where(np.isinf(found), -1, found).astype(np.int64))


def by_distance(
    values: Float64[Tensor, "*s"], distance: Int[Tensor, "*s"]
) -> list[LossesAtDistance]:
    """For each distance from 1 on, the mean, smallest and largest loss of all pairs.

    >>> values = torch.tensor([0.0, 1.0, 0.75, 0.25]).double()
    >>> [tuple(each)[:3] for each in by_distance(values, torch.tensor([0, 1, 2, 2]))]
    [(1, 1, 1.0), (2, 2, 0.5)]

    Args:
        values: losses of pairs, such as `share` of `Losses`, or one row or column of
            it.
        distance: distances of the same pairs, from `hops`.
    """
    if values.shape != distance.shape:
        raise InputError(
            f"`values` and `distance` must have the same shape, got "
            f"{tuple(values.shape)} and {tuple(distance.shape)}."
        )
    found = []
    for steps in distance[distance > 0].unique().tolist():
        some = values[distance == steps]
        numbers = (float(each) for each in (some.mean(), some.min(), some.max()))
        found.append(LossesAtDistance(steps, len(some), *numbers))
    return found
