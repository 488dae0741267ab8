"""Gaussian releases: the privacy that noise of a given size promises.

A release moves by at most D in L2 when the unit of privacy changes, and has noise with
standard deviation s in every coordinate. It is mu-Gaussian private with `mu = D / s`:
telling apart data with and without the change is at least as hard as telling apart N(0,
1) and N(mu, 1). Releases add in squares, `mu^2 = sum mu_j^2`. This is true even if
later releases depend on earlier ones.

    delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2)       exact
    D_alpha = alpha mu^2 / 2,  epsilon = c + 2 sqrt(c ln(1/delta)), c = mu^2/2  by Renyi

Report the first epsilon, which is exact. The second epsilon is the thesis's conversion,
at its best order `alpha = 1 + sqrt(ln(1/delta) / c)`, and is never below the first.

References:
    Dong, Roth, Su, "Gaussian differential privacy", JRSS B 84(1), 2022,
    arXiv 1905.02383.
    Balle, Wang, "Improving the Gaussian mechanism for differential privacy",
    ICML 2018, arXiv 1805.06530.
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, 6.2.2, hal tel-04877971.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ... import checks
from ...checks import InputError

_HALVINGS = 1200
"""The most steps of a bisection: 1074 from 1 to the smallest double, and then 53 bits.
Usual answers take about 60."""

_LARGEST = 1e100
"""The largest epsilon at which the curve is a number."""

EPSILONS, NOISES, CLIPS = (1e-6, 1e9), (1e-6, 1e9), (1e-9, 1e9)
"""Ranges of settings; noise is in units of the clip. In single precision, rounding
loses noise below these ranges, and squares of products above them overflow."""


def refuse_epsilon(name: str, epsilon: float) -> None:
    """Refuses an epsilon outside `EPSILONS`."""
    least, most = EPSILONS
    checks.number(name, epsilon, above=0, at_least=least, at_most=most)


def refuse_noise(name: str, noise: float) -> None:
    """Refuses noise, in units of the clip, that is neither 0 nor within `NOISES`."""
    least, most = NOISES
    if checks.number(name, noise, at_least=0) and not least <= noise <= most:
        raise InputError(
            f"`{name}` must be 0, or between {least:g} and {most:g}, got {noise:g}."
        )


def refuse_clip(name: str, clip: float) -> None:
    """Refuses a clip that is neither infinite nor within `CLIPS`."""
    if clip != math.inf:
        least, most = CLIPS
        checks.number(name, clip, above=0, at_least=least, at_most=most)


# Sensitivity and noise.


def mu_from(sensitivity: float, noise: float) -> float:
    """`mu = D / s` of one release, infinite if it has no noise.

    >>> mu_from(2.0, 4.0), mu_from(1.0, 0.0)
    (0.5, inf)

    Args:
        sensitivity: D, how far the release moves in L2.
        noise: s, the standard deviation of every coordinate.
    """
    checks.number("sensitivity", sensitivity, at_least=0)
    checks.number("noise", noise, at_least=0)
    if not sensitivity:
        return 0.0
    return sensitivity / noise if noise else math.inf


def compose_mu(mus: Iterable[float]) -> float:
    """Mu of several releases of the same data together, `sqrt(sum mu_j^2)`.

    >>> compose_mu([3.0, 4.0])
    5.0
    """
    return math.hypot(*(_mu(mu) for mu in mus))


def replacement_sensitivity(clip: float) -> float:
    """How far a vector with at most this norm can move, if another one replaces it.

    >>> replacement_sensitivity(1.0)
    2.0
    """
    return 2 * checks.number("clip", clip, above=0)


# Any two of epsilon, delta and mu (or the noise) give the third.


def delta_of(mu: float, epsilon: float) -> float:
    """The smallest delta for this epsilon, exactly.

    >>> round(delta_of(1.0, 1.0), 6), delta_of(0.0, 0.0)
    (0.126937, 0.0)
    """
    checks.number("epsilon", epsilon, at_least=0, at_most=_LARGEST)
    given = torch.tensor([_mu(mu), epsilon], dtype=torch.float64)
    return float(_delta(given[0], given[1]))


def epsilon_of(mu: float, delta: float) -> float:
    """The smallest epsilon for this delta, exactly; infinite where nothing is hidden.

    >>> round(epsilon_of(1.0, 1e-5), 4), epsilon_of(0.0, 1e-5)
    (4.3772, 0.0)
    """
    return float(epsilons_of(torch.tensor([_mu(mu)], dtype=torch.float64), delta)[0])


def epsilons_of(mu: Float[Tensor, "*s"], delta: float) -> Float64[Tensor, "*s"]:
    """`epsilon_of` each of many mu at once, for example of all pairs of clients."""
    _delta_given(delta)
    if not bool((mu >= 0).all()):
        raise InputError("`mu` must be at least 0 in every entry, and not NaN.")
    mu = mu.double()
    finite = torch.where(mu.isinf(), 0.0, mu)
    low, high = torch.zeros_like(finite), _by_renyi(finite, delta)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if bool(((middle == low) | (middle == high)).all()):  # no number is between
            break
        enough = _delta(finite, middle) <= delta
        low, high = torch.where(enough, low, middle), torch.where(enough, middle, high)
    # At 0 nothing is left to halve, and the upper end only comes near it.
    high = torch.where(_delta(finite, torch.zeros_like(high)) <= delta, 0.0, high)
    return torch.where(mu.isinf(), math.inf, high)


def mu_of(epsilon: float, delta: float) -> float:
    """The largest mu that is still (epsilon, delta)-private.

    >>> round(mu_of(4.3772, 1e-5), 4)
    1.0
    """
    checks.number("epsilon", epsilon, at_least=0, at_most=_LARGEST)
    _delta_given(delta)
    low, high = 0.0, 1.0
    while delta_of(high, epsilon) <= delta:
        low, high = high, 2 * high
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):  # no number is between
            break
        if delta_of(middle, epsilon) <= delta:
            low = middle
        else:
            high = middle
    return low


def noise_of(epsilon: float, delta: float, sensitivity: float = 1.0) -> float:
    """The smallest standard deviation that makes one release (epsilon, delta)-private.

    >>> round(noise_of(1.0, 1e-5), 4)
    3.7306
    """
    checks.number("sensitivity", sensitivity, at_least=0)
    mu = mu_of(epsilon, delta)
    if not sensitivity:
        return 0.0
    return sensitivity / mu


# By Renyi divergences, as the thesis does.


def renyi(mu: float, alpha: float) -> float:
    """The Renyi divergence of order alpha, `alpha mu^2 / 2`.

    >>> renyi(1.0, 2.0)
    1.0
    """
    return checks.number("alpha", alpha, above=1) * _mu(mu) ** 2 / 2


def _by_renyi(mu: Tensor, delta: float) -> Tensor:
    return mu.square() / 2 + mu * math.sqrt(-2 * math.log(delta))


def _delta(mu: Tensor, epsilon: Tensor) -> Tensor:
    """Delta at each epsilon, by logarithms, because e^epsilon alone may overflow."""
    some = torch.where((mu > 0) & mu.isfinite(), mu, 1.0)
    first = torch.special.log_ndtr(-epsilon / some + some / 2)
    second = epsilon + torch.special.log_ndtr(-epsilon / some - some / 2)
    found = -first.exp() * torch.expm1((second - first).clamp(max=0))
    # At epsilon 0 both are near 1/2, so that rounding would lose a small difference.
    found = torch.where(epsilon == 0, torch.erf(some / math.sqrt(8)), found)
    return torch.where(mu == 0, 0.0, torch.where(mu.isinf(), 1.0, found))


def _mu(mu: float) -> float:
    if mu == math.inf:
        return mu
    return checks.number("mu", mu, at_least=0)


def _delta_given(delta: float) -> None:
    checks.number("delta", delta, above=0, below=1)
