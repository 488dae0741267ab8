"""Every client learns, for each parameter, how much of the global model it takes.

In a round, w is the global model, and x_i the client's own model from its last round.
The weights a_i are in [0, 1], and are 1 outside of the upper layers. Then

    y_i(a) = x_i + a * (w - x_i)
    a_i <- clip(a_i - weight_lr (w - x_i) * g_i(y_i(a_i)), 0, 1)   in the upper layers
    x_i <- y_i(a_i), then `steps` times  x_i <- x_i - lr g_i(x_i)
    w <- sum_i p_i x_i

where * is the product entry by entry. The second line is `weight_steps` gradient steps
on f_i(y_i(a)). The sum is over the clients of the round. Before use, clients repeat the
second line, and then use y_i(a_i).

References:
    Zhang, Hua, Wang, Song, Xue, Ma, Guan, "FedALA: adaptive local aggregation for
    personalized federated learning", AAAI 2023, arXiv 2212.01197.

Differences: weights take the same number of steps in every round. In the paper, they
are trained until they converge in the first round. In later rounds, they are trained
for one pass through a random share of the data. The upper layers are given by name, not
by their number. With momentum, every client keeps its buffer between rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..collaboration.rows import mean_of_all, row_for_each
from ..collaboration.weights import shares_of
from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    sgd,
    step_numbers,
    train_alone,
    velocity,
)
from ..options import BelowOne, Count, Head, Positive, Sizes, Whole, method
from ..types import (
    Algorithm,
    Clients,
    Info,
    Options,
    Oracle,
    OwnRows,
    Releases,
    SameRow,
)


class State(NamedTuple):
    """The global model, personal ones, their weights, momentum, and rounds."""

    w: SameRow  # (n, D)
    x: OwnRows  # (n, D)
    a: OwnRows  # (n, D), share of w in the next model
    v: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


def fedala_round(
    clients: Clients,
    x: Float[Tensor, "n d"],
    a: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    w: Float[Tensor, "n d"],
    upper: Bool[Tensor, "n d"],
    *,
    rule: LocalDescent,
    weight_lr: float,
    weight_steps: int,
    steps: int,
    t: int,
    together: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A client program: learn the weights, mix, and train the mixture, in round t."""
    for _ in step_numbers(clients, t * weight_steps, weight_steps):
        slope = (w - x) * clients.grad(torch.lerp(x, w, a))
        a = torch.where(upper, (a - weight_lr * slope).clamp(0, 1), a)
    x = torch.lerp(x, w, a)  # exact for weights 0 and 1
    work: Options = {"rule": rule, "steps": steps, "t": t * steps}
    x, v = sgd(clients, x, v, together=together, **work)
    return x, a, v


@method()
def fedala(
    sizes: Sizes,
    head: Head,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    weighting: str = "samples",
    weight_steps: Whole = 5,
    weight_lr: Positive = 1.0,
) -> Algorithm:
    """FedALA: every client learns how much of the global model it takes.

    A newcomer trains the global model for one round. Then it mixes its trained model
    and the global model, as other clients do after their first round.

    Args:
        sizes: (N,) training samples of each client.
        head: (D,) which columns are the upper layers; clients learn weights only for
            these.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: factor of the model in its gradient; also `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        weighting: `samples` or `uniform` weights of the average.
        weight_steps: gradient steps of the weights in one round, and before use.
        weight_lr: step size of the weights, eta in the paper.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)
    how: Options = {"rule": rule, "together": float(len(sizes))}
    how |= {"weight_lr": weight_lr, "weight_steps": weight_steps}

    def init(x: Tensor, oracle: Oracle) -> State:
        w = mean_of_all(oracle, x)
        return State(w, w, torch.ones_like(x), velocity(rule, x), 0)

    def train(state: State, oracle: Oracle, steps: int) -> tuple[Tensor, ...]:
        w, x, a, v, t = state
        rows = x, a, v, w, head.to(w.device).expand(len(w), -1)
        return oracle.each(fedala_round, *rows, steps=steps, t=t, **how)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, a, v = train(state, oracle, steps)
        return State(oracle.average(shares[oracle.mine], x), x, a, v, state.t + 1), {}

    def personal(state: State, oracle: Oracle) -> Tensor:
        return train(state, oracle, 0)[0]

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = row_for_each(oracle, state.w)
        x = train_alone(oracle, w, rule, steps)
        return personal(State(w, x, torch.ones_like(w), velocity(rule, w), 0), oracle)

    return Algorithm(
        init,
        step,
        personal,
        welcome,
        releases=Releases(average=1),
        shared=lambda state: state.w,
    )
