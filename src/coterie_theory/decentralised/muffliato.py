"""Private averaging over a graph: numbers of rounds, errors, mean losses and noise.

Every client adds noise to its row once, with standard deviation s in each of the D
coordinates. Then neighbours average their rows. Let `spread` be a public bound on (1/n)
sum |x_v - x_bar|^2. Then

    T = ceil(ln((n / (D s^2)) max(D s^2, spread)) / sqrt(l))                 Chebyshev
    (1/2n) sum E|x_v^T - x_bar|^2 <= (spread + D s^2) e^{-T sqrt(l)} + D s^2 / n  (6.8)

where l is the absolute gap of W. If random pairs meet, replace sqrt(l) by half the
eigengap of the Laplacian of the pairs' probabilities. The mean loss to an observer, in
units of local privacy, is at most the number of messages that it receives, divided by
n.

All losses are in this unit. To get divergences, multiply them by alpha Delta^2 / (2
s^2).

References:
    Even, PhD thesis, 2024, chapter 6, tel-04877971.

Differences (each with a test; see docs/errata.md): the rate with random pairs has a
factor 1/2. The mean loss with random pairs has no such factor. The mean loss of rounds
has n, not n^2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from coterie import checks
from coterie.checks import InputError


class PlannedNoise(NamedTuple):
    """Noise, and the number of rounds."""

    noise: float
    rounds: int


def stopping_time(
    pace: float, n: int, noise: float, *, spread: float = 0.25, dim: int = 1
) -> int:
    """T, the rounds after which the error is mostly due to noise, not to the graph.

    >>> stopping_time(math.sqrt(1 / 6), 2048, 1.0)
    19

    Args:
        pace: sqrt(l) with Chebyshev's recursion. With random pairs, the rate of
            squares: `gossip.randomised_rate` or `gossip.accelerated_rate` (Remark
            6.3.1).
        n: nodes.
        noise: s.
        spread: a public bound on (1/n) sum |x_v - x_bar|^2, not computed from the data.
        dim: D.
    """
    checks.number("pace", pace, above=0, at_most=1)
    checks.integer("n", n, at_least=1)
    square = _square(noise, dim)
    checks.number("spread", spread, at_least=0)
    return max(1, math.ceil(math.log(n / square * max(square, spread)) / pace))


def error_bound(
    pace: float,
    rounds: int,
    n: int,
    noise: float,
    *,
    spread: float = 0.25,
    dim: int = 1,
) -> float:
    """A bound on `(1/2n) sum E|x_v^T - x_bar|^2`; (6.8) and (6.9).

    At `stopping_time` it is at most 3 D s^2 / n.

    >>> round(error_bound(0.5, 20, 64, 1.0), 5)
    0.01568
    """
    checks.number("pace", pace, above=0, at_most=1)
    checks.integer("rounds", rounds, at_least=0)
    square = _square(noise, dim)
    left = math.exp(-rounds * pace)
    return (checks.number("spread", spread, at_least=0) + square) * left + square / n


def _square(noise: float, dim: int) -> float:
    checks.number("noise", noise, above=0)
    return noise**2 * checks.integer("dim", dim, at_least=1)


# Mean losses are sums of ranks. They are right even if losses of pairs are wrong.


def mean_loss(degree: float, rounds: int, n: int) -> float:
    """`d T / n`, a bound for an observer with d neighbours and T rounds; (6.7), (6.16).

    >>> mean_loss(11, 19, 2048)
    0.10205078125
    """
    return degree * rounds / n


def mean_loss_by_pairs(rounds: int, n: int) -> float:
    """`2 T / n^2`, a bound on the expected mean loss of T meetings.

    Pair {v, w} meets with probability 2 W_vw / n. Each of the two messages adds at most
    1 to the sum.
    """
    return 2 * rounds / n**2


def walk_bound(matrix: Float[Tensor, "n n"], rounds: int) -> Float64[Tensor, "n n"]:
    """(n, n) the bound of Corollary 6.3.1 on (6.6); it is not a guarantee.

    True losses can exceed (6.6), see `coterie_theory.privacy.printed`. The bound is

    `n max_{w ~ v} W_vw^{-2} sum_{t=1}^T (W^t)_uv^2`, entry (u, v).
    """
    weights = matrix.to_dense().double()
    off = weights.clone().fill_diagonal_(0.0)
    least = torch.where(off > 0, off, math.inf).amin(1)
    power, total = weights, torch.zeros_like(weights)
    for _ in range(checks.integer("rounds", rounds, at_least=1)):
        total += power.square()
        power = weights @ power
    return len(weights) * total / least.square()


def secret_graph_loss(n: int, degree: int, rounds: int) -> float:
    """The loss of a node that is not a neighbour, on a secret graph; Theorem 6.4.

    `min(1, 2 T d / (n - d))` for an observer that knows only its d neighbours, if all
    other nodes are exchangeable. It holds for one averaging and for orders up to
    `largest_order`. Over several steps of SGD, such losses add up only if all nodes
    have the same model after each step (docs/privacy_gossip.md).

    >>> round(secret_graph_loss(2000, 8, 27), 4)
    0.2169
    """
    checks.integer("degree", degree, at_least=0, at_most=n - 1)
    return min(1.0, 2 * rounds * degree / (n - degree))


def largest_order(mu: float) -> float:
    """The order up to which Theorem 6.4 holds: `s^2 >= Delta^2 alpha (alpha-1)/2`.

    >>> largest_order(1.0)
    2.0
    """
    checks.number("mu", mu, above=0)
    return (1 + math.sqrt(1 + 8 / mu**2)) / 2


# Noise for a given loss. It depends on the number of rounds, which depends on the
# noise.


def plan_noise(
    noise_after: Callable[[int], float], rounds_with: Callable[[float], int]
) -> PlannedNoise:
    """The smallest number of rounds that is enough for its noise, and this noise.

    Args:
        noise_after: the noise needed for a number of rounds; it grows with the rounds.
        rounds_with: the rounds needed with an amount of noise; it falls with the noise.
    """
    high = 1
    while rounds_with(noise_after(high)) > high:
        high *= 2
        if high > 2**40:
            raise InputError(
                "no number of rounds is enough for the noise that it needs."
            )
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        if rounds_with(noise_after(middle)) > middle:
            low = middle
        else:
            high = middle
    return PlannedNoise(noise_after(high), high)


def noise_for_mean(
    loss: float,
    *,
    n: int,
    degree: float,
    gap: float,
    alpha: float = 2.0,
    sensitivity: float = 1.0,
    spread: float = 0.25,
) -> PlannedNoise:
    """The noise s for which the mean divergence is epsilon.

    It solves `s^2 = alpha Delta^2 d T(s) / (2 n epsilon)`.

    Args:
        loss: epsilon, the mean over all clients of the Renyi divergence.
        n: nodes.
        degree: d, the largest number of neighbours.
        gap: l of the gossip matrix.
        alpha: order of the divergence.
        sensitivity: Delta.
        spread: a public bound on (1/n) sum |x_v - x_bar|^2.
    """
    checks.number("loss", loss, above=0)
    checks.number("alpha", alpha, above=1)
    unit = alpha * sensitivity**2 / (2 * loss)
    pace = math.sqrt(checks.number("gap", gap, above=0, at_most=1))
    return plan_noise(
        lambda rounds: math.sqrt(unit * mean_loss(degree, rounds, n)),
        lambda noise: stopping_time(pace, n, noise, spread=spread),
    )


def error_of(noise: float, n: int) -> float:
    """`3 s^2 / n`, a bound on the error of averaging at the stopping time."""
    return 3 * noise**2 / n


# Muffliato-SGD.


def gossip_steps(
    gap: float,
    n: int,
    noise: float,
    *,
    dissimilarity: float = 0.0,
    sampling: float = 0.0,
    dim: int = 1,
) -> int:
    """K of Theorem 6.6, `ceil(ln max(n, zeta^2/(D s^2 + rho^2)) / sqrt(l))` exchanges.

    Args:
        gap: l, at most that of every matrix.
        n: clients.
        noise: s on gradients.
        dissimilarity: zeta^2, the mean of |grad f_v - grad f|^2 at the optimum.
        sampling: rho^2, the variance of sampled gradients at the optimum; 0 with all
            data.
        dim: D.
    """
    pace = math.sqrt(checks.number("gap", gap, above=0, at_most=1))
    variance = _square(noise, dim) + checks.number("sampling", sampling, at_least=0)
    return math.ceil(math.log(max(n, dissimilarity / variance)) / pace)


class PrivateDescent(NamedTuple):
    """Muffliato-SGD with enough exchanges in each step, `gossip_steps`.

    Args:
        clients: n.
        steps: T.
        variance: `D s^2 + rho^2` of noisy gradients.
        distance: `|theta_0 - theta*|^2`.
        mu: strong convexity of the mean loss.
        smoothness: L of each loss.
    """

    clients: int
    steps: int
    variance: float
    distance: float = 1.0
    mu: float = 1.0
    smoothness: float = 1.0


def sgd_rate(problem: PrivateDescent) -> float:
    """The excess loss of Theorem 6.8, up to constants and logarithms.

    `(D s^2 + rho^2) / (n mu T) + L |theta_0 - theta*|^2 e^{-T / (2 kappa)}`; it does
    not depend on the graph.

    >>> round(sgd_rate(PrivateDescent(100, 50, 2.0)), 6)
    0.0004
    """
    n, steps, variance, distance, mu, smoothness = _check_descent(problem)
    start = smoothness * distance * math.exp(-steps * mu / (2 * smoothness))
    return variance / (n * mu * steps) + start


def sgd_step(problem: PrivateDescent) -> float:
    """The step size: `min(1/(4L), ln(max(2, mu^2 |..|^2 n T / variance)) / (mu T))`.

    The thesis asks for a suitable step; this one is ours.

    >>> round(sgd_step(PrivateDescent(100, 50, 2.0)), 4)
    0.1565
    """
    n, steps, variance, distance, mu, smoothness = _check_descent(problem)
    signal = mu**2 * distance * n * steps / variance
    return min(1 / (4 * smoothness), math.log(max(2.0, signal)) / (mu * steps))


def sgd_weights(problem: PrivateDescent) -> Float64[Tensor, " t"]:
    """Weights of the average, `w_t ~ (1 - lr mu / 2)^{-(t+1)}`, which sum to 1."""
    left = math.log1p(-sgd_step(problem) * problem.mu / 2)
    order = torch.arange(1, problem.steps + 1, dtype=torch.float64)
    return torch.softmax(-left * order, 0)


def _check_descent(problem: PrivateDescent) -> PrivateDescent:
    checks.integer("clients", problem.clients, at_least=1)
    checks.integer("steps", problem.steps, at_least=1)
    for name in ("variance", "mu", "smoothness"):
        checks.number(name, getattr(problem, name), above=0)
    checks.number("distance", problem.distance, at_least=0)
    if problem.mu > problem.smoothness:
        raise InputError(
            f"`mu` must be at most `smoothness`, got {problem.mu:g} and "
            f"{problem.smoothness:g}."
        )
    return problem


def sgd_noise(
    loss: float,
    *,
    n: int,
    received: float,
    alpha: float = 2.0,
    sensitivity: float = 1.0,
) -> float:
    """The noise s for which the mean divergence of all steps is at most epsilon.

    It is `s^2 = alpha Delta^2 K sum_t d_v(t) / (2 n epsilon)`.

    With T = kappa steps and this noise, `sgd_rate` is the trade-off of Theorems 6.7 and
    6.9. It is not a guarantee for T > 1: later steps depend on earlier messages, and
    the theorems leave this effect out (docs/errata.md).

    >>> round(sgd_noise(1.0, n=100, received=400), 3)
    2.0

    Args:
        loss: epsilon, the mean over all clients of the divergence of all steps.
        n: clients.
        received: the number of messages to the client that receives most, K d_v(t) in
            step t.
        alpha: order of the divergence.
        sensitivity: Delta of a gradient, 2 clip.
    """
    checks.number("loss", loss, above=0)
    checks.number("alpha", alpha, above=1)
    return math.sqrt(alpha * sensitivity**2 * received / (2 * n * loss))
