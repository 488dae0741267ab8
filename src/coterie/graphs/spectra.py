"""Spectral gaps of graphs and gossip matrices, also for many nodes.

Up to 500 nodes, we solve a dense eigenvalue problem. For more nodes, we use Lanczos'
method, which is fast if eigenvalues lie apart, as in expanders. In long graphs, such as
rings, many eigenvalues are close to 0. For these graphs, we use a factorisation of the
Laplacian, which is sparse.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import connected_components, laplacian
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu
from torch import Tensor

from ..checks import InputError, number
from .families import nodes_of, not_negative

_DENSE = 500
"""The largest number of nodes with dense matrices."""


def eigengap(edges: Int[Tensor, "e 2"], weights: Float[Tensor, " e"]) -> float:
    """lambda_2, the second smallest eigenvalue of the weighted Laplacian.

    The relative error is about 1e-8.

    Raises:
        InputError: if edges of positive weight do not connect all nodes.
    """
    nodes = nodes_of(edges)
    not_negative("weights", weights, len(edges))
    used = weights > 0
    ends, values = edges[used].cpu().numpy().T, weights[used].double().cpu().numpy()
    links = coo_array((values, tuple(ends)), shape=(nodes, nodes))
    if connected_components(links, return_labels=False) > 1:
        raise InputError(
            f"`edges` of positive weight must connect all {nodes} nodes, "
            "but the eigengap lambda_2 is 0."
        )
    matrix = laplacian((links + links.T).tocsr())
    if nodes <= _DENSE:
        return float(np.linalg.eigvalsh(matrix.toarray())[1])
    # Eigenvalues of a Laplacian are at most twice its largest entry (Gershgorin).
    most = 2 * float(matrix.diagonal().max())
    return _second(nodes, most, matrix.dot, lambda: matrix)


def contraction(matrices: Sequence[Float[Tensor, "n n"]]) -> float:
    """|W_m ... W_1 - J|_2 of doubly stochastic matrices W_1, ..., W_m.

    It is at most 1. Its distance from 1 has a relative error of about 1e-8.

    Args:
        matrices: sparse or dense.
    """
    n = len(matrices[0])
    if n <= _DENSE:
        product = torch.eye(n, dtype=torch.float64)
        for matrix in matrices:
            product = matrix.to_dense().double() @ product
        return float(torch.linalg.matrix_norm(product - 1 / n, ord=2))
    steps = [as_scipy(matrix) for matrix in matrices]
    ways = [*steps, *(step.T.tocsr() for step in reversed(steps))]  # W, then W'

    def laplacian_times(x: np.ndarray) -> np.ndarray:
        """(I - W' W) x, where W is the product of all matrices."""
        return x - functools.reduce(lambda y, way: way @ y, ways, x)

    def whole() -> csr_array:
        product = functools.reduce(lambda before, step: step @ before, steps)
        return laplacian(product.T @ product).tocsr()

    return math.sqrt(1 - _second(n, 2.0, laplacian_times, whole))


def spectral_gap(matrix: Float[Tensor, "n n"]) -> float:
    """The gap rho = min(1 - lambda_2, 1 + lambda_n) of a symmetric gossip matrix.

    `|W^k x - x_bar| <= (1 - rho)^k |x - x_bar|`. The gap is 0 if W^k x does not
    converge to x_bar.
    """
    return 1 - contraction([matrix])


def swaps(edges: Int[Tensor, "e 2"], n: int) -> bool:
    """Whether `I - (D - A) / d` has the eigenvalue -1: regular, bipartite graphs.

    The bipartite double cover has every node twice, and each edge leads from one copy
    to the other. It has two components if and only if the graph is bipartite.
    """
    degree = torch.bincount(edges.flatten(), minlength=n)
    if (degree != degree[0]).any():
        return False
    v, w = edges.cpu().numpy().T
    ends = (np.concatenate([v, w]), np.concatenate([w, v]) + n)
    twice = coo_array((np.ones(len(ends[0])), ends), shape=(2 * n, 2 * n))
    return bool(connected_components(twice, return_labels=False) > 1)


def as_scipy(matrix: Float[Tensor, "n n"]) -> csr_array:
    """The matrix as a sparse matrix of scipy, without stored zeros."""
    entries = matrix.to_sparse().coalesce().cpu()
    places = tuple(entries.indices().numpy())
    values = entries.values().double().numpy()
    found = coo_array((values, places), shape=tuple(matrix.shape)).tocsr()
    found.eliminate_zeros()
    return found


def _second(
    n: int,
    most: float,
    times: Callable[[np.ndarray], np.ndarray],
    whole: Callable[[], csr_array],
) -> float:
    """The second smallest eigenvalue of a Laplacian, 0 if its graph is not connected.

    Args:
        n: the number of nodes.
        most: an upper bound of all eigenvalues.
        times: a function that multiplies the Laplacian by a vector.
        whole: a function that returns the Laplacian; called only if needed.
    """
    # At the edge of an expander's spectrum, eigenvalues are about n^(-2/3) apart. To
    # separate them, Lanczos takes about n^(1/3) steps.
    restarts = math.ceil(1.5 * n ** (1 / 3))
    try:
        found = most - _largest(n, lambda x: most * x - times(x), restarts)
        if found > 1e-6 * most:  # rounding is relative to the largest eigenvalue
            return found
    except ArpackNoConvergence:
        pass
    matrix = whole()
    if connected_components(matrix, return_labels=False) > 1:
        return 0.0
    # A Laplacian has an inverse on vectors with the sum 0. We leave out one node, where
    # the solution is 0, and then subtract the mean.
    factors = splu(
        matrix.tocsc()[1:, 1:],
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    return 1 / _largest(n, lambda x: np.append(0.0, factors.solve(x[1:])))


def _largest(
    n: int, times: Callable[[np.ndarray], np.ndarray], restarts: int | None = None
) -> float:
    """The largest eigenvalue of a symmetric matrix, on vectors with the sum 0."""

    def centred_times(x: np.ndarray) -> np.ndarray:
        y = times(x.ravel() - x.mean())
        return y - y.mean()

    start = np.random.default_rng(0).normal(size=n)
    operator = LinearOperator((n, n), matvec=centred_times, dtype=np.float64)
    return float(
        eigsh(
            operator,
            k=1,
            which="LA",
            v0=start,
            ncv=40,
            maxiter=restarts,
            return_eigenvectors=False,
        )[0]
    )


def chebyshev_factor(gap: float) -> float:
    """The factor omega of Chebyshev's recursion: 1 to 2, larger for smaller gaps.

    >>> round(chebyshev_factor(1.0), 4), round(chebyshev_factor(1e-6), 4)
    (1.0718, 1.998)
    """
    number("gap", gap, above=1e-12, at_most=1)
    return 2 * (1 - math.sqrt(gap * (1 - gap / 4))) / (1 - gap / 2) ** 2
