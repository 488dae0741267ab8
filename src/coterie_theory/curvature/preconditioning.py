"""Rounds of statistical preconditioning, and how much regularisation it needs.

    phi = f_ref + (lam / 2) |x|^2 + (mu / 2) |x|^2                               (10.30)

If mu is at least the distance of the Hessians of reference and mean loss, F is 1-smooth
and 1/kappa-strongly convex relatively to phi, with kappa = 1 + 2 mu / lam, and

    F(x_t) - F(x*) <= (1 - 1/kappa)^t D_phi(x*, x_0),

while the bound of plain gradient descent is L (1 - lam/L)^t |x_0 - x*|^2.

References:
    Even, PhD thesis, 2024, section 10.4, tel-04877971.
    Hendrikx, Xiao, Bubeck, Bach, Massoulié, "Statistically preconditioned accelerated
    gradient method for distributed optimization", ICML 2020, arXiv 2002.10726.

Differences: (10.29) lacks the factor D_phi(x*, x_0). Before Proposition 10.4.2,
(1 - kappa)^t is printed for (1 - 1/kappa)^t. The proposition prints n for the size of
the reference.
"""

from __future__ import annotations

import math

from torch import Tensor

from coterie.checks import number

from .concentration import effective_dimension, product_deviation


def relative_condition(mu: float, lam: float) -> float:
    """The condition number 1 + 2 mu / lam of F relatively to phi."""
    number("mu", mu, at_least=0)
    return 1 + 2 * mu / number("lam", lam, above=0)


def preconditioned_bound(t: int, kappa: float, distance: float) -> float:
    """A bound on F(x_t) - F(x*), with `distance` = D_phi(x*, x_0) (10.29)."""
    number("kappa", kappa, at_least=1)
    return (1 - 1 / kappa) ** t * distance


def preconditioned_rounds(epsilon: float, kappa: float, distance: float) -> int:
    """Rounds after which F(x_t) - F(x*) is at most epsilon."""
    number("epsilon", epsilon, above=0)
    if distance <= epsilon:
        return 0
    if kappa == 1:
        return 1
    return math.ceil(math.log(distance / epsilon) / -math.log1p(-1 / kappa))


def descent_rounds(epsilon: float, kappa: float, start: float) -> int:
    """Rounds of gradient descent, with `start` = L |x_0 - x*|^2 (10.24)."""
    return preconditioned_rounds(epsilon, kappa, start)


def prescribed_mu(
    covariance: Tensor,
    samples: int,
    *,
    radius: float,
    lipschitz: float,
    delta: float,
    scale: float = 1.0,
) -> float:
    """A mu that covers the deviation of Hessians, except with chance delta.

    Proposition 10.4.2, up to its universal constant.

    Args:
        covariance: of the data, or its eigenvalues.
        samples: of the reference, N.
        radius: of the ball that holds the models.
        lipschitz: constant of l''.
        delta: the chance that this mu is too small.
        scale: the universal constant.
    """
    factor = scale * radius * lipschitz
    return product_deviation(covariance, samples, r=3, delta=delta, scale=factor)


def isotropic_gain(covariance: Tensor, samples: int) -> float:
    """How many times smaller effective dimensions make kappa - 1 than d does.

    The ratio of max(sqrt(d/N), d^1.5/N) in (10.33) to max(sqrt(d_eff(1)/N),
    sqrt(d_eff(1)) d_eff(3)/N) in (10.32), without logarithms.
    """
    d = covariance.shape[-1]
    one, three = effective_dimension(covariance), effective_dimension(covariance, 3)
    known = max(math.sqrt(one / samples), math.sqrt(one) * three / samples)
    return max(math.sqrt(d / samples), d**1.5 / samples) / known
