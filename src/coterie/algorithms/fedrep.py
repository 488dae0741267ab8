"""A common body and a personal head for every client, trained in turn.

    h_i <- h_i - lr g_i(w, h_i) in the head,    `head_steps` times, with w fixed
    w_i <- w_i - lr g_i(w_i, h_i) in the body,  `steps` times from w_i = w
    w   <- sum_i p_i w_i

The sum runs over the clients of the round. Heads never leave their clients. On a
network of two linear layers without activations, this is the low-rank estimator of
`coterie_theory.structure.burer_monteiro` with gradient steps.

References:
    Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for
    personalized federated learning", ICML 2021, arXiv 2102.07078.

Differences: work is counted in gradient steps, not in epochs. With momentum, every
client keeps its buffer between rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..collaboration.rows import mean_of_all, refuse_personal, row_for_each
from ..collaboration.weights import shares_of
from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    descend,
    rule_in_numbers,
    step_numbers,
    velocity,
)
from ..options import BelowOne, Count, Head, Sizes, method
from ..types import Algorithm, Clients, Info, Options, Oracle, Releases, Rows


class State(NamedTuple):
    """Clients' models, and the common body with a first head."""

    x: Rows  # (n, D), used only in the head
    w: Rows  # (n, D), the same row for everybody and in memory only once
    v: Rows  # (n, 2 V), buffers of the head and of the body; V = 0 without momentum
    t: int  # rounds


def part_sgd(
    clients: Clients,
    x: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    part: Bool[Tensor, "n d"],
    *,
    rule: LocalDescent,
    steps: int,
    t: int,
    together: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """A client program: models after steps of some columns, from step number t."""
    own = rule_in_numbers(rule, clients, x, together)
    for t_local in step_numbers(clients, t, steps):
        g = torch.where(part, clients.grad(x), 0)
        moved, v = descend(own, x, g, v, t_local)
        x = torch.where(part, moved, x)
    return x, v


def fedrep_round(
    clients: Clients,
    x: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    head: Bool[Tensor, "n d"],
    *,
    rule: LocalDescent,
    steps: int,
    head_steps: int,
    t: int,
    together: float,
) -> tuple[Tensor, Tensor]:
    """A client program: models after steps of the head and then of the body."""
    own, shared = v.chunk(2, 1)
    work: Options = {"rule": rule, "steps": head_steps, "t": t * head_steps}
    x, own = part_sgd(clients, x, own, head, **work)
    work |= {"steps": steps, "t": t * steps, "together": together}
    x, shared = part_sgd(clients, x, shared, ~head, **work)
    return x, torch.cat([own, shared], 1)


@method()
def fedrep(
    sizes: Sizes,
    head: Head,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    head_steps: Count = 10,
    weighting: str = "samples",
) -> Algorithm:
    """FedRep: all clients train a common body, and each trains its head, in turn.

    A newcomer trains a head on the fixed body, with as many steps as the other clients
    took for their heads.

    Args:
        sizes: (N,) training samples of each client.
        head: (D,) which columns are the head.
        lr: step size of heads and body; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: steps of the body in one round.
        head_steps: steps of the head in one round, before the steps of the body.
        weighting: `samples` or `uniform` weights of the average.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)

    def init(x: Tensor, oracle: Oracle) -> State:
        refuse_personal(oracle)
        return State(x, mean_of_all(oracle, x), velocity(rule, x).repeat(1, 2), 0)

    def personal(state: State, oracle: Oracle) -> Tensor:
        return torch.where(head.to(state.x.device), state.x, state.w)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        mask = head.to(state.x.device)
        rows = personal(state, oracle), state.v, mask.expand(len(state.x), -1)
        work: Options = {"steps": steps, "head_steps": head_steps, "t": state.t}
        n = float(len(sizes))
        x, v = oracle.each(fedrep_round, *rows, rule=rule, together=n, **work)
        body = oracle.average(shares[oracle.mine], x[:, ~mask])  # heads stay at home
        w = state.w[:1].clone()
        w[:, ~mask] = body[:1]
        x = torch.where(oracle.active[:, None], x, state.x)
        return State(x, w.expand(len(x), -1), v, state.t + 1), {}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = row_for_each(oracle, state.w)
        rows = w, velocity(rule, w), head.to(w.device).expand(len(w), -1)
        work = state.t * head_steps
        return oracle.each(part_sgd, *rows, rule=rule, steps=work, t=0)[0]

    return Algorithm(
        init, step, personal, welcome, home=head, releases=Releases(average=1)
    )
