"""Asynchronous gradient descent with a server: step sizes, delays and bounds.

Each of M workers computes gradients at the model that it received last. There are K
updates. Update k = 1, ..., K is

    x_k = x_{k-1} - gamma_k g(x_{prev(k)}),   prev(k) = max{j < k : m_j = m_k} or 0,

where the gradient comes from worker m_k, which then gets x_k. The delay is
`tau(k) = k - prev(k)`, at least 1. A rule of step sizes depends only on (k, tau(k)), so
a server can apply it. Bounds contain M where we would expect the largest delay, because
at any time only M - 1 other gradients are being computed (`virtual_iterates`).

B, the `radius`, is at least |x_0 - x^*|. Delta, the `start`, is at least F(x_0) - F^*.

References:
    Even, PhD thesis, 2024, chapter 3, tel-04877971.
    Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD beats minibatch SGD under
    arbitrary delays", NeurIPS 2022, arXiv 2206.07638.

Differences (each with a test; see docs/errata.md): the sum of steps is at least K/18
times the largest step, not K/9. The bound of Theorem 3.2.3 uses this, and includes the
noise of the first M gradients. The sum of all delays (3.9) is an equality.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from coterie import checks

Steps = Callable[[int, int], float]
"""The step gamma_k from the pair (k, tau(k))."""


@dataclass(frozen=True)
class AsyncProblem:
    """The numbers of workers and gradients, and constants of the loss F."""

    workers: int  # M
    calls: int  # K updates, at least M
    beta: float = 1.0  # L, smoothness
    variance: float = 0.0  # sigma^2, of a gradient
    mu: float = 0.0  # strong convexity

    def __post_init__(self) -> None:
        """Refuses numbers that cannot belong to one problem."""
        checks.integer("workers", self.workers, at_least=1)
        checks.integer("calls", self.calls, at_least=self.workers)
        checks.number("beta", self.beta, above=0.0)
        checks.number("variance", self.variance, at_least=0.0)
        checks.number("mu", self.mu, at_least=0.0, at_most=self.beta)


# Rules of steps.


def lipschitz_steps(radius: float, bound: float, problem: AsyncProblem) -> Steps:
    """`B / (G sqrt(K M))` for any delay, if |g| <= G = `bound`; Theorem 3.1.

    >>> lipschitz_steps(2.0, 1.0, AsyncProblem(workers=4, calls=100))(7, 30)
    0.1
    """
    checks.number("bound", bound, above=0.0)
    step = radius / (bound * math.sqrt(problem.calls * problem.workers))
    return lambda k, tau: step


def convex_steps(radius: float, problem: AsyncProblem) -> Steps:
    """`min(1 / (4 L tau), 1 / (4 M L), B / (sigma sqrt(K)))`; Theorem 3.2.1."""
    noise = _ratio(radius, math.sqrt(problem.variance * problem.calls))
    cap = min(1 / (4 * problem.workers * problem.beta), noise)
    return lambda k, tau: min(1 / (4 * problem.beta * tau), cap)


def strongly_convex_steps(radius: float, problem: AsyncProblem) -> Steps:
    """The rule of Theorem 3.2.2; gradients with tau >> M L / mu have almost no weight.

    `min(e^{-mu tau / (4 M L)} / (4 L tau), 1 / (8 M L),
    504 ln(e + mu^2 K^2 B^2 / sigma^2) / (mu K))` for K >= 3 M.
    """
    mu = checks.number("mu", problem.mu, above=0.0)
    checks.integer("calls", problem.calls, at_least=3 * problem.workers)
    scale = problem.workers * problem.beta  # M L
    noise = 504 * _logarithm(radius, problem) / (mu * problem.calls)
    cap = min(1 / (8 * scale), noise)
    return lambda k, tau: min(
        math.exp(-mu * tau / (4 * scale)) / (4 * problem.beta * tau), cap
    )


def nonconvex_steps(start: float, problem: AsyncProblem) -> Steps:
    """`min(1 / (4 L tau), gamma_max)` with `largest_nonconvex_step`; Theorem 3.2.3."""
    cap = largest_nonconvex_step(start, problem)
    return lambda k, tau: min(1 / (4 * problem.beta * tau), cap)


def largest_nonconvex_step(start: float, problem: AsyncProblem) -> float:
    """`gamma_max = min(1 / (2 M L), sqrt(Delta / (K L sigma^2)))`; (3.10)."""
    noise = _ratio(start, problem.calls * problem.beta * problem.variance)
    return min(1 / (2 * problem.workers * problem.beta), math.sqrt(noise))


def heterogeneous_steps(start: float, problem: AsyncProblem) -> Steps:
    """The rule of Theorem 3.3, for workers with different data.

    `min(1 / (8 L tau), 1 / (4 M L), sqrt(Delta / (K L sigma^2)))`.
    """
    noise = largest_nonconvex_step(start, problem)
    cap = min(1 / (4 * problem.workers * problem.beta), noise)
    return lambda k, tau: min(1 / (8 * problem.beta * tau), cap)


def practical_steps(lr: float, workers: int) -> Steps:
    """`lr min(1, M / tau)`: all rules for smooth losses have this form; tune `lr`.

    >>> [practical_steps(0.1, workers=4)(k, tau) for k, tau in ((1, 1), (9, 8))]
    [0.1, 0.05]
    """
    checks.number("lr", lr, above=0.0)
    return lambda k, tau: lr * min(1.0, workers / tau)


def cautious_steps(longest: int, beta: float) -> Steps:
    """`1 / (4 L tau_max)` for every gradient, the rule of earlier work."""
    step = 1 / (4 * beta * checks.integer("longest", longest, at_least=1))
    return lambda k, tau: step


def round_robin_limit(workers: int) -> float:
    """The limit of gamma L if workers take turns: `2 sin(pi / (2 (2 M - 1)))`.

    Descent with a constant step on a quadratic, `x_k = x_{k-1} - gamma L x_{k-M}`, is
    stable if and only if gamma L is below the limit.

    >>> round(round_robin_limit(1), 12)
    2.0
    """
    checks.integer("workers", workers, at_least=1)
    return 2 * math.sin(math.pi / (2 * (2 * workers - 1)))


# Two bounds, and rates without the constants that the theorems do not give. R = K / M
# minibatches of M gradients have the same rates, except for
# `minibatch_strongly_convex_rate`. Their rate for `lipschitz_bound` is G B sqrt(1 / R).


def lipschitz_bound(radius: float, bound: float, problem: AsyncProblem) -> float:
    """`3 G B sqrt(M / K)` bounds the excess of the mean of x_1, ..., x_K; Theorem 3.1.

    This holds with `lipschitz_steps`, for convex losses and any order of arrivals.
    """
    return 3 * bound * radius * math.sqrt(problem.workers / problem.calls)


def nonconvex_bound(start: float, problem: AsyncProblem) -> float:
    """Bounds E |grad F|^2 at an x_k drawn with `applied_steps` as weights; Thm 3.2.3.

    `162 Delta / (K gamma) + 108 M L sigma^2 gamma / K + 6 L sigma^2 gamma` with gamma =
    gamma_max and the steps of `nonconvex_steps`. This is the result of the proof with
    two corrections. `sum_k gamma_hat_k >= K gamma / 18`; the thesis prints 9 instead of
    18. `E F(x_hat_1) <= F(x_0) + M L sigma^2 gamma^2 / 2`; the thesis leaves out the
    last term.
    """
    step = largest_nonconvex_step(start, problem)
    noise = problem.beta * problem.variance * step
    share = problem.workers / problem.calls
    return 162 * start / (problem.calls * step) + noise * (108 * share + 6)


def convex_rate(radius: float, problem: AsyncProblem) -> float:
    """`M L B^2 / K + sigma B / sqrt(K)`; Theorem 3.2.1."""
    noise = radius * math.sqrt(problem.variance / problem.calls)
    return problem.workers * problem.beta * radius**2 / problem.calls + noise


def nonconvex_rate(start: float, problem: AsyncProblem, *, zeta: float = 0.0) -> float:
    """`M L Delta / K + sqrt(L Delta sigma^2 / K) + zeta^2`; Theorems 3.2.3 and 3.3.

    zeta bounds |grad F_m - grad F| for workers with different data.
    """
    share = problem.beta * start / problem.calls
    return problem.workers * share + math.sqrt(share * problem.variance) + zeta**2


def strongly_convex_rate(radius: float, problem: AsyncProblem) -> float:
    """The rate of Theorem 3.2.2, up to constants, also in the exponent.

    `M L B^2 e^{-K mu / (M L)} + sigma^2 / (mu K) ln(e + mu^2 K^2 B^2 / sigma^2)`.
    """
    scale = problem.workers * problem.beta
    noise = problem.variance / (problem.mu * problem.calls)
    start = scale * radius**2 * math.exp(-problem.calls * problem.mu / scale)
    return start + (noise and noise * _logarithm(radius, problem))


def minibatch_strongly_convex_rate(radius: float, problem: AsyncProblem) -> float:
    """`L B^2 e^{-mu R / L} + sigma^2 / (mu R M)` for R = K / M rounds."""
    rounds = problem.calls / problem.workers
    noise = problem.variance / (problem.mu * problem.calls)
    decay = math.exp(-problem.mu * rounds / problem.beta)
    return problem.beta * radius**2 * decay + noise


# Times, if worker m needs the time s_m > 0 for a gradient.


def asynchronous_updates(seconds: float, times: Float[Tensor, " m"]) -> float:
    """The number of updates in S seconds, `sum_m S / s_m`; (3.2)."""
    return seconds * float((1 / _positive(times)).sum())


def minibatch_updates(seconds: float, times: Float[Tensor, " m"]) -> float:
    """The number of updates of M gradients in S seconds, `S / max_m s_m`; (3.2)."""
    return seconds / float(_positive(times).max())


def speed_up(times: Float[Tensor, " m"]) -> float:
    """`mean_m s_max / s_m`: the speed-up if no worker waits for others; Table 3.2.

    >>> import torch
    >>> speed_up(torch.tensor([1.0, 1.0, 4.0]))
    3.0
    """
    return float((_positive(times).max() / times).mean())


def typical_delays(times: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """`tau_m = s_m sum_j 1 / s_j`, about the delay of each worker's gradients."""
    return _positive(times) * (1 / times).sum()


