"""Asynchronous gradient descent with a server: step rules, delays, what they promise.

M workers compute gradients at the models they were sent last. Update k = 1, ..., K is

    x_k = x_{k-1} - gamma_k g(x_{prev(k)}),   prev(k) = max{j < k : m_j = m_k} or 0,

by worker m_k, who is then sent x_k. The delay is `tau(k) = k - prev(k)`, at least 1. A
rule of steps knows the pair (k, tau(k)) and no more, so that a server can follow it.
In what is promised there is M where one would expect the largest delay: at any time
only M - 1 gradients are on their way (`virtual_iterates`).

B is the `radius`, at least |x_0 - x^*|, and Delta the `start`, at least F(x_0) - F^*.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 3, hal tel-04877971.
    Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD beats minibatch SGD under
    arbitrary delays", NeurIPS 2022, arXiv 2206.07638.

Differences (each with a test; see docs/errata.md): the steps sum to a K/18 of the
largest and not a K/9; the bound of Theorem 3.2.3 follows that and counts the noise of
the first M gradients; the sum of all delays (3.9) is an equality.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import checks

Steps = Callable[[int, int], float]
"""The step gamma_k from the pair (k, tau(k))."""


@dataclass(frozen=True)
class Setting:
    """How many gradients of which workers, and of what loss F."""

    workers: int  # M
    calls: int  # K updates, at least M
    beta: float = 1.0  # L, smoothness
    variance: float = 0.0  # sigma^2, of a gradient
    mu: float = 0.0  # strong convexity

    def __post_init__(self) -> None:
        """Checks that the numbers can belong together."""
        checks.integer("workers", self.workers, at_least=1)
        checks.integer("calls", self.calls, at_least=self.workers)
        checks.number("beta", self.beta, above=0.0)
        checks.number("variance", self.variance, at_least=0.0)
        checks.number("mu", self.mu, at_least=0.0, at_most=self.beta)


# Rules of steps.


def lipschitz_steps(radius: float, bound: float, setting: Setting) -> Steps:
    """`B / (G sqrt(K M))` whatever the delay, for |g| <= G = `bound`; Theorem 3.1.

    >>> lipschitz_steps(2.0, 1.0, Setting(workers=4, calls=100))(7, 30)
    0.1
    """
    checks.number("bound", bound, above=0.0)
    step = radius / (bound * math.sqrt(setting.calls * setting.workers))
    return lambda k, tau: step


def convex_steps(radius: float, setting: Setting) -> Steps:
    """`min(1 / (4 L tau), 1 / (4 M L), B / (sigma sqrt(K)))`; Theorem 3.2.1."""
    noise = _ratio(radius, math.sqrt(setting.variance * setting.calls))
    cap = min(1 / (4 * setting.workers * setting.beta), noise)
    return lambda k, tau: min(1 / (4 * setting.beta * tau), cap)


def strongly_convex_steps(radius: float, setting: Setting) -> Steps:
    """The rule of Theorem 3.2.2, which all but drops gradients with tau >> M L / mu.

    `min(e^{-mu tau / (4 M L)} / (4 L tau), 1 / (8 M L),
    504 ln(e + mu^2 K^2 B^2 / sigma^2) / (mu K))` for K >= 3 M.
    """
    mu = checks.number("mu", setting.mu, above=0.0)
    checks.integer("calls", setting.calls, at_least=3 * setting.workers)
    scale = setting.workers * setting.beta  # M L
    noise = 504 * _logarithm(radius, setting) / (mu * setting.calls)
    cap = min(1 / (8 * scale), noise)
    return lambda k, tau: min(
        math.exp(-mu * tau / (4 * scale)) / (4 * setting.beta * tau), cap
    )


def nonconvex_steps(start: float, setting: Setting) -> Steps:
    """`min(1 / (4 L tau), gamma_max)` with `largest_nonconvex_step`; Theorem 3.2.3."""
    cap = largest_nonconvex_step(start, setting)
    return lambda k, tau: min(1 / (4 * setting.beta * tau), cap)


def largest_nonconvex_step(start: float, setting: Setting) -> float:
    """`gamma_max = min(1 / (2 M L), sqrt(Delta / (K L sigma^2)))`; (3.10)."""
    noise = _ratio(start, setting.calls * setting.beta * setting.variance)
    return min(1 / (2 * setting.workers * setting.beta), math.sqrt(noise))


def heterogeneous_steps(start: float, setting: Setting) -> Steps:
    """Theorem 3.3, for workers with data of their own.

    `min(1 / (8 L tau), 1 / (4 M L), sqrt(Delta / (K L sigma^2)))`.
    """
    noise = largest_nonconvex_step(start, setting)
    cap = min(1 / (4 * setting.workers * setting.beta), noise)
    return lambda k, tau: min(1 / (8 * setting.beta * tau), cap)


def practical_steps(lr: float, workers: int) -> Steps:
    """`lr min(1, M / tau)`: the form of all rules for smooth losses, lr to be tuned.

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
    """`2 sin(pi / (2 (2 M - 1)))`: for workers in turn, stable iff gamma L is below it.

    Of a constant step on a quadratic: `x_k = x_{k-1} - gamma L x_{k-M}`.

    >>> round(round_robin_limit(1), 12)
    2.0
    """
    checks.integer("workers", workers, at_least=1)
    return 2 * math.sin(math.pi / (2 * (2 * workers - 1)))


