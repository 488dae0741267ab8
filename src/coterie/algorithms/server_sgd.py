"""Asynchronous SGD: a server takes a step as soon as a gradient arrives.

    x <- x - gamma g,    where g = g_m(an earlier x), of the worker m that has finished.

Then m goes on from the new x. Let tau be the number of gradients that have arrived
since m began, including its own:

    gamma = lr                       (late `constant`)
    gamma = lr min(1, M / tau)       (late `adaptive`, M workers)
    gamma = lr min(1, M / (2 tau))   (late `heterogeneous`)

These are the steps of Theorems 3.1, 3.2.1, 3.2.3 and 3.3 of Even's thesis
(`coterie_theory.asynchrony`). The server takes a step with the mean of `wait`
gradients. Then the workers that waited go on, so `wait = M` is minibatch SGD. With
`go_on`, workers do not wait, and the server has a buffer, as in FedBuff.

References:
    Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD beats minibatch SGD under
    arbitrary delays", NeurIPS 2022, arXiv 2206.07638.
    Koloskova, Stich, Jaggi, "Sharper convergence guarantees for asynchronous SGD for
    distributed and federated learning", NeurIPS 2022, arXiv 2206.08307: `assign`.
    Nguyen et al., "Federated learning with buffered asynchronous aggregation", AISTATS
    2022, arXiv 2106.06639: `wait`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..checks import InputError, integer
from ..optim import delays
from ..optim.delays import Balance, Late
from ..options import Count, Positive, method
from ..types import Algorithm, Arrivals, Flow, Task


@dataclass
class State:
    """The model, its weighted average, and the server's buffer."""

    x: Tensor  # (D,)
    mean: Tensor  # (D,) sum of points with answers, times their step sizes
    total: float  # sum of these step sizes
    answers: list[int]  # the number of answers from each worker
    points: Tensor  # (N, D) where each worker computes; (N, 0) if not needed
    began: list[int]  # answers that had arrived when it began
    sum: Tensor  # (D,) of the buffered steps
    held: list[int] = field(default_factory=list)  # workers in the buffer


@method()
def server_sgd(
    *,
    lr: Positive = 0.1,
    late: Late = "constant",
    wait: Count = 1,
    go_on: bool = False,
    assign: Literal["same", "random"] = "same",
    balance: Balance = 0.0,
    average: bool = False,
) -> Algorithm:
    """Asynchronous SGD on one model, with steps for late gradients, buffers or waiting.

    Args:
        lr: the largest step size.
        late: `constant`, or `adaptive` to the delay of a gradient, or `heterogeneous`.
        wait: the number of gradients in a step of the server.
        go_on: whether workers go on at once, and only the server waits.
        assign: the worker of the next task: the `same` worker, or a `random` worker,
            which may have to finish other tasks first. With `random`, all workers have
            the same influence.
        balance: largest factor of the steps of slow workers. Workers that answer rarely
            take longer steps, so that all workers have the same influence; 0 leaves
            steps as they are.
        average: whether clients use an average in place of the last model. It is an
            average over all models at which a gradient was or is computed, weighted by
            step sizes.
    """
    if average and assign == "random":
        raise InputError("`average` must be false if `assign` is random, got true.")
    if assign == "random" and wait > 1:
        raise InputError(f"`wait` must be 1 if `assign` is random, got {wait}.")

    def init(x: Tensor) -> State:
        integer("wait", wait, at_least=1, at_most=len(x))
        start = x.mean(0)
        zero = torch.zeros_like(start)
        return State(
            start,
            zero,
            0.0,
            [0] * len(x),
            x.new_zeros(len(x), len(start) if average else 0),
            [0] * len(x),
            zero.clone(),
        )

    def task(state: State, client: int, time: float) -> Task:
        if average:
            state.points[client] = state.x
            state.began[client] = sum(state.answers)
        return Task((state.x,))

    def step_size(state: State, client: int, tau: int) -> float:
        answers = state.answers
        even = delays.balance(balance, answers, client) if answers[client] else 1.0
        return lr * delays.factor(late, len(answers), tau) * even

    def arrive(state: State, now: Arrivals) -> list[int]:
        begin: list[int] = []
        for j, (client, tau) in enumerate(zip(now.clients, now.delays, strict=True)):
            state.answers[client] += 1
            gamma = step_size(state, client, tau)
            if average and state.began[client]:  # not gradients at the first model
                state.mean.add_(state.points[client], alpha=gamma)
                state.total += gamma
            waited = _take(state, client, now.answers[0][j], gamma, wait)
            begin += [client] if go_on else waited
        if assign == "random":
            rng, workers = now.generator(), len(state.answers)
            begin = torch.randint(workers, (len(begin),), generator=rng).tolist()
        return begin

    def personal(state: State) -> Tensor:
        waits = set() if go_on else set(state.held)
        x = _average_with_open(state, step_size, waits) if average else state.x
        return x.repeat(len(state.answers), 1)

    return Algorithm(flow=Flow(init, task, arrive, personal))


def _take(state: State, client: int, g: Tensor, gamma: float, wait: int) -> list[int]:
    """Takes a step if there are `wait` gradients. Returns the workers that go on."""
    state.held.append(client)
    if wait == 1:
        state.x.sub_(g, alpha=gamma)
    else:
        state.sum.add_(g, alpha=gamma / wait)
    if len(state.held) < wait:
        return []
    if wait > 1:
        state.x.sub_(state.sum)
        state.sum.zero_()
    waited = state.held.copy()
    state.held.clear()
    return waited


def _average_with_open(
    state: State, step_size: Callable[[State, int, int], float], waits: set[int]
) -> Tensor:
    """The average model, as if all unfinished gradients arrived now.

    Args:
        state: the state of the method.
        step_size: the step size for a client's gradient with a delay.
        waits: which clients do not compute a gradient now.
    """
    mean, total, k = state.mean.clone(), state.total, sum(state.answers)
    for client, began in enumerate(state.began):
        if began and client not in waits:
            gamma = step_size(state, client, max(1, k - began))
            mean.add_(state.points[client], alpha=gamma)
            total += gamma
    return mean / total if total else state.x
