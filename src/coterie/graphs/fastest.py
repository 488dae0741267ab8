"""The gossip matrix that mixes fastest, by an interior-point method.

`W = I - Delta(w)` is a symmetric, non-negative matrix of a graph, with rows that sum to
one. Among these matrices, we find the one with the smallest `|W - J|`, where all
entries of J are 1 / n. This norm is the second largest absolute value of an eigenvalue
of W. W solves a convex programme: it has the smallest t with

    -t I <= I - J - Delta(w) <= t I,   w >= 0,   sum of w at a node <= 1.

Newton's method minimises c t plus logarithmic barriers of all constraints. At the
minimum, t is at most `(3 n + E) / c` above the optimum, so c determines the accuracy.
The derivative of `log det` with respect to the weight of an edge (v, w) needs only `u'
X u`, with u = e_v - e_w and the inverse matrix X.

References:
    Boyd, Diaconis, Xiao, "Fastest mixing Markov chain on a graph", SIAM Review, 2004.
    Boyd, Vandenberghe, "Convex optimization", 2004, chapter 11.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import scipy.linalg
import torch
from jaxtyping import Float64, Int
from torch import Tensor

from ..checks import InputError
from .matrices import gossip_matrix, lazy, max_degree, weighted_gossip
from .spectra import contraction, swaps

ACCURACY = 1e-6
"""How far `|W - J|` may be above the smallest possible value."""

_MOST = 1000
"""The largest number of edges: Newton's equations are dense."""


def fastest_mixing(edges: Int[Tensor, "e 2"], n: int) -> Float64[Tensor, "n n"]:
    """The sparse, doubly stochastic W of a graph with the smallest `|W - J|`.

    The error of this norm is at most 1e-6. The norm is never larger than for
    `gossip_matrix` or `max_degree`. The computation takes seconds for 200 edges, and a
    minute for 1,000.

    >>> path = torch.tensor([[0, 1], [1, 2], [2, 3]])
    >>> found = fastest_mixing(path, 4).to_dense()
    >>> bool((found.diagonal(1) - 0.5).abs().max() < 1e-5)
    True

    Raises:
        InputError: with more than 1,000 edges.
    """
    if len(edges) > _MOST:
        raise InputError(
            f"`fastest` is for graphs of at most {_MOST:,} edges, got {len(edges):,}: "
            "use metropolis."
        )
    start = gossip_matrix(edges, n)
    ends = edges.cpu().numpy()
    w = _least(ends, n, start.to_dense().cpu().numpy()[ends[:, 0], ends[:, 1]])
    share = torch.from_numpy(w).to(edges.device)
    found = [weighted_gossip(edges, share, n), start, max_degree(edges, n)]
    return min(found, key=lambda matrix: contraction([matrix]))


MIXINGS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "metropolis": gossip_matrix,
    "max_degree": max_degree,
    "lazy": lazy,
    "fastest": fastest_mixing,
}
"""Maps a kind of gossip matrix to a function of edges and the number of nodes."""


def mixing_of(kind: str, edges: Int[Tensor, "e 2"], n: int) -> Float64[Tensor, "n n"]:
    """The matrix of this kind; refuses a matrix whose powers do not converge to J."""
    if kind == "max_degree" and swaps(edges, n):
        raise InputError(
            "`mixing` max_degree does not average on this graph, because its clients "
            "fall into two halves that only swap: use lazy or metropolis."
        )
    return MIXINGS[kind](edges, n)


def _least(ends: np.ndarray, n: int, w: np.ndarray) -> np.ndarray:
    """(E,) the weights with the smallest t; the first w must meet all constraints."""
    at = np.zeros((n, len(ends)))  # which edges are at a node
    at[ends.T, np.arange(len(ends))] = 1
    # t begins at 1.5, because |W - J| of a gossip matrix is at most 1.
    x, c, constraints = np.append(w, 1.5), 10.0 * n, 3 * n + len(ends)
    while True:
        x = _centre(x, c, ends, at)
        if constraints / c < ACCURACY:
            return np.clip(x[:-1], 0, None)
        c *= 2  # with a larger factor, Newton's method takes more steps


