"""One global model, averaged after local steps.

    w_i <- w, then `steps` times w_i <- w_i - lr g_i(w_i);   w <- sum_i p_i w_i

The sum runs over the clients of the round, with p_i in proportion to sample sizes or
uniform. `steps=1` is FedSGD.

References:
    McMahan, Moore, Ramage, Hampson, Agüera y Arcas, "Communication-efficient learning
    of deep networks from decentralized data", AISTATS 2017, arXiv 1602.05629.

Differences: with momentum, every client keeps its buffer between rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..collaboration.rows import mean_of_all, one_model
from ..collaboration.weights import shares_of
from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule, sgd, velocity
from ..options import BelowOne, Count, Sizes, method
from ..types import Algorithm, Info, Oracle, OwnRows, Releases, SameRow


class State(NamedTuple):
    """The global model, momentum, and the number of gradient steps."""

    x: SameRow  # (n, D)
    v: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


@method()
def fedavg(
    sizes: Sizes,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    weighting: str = "samples",
) -> Algorithm:
    """FedAvg: one global model for all, the average of locally trained copies.

    A newcomer gets the global model.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        weighting: `samples` or `uniform` weights of the average.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares, n = shares_of(sizes, weighting), float(len(sizes))

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(mean_of_all(oracle, x), velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, v, t = state
        w, v = oracle.each(sgd, w, v, steps=steps, t=t, rule=rule, together=n)
        return State(oracle.average(shares[oracle.mine], w), v, t + steps), {}

    return Algorithm(
        init,
        step,
        welcome=one_model,
        releases=Releases(average=1),
        shared=lambda state: state.x,
    )
