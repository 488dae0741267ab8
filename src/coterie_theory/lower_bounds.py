"""Lower bounds on the number of calls of any method, and problems that prove them.

Notation as in `coterie_theory.collaboration`: b is a `distance` of gradients, c a `gap`
of losses, and N_i^eps counts near clients (`count_near`).

References:
    Even, PhD thesis, 2024, Theorem 8.1, tel-04877971.
    Even, Massoulié, Scaman, "Sample optimality and all-for-all strategies in
    personalized federated and collaborative learning", report hal-03550407, 2022,
    Theorem 1 and Corollary 1.

Differences (see docs/errata.md): the loss of the hard instance depends only on the
shown coordinate, as the proof needs. The thesis prints |x - xi|^2 / 2.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .collaboration import count_near
from .rates import BoundedLosses, LossClass


def lower_bound(
    distance: Float[Tensor, "n n"], eps: float, losses: LossClass
) -> Float[Tensor, " n"]:
    """Calls that each client needs: `sigma^2 / (mu eps N_i^eps(b^2 / (4 mu)))`.

    Theorem 8.1, for mu = beta = 1 / r^2 and eps < 1/16. The bound holds up to a
    constant; `fano_calls` has a bound with a constant. Only clients with b_ij^2 <= 4 mu
    eps can help.
    """
    near = count_near(distance.square() / (4 * losses.mu), eps)
    return losses.variance / (losses.mu * eps) / near.to(distance.dtype)


def lower_bound_convex(
    gap: Float[Tensor, "n n"], eps: float, losses: BoundedLosses
) -> Float[Tensor, " n"]:
    """Samples of all clients together: `R^2 B^2 n / (eps^2 N_i^eps(c / 4))`.

    Report, Theorem 1.
    """
    near = count_near(gap / 4, eps).to(gap.dtype)
    return (losses.radius * losses.bound / eps) ** 2 * len(gap) / near


def all_for_all_lower_bound(
    gap: Float[Tensor, "n n"], eps: float, losses: LossClass
) -> float:
    """Samples of all clients together for a mean excess of eps.

    `sigma^2 / (n mu eps) sum_i 1 / N_i^eps(c / (4 n))`; report, Corollary 1.
    """
    near = count_near(gap / (4 * len(gap)), eps).to(gap.dtype)
    return losses.variance / (losses.mu * eps) * float((1 / near).mean())


def all_for_all_lower_bound_convex(
    gap: Float[Tensor, "n n"], eps: float, losses: BoundedLosses
) -> float:
    """Samples of all clients together, for convex losses with bounded gradients.

    `R^2 B^2 / (n^2 eps^2) sum_i 1 / N_i^eps(c / (4 n))`; report, Corollary 1.
    """
    near = count_near(gap / (4 * len(gap)), eps).to(gap.dtype)
    scale = (losses.radius * losses.bound / eps) ** 2 / len(gap)
    return scale * float((1 / near).mean())


def fano_calls(
    tilts: Float[Tensor, " n"], dimension: int, *, variance: float = 1.0
) -> float:
    """Calls that any method needs for loss delta^2 / 36 of client 1 of `hard_samples`.

    The bound is `(2/3 ln |V| - ln 2) / I` (8.3). V is a set of `|V| = (2 /
    sqrt(e))^{d/2}` tilts that differ in a quarter of their signs. `I = sum_i (ln 2 -
    h(1/2 + delta_i)) / variance` bounds the information that one call gives about the
    tilts, with h the binary entropy. The thesis once prints |V| in place of ln |V|.
    """
    p = 0.5 + tilts.double()
    h = -(torch.xlogy(p, p) + torch.xlogy(1 - p, 1 - p))
    told = float((math.log(2) - h).clamp(min=0).sum()) / variance
    packing = dimension / 2 * (math.log(2) - 0.5)
    return max(0.0, 2 / 3 * packing - math.log(2)) / told