def harmonic_mean(times: Float[Tensor, " m"]) -> float:
    """`M / sum_m 1 / s_m`, the harmonic mean of the workers' times.

    An additional worker lowers M / K if and only if its time is below this mean.
    """
    return 1 / float((1 / _positive(times)).mean())


def limit_weights(times: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Weights of the losses that constant small steps minimise: `1 / s_m`, normalised.

    Use this for workers with different data; slow workers have less weight.
    """
    rate = 1 / _positive(times)
    return rate / rate.sum()


def adaptive_limit_weights(times: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """The weights of `limit_weights` with the steps of `practical_steps`.

    `min(1, M / tau_m) / s_m` with tau_m from `typical_delays`. Slow workers have even
    less weight than with constant steps.
    """
    step = (len(times) / typical_delays(times)).clamp(max=1)
    return step / times / (step / times).sum()


def _positive(times: Tensor) -> Tensor:
    return checks.positive("times", times, len(times))


def _ratio(part: float, whole: float) -> float:
    """`part / whole`, infinite if there is no noise to divide by."""
    return part / whole if whole else math.inf


def _logarithm(radius: float, problem: AsyncProblem) -> float:
    """`ln(e + mu^2 K^2 B^2 / sigma^2)`."""
    signal = (problem.mu * problem.calls * radius) ** 2
    return math.log(math.e + _ratio(signal, problem.variance))
