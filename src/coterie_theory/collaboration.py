"""Bounds and step sizes of All-for-one and All-for-all with known biases.

Client i wants the minimiser x_i^* of its own loss f_i. At every call, all clients draw
gradients, of variance at most sigma^2 = `variance`. All f_i are mu-strongly convex and
beta-smooth (`LossClass`). How much client j can help i is bounded by one of two kinds
of numbers:

- a `distance` b_ij >= |grad f_i - grad f_j|: everywhere for All-for-one, and at the
  optima x_j^* for All-for-all;
- a `gap` c_ij >= f_i(x_j^*) - f_i(x_i^*); the right side is at most b_ij^2 / (2 mu).

With `N_i^eps(c) = #{j : c_ij <= eps}`, every method needs at least sigma^2 / (mu eps) /
N_i^eps(b^2 / (4 mu)) calls for precision eps, up to a constant. All-for-one and
All-for-all need little more. For any weights L, All-for-one is stochastic gradient
descent with variance sigma^2 sum_j l_ij^2. All-for-all is gradient descent with the
constants of `effective`. So every bound here is a bound of `coterie_theory.rates` plus
a bias.

References:
    Even, PhD thesis, 2024, chapter 8, tel-04877971.
    Even, Massoulié, Scaman, "Sample optimality and all-for-all strategies in
    personalized federated and collaborative learning", report hal-03550407, 2022.

Differences (each with a test; see docs/errata.md): beta is multiplied by rho(L L^T),
    which is not 1 for every L. Logarithms in step sizes are at least 1. Rates of
    All-for-all use the smallest positive eigenvalue of L L^T. Numbers of calls are
    those that follow from the proofs.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from coterie import checks
from coterie.collaboration.weights import spectral_radius, threshold_weights

from .rates import (
    BoundedLosses,
    ConvexLosses,
    LossClass,
    calls_for,
    convex_sgd_bound,
    convex_sgd_step,
    precision_step,
    sgd_bound,
    sgd_step,
)

# Clients that are near each other.


def collaboration_radius(eps: float, mu: float, *, share: float = 0.5) -> float:
    """The distance b at which the bias b^2 / (2 mu) is `share` times the precision eps.

    `b = sqrt(2 mu share eps)` is a threshold for `threshold_weights`. All-for-all needs
    b^2 <= mu eps (share 1/2, Corollary 8.5.1 of Even's thesis). All-for-one needs b^2
    <= mu eps / 2 (share 1/4, Theorem 8.2). If b^2 is above 4 mu eps (share 2, Theorem
    8.1), a client cannot help, with any method.

    >>> collaboration_radius(eps=0.5, mu=2.0)
    1.0
    """
    checks.number("eps", eps, above=0.0)
    checks.number("mu", mu, above=0.0)
    checks.number("share", share, above=0.0)
    return math.sqrt(2 * mu * share * eps)


def count_near(cost: Float[Tensor, "n n"], eps: float) -> Int[Tensor, " n"]:
    """`N_i^eps(c) = #{j : c_ij <= eps}`, the number of near clients, i included.

    >>> count_near(torch.tensor([[0.0, 1.0], [3.0, 0.0]]), 2.0)
    tensor([2, 1])
    """
    return (threshold_weights(cost, eps) > 0).sum(1)


def all_for_one_speed_up(
    distance: Float[Tensor, "n n"], eps: float, mu: float
) -> Tensor:
    """The factor by which All-for-one divides a client's calls: `N_i^eps(2 b^2/mu)`."""
    return count_near(2 * distance.square() / mu, eps).to(distance.dtype)


def share_of_calls(distance: Float[Tensor, "n n"], eps: float, mu: float) -> float:
    """The share of local training's calls that All-for-all needs, from 0 to 1.

    `mean 1 / N_i(b^2 / mu)`. This holds if noise, and not the condition number,
    determines the number of calls.
    """
    near = count_near(distance.square() / mu, eps)
    return float((1 / near.to(distance.dtype)).mean())


def gap_of_distance(distance: Float[Tensor, "n n"], mu: float) -> Tensor:
    """The gap `b^2 / (2 mu)` for strongly convex losses; Lemma 8.5.1."""
    return distance.square() / (2 * mu)


# All-for-one: each client steps along a weighted sum of gradients at its own model.


def all_for_one_weights(
    distance: Float[Tensor, "n n"], eps: float, mu: float
) -> Tensor:
    """`l_ij = 1{b_ij^2 <= mu eps / 2} / N_i`; Theorem 8.2, where mu is missing."""
    return threshold_weights(distance, collaboration_radius(eps, mu, share=0.25))


def _of_each(weights: Tensor, losses: LossClass) -> list[LossClass]:
    """The losses of each client; gradients have the variance `sigma^2 sum_j l_ij^2`."""
    shares = weights.square().sum(1).tolist()
    return [replace(losses, variance=losses.variance * share) for share in shares]


def all_for_one_step(
    weights: Float[Tensor, "n n"],
    start: Float[Tensor, " n"],
    calls: int,
    losses: LossClass,
) -> Float[Tensor, " n"]:
    """Each client's step size, (8.5): `sgd_step` with its variance."""
    pairs = zip(start.tolist(), _of_each(weights, losses), strict=True)
    return start.new_tensor([sgd_step(s, calls, own) for s, own in pairs])


def all_for_one_bound(
    weights: Float[Tensor, "n n"],
    distance: Float[Tensor, "n n"],
    start: Float[Tensor, " n"],
    lr: Float[Tensor, " n"],
    calls: int,
    losses: LossClass,
) -> Float[Tensor, " n"]:
    """Each client's bound, for step sizes of at most 1 / beta; Theorem 8.2, its proof.

    `(1 - eta mu)^K start_i + eta beta sigma^2 / (2 mu) sum_j l_ij^2
    + 1 / (2 mu) sum_j l_ij b_ij^2`.
    """
    bias = (weights * gap_of_distance(distance, losses.mu)).sum(1)
    triples = zip(start.tolist(), lr.tolist(), _of_each(weights, losses), strict=True)
    values = [sgd_bound(s, eta, calls, own) for s, eta, own in triples]
    return bias.new_tensor(values) + bias


def all_for_one_relaxed_bound(
    weights: Float[Tensor, "n n"],
    distance: Float[Tensor, "n n"],
    start: Float[Tensor, " n"],
    lr: Float[Tensor, " n"],
    calls: int,
    losses: LossClass,
    *,
    slope: float = 0.0,
) -> Float[Tensor, " n"]:
    """A bound for gradients that differ in proportion to their norm; report, 6.b.

    If `|grad f_i - g|^2 <= m |g|^2 + sum_j l_ij b_ij^2` for g = sum_j l_ij grad f_j,
    the bound is `2 (m + 1) kappa` times `sgd_bound` plus `sum_j l_ij b_ij^2 / mu`. So m
    > 0 costs a factor kappa.

    Args:
        weights: l.
        distance: b.
        start: sum_j l_ij (f_j(x_i^0) - f_j(x_j^*)), the excess of the weighted loss.
        lr: step sizes of at most 1 / beta.
        calls: K.
        losses: the losses of every client.
        slope: m.
    """
    none = torch.zeros_like(distance)
    blend = all_for_one_bound(weights, none, start, lr, calls, losses)
    bias = (weights * distance.square()).sum(1) / losses.mu
    return 2 * (slope + 1) * losses.beta / losses.mu * blend + bias


def all_for_one_calls(
    distance: Float[Tensor, "n n"],
    eps: float,
    start: Float[Tensor, " n"],
    losses: LossClass,
) -> Int[Tensor, " n"]:
    """Each client's calls until precision eps, with `all_for_one_weights`; Theorem 8.2.

    `2 kappa max(1, sigma^2 / (mu eps N_i)) ln(2 start_i / eps)`, N_i = N_i^eps(2 b^2 /
    mu), for the step of `precision_step`. Half of eps is for the start, a quarter for
    the noise, and a quarter for the bias.
    """
    weights = all_for_one_weights(distance, eps, losses.mu)
    pairs = zip(start.tolist(), _of_each(weights, losses), strict=True)
    calls = [calls_for(2 * s / eps, precision_step(eps, own), own) for s, own in pairs]
    return torch.tensor(calls, device=distance.device)


def all_for_one_bounded_step(
    weights: Float[Tensor, "n n"], calls: int, losses: BoundedLosses
) -> Float[Tensor, " n"]:
    """`R / (B sqrt(K n sum_j l_ij^2))` for one active client per call; report, 6.a.

    The report prints an extra factor 1 / sqrt(2), which makes the bound 6 percent
    worse.
    """
    spread = len(weights) * weights.square().sum(1)
    return losses.radius / (losses.bound * (calls * spread).sqrt())


def all_for_one_bounded_bound(
    weights: Float[Tensor, "n n"],
    gap: Float[Tensor, "n n"],
    calls: int,
    losses: BoundedLosses,
) -> Float[Tensor, " n"]:
    """A bound on the mean excess over K samples, one client at a time; report, 6.a.

    `R B sqrt(n sum_j l_ij^2 / K) + sum_j l_ij c_ij`, for models within R of the optima
    and c_ij = R |grad f_i - grad f_j|. The report leaves out n.
    """
    spread = (len(weights) * weights.square().sum(1) / calls).sqrt()
    return losses.radius * losses.bound * spread + (weights * gap).sum(1)


def all_for_one_bounded_samples(
    gap: Float[Tensor, "n n"], eps: float, losses: BoundedLosses
) -> Float[Tensor, " n"]:
    """Samples of all clients: `4 R^2 B^2 n / (eps^2 N_i^eps(2 c))`; report, 2.1."""
    near = count_near(2 * gap, eps).to(gap.dtype)
    return 4 * (losses.radius * losses.bound / eps) ** 2 * len(gap) / near


# All-for-all: each client computes one gradient, at its own model.


def all_for_all_weights(
    distance: Float[Tensor, "n n"], eps: float, mu: float
) -> Tensor:
    """`l_ij = 1{b_ij^2 <= mu eps} / N_i`; Corollary 8.5.1.

    If gaps c are known, the bias of `threshold_weights(2 * c, eps)` is at most eps / 2.
    """
    return threshold_weights(distance, collaboration_radius(eps, mu, share=0.5))


def mean_bias(weights: Float[Tensor, "n n"], gap: Float[Tensor, "n n"]) -> float:
    """`1/n sum_ij l_ij (f_i(x_j^*) - f_i(x_i^*))`; Lemma 8.5.2.

    The mean excess of the best models of the form x = L y is at most this bias. The
    theorem prints f_j(x_i^*), which can be smaller.
    """
    return float((weights * gap).sum()) / len(weights)


def smallest_eigenvalue(weights: Float[Tensor, "n n"]) -> float:
    """The smallest positive eigenvalue of L L^T."""
    singular = torch.linalg.svdvals(weights.double())
    floor = float(singular[0]) * len(weights) * torch.finfo(weights.dtype).eps
    return float(singular[singular > floor].min()) ** 2


def effective(weights: Float[Tensor, "n n"], losses: LossClass) -> LossClass:
    """The constants of the loss `1/n sum_i f_i((L y)_i)` that All-for-all minimises.

    `mu s, beta rho, sigma^2 / n sum_ij l_ij^2`, with s the smallest positive and rho
    the largest eigenvalue of L L^T. For clusters, s and rho are 1. Only in this case
    does Theorem 8.3 hold as printed.
    """
    variance = losses.variance * float(weights.square().sum()) / len(weights)
    return LossClass(
        losses.mu * smallest_eigenvalue(weights),
        losses.beta * spectral_radius(weights),
        variance,
    )


def all_for_all_step(
    weights: Float[Tensor, "n n"], start: float, calls: int, losses: LossClass
) -> float:
    """The step size (8.6), with beta rho(L L^T) in place of beta.

    This is `sgd_step` with mu in place of mu s. The eigenvalue s of `effective` belongs
    to the worst direction, so in practice mu s is too small.
    """
    there = effective(weights, losses)
    return sgd_step(start, calls, replace(there, mu=losses.mu))


def all_for_all_bound(
    weights: Float[Tensor, "n n"],
    gap: Float[Tensor, "n n"],
    start: float,
    lr: float,
    calls: int,
    losses: LossClass,
) -> float:
    """A bound on the mean excess, for steps of at most 1 / (beta rho); Theorem 8.3.

    `(1 - eta mu s)^K F^0 + eta beta rho sigma^2 / (2 n mu s) sum_ij l_ij^2`, plus
    `mean_bias`.
    """
    bound = sgd_bound(start, lr, calls, effective(weights, losses))
    return bound + mean_bias(weights, gap)


def all_for_all_calls(
    weights: Float[Tensor, "n n"], eps: float, start: float, losses: LossClass
) -> int:
    """Calls until a mean excess of eps, if the bias is at most half; Corollary 8.5.1.

    `2 kappa max(1, sigma^2 / (mu eps) mean_i 1 / N_i) ln(4 F^0 / eps)` for clusters.
    For other weights, the formula has the constants of `effective`. The step is
    `precision_step` with the same constants. The printed logarithm has no 4. Then the
    terms in the proof add up to 7/4 eps.
    """
    there = effective(weights, losses)
    return calls_for(4 * start / eps, precision_step(eps, there), there)


def _effective_convex(weights: Tensor, losses: ConvexLosses) -> ConvexLosses:
    """The `effective` losses if mu = 0; R^2 bounds the mean of |x_i^0 - x_i^*|^2."""
    radius, beta, variance = losses
    share = float(weights.square().sum()) / len(weights)
    return ConvexLosses(radius, beta * spectral_radius(weights), variance * share)


def all_for_all_convex_step(
    weights: Float[Tensor, "n n"], calls: int, losses: ConvexLosses
) -> float:
    """`min(1 / (2 beta rho), R sqrt(n) / (sigma sqrt(K sum_ij l_ij^2)))` for mu = 0.

    The thesis prints a beta inside the root.
    """
    return convex_sgd_step(calls, _effective_convex(weights, losses))


def all_for_all_convex_bound(
    weights: Float[Tensor, "n n"],
    gap: Float[Tensor, "n n"],
    calls: int,
    losses: ConvexLosses,
) -> float:
    """A bound on the mean of F^k over k < K for mu = 0; Theorem 8.3, report Theorem 8.

    `2 beta rho R^2 / K + 2 R sigma sqrt(sum_ij l_ij^2 / (n K)) + 2 mean_bias`.
    """
    bound = convex_sgd_bound(calls, _effective_convex(weights, losses))
    return bound + 2 * mean_bias(weights, gap)


def all_for_all_bounded_step(
    weights: Float[Tensor, "n n"], calls: int, losses: BoundedLosses
) -> float:
    """`R n / (B sqrt(K sum_ij l_ij^2))` for one active client per call; report, 3.a.

    R^2 is at least the mean of |y_i^0 - y_i|^2, where y minimises f(L y). The report
    prints an extra factor sqrt(2), which makes the bound 6 percent worse.
    """
    spread = math.sqrt(calls * float(weights.square().sum()))
    return losses.radius * len(weights) / (losses.bound * spread)


def all_for_all_bounded_bound(
    weights: Float[Tensor, "n n"],
    gap: Float[Tensor, "n n"],
    calls: int,
    losses: BoundedLosses,
) -> float:
    """A bound on the mean of F^k over K samples, one client at a time; report, 3.a.

    `R B sqrt(sum_ij l_ij^2 / K) + mean_bias`.
    """
    spread = math.sqrt(float(weights.square().sum()) / calls)
    return losses.radius * losses.bound * spread + mean_bias(weights, gap)


def all_for_all_bounded_samples(
    gap: Float[Tensor, "n n"], eps: float, losses: BoundedLosses
) -> float:
    """Samples of all clients: `4 R^2 B^2 / eps^2 sum_i 1 / N_i(2 c)`; report, 4.1."""
    near = count_near(2 * gap, eps).to(gap.dtype)
    return 4 * (losses.radius * losses.bound / eps) ** 2 * float((1 / near).sum())


def anytime_samples(
    gap: Float[Tensor, "n n"], eps: float, losses: BoundedLosses
) -> float:
    """Samples of all clients until time-adaptive All-for-all has precision eps.

    `64 R^2 B^2 / (3 eps^2) sum_i 1 / N_i^(eps / 2)(2 c)`, for every eps <= 1. The
    method does not know eps. Its phases have precision 2^-p and take
    `all_for_all_bounded_samples` each. The first phase with precision eps may be twice
    as precise as needed. The printed 16 and N_i^eps are right if eps is a power of 2.
    """
    near = count_near(2 * gap, eps / 2).to(gap.dtype)
    scale = (losses.radius * losses.bound / eps) ** 2
    return 64 / 3 * scale * float((1 / near).sum())
