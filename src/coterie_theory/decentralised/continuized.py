"""Bounds of continuized acceleration, their constants, and exact rates.

The methods are in `coterie_theory.descent.continuized`. The time t is also the expected
number of gradients. `radius` is |z_0 - x*|, `gap` is f(x_0) - f*, L the smoothness, and
mu the curvature. Bounds are for expected values, so single runs may exceed them. Each
bound comes from a Lyapunov function `A_t (f(x_t) - f*) + (B_t / 2) |z_t - x*|^2`, whose
mean does not grow. Here

    (sqrt A)'' = (mu / 4L) sqrt A,    sqrt B = 2 sqrt L (sqrt A)'.

References are in `coterie_theory.descent.continuized`.

Differences (each with a test; see docs/errata.md): eta = sqrt(B/(LA)); (2.36) prints a
factor 2 under the root. The bound of Theorem 2.4.1 needs a factor 2. Bounds for
additive noise and the unified schedule are ours, from the same Lyapunov functions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from coterie import checks

# The general family.


class Rates(NamedTuple):
    """The parameters eta, eta' and gamma' at a time; gamma is 1 / L."""

    eta: float
    eta_back: float  # eta'
    jump: float  # gamma'


def family(a: float, b: float, smoothness: float, curvature: float = 0.0) -> Rates:
    """The parameters for which the Lyapunov function has weights A and B.

    `eta = sqrt(B / (L A))`, `eta' = mu sqrt(A / (L B))`, `gamma' = sqrt(A / (L B))`;
    (2.35) to (2.37). For the convex case A = t^2 / (4 L) and B = 1:

    >>> family(9 / 8, 1.0, 2.0)  # t = 3, L = 2
    Rates(eta=0.6666666666666666, eta_back=0.0, jump=0.75)
    """
    for name, value in {"a": a, "b": b, "smoothness": smoothness}.items():
        checks.number(name, value, above=0)
    jump = math.sqrt(a / (smoothness * b))
    return Rates(math.sqrt(b / (smoothness * a)), curvature * jump, jump)


# Smooth losses.


def nesterov_bound(
    k: int, radius: float, smoothness: float, curvature: float = 0.0, gap: float = 0.0
) -> float:
    """A bound after k steps of Nesterov's method, for every run; Theorem 2.1.

    `2 L r^2 / k^2` for mu = 0, otherwise `(gap + mu r^2 / 2) (1 - sqrt(mu / L))^k`.
    """
    if not curvature:
        return 2 * smoothness * radius**2 / k**2
    energy = gap + curvature * radius**2 / 2
    return energy * (1 - math.sqrt(curvature / smoothness)) ** k


def convex_bound(
    t: float, radius: float, smoothness: float, variance: float = 0.0
) -> float:
    """`2 L r^2 / t^2 + sigma^2 t / (3 L)`: Theorem 2.2.1, with additive noise.

    The bound also holds for coordinate descent, with its L and the norm of R: Theorem
    2.8.1. Without noise, at the times T_k of gradients, E[T_k^2 (f(x_k) - f*)] is at
    most `2 L r^2`: Theorem 2.3.
    """
    noise = variance * t / (3 * smoothness)
    return 2 * smoothness * radius**2 / t**2 + noise


def convex_best_time(radius: float, smoothness: float, variance: float) -> float:
    """The time at which `convex_bound` is smallest; after it, noise adds up.

    >>> convex_best_time(1.0, 2.0, 6.0)
    2.0
    """
    checks.number("variance", variance, above=0)
    return (12 * smoothness**2 * radius**2 / variance) ** (1 / 3)


def strongly_convex_bound(
    t: float,
    gap: float,
    radius: float,
    smoothness: float,
    curvature: float,
    variance: float = 0.0,
) -> float:
    """`(gap + mu r^2 / 2) e^{-sqrt(mu / L) t} + sigma^2 / sqrt(mu L)`: Theorem 2.2.2.

    The bound also holds for coordinate descent: Theorem 2.8.2. Without noise, at the
    times T_k of gradients, E[e^{sqrt(mu / L) T_k} (f(x_k) - f*)] is at most `gap + mu
    r^2 / 2`: Theorem 2.3.
    """
    rate = math.sqrt(curvature / smoothness)
    noise = variance / math.sqrt(curvature * smoothness)
    return (gap + curvature * radius**2 / 2) * math.exp(-rate * t) + noise


def unified_bound(
    t: float, radius: float, smoothness: float, curvature: float
) -> float:
    """`(mu / 2) r^2 / sinh(sqrt(mu / L) t / 2)^2`, for the unified schedule."""
    half = math.sqrt(curvature / smoothness) * t / 2
    return curvature * radius**2 / 2 / math.sinh(half) ** 2


# Least squares without noise in the responses.


class FeatureMoments(NamedTuple):
    """Constants of features a: R^2 with E |a|^2 a a' <= R^2 H, and conditions of H."""

    smoothness: float  # R^2
    condition: float  # the statistical condition number
    curvature: float  # mu, the smallest eigenvalue of H

    @property
    def kappa(self) -> float:
        """`R^2 / mu`, at least the statistical one."""
        return self.smoothness / self.curvature