def _centre(x: np.ndarray, c: float, ends: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The minimum of `c t` plus barriers, by Newton's method."""
    for _ in range(100):
        slope, curve = _derivatives(x, c, ends, at)
        step = -_newton_step(curve, slope)
        if -float(slope @ step) < 1e-6:
            break
        x = x + _length(x, step, c, ends, at) * step
    return x


def _length(
    x: np.ndarray, step: np.ndarray, c: float, ends: np.ndarray, at: np.ndarray
) -> float:
    """The length of a step that makes the value smallest.

    Along the step, the barrier is `-sum log(1 + length rate)`, and the rates are known.
    """
    w, further = x[:-1], step[:-1]
    rates = [further / w, -(at @ further) / (1 - at @ w)]
    for side, change in zip(
        _sides(x, ends, len(at)), _sides(step, ends, len(at), 0.0), strict=True
    ):
        rates.append(scipy.linalg.eigh(change, side, eigvals_only=True))
    rate = np.concatenate(rates)
    low, high = 0.0, min(2.0, -0.999999 / min(float(rate.min()), -1e-9))
    for _ in range(50):
        middle = (low + high) / 2
        falls = c * step[-1] < (rate / (1 + middle * rate)).sum()
        low, high = (middle, high) if falls else (low, middle)
    return low


def _newton_step(curve: np.ndarray, slope: np.ndarray) -> np.ndarray:
    """The solution of Newton's equations, with the smallest ridge that is enough."""
    # For weights near 0, curvatures are larger by many orders of magnitude.
    scale, ridge = 1 / np.sqrt(curve.diagonal()), 1e-13
    curve = curve * np.outer(scale, scale)
    while True:
        try:
            factor = scipy.linalg.cho_factor(curve + ridge * np.eye(len(slope)))
            return scale * scipy.linalg.cho_solve(factor, scale * slope)
        except np.linalg.LinAlgError:
            ridge *= 10


def _sides(
    x: np.ndarray, ends: np.ndarray, n: int, constant: float = 1.0
) -> tuple[np.ndarray, np.ndarray]:
    """The matrices t I - M and t I + M, for M = constant (I - J) - Delta(w)."""
    w, t = x[:-1], x[-1]
    m = np.full((n, n), -constant / n)
    m[ends[:, 0], ends[:, 1]] += w
    m[ends[:, 1], ends[:, 0]] += w
    total = np.bincount(ends.ravel(), np.repeat(w, 2), minlength=n)
    m[np.diag_indices(n)] += constant - total
    return t * np.eye(n) - m, t * np.eye(n) + m


def _derivatives(
    x: np.ndarray, c: float, ends: np.ndarray, at: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The slope and curvature of the barrier."""
    w, free = x[:-1], 1 - at @ x[:-1]
    slope = np.append(at.T @ (1 / free) - 1 / w, c)
    curve = np.zeros((len(x), len(x)))
    curve[:-1, :-1] = (at / free[:, None] ** 2).T @ at
    curve[np.diag_indices(len(w))] += 1 / w**2
    # d(t I - M) = dt I + dw u u', and d(t I + M) = dt I - dw u u'.
    for sign, side in zip((1, -1), _sides(x, ends, len(at)), strict=True):
        inverse = np.linalg.inv(side)
        across = inverse[ends[:, 0]] - inverse[ends[:, 1]]  # u' X, (E, n)
        between = across[:, ends[:, 0]] - across[:, ends[:, 1]]  # u' X u, (E, E)
        slope -= np.append(sign * between.diagonal(), np.trace(inverse))
        mixed = sign * (across**2).sum(1)
        curve[:-1, :-1] += between**2
        curve[:-1, -1] += mixed
        curve[-1, :-1] += mixed
        curve[-1, -1] += (inverse**2).sum()
    return slope, curve
