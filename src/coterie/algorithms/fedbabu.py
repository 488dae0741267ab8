"""FedAvg of the body under a head that nobody trains; clients tune before use.

    w_i <- w_i - lr g_i(w_i, h) in the body,  `steps` times from w_i = w, with h fixed
    w   <- sum_i p_i w_i

over the clients of the round, where h is the first head. Before use, x_i <- (w, h),
then `tune_steps` times x_i <- x_i - tune_lr g_i(x_i), in the whole model or in a part
of it, on client i's own training data.

References:
    Oh, Kim, Yun, "FedBABU: toward enhanced representation for federated image
    classification", ICLR 2022, arXiv 2106.06042.

Differences: work is counted in gradient steps, not in epochs. The method draws no head:
it takes the head of the first models, or the mean of their heads if they differ. With
momentum, every client keeps its buffer between rounds.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..collaboration.rows import mean_of_all, refuse_personal, row_for_each
from ..collaboration.weights import shares_of
from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule, velocity
from ..options import BelowOne, Count, Head, Sizes, Whole, method
from ..types import (
    Algorithm,
    Info,
    Options,
    Oracle,
    OwnRows,
    Releases,
    SameRow,
)
from .fedrep import part_sgd


class State(NamedTuple):
    """The common body with the first head, momentum, and the number of steps."""

    w: SameRow  # (n, D)
    v: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


@method()
def fedbabu(
    sizes: Sizes,
    head: Head,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    weighting: str = "samples",
    tune: Literal["all", "body", "head"] = "all",
    tune_steps: Whole = 10,
    tune_lr: LocalLr = 0.1,
) -> Algorithm:
    """FedBABU: a common body under the first head; clients tune before use.

    A newcomer tunes the global model on its own data, as all clients do.

    Args:
        sizes: (N,) training samples of each client.
        head: (D,) which columns are the head.
        lr: step size of the body; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: factor of the model in its gradient, also in tuning; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: steps of the body in one round.
        weighting: `samples` or `uniform` weights of the average.
        tune: what clients tune before use: `all` of the model, `body` or `head`.
        tune_steps: gradient steps before use.
        tune_lr: step size of tuning.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    tuning = LocalDescent(tune_lr, weight_decay=rule.weight_decay)
    tuned = {"all": torch.ones_like(head), "body": ~head, "head": head}[tune]
    shares = shares_of(sizes, weighting)

    def init(x: Tensor, oracle: Oracle) -> State:
        refuse_personal(oracle)
        return State(mean_of_all(oracle, x), velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        body, n = ~head.to(state.w.device), float(len(sizes))
        rows = state.w, state.v, body.expand(len(state.w), -1)
        work: Options = {"steps": steps, "t": state.t, "together": n}
        w_i, v = oracle.each(part_sgd, *rows, rule=rule, **work)
        w = state.w[:1].clone()
        w[:, body] = oracle.average(shares[oracle.mine], w_i[:, body])[:1]
        return State(w.expand(len(w_i), -1), v, state.t + steps), {}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = row_for_each(oracle, state.w)
        rows = w, velocity(tuning, w), tuned.to(w.device).expand(len(w), -1)
        return oracle.each(part_sgd, *rows, rule=tuning, steps=tune_steps, t=0)[0]

    return Algorithm(
        init,
        step,
        welcome,  # tuning, as for newcomers
        welcome,
        home=head,
        releases=Releases(average=1),
        shared=lambda state: state.w,
    )
