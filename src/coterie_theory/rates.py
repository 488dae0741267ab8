"""Rates of stochastic gradient descent, and the step sizes that reach these rates.

The method is `x <- x - eta g(x)` with E g = grad f. `LossClass` holds the constants of
the loss f.

References:
    Even, PhD thesis, 2024, chapter 8, tel-04877971 (8.5, 8.6,
    Lemma 8.B.1).
    Even, Massoulié, Scaman, "Sample optimality and all-for-all strategies in
    personalized federated and collaborative learning", report hal-03550407, 2022
    (Lemmas 4 to 6).

Differences (each with a test; see docs/errata.md): logarithms in step sizes are at
least 1. The precision of Lemma 8.B.1 is the precision of the last iterate, not of the
average.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from coterie import checks


@dataclass(frozen=True)
class LossClass:
    """Constants of all losses, or of one loss that is minimised in their place."""

    mu: float  # strong convexity
    beta: float  # smoothness, at least mu
    variance: float  # of a gradient

    def __post_init__(self) -> None:
        """Refuses numbers that cannot belong to one problem."""
        checks.number("beta", self.beta, above=0.0)
        checks.number("mu", self.mu, above=0.0, at_most=self.beta)
        checks.number("variance", self.variance, at_least=0.0)


def sgd_step(start: float, calls: int, losses: LossClass) -> float:
    """The step size for K calls from an excess loss of `start`; (8.5), (8.6), Lemma 4.

    `eta = min(1 / (2 beta), ln(2 mu^2 K start / (beta sigma^2)) / (mu K))`, where the
    logarithm counts as at least 1. The printed logarithm is negative for few calls, so
    steps would go uphill.
    """
    checks.integer("calls", calls, at_least=1)
    cap = 1 / (2 * losses.beta)
    if not losses.variance:
        return cap
    return min(cap, _logarithm(start, calls, losses) / (losses.mu * calls))


def _logarithm(start: float, calls: int, losses: LossClass) -> float:
    ratio = 2 * losses.mu**2 * calls * start / (losses.beta * losses.variance)
    return max(1.0, math.log(ratio)) if ratio > 0 else 1.0


def sgd_bound(start: float, lr: float, calls: int, losses: LossClass) -> float:
    """A bound on the expected excess loss of the last iterate, for `lr <= 1 / beta`.

    `(1 - eta mu)^K start + eta beta sigma^2 / (2 mu)`.
    """
    checks.number("lr", lr, above=0.0, at_most=1 / losses.beta * (1 + 1e-12))
    noise = lr * losses.beta * losses.variance / (2 * losses.mu)
    return (1 - lr * losses.mu) ** calls * start + noise


def tuned_bound(start: float, calls: int, losses: LossClass) -> float:
    """A closed form that is at least `sgd_bound` with the step of `sgd_step`.

    `start e^{-K mu / (2 beta)} + beta sigma^2 / (2 mu^2 K) (1 + l)` with the logarithm
    l of `sgd_step`. The printed `2 l` in place of `1 + l` fails where l < 1.
    """
    share = losses.mu / (2 * losses.beta)
    if not losses.variance:
        return start * math.exp(-calls * share)
    noise = losses.beta * losses.variance / (2 * losses.mu**2 * calls)
    return start * math.exp(-calls * share) + noise * (
        1 + _logarithm(start, calls, losses)
    )


def precision_step(eps: float, losses: LossClass) -> float:
    """`eta = min(mu eps / (2 beta sigma^2), 1 / (2 beta))`; Lemma 8.B.1.

    Then the noise term of `sgd_bound` is at most eps / 4.
    """
    checks.number("eps", eps, above=0.0)
    cap = 1 / (2 * losses.beta)
    return cap * min(1.0, losses.mu * eps / losses.variance) if losses.variance else cap


def precision_calls(eps: float, start: float, losses: LossClass) -> int:
    """Calls after which the last iterate has excess eps; Lemma 8.B.1, corrected.

    `ln(4 start / (3 eps)) / (eta mu)` with the step of `precision_step`. The lemma
    claims this for the average of all iterates. But in this average, the first iterates
    have too much weight.
    """
    return calls_for(4 * start / (3 * eps), precision_step(eps, losses), losses)


def calls_for(ratio: float, lr: float, losses: LossClass) -> int:
    """The number of calls that divide the excess loss by `ratio`."""
    return math.ceil(math.log(max(1.0, ratio)) / (lr * losses.mu))


class ConvexLosses(NamedTuple):
    """Constants of convex losses (mu = 0) and of their optima."""

    radius: float  # R, from the start to the optimum
    beta: float  # smoothness
    variance: float  # of a gradient


def convex_sgd_step(calls: int, losses: ConvexLosses) -> float:
    """`min(1 / (2 beta), R / (sigma sqrt(K)))`; Lemma 5."""
    radius, beta, variance = losses
    cap = 1 / (2 * beta)
    return min(cap, radius / math.sqrt(variance * calls)) if variance else cap


def convex_sgd_bound(calls: int, losses: ConvexLosses) -> float:
    """A bound on the excess of the averaged iterate, for convex losses; Lemma 5.

    `2 R sigma / sqrt(K) + 2 beta R^2 / K`, for the step of `convex_sgd_step`.
    """
    radius, beta, variance = losses
    return 2 * radius * math.sqrt(variance / calls) + 2 * beta * radius**2 / calls


class BoundedLosses(NamedTuple):
    """Constants of convex losses with bounded gradients, and of their optima."""

    radius: float  # R, from the start, or from all models, to the optimum
    bound: float  # B, for gradients with E|g|^2 <= B^2


def bounded_sgd_step(calls: int, losses: BoundedLosses) -> float:
    """`sqrt(2) R / (B sqrt(K))`; Lemma 6."""
    return math.sqrt(2 / calls) * losses.radius / losses.bound


def bounded_sgd_bound(calls: int, losses: BoundedLosses) -> float:
    """A bound on the excess of the averaged iterate: `B R sqrt(2 / K)`; Lemma 6."""
    return losses.bound * losses.radius * math.sqrt(2 / calls)
