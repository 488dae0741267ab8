"""FedAvg in which local steps are pulled to the global model.

    w_i <- w, then `steps` times  w_i <- w_i - lr (g_i(w_i) + lam (w_i - w))
    w <- sum_i p_i w_i

The sum runs over the clients of the round, with p_i in proportion to sample sizes or
uniform. So a client takes gradient steps on f_i(w_i) + lam/2 |w_i - w|^2. `lam=0` is
FedAvg.

References:
    Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith, "Federated optimization in
    heterogeneous networks", MLSys 2020, arXiv 1812.06127.

Differences: `lam` is the paper's mu. All clients of a round take `steps` steps; in the
paper slow clients may take fewer. The paper draws clients in proportion to their
samples, and averages with equal weights. Here clients are drawn uniformly, and the
average is weighted. With momentum, every client keeps its buffer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..collaboration.rows import mean_of_all, one_model
from ..collaboration.weights import shares_of
from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    proximal_sgd,
    velocity,
)
from ..options import BelowOne, Count, NotNegative, Sizes, method
from ..types import Algorithm, Info, Options, Oracle, Releases
from .fedavg import State


@method()
def fedprox(
    sizes: Sizes,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    lam: NotNegative = 0.1,
    weighting: str = "samples",
) -> Algorithm:
    """FedProx: FedAvg with a pull of every local step to the global model.

    A newcomer gets the global model.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round; the first step has no pull.
        lam: strength of the pull to the global model.
        weighting: `samples` or `uniform` weights of the average.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)
    options: Options = {"rule": rule, "lam": lam, "together": float(len(sizes))}

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(mean_of_all(oracle, x), velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, v, t = state
        rows = w, v, w  # each starts at the model that pulls it
        w_i, v = oracle.each(proximal_sgd, *rows, steps=steps, t=t, **options)
        return State(oracle.average(shares[oracle.mine], w_i), v, t + steps), {}

    return Algorithm(
        init,
        step,
        welcome=one_model,
        releases=Releases(average=1),
        shared=lambda state: state.x,
    )
