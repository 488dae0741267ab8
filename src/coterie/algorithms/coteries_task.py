"""What a client of coteries does in one task if clients do not wait."""

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
"""What a task does besides local steps.

`LOOK` compares halves. `CHOOSE` also evaluates all models, from which the client then
chooses. `FIRST` is the first look of a client.
"""

LOOKS = 4

_CALLS = (0, 0, 2, 1)
"""The number of calls that each of these takes in a round."""


class TaskInput(NamedTuple):
    """The rows that a client gets for a task; in a rest, only those before `halves`."""

    own: Tensor  # (n, D)
    group: Tensor  # (n, D)
    offset: Tensor  # (n, D)
    usual: Tensor  # (n,)
    notes: Tensor  # (n, 6) usual loss, members, share of the second half, `everybody`
    halves: Tensor  # (n, 2, D); the client's own piece is the first
    pick: Tensor  # (n,)


class TaskResult(NamedTuple):
    """The results of a task; a result that was not asked for has no columns."""

    own: Tensor  # (n, D)
    group: Tensor  # (n, D) after steps from the group's model
    group_start: Tensor  # (n, D)
    half: Tensor  # (n, D) after steps from the half that the client takes
    half_start: Tensor  # (n, D)
    pick: Tensor  # (n,)
    losses: Tensor  # (n, 4)
    samples: Tensor  # (n,)
    usual: Tensor  # (n,)
    told: Tensor  # (n, 4), or (n, 3) after the first task
    exact: Tensor  # (n, 4) the same without noise
    evidence: Tensor  # (n, 5)


def task_of(
    clients: TaskClients,
    own: Float[Tensor, "n d"],
    group: Float[Tensor, "n d"],
    offset: Float[Tensor, "n d"],
    usual: Float[Tensor, " n"],
    notes: Float[Tensor, "n 6"],
    *halves_and_pick: Tensor,
    phase: int,
    looks: int,
    asks: bool,
    rule: LocalDescent,
    steps: int,
) -> TaskResult:
    """A client program: all that a client does in a task.

    It uses the same minibatches as a round. There, every program is a separate call, so
    `call` counts these calls here.
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
        halves, pick = halves_and_pick
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
    return TaskResult(own, *ends, pick, losses, samples, usual, told, exact, evidence)
