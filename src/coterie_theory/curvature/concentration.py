"""Effective dimensions, and how far means of products over samples deviate.

With sigma_1^2 >= sigma_2^2 >= ... the eigenvalues of a covariance Sigma,

    d_eff(r) = sum_i (sigma_i / sigma_1)^(2/r) = Tr(Sigma^(1/r)) / |Sigma^(1/r)|  (10.4)

d_eff is 1 for one direction and d if all directions are equal; d_eff(1) is the stable
rank. Bounds have universal constants that are not known; `scale` takes their place. So
only the growth of the bounds is meaningful.

References:
    Even, PhD thesis, 2024, chapter 10, tel-04877971.
    Even, Massoulié, "Concentration of non-isotropic random tensors with applications to
    learning and empirical risk minimization", COLT 2021, arXiv 2102.04259.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.checks import InputError, integer, number


def effective_dimension(covariance: Tensor, r: int = 1) -> float:
    """The number d_eff(r) of a covariance (d, d), or of its eigenvalues (d,).

    >>> effective_dimension(torch.eye(7)), effective_dimension(torch.tensor([4.0, 1.0]))
    (7.0, 1.25)

    Raises:
        InputError: if the argument is not a covariance.
    """
    integer("r", r, at_least=1)
    values = _eigenvalues(covariance)
    return float((values / values.max()).pow(1 / r).sum())


def _eigenvalues(covariance: Tensor) -> Float[Tensor, " d"]:
    """The given eigenvalues, or those of a covariance; negative values become 0."""
    known = covariance.dim() == 1
    values = covariance if known else torch.linalg.eigvalsh(covariance)
    values = values.double()
    largest = float(values.max()) if len(values) else 0.0
    if not largest > 0 or float(values.min()) < -1e-6 * largest:
        raise InputError(
            "`covariance` must be positive semi-definite and not 0, got eigenvalues "
            f"from {float(values.min()):.3g} to {largest:.3g}."
        )
    return values.clamp(min=0)


def norm_bound(covariance: Tensor, n: int, delta: float) -> float:
    """A bound on the squared norms of n vectors, which fails with probability delta.

    `4 sigma_1^2 (2 d_eff(1) + ln(1/delta) + ln n)` (Remark 10.2.1).
    """
    top = float(_eigenvalues(covariance).max())
    more = _log(delta) + math.log(n)
    return 4 * top * (2 * effective_dimension(covariance) + more)


def covering_directions(covariance: Tensor, epsilon: float, r: int = 1) -> float:
    """A bound on the number of i with sigma_i > epsilon sigma_1.

    `1 + (d_eff(r) - 1) epsilon^(-2/r)` (Corollary 10.3.1).
    """
    number("epsilon", epsilon, above=0, at_most=1)
    return 1 + (effective_dimension(covariance, r) - 1) * epsilon ** (-2 / r)


def product_deviation(
    covariance: Tensor, n: int, *, r: int, delta: float, scale: float = 1.0
) -> float:
    """The deviation of means of products of r Lipschitz functions over the unit ball.

    This is Theorem 10.1 with the norms of Remark 10.2.1. For r = 3 and the functions
    l'', id and id, it is Proposition 10.4.1 on Hessians.

    Args:
        covariance: the covariance of the sample, or its eigenvalues.
        n: the number of samples.
        r: the number of factors, at least 2.
        delta: the probability of a larger deviation.
        scale: the constant, times all Lipschitz constants and the radius of the ball.
    """
    integer("r", r, at_least=2)
    integer("n", n, at_least=1)
    values = _eigenvalues(covariance)
    log, size = _log(delta), math.log(len(values))
    one, many = effective_dimension(values), effective_dimension(values, r)
    few = (log + many * size) * (one + log + math.log(n)) ** (r / 2 - 1) / n
    plenty = (math.sqrt(log) + math.sqrt(one * size)) / math.sqrt(n)
    return scale * float(values.max()) ** (r / 2) * (few + plenty)


def tensor_deviation(
    covariance: Tensor, n: int, *, order: int, delta: float, scale: float = 1.0
) -> float:
    """The deviation of the mean of n tensors a x ... x a, in operator norm.

    `sigma_1^p sqrt((d_eff(1) + ln d + ln(1/delta))^(p+1) ln(n)^p / n)` (Theorem 10.3).
    """
    integer("order", order, at_least=1)
    values = _eigenvalues(covariance)
    more = math.log(len(values)) + _log(delta)
    inner = (effective_dimension(values) + more) ** (order + 1) * math.log(n) ** order
    return scale * float(values.max()) ** (order / 2) * math.sqrt(inner / n)


def _log(delta: float) -> float:
    """The logarithm of 1 / delta."""
    return -math.log(number("delta", delta, above=0, at_most=1))
