"""Neighbours without waiting: each client takes its rounds at its own pace.

This is the flow of `neighbours`. A client that has trained sends u_i along its kept
links. It compares u_i with the latest u_k of each neighbour, and mixes them in:

    w_i <- u_i + sum_{k in K_i} (u_k - u_i) / (1 + max(|K_i|, |K_k|)).

K_i are the neighbours that have sent a model. The test of a link is updated as soon as
both of its clients have new results. If no client is late, the models are the same as
in rounds. Otherwise mixing can change the mean of models, and late models pull the
others back.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..checks import InputError
from ..collaboration.evidence import choices
from ..collaboration.links import Links, all_links, judge_link
from ..optim.steps import LocalDescent, velocity
from ..types import Arrivals, Clients, Flow, Info, Task, TaskKind
from .neighbours_client import (
    BEGIN,
    NO_DATA,
    Ballot,
    candidates,
    empty_ballot,
    harm,
    local_steps,
)

TRAIN, COMPARE = range(2)


@dataclass
class FlowState:
    """The models, losses, links and progress of each client."""

    models: Tensor  # (N, 3, D) v, w and u
    velocities: Tensor  # (2, N, D), or (2, N, 0) without momentum
    ballot: Ballot
    sent: Tensor  # (N, 4) mean losses that each client last sent to its neighbours
    choice: Tensor  # (N,) the model that each client uses
    links: Links
    said: Tensor  # (N, M, 3) the latest test results of each end of a link
    new: Tensor  # (N, M) whether these results have not been used yet
    rounds: Tensor  # (N,) finished trainings
    kinds: list[int]  # the kind of each client's task


def in_time(
    partners: Int[Tensor, "m n"], rule: LocalDescent, steps: int, sure: float
) -> Flow:
    """The form of `neighbours` for virtual time; `neighbours` has checked the options.

    Args:
        partners: the partner of every client in each matching, or the client itself.
        rule: the rule of all local steps.
        steps: steps of each model in a round.
        sure: standard errors by which a link must do harm to be dropped.
    """
    n = partners.shape[1]

    def init(x: Tensor) -> FlowState:
        links, v = all_links(partners, slice(0, n), x), velocity(rule, x)
        return FlowState(
            x[:, None].repeat(1, 3, 1),
            torch.stack([v, v]),
            empty_ballot(x),
            empty_ballot(x).told,
            torch.zeros(n, dtype=torch.long, device=x.device),
            links,
            torch.zeros_like(links.evidence),
            torch.zeros_like(links.kept),
            torch.zeros(n, dtype=torch.long, device=x.device),
            [TRAIN] * n,
        )

    def task(state: FlowState, client: int, time: float) -> Task:
        own, shared, tuned = state.models[client]
        theirs = state.models[partners[:, client].to(own.device), -1]  # (M, D)
        *ballot, cap = (known[client] for known in state.ballot)
        if state.kinds[client] == TRAIN:
            state_of = tuned, shared, *state.velocities[:, client], *ballot
            rows = own, theirs, cap, *state_of
            return Task(rows, TRAIN, int(state.rounds[client]) + 1, 2.0 * steps)
        rows = tuned, theirs, cap
        return Task(rows, COMPARE, int(state.rounds[client]), 0.0)

    def arrive(state: FlowState, now: Arrivals) -> list[int]:
        i = torch.tensor(now.clients, device=state.models.device)
        if now.kind == TRAIN:
            _take_training(state, i, now)
        else:
            _take_comparison(state, i, now, partners.to(i.device).T, sure)
        for client in now.clients:
            state.kinds[client] = 1 - now.kind
        return now.clients

    def info(state: FlowState) -> Info:
        return _links_in_use(state, partners.to(state.models.device).T)

    train = functools.partial(_local_steps, rule=rule, steps=steps)
    return Flow(
        init,
        task,
        arrive,
        _models_in_use,
        info=info,
        kinds=(
            TaskKind(train, "each", down=(), up=()),
            TaskKind(_harm_of_each, "each", reads=3, down=(), up=()),
        ),
        together=True,
        messages="instant",
    )


def _metropolis(
    met: Bool[Tensor, "n m"], degree: Float[Tensor, " n"], other: Int[Tensor, "n m"]
) -> Float[Tensor, "n m"]:
    """Metropolis weights of links, from the number of links of both ends."""
    return met / (1 + torch.maximum(degree[:, None], degree[other]))


def _links_in_use(state: FlowState, other: Int[Tensor, "n m"]) -> Info:
    """Weights, the number of links, and which clients use their own model."""
    kept, n = state.links.kept, len(other)
    weights = state.models.new_zeros(n, n)
    used = _metropolis(kept, kept.sum(1).to(weights), other)
    weights.scatter_add_(1, other, used)
    weights += torch.diag(1 - weights.sum(1))
    alone = (state.choice == 0).to(weights)
    return {"weights": weights, "links": int(kept.sum()) / 2, "alone": alone}


def _models_in_use(state: FlowState) -> Float[Tensor, "n d"]:
    """The model that each client uses."""
    models = torch.stack(candidates(*state.models.unbind(1)), 1)
    return models[torch.arange(len(models), device=models.device), state.choice]


def _take_training(state: FlowState, i: Tensor, now: Arrivals) -> None:
    """Stores the results of local steps, and counts the messages along links."""
    own, tuned, v, w_v, *ballot = now.answers
    state.models[i, 0], state.models[i, 2] = own, tuned
    state.velocities[:, i] = torch.stack([v, w_v])
    pairs = zip(state.ballot, ballot, strict=True)
    state.ballot = Ballot(*(old.index_copy(0, i, new) for old, new in pairs))
    state.sent[i] = state.ballot.told[i]
    state.rounds[i] += 1
    heard_all = bool((state.rounds > 0).all())
    if heard_all and not bool((state.ballot.samples > 0).any()):
        raise InputError(NO_DATA)
    now.count_messages(int(state.links.kept[i].sum()), own[0])


def _take_comparison(
    state: FlowState, i: Tensor, now: Arrivals, other: Tensor, sure: float
) -> None:
    """Judges links with new evidence from both ends, then mixes models along links."""
    every = torch.arange(other.shape[1], device=other.device)
    free = state.links.kept & (state.rounds > 0)[other]
    degree = free.sum(1).to(state.models)
    state.said[i] = now.answers[0]
    state.new[i] = free[i] & (state.rounds[i] > BEGIN)[:, None]
    both = state.new & state.new[other, every]
    said = state.said + state.said[other, every]
    # Besides models, ends send their number of links, evidence and mean losses.
    told = state.sent
    numbers = state.said.shape[2] + 1 + told.shape[1]
    now.count_messages(int(free[i].sum()), told.new_empty(numbers))
    for m in every.tolist():
        state.links = judge_link(state.links, m, both[:, m], said[:, m], sure)
    state.new &= ~both
    met = free & state.links.kept
    weights = _metropolis(met, degree, other)
    u = state.models[:, -1]
    w, heard = u[i], told[i]
    for m in every.tolist():
        k = other[i, m]
        w = w + weights[i, m, None] * (u[k] - u[i])
        heard = heard + weights[i, m, None] * (told[k] - told[i])
    state.models[i, 1] = w
    state.ballot = state.ballot._replace(told=state.ballot.told.index_copy(0, i, heard))
    choice = choices(state.ballot.losses[i], state.ballot.samples[i], heard)
    state.choice[i] = choice * state.links.kept[i].any(1)


def _local_steps(
    clients: Clients,
    own: Float[Tensor, "n d"],
    theirs: Float[Tensor, "n m d"],
    cap: Float[Tensor, " n"],
    tuned: Float[Tensor, "n d"],
    shared: Float[Tensor, "n d"],
    own_velocity: Float[Tensor, "n v"],
    shared_velocity: Float[Tensor, "n v"],
    losses: Float[Tensor, "n 4"],
    told: Float[Tensor, "n 4"],
    samples: Float[Tensor, " n"],
    *,
    rule: LocalDescent,
    steps: int,
) -> tuple[Tensor, ...]:
    """A client program: `local_steps` with a constant step size."""
    rows = own, tuned, own_velocity, shared_velocity, losses, told, samples, cap, shared
    return local_steps(clients, *rows, rule=rule, steps=steps, t=0)


def _harm_of_each(
    clients: Clients,
    u: Float[Tensor, "n d"],
    theirs: Float[Tensor, "n m d"],
    cap: Float[Tensor, " n"],
) -> Float[Tensor, "n m 3"]:
    """A client program: `harm` for each neighbour."""
    none = u.new_zeros(len(u), 3)
    return torch.stack([harm(clients, none, u, k, cap) for k in theirs.unbind(1)], 1)