# What they promise: two bounds, and rates, which lack the constants that the theorems
# do not name. R = K / M minibatches of M gradients each have the same rates, but for
# `minibatch_strongly_convex_rate`; for the first, G B sqrt(1 / R).


def lipschitz_bound(radius: float, bound: float, setting: Setting) -> float:
    """`3 G B sqrt(M / K)` bounds the excess of the mean of x_1, ..., x_K; Theorem 3.1.

    With `lipschitz_steps`, for convex losses and every order of arrivals.
    """
    return 3 * bound * radius * math.sqrt(setting.workers / setting.calls)


def nonconvex_bound(start: float, setting: Setting) -> float:
    """Bounds E |grad F|^2 at an x_k drawn with `applied_steps` as weights; Thm 3.2.3.

    `162 Delta / (K gamma) + 108 M L sigma^2 gamma / K + 6 L sigma^2 gamma` with
    gamma = gamma_max and the steps of `nonconvex_steps`. These are the last lines of
    the proof with `sum_k gamma_hat_k >= K gamma / 18` in place of a 9, and with
    `E F(x_hat_1) <= F(x_0) + M L sigma^2 gamma^2 / 2` in place of F(x_0).
    """
    step = largest_nonconvex_step(start, setting)
    noise = setting.beta * setting.variance * step
    share = setting.workers / setting.calls
    return 162 * start / (setting.calls * step) + noise * (108 * share + 6)


def convex_rate(radius: float, setting: Setting) -> float:
    """`M L B^2 / K + sigma B / sqrt(K)`; Theorem 3.2.1."""
    noise = radius * math.sqrt(setting.variance / setting.calls)
    return setting.workers * setting.beta * radius**2 / setting.calls + noise


def nonconvex_rate(start: float, setting: Setting, *, zeta: float = 0.0) -> float:
    """`M L Delta / K + sqrt(L Delta sigma^2 / K) + zeta^2`; Theorems 3.2.3 and 3.3.

    zeta bounds |grad F_m - grad F| for workers with data of their own.
    """
    share = setting.beta * start / setting.calls
    return setting.workers * share + math.sqrt(share * setting.variance) + zeta**2


def strongly_convex_rate(radius: float, setting: Setting) -> float:
    """The rate of Theorem 3.2.2, where a constant is missing in the exponent as well.

    `M L B^2 e^{-K mu / (M L)} + sigma^2 / (mu K) ln(e + mu^2 K^2 B^2 / sigma^2)`.
    """
    scale = setting.workers * setting.beta
    noise = setting.variance / (setting.mu * setting.calls)
    start = scale * radius**2 * math.exp(-setting.calls * setting.mu / scale)
    return start + (noise and noise * _logarithm(radius, setting))


def minibatch_strongly_convex_rate(radius: float, setting: Setting) -> float:
    """`L B^2 e^{-mu R / L} + sigma^2 / (mu R M)` for R = K / M rounds."""
    rounds = setting.calls / setting.workers
    noise = setting.variance / (setting.mu * setting.calls)
    decay = math.exp(-setting.mu * rounds / setting.beta)
    return setting.beta * radius**2 * decay + noise


# Delays, from the order of arrivals m_1, ..., m_K.


class Delays(NamedTuple):
    """Who waited for whom; entry k - 1 is about update k."""

    tau: Int[Tensor, " k"]  # tau(k), of the gradient that update k applies
    prev: Int[Tensor, " k"]  # the model at which that gradient was taken
    next: Int[Tensor, " k"]  # the update with the gradient at x_k; 0: after the stop
    first: Int[Tensor, " m"]  # the update with each worker's gradient at x_0; 0: none
    open: Int[Tensor, " m"]  # the model at which each worker computes at the stop


def delays_of(order: Int[Tensor, " k"], workers: int) -> Delays:
    """The delays of all updates, for workers 0 to M - 1 in order of arrival.

    Whatever the order, `sum_k tau(k) + sum_m (K - open_m) = K M`, so that the mean
    delay is at most M: (3.9), where the second sum is over gradients on their way.

    >>> delays_of(torch.tensor([0, 0, 1]), workers=2).tau
    tensor([1, 1, 3])
    """
    who = order.tolist()
    for worker in who:
        checks.integer("order", worker, at_least=0, at_most=workers - 1)
    last, prev, back, first = [0] * workers, [], [0] * len(who), [0] * workers
    for k, worker in enumerate(who, start=1):
        read = last[worker]
        prev.append(read)
        if read:
            back[read - 1] = k
        else:
            first[worker] = k
        last[worker] = k
    tau = [k - read for k, read in enumerate(prev, start=1)]
    lists = (tau, prev, back, first, last)
    return Delays(*(torch.tensor(values, dtype=torch.long) for values in lists))


