"""Laplacians and gossip matrices of graphs, sparse, and the graph of a matrix.

Delta(nu) is the Laplacian of weights nu. It has `-nu_vw` off the diagonal, and its rows
sum to 0. `W = I - Delta(nu)` is symmetric and its rows sum to 1. It is a gossip matrix
if no entry is negative.

Differences:
    The thesis prints `W = I + (D - A) / d`, which diverges. The right formula is `I -
    (D - A) / d`.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, section 1.2.2, hal tel-04877971.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float, Float64, Int, Real
from torch import Tensor

from ..checks import InputError, doubly_stochastic, stochastic
from .families import nodes_of, not_negative, refuse_apart


def gossip_matrix(edges: Int[Tensor, "e 2"], n: int) -> Float64[Tensor, "n n"]:
    """Metropolis weights `W_vw = 1 / (1 + max(d_v, d_w))`, the rest on the diagonal.

    The matrix is sparse (COO), symmetric and doubly stochastic. To compute the matrix,
    neighbours need only tell each other how many neighbours they have.

    >>> gossip_matrix(torch.tensor([[0, 1]]), 3).to_dense()
    tensor([[0.5000, 0.5000, 0.0000],
            [0.5000, 0.5000, 0.0000],
            [0.0000, 0.0000, 1.0000]], dtype=torch.float64)
    """
    degree = _degrees(edges, n)
    return weighted_gossip(edges, 1 / (1 + degree[edges].amax(1).double()), n)


def max_degree(edges: Int[Tensor, "e 2"], n: int) -> Float64[Tensor, "n n"]:
    """`W = I - (D - A) / d`, d the largest degree: sparse and doubly stochastic.

    If all nodes have d neighbours, no node gives weight to itself. If the graph is also
    bipartite (a ring or torus of even sides, a hypercube), W has the eigenvalue -1, and
    gossip does not converge to the average. Then use `lazy`.

    >>> max_degree(torch.tensor([[0, 1]]), 2).to_dense()
    tensor([[0., 1.],
            [1., 0.]], dtype=torch.float64)
    """
    return _with_share(edges, n, 1.0)


def lazy(edges: Int[Tensor, "e 2"], n: int) -> Float64[Tensor, "n n"]:
    """`W = I - (D - A) / (2 d)`, d the largest degree, with no eigenvalue below 0.

    >>> lazy(torch.tensor([[0, 1]]), 2).to_dense()
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    return _with_share(edges, n, 0.5)


def laplacian_matrix(
    edges: Int[Tensor, "e 2"], weights: Float[Tensor, " e"], n: int
) -> Float64[Tensor, "n n"]:
    """Delta(nu), sparse (COO), so that `x' Delta x = sum_e nu_e (x_v - x_w)^2`.

    >>> laplacian_matrix(torch.tensor([[0, 1]]), torch.tensor([2.0]), 2).to_dense()
    tensor([[ 2., -2.],
            [-2.,  2.]], dtype=torch.float64)

    Raises:
        InputError: unless there is one weight of at least 0 for each edge.
    """
    _degrees(edges, n)
    values = not_negative("weights", weights, len(edges)).double()
    return _symmetric(edges, -values, _sums(edges, values, n))


def _with_share(edges: Tensor, n: int, share: float) -> Tensor:
    d = int(_degrees(edges, n).max())
    values = torch.full((len(edges),), share / d, dtype=torch.float64)
    return weighted_gossip(edges, values.to(edges.device), n)


def weighted_gossip(
    edges: Int[Tensor, "e 2"], share: Float64[Tensor, " e"], n: int
) -> Float64[Tensor, "n n"]:
    """`W = I - Delta(share)`, sparse."""
    # Rounding may make the sum of shares larger than 1.
    return _symmetric(edges, share, (1 - _sums(edges, share, n)).clamp(min=0))


def _sums(edges: Tensor, values: Tensor, n: int) -> Tensor:
    """(n,) sums of the values of all edges at a node."""
    total = torch.zeros(n, dtype=values.dtype, device=values.device)
    return total.index_add_(0, edges.flatten(), values.repeat_interleave(2))


def _symmetric(edges: Tensor, values: Tensor, diagonal: Tensor) -> Tensor:
    """The sparse symmetric matrix with these values for edges, in both directions."""
    n = len(diagonal)
    return torch.sparse_coo_tensor(
        _both_ways(edges, n).T,
        torch.cat([values, values, diagonal]),
        (n, n),
        check_invariants=True,
    ).coalesce()


def _degrees(edges: Tensor, n: int) -> Tensor:
    """The degrees of n nodes, also of nodes without an edge."""
    if nodes_of(edges) > n:
        raise InputError(
            f"`edges` must join nodes 0 to {n - 1}, but one names {int(edges.max())}."
        )
    return torch.bincount(edges.flatten(), minlength=n)


