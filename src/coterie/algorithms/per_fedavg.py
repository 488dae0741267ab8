"""A common model from which one local step takes every client to a good model.

The method minimises the mean of `F_i(w) = f_i(w - alpha grad f_i(w))`, the losses after
one local step. In a round, each client starts with w_i <- w. Then `steps` times, with
three independent minibatches D, D', D'' of client i,

    u = g_i(w_i - alpha g_i(w_i; D); D'),   w_i <- w_i - lr (u - alpha d),

and then w <- sum_i p_i w_i over the clients of the round. Here d is the product of the
Hessian of client i at w_i with u, in one of three forms:

    exact   d = H_i(w_i; D'') u
    hf      d = (g_i(w_i + h u; D'') - g_i(w_i - h u; D'')) / (2 h),   h = delta / |u|
    fo      d = 0

Before use, x_i <- w, then `tune_steps` times x_i <- x_i - alpha g_i(x_i) on client i's
own training data.

References:
    Fallah, Mokhtari, Ozdaglar, "Personalized federated learning with theoretical
    guarantees: a model-agnostic meta-learning approach", NeurIPS 2020, arXiv
    2002.07948: Algorithm 1, equations 112, 120 and 121. `lr` is the paper's beta,
    `steps` its tau.

Differences: section 5 prints a wrong formula of `hf`, see docs/errata.md. `hf` takes
gradients at the distance `delta` from w_i. The paper's distance is `delta` times |u|,
which is too short for small u in single precision. Tuning uses training data, never
test data. Only the steps of w_i have momentum, weight decay and a schedule. With
momentum, every client keeps its buffer between rounds.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..collaboration.rows import mean_of_all, row_for_each
from ..collaboration.weights import shares_of
from ..optim.hessians import hessian_times
from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    descend,
    rule_in_numbers,
    step_numbers,
    train_alone,
    velocity,
)
from ..options import BelowOne, Count, NotNegative, Positive, Sizes, Whole, method
from ..types import (
    Algorithm,
    Clients,
    Info,
    Options,
    Oracle,
    Releases,
    without_statistics,
)
from .fedavg import State


def meta_sgd(
    clients: Clients,
    w: Tensor,
    v: Tensor,
    *,
    rule: LocalDescent,
    alpha: float,
    variant: str,
    delta: float,
    steps: int,
    t: int,
    together: float,
) -> tuple[Tensor, Tensor]:
    """A client program: w_i after `steps` steps on F_i, from step number t."""
    own = rule_in_numbers(rule, clients, w, together)
    for t_local in step_numbers(clients, t, steps):
        g = without_statistics(clients, clients.grad(w))
        u = clients.grad(torch.sub(w, g, alpha=alpha, out=g))
        # D'' is drawn even if it is not used, so that all variants see the same D and
        # D'.
        third = clients.same_batch()
        d = hessian_times(third, w, u, variant=variant, delta=delta)
        w, v = descend(own, w, u.sub_(d, alpha=alpha), v, t_local)
    return w, v


@method()
def per_fedavg(
    sizes: Sizes,
    *,
    alpha: NotNegative = 0.01,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    variant: Literal["exact", "fo", "hf"] = "hf",
    delta: Positive = 1e-3,
    weighting: str = "uniform",
    tune_steps: Whole = 1,
) -> Algorithm:
    """Per-FedAvg: a global model for clients to tune by one step of size alpha.

    Args:
        sizes: (N,) training samples of each client.
        alpha: step size of tuning, both in F_i and before use; 0 is FedAvg.
        lr: step size of the local steps, beta in the paper; also `curvature(c)` or
            `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local steps in one round, tau in the paper.
        variant: `exact`, `hf` (differences of gradients) or `fo` (first order only).
        delta: distance from w_i at which `hf` takes its two gradients.
        weighting: `samples` or `uniform` weights of the average.
        tune_steps: steps of size alpha before use; in F_i there is one such step.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)
    how: Options = {"alpha": alpha, "variant": variant, "delta": delta}
    how |= {"together": float(len(sizes))}
    tuning = LocalDescent(alpha)

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(mean_of_all(oracle, x), velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, v, t = state
        w_i, v = oracle.each(meta_sgd, w, v, rule=rule, steps=steps, t=t, **how)
        return State(oracle.average(shares[oracle.mine], w_i), v, t + steps), {}

    def personal(state: State, oracle: Oracle) -> Tensor:
        return train_alone(oracle, state.x, tuning, tune_steps)

    def welcome(state: State, oracle: Oracle) -> Tensor:
        return train_alone(oracle, row_for_each(oracle, state.x), tuning, tune_steps)

    return Algorithm(
        init,
        step,
        personal,
        welcome,
        releases=Releases(average=1),
        shared=lambda state: state.x,
    )
