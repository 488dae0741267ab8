"""What a client of coteries does in one task, where nobody waits."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.divisions import CONTEST, PAIRS, REST, TRIAL
from ..optim.steps import LocalDescent, sgd
from ..types import Options, TaskClients
from .coteries_client import (
    MODELS,
    first_look,
    look,
    shared_steps,
    take_half,
    tell,
    weigh,
)

NOTHING, LOOK, CHOOSE, FIRST = range(4)
"""What a task does besides local steps: nothing, a look at halves, one at all models by
which the client chooses, or the first one."""

LOOKS = 4

_CALLS = (0, 0, 2, 1)
"""How many calls that takes in a round."""


class Asked(NamedTuple):
    """What a task gives to a client; halves and all after them not in a rest."""

    own: Tensor  # (n, D)
    group: Tensor  # (n, D)
    offset: Tensor  # (n, D)
    usual: Tensor  # (n,)
    notes: Tensor  # (n, 6) of a loss at most, members, share of halves; means of all
    halves: Tensor  # (n, 2, D); of pieces, the first is one's own
    pick: Tensor  # (n,)


class Found(NamedTuple):
    """What comes of it; without columns, where it is not asked."""

    own: Tensor  # (n, D)
    group: Tensor  # (n, D) where steps from the group's model end
    group_start: Tensor  # (n, D)
    half: Tensor  # (n, D) where steps from the half end that the client takes
    half_start: Tensor  # (n, D)
    pick: Tensor  # (n,)
    losses: Tensor  # (n, 4)
    samples: Tensor  # (n,)
    usual: Tensor  # (n,)
    told: Tensor  # (n, 4), or (n, 3) at first
    exact: Tensor  # (n, 4) the same without noise
    evidence: Tensor  # (n, 5), where it is asked for


def task_of(
    clients: TaskClients,
    own: Float[Tensor, "n d"],
    group: Float[Tensor, "n d"],
    offset: Float[Tensor, "n d"],
    usual: Float[Tensor, " n"],
    notes: Float[Tensor, "n 6"],
    *beside: Tensor,
    phase: int,
    looks: int,
    asks: bool,
    rule: LocalDescent,
    steps: int,
) -> Found:
    """A client program: what a client does in a round, with the same minibatches.

    There, every program is a call of its own, which `call` counts.
    """
    none, n, models = own[:, :0], len(own), (own, group, offset)
    work: Options = {"rule": rule, "steps": steps, "t": 0}
    level, together = notes[:, 0], notes[:, 1].long()
    losses = told = exact = group_end = group_start = half = half_start = none
    samples, pick = usual, torch.zeros_like(together)
    evidence = own.new_zeros(n, 0, dtype=torch.float64)
    own = sgd(clients, own, none, **work)[0]
    call = 1 + _CALLS[looks]
    if looks == FIRST:
        told = first_look(clients, own.new_zeros(n, 2), group)
        batch = (~clients.same_batch().losses(group).isnan()).sum(1, keepdim=True)
        told = torch.cat([told, steps * batch.to(told)], 1)
    elif looks == CHOOSE:
        losses = own.new_zeros(n, MODELS)
        known = losses, losses, samples, usual
        losses, exact, samples, usual = look(clients, *known, *models, level)
        told = tell(clients, torch.zeros_like(losses), *models, level)
    if phase != REST:
        halves, pick = beside
        if looks and phase in (TRIAL, CONTEST):
            call += 1
            free = torch.full_like(pick, phase == TRIAL, dtype=torch.bool)
            pick = take_half(clients, pick, halves, free)
        half_start = halves[torch.arange(n, device=pick.device), pick]
        if asks:
            call, evidence = call + 1, evidence.new_zeros(n, 1 + 2 * PAIRS)
            evidence = weigh(clients, evidence, group, offset, half_start, level)
    if phase != TRIAL:
        group_start = group
        rows = group, none, together
        group_end, _ = shared_steps(clients.call(call), *rows, **work)
        call += 1
    if phase != REST:
        rows = half_start, none, together
        half, _ = shared_steps(clients.call(call), *rows, **work)
    ends = group_end, group_start, half, half_start
    return Found(own, *ends, pick, losses, samples, usual, told, exact, evidence)
