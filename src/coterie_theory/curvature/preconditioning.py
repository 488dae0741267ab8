"""How many rounds statistical preconditioning takes, and how large mu must be.

    phi = f_ref + (lam / 2) |x|^2 + (mu / 2) |x|^2                               (10.30)

Let F be the mean loss of all clients, and let mu be at least the distance of the
Hessians of f_ref and F. Then F is 1-smooth and 1/kappa-strongly convex relative to phi,
with kappa = 1 + 2 mu / lam, and

    F(x_t) - F(x*) <= (1 - 1/kappa)^t D_phi(x*, x_0),

while for plain gradient descent, the bound is L (1 - lam/L)^t |x_0 - x*|^2.

References:
    Even, PhD thesis, 2024, section 10.4, tel-04877971.
    Hendrikx, Xiao, Bubeck, Bach, Massoulié, "Statistically preconditioned accelerated
    gradient method for distributed optimization", ICML 2020, arXiv 2002.10726.

Differences: (10.29) lacks the factor D_phi(x*, x_0). Before Proposition 10.4.2, the
thesis prints (1 - kappa)^t in place of (1 - 1/kappa)^t. The proposition prints n in
place of the size N of the reference.
"""

from __future__ import annotations

import math

from torch import Tensor

from coterie.checks import number

from .concentration import effective_dimension, product_deviation


def relative_condition(mu: float, lam: float) -> float:
    """The condition number 1 + 2 mu / lam of F relative to phi."""
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
    """A mu above the deviation of the Hessians, except with probability delta.

    This is Proposition 10.4.2, up to its universal constant.

    Args:
        covariance: the covariance of the data, or its eigenvalues.
        samples: N, the number of samples of the reference.
        radius: the radius of a ball that contains the models.
        lipschitz: the Lipschitz constant of l''.
        delta: the probability that this mu is too small.
        scale: the universal constant.
    """
    factor = scale * radius * lipschitz
    return product_deviation(covariance, samples, r=3, delta=delta, scale=factor)


def isotropic_gain(covariance: Tensor, samples: int) -> float:
    """The factor by which effective dimensions in place of d make kappa - 1 smaller.

    It is the ratio of max(sqrt(d/N), d^1.5/N) in (10.33) to max(sqrt(d_eff(1)/N),
    sqrt(d_eff(1)) d_eff(3)/N) in (10.32), without logarithms.
    """
    d = covariance.shape[-1]
    one, three = effective_dimension(covariance), effective_dimension(covariance, 3)
    known = max(math.sqrt(one / samples), math.sqrt(one) * three / samples)
    return max(math.sqrt(d / samples), d**1.5 / samples) / known
