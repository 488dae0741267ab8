"""Accelerated decentralised optimisation: neighbours meet and exchange dual gradients.

    minimise sum_v f_v(x),    f_v mu-strongly convex and L-smooth

Node v has dual points y_v and z_v, which mix at rate eta as time passes. The sum of all
y_v and the sum of all z_v are 0. At the optimum both y_v and z_v are grad f_v(x*). When
the clock of the edge e = {v, w} rings,

    g = grad f_v^*(y_v) - grad f_w^*(y_w)
    y_v <- y_v - (mu R_e / (2 R)) g,    z_v <- z_v - gamma' g,    for w, + in place of -

Here node v computes grad f_v^*(y) = argmin_x f_v(x) - <x, y> by itself, and

    eta = sqrt(mu_gossip / (2 kappa R)),    gamma' = sqrt(mu L / (2 mu_gossip R))

with kappa = L / mu. `coterie.optim.meetings` computes the eigengap mu_gossip and the
resistances. The model of node v is grad f_v^*(z_v). The code mixes the points of a node
only when one of its edges rings. It then does all mixing since the last ring.
`coterie.algorithms.dual_accelerated` is this method on clients' data.

References are those of `coterie_theory.descent.continuized`.

Differences (each with a test; see docs/errata.md): z moves by gamma' g, without the
weight of the edge. The dual smoothness is 2 R / mu; with the printed smoothness, the
method diverges. kappa = L / mu.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from coterie import checks
from coterie.checks import InputError
from coterie.graphs.capacities import RingTimes
from coterie.graphs.families import nodes_of
from coterie.optim.meetings import DualSteps, companions

DualGradient = Callable[[int, Tensor], Tensor]
"""argmin_x f_v(x) - <x, y> of node v."""


class Duals(NamedTuple):
    """Dual points of all nodes at a time."""

    y: Float[Tensor, "n d"]
    z: Float[Tensor, "n d"]


def dual_accelerated(
    gradient: DualGradient,
    edges: Int[Tensor, "e 2"],
    steps: DualSteps,
    rings: RingTimes,
    start: Float[Tensor, "n d"],
    *,
    until: float,
) -> Duals:
    """The dual points at the time `until`, after all rings before this time.

    With eta = 0, y is dual coordinate descent without acceleration.

    Args:
        gradient: the dual gradient of a node.
        edges: pairs of nodes that meet.
        steps: a result of `dual_steps`.
        rings: when pairs meet, such as from `coterie.engine.clocks.Rings.until`.
        start: first dual points, which sum to 0, such as zeros.
        until: the time of the result.
    """
    total = float(start.sum(0).abs().max())
    if total > 1e-6 * max(1.0, float(start.abs().max())):
        raise InputError(f"`start` must sum to 0 over nodes, got {total:g}.")
    duals, still = companions(start, steps.eta), torch.zeros_like(start[0])
    pairs, shares = edges.tolist(), steps.shares.tolist()
    for time, e in zip(rings.times.tolist(), rings.which.tolist(), strict=True):
        if time > until:
            break
        v, w = pairs[e]
        g = gradient(v, duals.at(v, time)[0]) - gradient(w, duals.at(w, time)[0])
        for node, sign in ((v, -1), (w, 1)):
            duals.move(node, time, sign * shares[e] * g, sign * steps.jump * g)
    for v in range(len(start)):
        duals.move(v, until, still, still)
    return Duals(duals.x, duals.z)


# Dual gradients of common losses.


def quadratic_duals(
    curvatures: Float[Tensor, "n d d"], optima: Float[Tensor, "n d"]
) -> DualGradient:
    """`c_v + Q_v^-1 y`, for f_v(x) = (x - c_v)' Q_v (x - c_v) / 2."""
    factors = torch.linalg.cholesky(curvatures)

    def gradient(v: int, y: Tensor) -> Tensor:
        return optima[v] + torch.cholesky_solve(y[:, None], factors[v])[:, 0]

    return gradient


def ridge_duals(
    features: Float[Tensor, "n m d"], targets: Float[Tensor, "n m"], *, decay: float
) -> DualGradient:
    """The dual gradient for f_v(x) = |A_v x - b_v|^2 / (2 m) + (decay / 2) |x|^2."""
    checks.number("decay", decay, above=0)
    m, d = features.shape[1:]
    own = torch.eye(d, dtype=features.dtype, device=features.device)
    curvatures = features.mT @ features / m + decay * own
    right = (features.mT @ targets[..., None] / m)[..., 0]
    return quadratic_duals(curvatures, torch.linalg.solve(curvatures, right))


def incidence(edges: Int[Tensor, "e 2"]) -> Float64[Tensor, "n e"]:
    """The incidence matrix: column e is e_v - e_w for the edge {v, w}."""
    columns = torch.arange(len(edges))
    result = torch.zeros(nodes_of(edges), len(edges), dtype=torch.float64)
    result[edges[:, 0], columns], result[edges[:, 1], columns] = 1.0, -1.0
    return result
