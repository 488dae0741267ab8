"""The expectation of delayed gossip, which solves a delayed differential equation.

    dy/dt = -sum_e K_e (e_v - e_w) (y_v(t - tau_e) - y_w(t - tau_e)),  y = x(0) before 0
                                                                               (4.13)

with gains `K_e = p_e s_e`, rate times share. To first order in the delays, the equation
is `(I - Delta(tau K)) dy/dt = -Delta(K) y`. This is stable if and only if the largest
eigenvalue of the Laplacian of `tau_e K_e` is below 1. Then (4.13) is stable too
(Proposition 4.2.1). Only the expectation is stable: with random rings, rows may still
diverge.

References:
    Even, PhD thesis, 2024, 4.2.4, tel-04877971.

Differences: the local condition has 1/2 where the thesis prints 1; see docs/errata.md.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Float64, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import laplacian
from scipy.sparse.linalg import eigsh
from torch import Tensor

from coterie import checks
from coterie.checks import InputError
from coterie.graphs.families import nodes_of, not_negative

from .rings import rows

_DENSE = 500
"""The largest number of nodes with dense matrices."""


def stability_margin(
    edges: Int[Tensor, "e 2"], gains: Float[Tensor, " e"], delays: Float[Tensor, " e"]
) -> float:
    """1 minus the largest eigenvalue of the Laplacian of `tau_e K_e`: stable above 0.

    >>> one = torch.ones(1)
    >>> round(stability_margin(torch.tensor([[0, 1]]), 0.1 * one, one), 6)
    0.8
    """
    weights = _load(edges, gains, delays).numpy()
    n, ends = nodes_of(edges), tuple(edges.cpu().numpy().T)
    links = coo_array((weights, ends), shape=(n, n))
    matrix = laplacian((links + links.T).tocsr())
    if n <= _DENSE:
        return 1 - float(np.linalg.eigvalsh(matrix.toarray())[-1])
    start = np.random.default_rng(0).normal(size=n)
    found = eigsh(matrix, k=1, which="LA", v0=start, return_eigenvectors=False)
    return 1 - float(found[0])


def local_margin(
    edges: Int[Tensor, "e 2"], gains: Float[Tensor, " e"], delays: Float[Tensor, " e"]
) -> float:
    """1/2 minus the largest sum of `tau_e K_e` at a node: above 0, the mean is stable.

    Every node can check its own sum. The condition is sufficient, but not necessary.
    """
    load = _load(edges, gains, delays)
    at = load.new_zeros(nodes_of(edges))
    at.index_add_(0, edges.flatten().cpu(), load.repeat_interleave(2))
    return 0.5 - float(at.max())


def _load(edges: Tensor, gains: Tensor, delays: Tensor) -> Tensor:
    not_negative("gains", gains, len(edges))
    not_negative("delays", delays, len(edges))
    return gains.double().cpu() * delays.double().cpu()


def mean_path(
    x: Float[Tensor, "n d"],
    edges: Int[Tensor, "e 2"],
    gains: Float[Tensor, " e"],
    delays: Float[Tensor, " e"],
    *,
    until: float,
    steps: int,
) -> Float64[Tensor, "k n d"]:
    """The solution of (4.13) at steps + 1 equal times from 0 to `until`.

    Uses Heun's method, and linear interpolation between past points. Errors fall with
    the square of the step.

    Args:
        x: y at time 0 and before.
        edges: pairs of positions of rows.
        gains: K_e.
        delays: tau_e.
        until: the last time.
        steps: the number of steps; `until / steps` times the gains must be small.
    """
    checks.number("until", until, above=0)
    checks.integer("steps", steps, at_least=1)
    start = rows(x, edges).double()
    _load(edges, gains, delays)
    dt, v, w = until / steps, *edges.unbind(1)
    path = start.new_zeros(steps + 1, *start.shape)
    path[0] = start
    back = delays.double() / dt  # in steps
    k = gains.double()[:, None]

    def slope(step: int) -> Tensor:
        """dy/dt at a step; at this step, `path` has a first guess of y."""
        place = (step - back).clamp(min=0)
        low = place.floor().long().clamp(max=max(step - 1, 0))
        part = (place - low)[:, None]
        high = (low + 1).clamp(max=step)
        y = [(1 - part) * path[low, node] + part * path[high, node] for node in (v, w)]
        push = k * (y[0] - y[1])
        out = torch.zeros_like(start)
        return out.index_add_(0, v, -push).index_add_(0, w, push)

    for step in range(steps):
        first = slope(step)
        path[step + 1] = path[step] + dt * first
        path[step + 1] = path[step] + dt / 2 * (first + slope(step + 1))
    if not math.isfinite(float(path[-1].abs().max())):
        raise InputError(
            "the mean path is not finite: check `stability_margin`, or use more "
            f"`steps` than {steps}."
        )
    return path