def applied_steps(delays: Delays, steps: Steps) -> Float[Tensor, " k"]:
    """`gamma_hat_k`, the step with which the gradient at x_k is applied, k = 1, ..., K.

    They weight x_k in the output of Theorems 3.2.1, 3.2.3 and 3.3. Gradients on their
    way at the stop get `tau = max(1, K - k)`, so that nobody waits for them. The sum is
    at least K gamma_max / 18 for `nonconvex_steps`, whatever the order.
    """
    models = range(1, len(delays.next) + 1)
    return _steps_of(delays.next, torch.tensor(models), delays, steps)


def _steps_of(
    update: Int[Tensor, " j"], read: Int[Tensor, " j"], delays: Delays, steps: Steps
) -> Float[Tensor, " j"]:
    """The steps of gradients at the models `read`, by the update that applies them."""
    end = len(delays.tau)
    values = [
        steps(k, k - j) if k else steps(end, max(1, end - j))
        for k, j in zip(update.tolist(), read.tolist(), strict=True)
    ]
    return torch.tensor(values, dtype=torch.float64)


def strongly_convex_weights(
    applied: Float[Tensor, " k"], mu: float
) -> Float[Tensor, " k"]:
    """Weights of the average for strongly convex losses, which sum to 1.

    `w_k ~ gamma_hat_k prod_{j <= k} (1 - mu gamma_hat_j / 2)^{-1}`; the thesis leaves
    them open.
    """
    growth = -torch.log1p(-mu * applied / 2).cumsum(0)
    return torch.softmax(applied.log() + growth, 0)


def virtual_iterates(
    x: Float[Tensor, " d"],
    first: Float[Tensor, "m d"],
    later: Float[Tensor, "k d"],
    delays: Delays,
    steps: Steps,
) -> Float[Tensor, "k d"]:
    """x_hat_1, ..., x_hat_K, which take every gradient when it starts; (3.3).

    `x_hat_1 = x_0 - sum_m gamma_{next(1,m)} g_m(x_0)` and
    `x_hat_{k+1} = x_hat_k - gamma_hat_k g(x_k)`. So x_k - x_hat_k is a sum of the M - 1
    gradients on their way from others than m_k, and for |g| <= G at most (M - 1) G
    times the largest step (Lemma 3.2.1).

    Args:
        x: x_0.
        first: the gradient of each worker at x_0.
        later: row k - 1 is the gradient that is started at x_k.
        delays: from `delays_of`.
        steps: the rule of the run.
    """
    start = _steps_of(delays.first, torch.zeros_like(delays.first), delays, steps)
    moves = applied_steps(delays, steps).to(x)[:, None] * later
    return x - start.to(x) @ first - (moves.cumsum(0) - moves)


# Time, for workers who need `times` s_m > 0 for a gradient each.


def asynchronous_updates(seconds: float, times: Float[Tensor, " m"]) -> float:
    """`sum_m S / s_m` updates in S seconds; (3.2)."""
    return seconds * float((1 / _positive(times)).sum())


def minibatch_updates(seconds: float, times: Float[Tensor, " m"]) -> float:
    """`S / max_m s_m` updates in S seconds, each of M gradients; (3.2)."""
    return seconds / float(_positive(times).max())


def speed_up(times: Float[Tensor, " m"]) -> float:
    """`mean_m s_max / s_m`, by which waiting for nobody shortens the time; Table 3.2.

    >>> speed_up(torch.tensor([1.0, 1.0, 4.0]))
    3.0
    """
    return float((_positive(times).max() / times).mean())


def typical_delays(times: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """`tau_m = s_m sum_j 1 / s_j`, the delay of each worker's gradients, about."""
    return _positive(times) * (1 / times).sum()


def harmonic_mean(times: Float[Tensor, " m"]) -> float:
    """`M / sum_m 1 / s_m`: one more worker improves M / K iff it needs no longer."""
    return 1 / float((1 / _positive(times)).mean())


def limit_weights(times: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """Weights of the losses that constant small steps minimise: `1 / s_m`, normalised.

    For workers with data of their own; the slow ones count less.
    """
    rate = 1 / _positive(times)
    return rate / rate.sum()


def adaptive_limit_weights(times: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
    """The same for `practical_steps`: `min(1, M / tau_m) / s_m` with `typical_delays`.

    Slow workers count less once more.
    """
    step = (len(times) / typical_delays(times)).clamp(max=1)
    return step / times / (step / times).sum()


def _positive(times: Tensor) -> Tensor:
    return checks.positive("times", times, len(times))


def _ratio(part: float, whole: float) -> float:
    """`part / whole`, infinite where there is no noise to divide by."""
    return part / whole if whole else math.inf


def _logarithm(radius: float, setting: Setting) -> float:
    """`ln(e + mu^2 K^2 B^2 / sigma^2)`."""
    signal = (setting.mu * setting.calls * radius) ** 2
    return math.log(math.e + _ratio(signal, setting.variance))