def gaussian(eigenvalues: Float[Tensor, " d"]) -> FeatureMoments:
    """The constants for a ~ N(0, H): `R^2 = tr H + 2 lambda_max` and `d + 2`."""
    checks.positive("eigenvalues", eigenvalues, len(eigenvalues))
    largest, total = float(eigenvalues.max()), float(eigenvalues.sum())
    return FeatureMoments(
        total + 2 * largest, len(eigenvalues) + 2.0, float(eigenvalues.min())
    )


def empirical(
    features: Float[Tensor, "m d"], chances: Float[Tensor, " m"] | None = None
) -> FeatureMoments:
    """The exact constants for features drawn from a finite list.

    Features are drawn uniformly, or with the given probabilities. The constants are the
    largest eigenvalues of `H^-1/2 E[w a a'] H^-1/2` for w = |a|^2 and for w = a' H^-1
    a. H must be invertible.

    >>> empirical(torch.eye(3), torch.tensor([0.5, 0.25, 0.25]))
    FeatureMoments(smoothness=1.0, condition=4.0, curvature=0.25)
    """
    a = features.double()
    p = a.new_full((len(a),), 1 / len(a)) if chances is None else chances.double()
    second = a.T @ (p[:, None] * a)
    root = torch.linalg.cholesky(second)
    white = torch.linalg.solve_triangular(root, a.T, upper=False).T  # (m, d)

    def largest(weight: Tensor) -> float:
        moment = white.T @ ((p * weight)[:, None] * white)
        return float(torch.linalg.eigvalsh(moment)[-1])

    lengths, own = a.square().sum(1), white.square().sum(1)
    curvature = float(torch.linalg.eigvalsh(second)[0])
    return FeatureMoments(largest(lengths), largest(own), curvature)


def convex_samples_bound(t: float, distance: float, samples: FeatureMoments) -> float:
    """A bound on E |x_t - x*|^2 / 2: Theorem 2.4.1 with the factor 2 that it needs.

    It is `2 R^2 kappa |z_0 - x*|^2 / t^2`. Here kappa is the statistical condition
    number, and `distance` is |z_0 - x*|^2 in the norm of H^-1.
    """
    return 2 * samples.smoothness * samples.condition * distance / t**2


def samples_bound(
    t: float, start: float, distance: float, samples: FeatureMoments
) -> float:
    """A bound on E |x_t - x*|^2 / 2: Theorem 2.4.2.

    `(start / 2 + mu distance / 2) exp(-t / sqrt(kappa kappa_stat))`, where `start` is
    |x_0 - x*|^2 and `distance` is |x_0 - x*|^2 in the norm of H^-1.
    """
    rate = 1 / math.sqrt(samples.kappa * samples.condition)
    energy = (start + samples.curvature * distance) / 2
    return energy * math.exp(-rate * t)


# Exact rates of linear processes.


def second_moment_rate(
    drift: Float[Tensor, "m m"],
    jumps: Sequence[Float[Tensor, "m m"]],
    rates: Sequence[float],
) -> float:
    """The exact decay rate of E[s s'], if ds = B s dt and s <- J_e s at rate p_e.

    `dS/dt = B S + S B' + sum_e p_e (J_e S J_e' - S)`. The rate is minus the largest
    real part of the eigenvalues of this linear map. If the second moment grows, the
    rate is negative.

    >>> half = torch.tensor([[0.5]])
    >>> second_moment_rate(torch.zeros(1, 1), [half], [4.0])
    3.0
    """
    if len(jumps) != len(rates):
        raise checks.InputError(
            f"`rates` must have one entry per jump, which are {len(jumps)}, got "
            f"{len(rates)}."
        )
    b = drift.double()
    one = torch.eye(len(b), dtype=b.dtype)
    both = torch.kron(b, one) + torch.kron(one, b)
    for jump, rate in zip(jumps, rates, strict=True):
        j = jump.double()
        both += rate * torch.kron(j, j)
    # S is symmetric: its upper triangle is enough.
    i, k = torch.triu_indices(len(b), len(b))
    upper, lower = i * len(b) + k, k * len(b) + i
    rows = both[upper]
    half = rows[:, upper] + rows[:, lower] * (i < k)
    return sum(rates) - float(torch.linalg.eigvals(half).real.max())
