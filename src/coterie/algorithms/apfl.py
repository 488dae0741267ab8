"""Every client mixes its own model with a global model, and may learn the mixture.

In a round, client i starts with w_i = w. Then `steps` times, with one minibatch each,

    u_i = a_i v_i + (1 - a_i) w_i
    w_i <- w_i - lr g_i(w_i),    v_i <- v_i - lr a_i g_i(u_i),
    adaptive:  a_i <- clip(a_i - lr <v_i - w_i, g_i(u_i)>, 0, 1),

where the right-hand sides use the values before the step. Then w <- sum_i p_i w_i over
the clients of the round. Personal models are u_i with the new w in place of w_i.
With `alpha=0` the method is FedAvg, with `alpha=1` local training.

References:
    Deng, Kamani, Mahdavi, "Adaptive personalized federated learning", 2020,
    arXiv 2003.13461.

Differences: we use the last models. The paper's theorems use a weighted average of the
models of all steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.rows import mean_of_all, row_for_each
from ..collaboration.weights import shares_of
from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    StepNumber,
    descend,
    rule_in_numbers,
    step_numbers,
    step_size,
    velocity,
)
from ..options import BelowOne, Count, Share, Sizes, method
from ..types import (
    Algorithm,
    Clients,
    Info,
    Options,
    Oracle,
    OwnRows,
    Releases,
    SameRow,
    without_statistics,
)


class State(NamedTuple):
    """Global and local models, their mixture, and the number of gradient steps."""

    w: SameRow  # (n, D)
    v: OwnRows  # (n, D)
    a: OwnRows  # (n,), share of v in the personal model
    w_velocity: OwnRows  # (n, D), or (n, 0) without momentum
    v_velocity: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


def mixture(
    w: Float[Tensor, "n d"], v: Float[Tensor, "n d"], a: Float[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """The personal models u_i = a_i v_i + (1 - a_i) w_i."""
    return torch.lerp(w, v, a[:, None])  # exact for a = 0 and a = 1


def mixture_sgd(
    clients: Clients,
    v: Float[Tensor, "n d"],
    a: Float[Tensor, " n"],
    v_velocity: Float[Tensor, "n v"],
    w: Float[Tensor, "n d"],
    *,
    rule: LocalDescent,
    adaptive: bool,
    steps: int,
    t: StepNumber,
) -> tuple[Tensor, Tensor, Tensor]:
    """A client program: v and a after steps with fixed w, from step number t."""
    own = rule_in_numbers(rule, clients, v)
    for t_local in step_numbers(clients, t, steps):
        g = clients.grad(mixture(w, v, a))
        a_now = a
        if adaptive:
            apart = without_statistics(clients, v - w)
            slope = (apart * g).sum(1, keepdim=True)
            a = (a[:, None] - step_size(own, t_local) * slope)[:, 0].clamp(0, 1)
        g.mul_(a_now[:, None])
        v, v_velocity = descend(own, v, g, v_velocity, t_local)
    return v, a, v_velocity


def apfl_round(
    clients: Clients,
    w: Float[Tensor, "n d"],
    v: Float[Tensor, "n d"],
    a: Float[Tensor, " n"],
    w_velocity: Float[Tensor, "n v"],
    v_velocity: Float[Tensor, "n v"],
    *,
    rule: LocalDescent,
    adaptive: bool,
    steps: int,
    t: int,
    together: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """A client program: w, v and a after local steps, from step number t."""
    shared = rule_in_numbers(rule, clients, w, together)
    for t_local in step_numbers(clients, t, steps):
        batch = clients.same_batch()
        v, a, v_velocity = mixture_sgd(
            batch, v, a, v_velocity, w, rule=rule, adaptive=adaptive, steps=1, t=t_local
        )
        w, w_velocity = descend(shared, w, batch.grad(w), w_velocity, t_local)
    return w, v, a, w_velocity, v_velocity


@method()
def apfl(
    sizes: Sizes,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    alpha: Share = 0.5,
    adaptive: bool = False,
    weighting: str = "samples",
) -> Algorithm:
    """APFL: personal models are mixtures of a local and a global model.

    A newcomer starts with v = w, and with the mean share a of the other clients. It
    takes as many steps as the other clients took in training, with fixed w.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of w, v and the mixture; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        alpha: share of the local model in the mixture, at the start if adaptive.
        adaptive: if true, every client learns its share a.
        weighting: `samples` or `uniform` weights of the average.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)
    options: Options = {"rule": rule, "adaptive": adaptive}

    def init(x: Tensor, oracle: Oracle) -> State:
        w, a = mean_of_all(oracle, x), x.new_full((len(x),), alpha)
        return State(w, x, a, velocity(rule, x), velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, v, a, w_velocity, v_velocity, t = state
        rows, n = (w, v, a, w_velocity, v_velocity), float(len(sizes))
        w, v, a, w_velocity, v_velocity = oracle.each(
            apfl_round, *rows, steps=steps, t=t, together=n, **options
        )
        w = oracle.average(shares[oracle.mine], w)
        new = State(w, v, a, w_velocity, v_velocity, t + steps)
        return new, info(new)

    def info(state: State) -> Info:
        return {"mixture": state.a}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = row_for_each(oracle, state.w)
        a = state.a.mean().expand(len(w))
        rows = w, a, velocity(rule, w), w
        v, a, _ = oracle.each(mixture_sgd, *rows, steps=state.t, t=0, **options)
        return mixture(w, v, a)

    def personal(state: State, oracle: Oracle) -> Tensor:
        return mixture(state.w, state.v, state.a)

    return Algorithm(
        init,
        step,
        personal,
        welcome,
        releases=Releases(average=1),
        shared=lambda state: state.w,
        info=info,
    )