def symmetric(name: str, matrix: Tensor, clients: int) -> Tensor:
    """Returns `matrix` if it is doubly stochastic and symmetric, up to rounding."""
    doubly_stochastic(name, matrix, clients)
    entries = (matrix - matrix.mT).to_sparse().coalesce()
    wrong = entries.indices()[:, entries.values().abs() > 1e-5]
    if wrong.numel():
        v, w = wrong[:, 0].tolist()
        raise InputError(
            f"`{name}` must be symmetric, but from node {v} to {w} it is "
            f"{float(matrix[v, w]):g}, and {float(matrix[w, v]):g} the other way."
        )
    return matrix


def connected(name: str, matrix: Tensor, clients: int) -> Tensor:
    """Returns `matrix` if its entries that are not 0 connect all clients."""
    entries = matrix.to_sparse().coalesce()
    refuse_apart(name, entries.indices()[:, entries.values() != 0].T, clients)
    return matrix


# Ingredients of methods on a graph, sparse or not.
Mixing = Annotated[Tensor, stochastic, connected]
DoublyStochastic = Annotated[Tensor, doubly_stochastic, connected]
Gossip = Annotated[Tensor, symmetric, connected]


def among_present(
    matrix: Float[Tensor, "n n"], present: Bool[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """The matrix of a round: clients add the weights of absent clients to their own.

    Rows still sum to 1, and columns too if the matrix is symmetric. Absent clients keep
    their values.

    >>> ring = torch.full((3, 3), 1 / 3)
    >>> among_present(ring, torch.tensor([True, True, False]))
    tensor([[0.6667, 0.3333, 0.0000],
            [0.3333, 0.6667, 0.0000],
            [0.0000, 0.0000, 1.0000]])

    Args:
        matrix: sparse or dense.
        present: which clients take part.
    """
    if bool(present.all()):
        return matrix
    entries = matrix.to_sparse().coalesce()
    (v, w), values = entries.indices(), entries.values()
    present = present.to(v.device)
    used = (v != w) & present[v] & present[w]
    given = values.new_zeros(len(matrix)).index_add_(0, v[used], values[used])
    own = torch.arange(len(matrix), device=v.device)
    result = torch.sparse_coo_tensor(
        torch.cat([entries.indices()[:, used], own.expand(2, -1)], 1),
        torch.cat([values[used], 1 - given]),
        matrix.shape,
        check_invariants=True,
    ).coalesce()
    return result.to_dense() if matrix.layout == torch.strided else result


def linked_pairs(matrix: Real[Tensor, "n n"]) -> Int[Tensor, "e 2"]:
    """(e, 2) sorted pairs v < w with an entry that is not 0 in at least one direction.

    >>> linked_pairs(torch.tensor([[0.5, 0.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.2, 0.3]]))
    tensor([[0, 2],
            [1, 2]])

    Args:
        matrix: sparse or dense.
    """
    entries = matrix.to_sparse().coalesce()
    pairs = entries.indices()[:, entries.values() != 0].sort(0).values.T
    return pairs[pairs[:, 0] < pairs[:, 1]].unique(dim=0)


def adjacency(matrix: Real[Tensor, "n n"]) -> Bool[Tensor, "n n"]:
    """(N, N) whether two nodes have an entry that is not 0 in at least one direction.

    >>> adjacency(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    tensor([[False,  True],
            [ True, False]])
    """
    there = matrix.to_dense() != 0
    return (there | there.T).fill_diagonal_(False)


def neighbourhoods(edges: Int[Tensor, "e 2"], n: int) -> list[Int[Tensor, " c"]]:
    """For each node, the node and its neighbours, ascending.

    >>> neighbourhoods(torch.tensor([[0, 1], [1, 2]]), 3)
    [tensor([0, 1]), tensor([0, 1, 2]), tensor([1, 2])]
    """
    v, w = _both_ways(edges, n).unique(dim=0).T
    return list(w.split(v.bincount(minlength=n).tolist()))


def _both_ways(edges: Tensor, n: int) -> Tensor:
    """The edges in both directions, and then a loop at every node."""
    own = torch.arange(n, device=edges.device)[:, None].expand(n, 2)
    return torch.cat([edges, edges.flip(1), own])


def refuse_unjoined(
    name: str, matrix: Tensor, edges: Int[Tensor, "e 2"], clients: Int[Tensor, " n"]
) -> None:
    """Refuses weights between clients that [graph] does not join.

    Args:
        name: the name of the weights, for the error.
        matrix: the weights, sparse or dense; the diagonal is free.
        edges: the edges of [graph].
        clients: the numbers of the clients.
    """
    pairs, number = linked_pairs(matrix), torch.tensor([len(matrix), 1])
    allowed = (edges.sort(1).values * number).sum(1)
    beyond = pairs[~torch.isin((pairs * number).sum(1), allowed)].tolist()
    if beyond:
        i, k = beyond[0] if float(matrix[*beyond[0]]) else beyond[0][::-1]
        reader, other = clients[[i, k]].tolist()
        raise InputError(
            f"{name} must be 0 between clients that [graph] does not join, "
            f"but client {reader} weighs client {other} with {float(matrix[i, k]):.4g}."
        )
