"""Errors of estimators of shared structure; chapter 9 of Even's thesis.

There are N clients with m samples each; models have D dimensions, norm at most B and
rank r. If losses are mu-strongly convex, errors are `(1/N) |W - W*|_F^2`. Otherwise
they are gaps of the mean loss. Rates hold up to constants and logarithms; lemmas are
exact.

References:
    Even, PhD thesis, 2024, chapter 9, tel-04877971.

Differences (each with a test; see docs/errata.md): Proposition 9.3.1 and two terms of
Theorem 9.5 have B^2. Proposition 9.3.1 compares U v and w*, not v and v*. kappa = 1 is
enough in (9.7). Probabilities have negative exponents.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.checks import InputError, integer, number
from coterie.optim.heads import refuse_rank

from .subspaces import squared_distance, top_subspace


class ProblemSizes(NamedTuple):
    """Sizes and constants of a problem.

    Args:
        clients: N.
        dimension: D.
        rank: r, the rank of the models, or the number of centres.
        samples: m, the number of samples of each client.
        cap: B, the largest norm of a model.
        mu: strong convexity; 0: none.
        smoothness: L, the smoothness of the losses.
        curvature_noise: sigma^2, the noise of Hessians (9.2.2).
        label_noise: sigma_*^2, the noise of gradients at the optimum (9.2.1).
    """

    clients: int
    dimension: int
    rank: int
    samples: int
    cap: float = 1.0
    mu: float = 1.0
    smoothness: float = 1.0
    curvature_noise: float = 1.0
    label_noise: float = 1.0


def _rate(setting: ProblemSizes, share: float) -> float:
    """`B^2 (sigma^4 + sigma_*^4) share / mu^2`.

    For mu = 0 it is `B^2 (sigma^2 + sigma_*^2) sqrt(share)`.
    """
    refuse_rank(setting.rank, setting.clients, setting.dimension)
    integer("samples", setting.samples, at_least=1)
    number("mu", setting.mu, at_least=0)
    sigma, star, b = setting.curvature_noise, setting.label_noise, setting.cap
    if setting.mu == 0:
        return b**2 * (sigma + star) * math.sqrt(share)
    return b**2 * (sigma**2 + star**2) * share / setting.mu**2


def alone_rate(setting: ProblemSizes) -> float:
    """The rate of a client alone: `D/m`, or `sqrt(D/m)` if losses are only convex.

    >>> alone_rate(ProblemSizes(100, 50, 2, 100))
    1.0
    """
    return _rate(setting, setting.dimension / setting.samples)


def low_rank_rate(setting: ProblemSizes) -> float:
    """The rate of the low-rank estimator: `r(D + N)/(m N)`; Theorem 9.1.

    >>> low_rank_rate(ProblemSizes(100, 50, 2, 100))
    0.06
    """
    n, d, r, m = setting[:4]
    return _rate(setting, r * (d + n) / (m * n))


def clustered_rate(setting: ProblemSizes) -> float:
    """The rate of the clustered estimator: `r D/(m N) + ln(r)/m`; Theorem 9.2.

    It also holds for m < r.
    """
    n, d, r, m = setting[:4]
    return _rate(setting, r * d / (m * n) + max(math.log(r), 0.0) / m)


def failure(setting: ProblemSizes, *, clustered: bool = False) -> float:
    """The probability that Theorem 9.1 fails is at most `4 e^-(r(D+N)) + 4 e^-(N m D)`.

    For the clustered estimator (Theorem 9.2), the first exponent is N.
    """
    n, d, r, m = setting[:4]
    first = n if clustered else r * (d + n)
    return min(1.0, 4 * math.exp(-first) + 4 * math.exp(-n * m * d))


def lower_bound(setting: ProblemSizes) -> float:
    """`r D/(N m)`: no estimator of the subspace has a dist_rho^2 of smaller order."""
    n, d, r, m = setting[:4]
    return r * d / (n * m)


def samples_needed(setting: ProblemSizes) -> dict[str, float]:
    """The order of m that each estimator needs.

    Alone: D. Low rank: r with `N m >= r D`. Clusters: `r D/N`. Nuclear norm: `sqrt(r
    D)`.
    """
    n, d, r, _ = setting[:4]
    return {
        "alone": float(d),
        "low rank": max(float(r), r * d / n),
        "clusters": max(1.0, r * d / n),
        "nuclear norm": math.sqrt(r * d),
    }


def truncation(setting: ProblemSizes) -> int:
    """`s = sqrt(r(D + N))` of Theorem 9.4, at least 2r and at most min(D, N)."""
    n, d, r, _ = setting[:4]
    refuse_rank(r, n, d)
    return min(max(round(math.sqrt(r * (d + n))), 2 * r), d, n)


def nuclear_rate(setting: ProblemSizes, *, kappa: float = 1.0) -> float:
    """The rate of Theorem 9.4 for the nuclear norm, with `truncation` singular values:

    `kappa^2 B^2 (L/mu) sqrt(r/(D+N)) + (B^2/mu) ((1+kappa^2) sigma^2
    + (1+kappa) sigma_*^2) sqrt(r(D+N))/m`.
    """  # noqa: D415
    n, d, r, m, b, mu, smooth, sigma, star = setting
    number("mu", mu, above=0)
    number("kappa", kappa, at_least=1)
    first = kappa**2 * b**2 * smooth / mu * math.sqrt(r / (d + n))
    noise = (1 + kappa**2) * sigma + (1 + kappa) * star
    return first + b**2 / mu * noise * math.sqrt(r * (d + n)) / m


def nuclear_bound(setting: ProblemSizes, cut: int, *, kappa: float = 1.0) -> float:
    """The bound of Theorem 9.5, if s = `cut` singular values are kept.

    `B^2/mu (2 M kappa^2 r/s + 4 sigma_*^2 (a/s + sqrt(a/(N s))) kappa sqrt(N r)
    + 16 a sigma^2 + 8 sigma_*^2 (a + sqrt(a)))` with `a = s(D + N)/(N m)` and
    `M = L + sigma^2 D/m`, both up to logarithms.
    """
    n, d, r, m, b, mu, smooth, sigma, star = setting
    number("mu", mu, above=0)
    s = integer("cut", cut, at_least=1)
    a, top = s * (d + n) / (n * m), smooth + sigma * d / m
    bias = 2 * top * kappa**2 * r / s
    cross = 4 * star * (a / s + math.sqrt(a / (n * s))) * kappa * math.sqrt(n * r)
    rest = 16 * a * sigma + 8 * star * (a + math.sqrt(a))
    return b**2 / mu * (bias + cross + rest)


def subspace_bound(x: Float[Tensor, "n d"], error: float, rank: int) -> float:
    """Lemma 9.3.4: a bound on dist_F^2/r for models of this rank with this error.

    It is `eps/nu^2`, with `nu^2 = (r/N) lambda_min(V* V*')` for the true models `W* =
    V* U*`.

    Args:
        x: the true models.
        error: eps, `(1/N) |W - W*|_F^2` of other models of rank r.
        rank: r.
    """
    heads = x @ top_subspace(x, rank)
    smallest = float(torch.linalg.eigvalsh(heads.T @ heads)[0])
    if smallest <= 0:
        raise InputError(
            f"`x` must have at least rank {rank}, but its rank is smaller."
        )
    return number("error", error, at_least=0) / (rank / len(x) * smallest)


def few_shot_bias(
    basis: Float[Tensor, "d r"],
    true_basis: Float[Tensor, "d r"],
    setting: ProblemSizes,
) -> float:
    """The error of a newcomer's model that more samples do not remove; Prop. 9.3.1.

    With delta the spectral distance of subspaces, |U v - w*|^2 is at most
    `(L/mu) delta^2 B^2`. Without strong convexity, the loss gap is `L delta^2 B^2/2`.
    """
    delta = squared_distance(basis, true_basis, norm="spectral")
    if setting.mu == 0:
        return setting.smoothness * delta * setting.cap**2 / 2
    return setting.smoothness / setting.mu * delta * setting.cap**2


def few_shot_rate(setting: ProblemSizes) -> float:
    """The additional error with m samples: `B^2 (sigma^4 + sigma_*^4) r/(mu^2 m)`."""
    return _rate(setting, setting.rank / setting.samples)
