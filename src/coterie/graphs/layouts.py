"""Positions for drawing the nodes of a graph, with neighbours near each other."""

from __future__ import annotations

import contextlib
import importlib

import numpy as np
from jaxtyping import Float64, Int
from scipy.sparse import coo_array, csr_array, eye_array
from scipy.sparse.csgraph import laplacian
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh, splu
from torch import Tensor

_STRESS = 80
_SPRINGS = 500


def places(edges: Int[Tensor, "e 2"], n: int) -> Float64[np.ndarray, "n 2"]:
    """(n, 2) positions between -1 and 1; every call returns the same positions.

    Up to 80 nodes, distances on paper resemble distances in the graph (Kamada and
    Kawai). Up to 500 nodes, edges are springs (Fruchterman and Reingold). For more
    nodes, eigenvectors of the Laplacian are coordinates: 10,000 nodes take a second.

    Args:
        edges: the edges of the graph, which may have several components.
        n: the number of nodes.
    """
    ends = edges.cpu().numpy()
    if n <= _SPRINGS:
        nx = importlib.import_module("networkx")
        graph = nx.empty_graph(n)
        graph.add_edges_from(ends.tolist())
        if n <= _STRESS:
            found = nx.kamada_kawai_layout(graph)
        else:
            found = nx.spring_layout(graph, seed=0)
        place = np.array([found[v] for v in range(n)], dtype=float).reshape(n, 2)
    else:
        place = _eigenvectors(ends, n)
    place = place - place.mean(0)
    return place / max(float(np.abs(place).max()), 1e-300)


def _eigenvectors(ends: np.ndarray, n: int) -> np.ndarray:
    links = coo_array((np.ones(len(ends)), tuple(ends.T)), shape=(n, n))
    matrix = laplacian((links + links.T).tocsr().astype(float))
    start = np.random.default_rng(0).normal(size=n)
    most = 2 * float(matrix.diagonal().max())
    with contextlib.suppress(ArpackNoConvergence):
        # For an expander, small eigenvalues lie apart, and factors would be dense.
        turned = csr_array(most * eye_array(n) - matrix)
        values, vectors = eigsh(turned, k=3, v0=start, tol=1e-3, maxiter=30)
        second = np.argsort(-values)[1]
        if most - values[second] > 0.01 * most:
            return vectors[:, np.argsort(-values)[1:3]]
    # For a long graph, many eigenvalues are close to 0, and factors are sparse.
    shift = 1e-6 * most
    factors = splu(
        (matrix + shift * eye_array(n)).tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )
    inverse = LinearOperator((n, n), matvec=factors.solve, dtype=np.float64)
    values, vectors = eigsh(matrix, k=3, v0=start, sigma=-shift, OPinv=inverse)
    # The first eigenvector is the same at all nodes.
    return vectors[:, np.argsort(values)[1:3]]
