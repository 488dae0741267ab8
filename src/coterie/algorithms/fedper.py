"""FedAvg of the body; every client also trains its own head, which it never sends.

    x_i <- (w, h_i), then `steps` times  x_i <- x_i - lr g_i(x_i)    body and head
    h_i <- the head of x_i,    w <- sum_i p_i (the body of x_i)

The sum runs over the clients of the round. Heads never leave their clients. The method
equals `fedavg` with the head in `model.personal`.

References:
    Arivazhagan, Aggarwal, Singh, Choudhary, "Federated learning with personalization
    layers", 2019, arXiv 1912.00818.

Differences: a round may have only some of the clients; in the paper all clients take
part. Work is counted in gradient steps, not in epochs. With momentum, every client
keeps its buffer.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ..collaboration.rows import mean_of_all, refuse_personal, row_for_each
from ..collaboration.weights import shares_of
from ..optim.steps import LocalDecay, LocalDescent, LocalLr, Schedule, sgd, velocity
from ..options import BelowOne, Count, Head, Sizes, method
from ..types import Algorithm, Info, Oracle, OwnRows, Releases, SameRow
from .fedrep import part_sgd


class State(NamedTuple):
    """Clients' models, the average with the first head, momentum, and steps."""

    x: OwnRows  # (n, D), used only in the columns that stay at home
    w: SameRow  # (n, D)
    v: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


@method()
def fedper(
    sizes: Sizes,
    head: Head,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    weighting: str = "samples",
) -> Algorithm:
    """FedPer: an average body and personal heads, trained together.

    A newcomer trains a head on the fixed body, with as many steps as the other clients
    took.

    Args:
        sizes: (N,) training samples of each client.
        head: (D,) which columns are the head.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        weighting: `samples` or `uniform` weights of the average.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    return average_without(sizes, head, rule, steps=steps, weighting=weighting)


def average_without(
    sizes: Tensor,
    home: Bool[Tensor, " d"],
    rule: LocalDescent,
    *,
    steps: int,
    weighting: str,
) -> Algorithm:
    """FedAvg of all columns except those in `home`, which stay at their clients.

    All columns are trained together. A newcomer trains only the columns in `home`; the
    average stays fixed.
    """
    shares, n = shares_of(sizes, weighting), float(len(sizes))

    def init(x: Tensor, oracle: Oracle) -> State:
        refuse_personal(oracle)
        return State(x, mean_of_all(oracle, x), velocity(rule, x), 0)

    def personal(state: State, oracle: Oracle) -> Tensor:
        return torch.where(home.to(state.x.device), state.x, state.w)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        shared = ~home.to(state.x.device)
        rows = personal(state, oracle), state.v
        x, v = oracle.each(sgd, *rows, rule=rule, steps=steps, t=state.t, together=n)
        mean = oracle.average(shares[oracle.mine], x[:, shared])
        w = state.w[:1].clone()
        w[:, shared] = mean[:1]
        x = torch.where(oracle.active[:, None], x, state.x)
        return State(x, w.expand(len(x), -1), v, state.t + steps), {}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = row_for_each(oracle, state.w)
        rows = w, velocity(rule, w), home.to(w.device).expand(len(w), -1)
        return oracle.each(part_sgd, *rows, rule=rule, steps=state.t, t=0)[0]

    return Algorithm(
        init, step, personal, welcome, home=home, releases=Releases(average=1)
    )
