"""Delays of gradients, computed from the order of arrivals or from the active nodes.

With a server, update k = 1, ..., K applies a gradient of worker m_k. The worker took
this gradient at the model after its previous update, number prev(k):

    prev(k) = max{j < k : m_j = m_k} or 0,    delay tau(k) = k - prev(k)

On a graph, the nodes of the set I_k apply gradients at step k. Node v started its
gradient at step

    s(k, v) = 1 + max{l < k : v in I_l}, or 0.

Reference:
    Even, PhD thesis, 2024, chapters 3 and 5, tel-04877971.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from coterie import checks

from .asynchrony import Steps


class UpdateDelays(NamedTuple):
    """Delays of updates; entry k - 1 is about update k."""

    tau: Int[Tensor, " k"]  # tau(k), of the gradient that update k applies
    prev: Int[Tensor, " k"]  # the model at which that gradient was taken
    next: Int[Tensor, " k"]  # the update with the gradient at x_k; 0: after the stop
    first: Int[Tensor, " m"]  # the update with each worker's gradient at x_0; 0: none
    open: Int[Tensor, " m"]  # the model at which each worker computes at the stop


def delays_of(order: Int[Tensor, " k"], workers: int) -> UpdateDelays:
    """The delays of all updates, for workers 0 to M - 1 in order of arrival.

    For any order, `sum_k tau(k) + sum_m (K - open_m) = K M` (3.9). The second sum is
    over gradients that have not arrived yet. So the mean delay is at most M.

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
    return UpdateDelays(*(torch.tensor(values, dtype=torch.long) for values in lists))


def applied_steps(delays: UpdateDelays, steps: Steps) -> Float[Tensor, " k"]:
    """`gamma_hat_k`: the step size with which the gradient at x_k is applied later.

    Here k = 1, ..., K. These are the weights of x_k in the output of Theorems 3.2.1,
    3.2.3 and 3.3. Gradients that have not arrived at the end get `tau = max(1, K - k)`,
    so nobody waits for them. For `nonconvex_steps` the sum is at least K gamma_max / 18
    for every order.
    """
    models = range(1, len(delays.next) + 1)
    return _steps_of(delays.next, torch.tensor(models), delays, steps)


def _steps_of(
    update: Int[Tensor, " j"],
    read: Int[Tensor, " j"],
    delays: UpdateDelays,
    steps: Steps,
) -> Float[Tensor, " j"]:
    """The step size of the update that applies the gradient at each model `read`."""
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

    `w_k ~ gamma_hat_k prod_{j <= k} (1 - mu gamma_hat_j / 2)^{-1}`. The thesis does not
    define these weights.
    """
    growth = -torch.log1p(-mu * applied / 2).cumsum(0)
    return torch.softmax(applied.log() + growth, 0)


def virtual_iterates(
    x: Float[Tensor, " d"],
    first: Float[Tensor, "m d"],
    later: Float[Tensor, "k d"],
    delays: UpdateDelays,
    steps: Steps,
) -> Float[Tensor, "k d"]:
    """Models x_hat_1, ..., x_hat_K: a gradient is applied when it starts; (3.3).

    `x_hat_1 = x_0 - sum_m gamma_{next(1,m)} g_m(x_0)` and `x_hat_{k+1} = x_hat_k -
    gamma_hat_k g(x_k)`. So x_k - x_hat_k is a sum of M - 1 gradients, which the workers
    other than m_k are computing. For |g| <= G its norm is at most (M - 1) G times the
    largest step (Lemma 3.2.1).

    Args:
        x: x_0.
        first: the gradient of each worker at x_0.
        later: row k - 1 is the gradient that starts at x_k.
        delays: a result of `delays_of`.
        steps: the rule of the run.
    """
    now = torch.zeros_like(delays.first)
    start = _steps_of(delays.first, now, delays, steps)
    moves = applied_steps(delays, steps).to(x)[:, None] * later
    return x - start.to(x) @ first - (moves.cumsum(0) - moves)


def starts_of(active: Bool[Tensor, "k n"]) -> Int[Tensor, "k n"]:
    """`s(k, v) = 1 + max{l < k : v in I_l}`, or 0: the step when v's gradient began.

    If all nodes take part in every step, s(k, v) = k and nothing is delayed.

    >>> starts_of(torch.tensor([[True, False], [True, False], [True, True]]))
    tensor([[0, 0],
            [1, 0],
            [2, 0]])
    """
    steps = torch.arange(1, len(active) + 1)[:, None]
    after = torch.where(active, steps, 0).cummax(0).values
    return torch.cat([torch.zeros_like(after[:1]), after[:-1]])


def longest_wait(active: Bool[Tensor, "k n"]) -> int:
    """tau_max, the most gradients that are applied while one node computes a gradient.

    `max over k, v in I_k of sum_{l = k}^{next(k + 1, v) - 1} |I_l|`. Gradients that
    start at x^0 are included, and gradients that are not finished at the end.

    >>> longest_wait(torch.ones(5, 3, dtype=torch.bool))
    3
    """
    count = active.sum(1).cumsum(0)
    before = torch.cat([torch.zeros_like(count[:1]), count])  # (K + 1,) of l < k
    end = torch.ones_like(active[:1])
    starts = starts_of(torch.cat([active, end]))  # (K + 1, n)
    # Step s - 1 starts the gradient. The gradients applied in this step count too.
    wait = before[:, None] - before[(starts - 1).clamp(min=0)]
    return int(wait.max())
