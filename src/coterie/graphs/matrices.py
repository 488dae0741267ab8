"""Matrices of a graph, which are sparse, and the graph of a matrix."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float64, Int, Real
from torch import Tensor

from ..checks import InputError
from .families import nodes_of


def gossip_matrix(edges: Int[Tensor, "e 2"], n: int) -> Float64[Tensor, "n n"]:
    """Metropolis-Hastings: `W_vw = 1 / (1 + max(d_v, d_w))`, and the rest for oneself.

    It is sparse (COO), symmetric and doubly stochastic, and neighbours need to know of
    each other only how many neighbours they have.

    >>> gossip_matrix(torch.tensor([[0, 1]]), 3).to_dense()
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    if nodes_of(edges) > n:
        raise InputError(
            f"`edges` must join nodes 0 to {n - 1}, but one names {int(edges.max())}."
        )
    degree = torch.bincount(edges.flatten(), minlength=n)
    share = 1 / (1 + degree[edges].amax(1).double())
    given = torch.zeros(n, dtype=share.dtype, device=share.device)
    given.index_add_(0, edges.flatten(), share.repeat_interleave(2))
    return torch.sparse_coo_tensor(
        _both_ways(edges, n).T,
        torch.cat([share, share, 1 - given]),
        (n, n),
        check_invariants=True,
    ).coalesce()


def joined(matrix: Real[Tensor, "n n"]) -> Int[Tensor, "e 2"]:
    """The pairs v < w with an entry that is not 0 in either direction, ascending.

    >>> joined(torch.tensor([[0.5, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.2, 0.3]]))
    tensor([[0, 2],
            [1, 2]])

    Args:
        matrix: sparse or dense.
    """
    entries = matrix.to_sparse().coalesce()
    pairs = entries.indices()[:, entries.values() != 0].sort(0).values.T
    return pairs[pairs[:, 0] < pairs[:, 1]].unique(dim=0)


def neighbouring(matrix: Real[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """Whether two different nodes have an entry that is not 0 in either direction.

    >>> neighbouring(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    tensor([[False,  True],
            [ True, False]])
    """
    there = matrix.to_dense() != 0
    return (there | there.T).fill_diagonal_(False)


def circles(edges: Int[Tensor, "e 2"], n: int) -> list[Int[Tensor, " c"]]:
    """Every node with its neighbours, ascending.

    >>> circles(torch.tensor([[0, 1], [1, 2]]), 3)
    [tensor([0, 1]), tensor([0, 1, 2]), tensor([1, 2])]
    """
    v, w = _both_ways(edges, n).unique(dim=0).T
    return list(w.split(v.bincount(minlength=n).tolist()))


def _both_ways(edges: Tensor, n: int) -> Tensor:
    """The edges in both directions, and then an edge from every node to itself."""
    own = torch.arange(n, device=edges.device)[:, None].expand(n, 2)
    return torch.cat([edges, edges.flip(1), own])
