"""Coteries without waiting: each answer changes its model as soon as it arrives.

A client starts from the current model w_c of its group. When it has finished its steps,

    w_c <- w_c + p_i (u_i - the w_c it began with),   p_i its share in its group.

In trials and contests, the half that it takes changes in the same way, with its share
in that half.

A round is over when three quarters of the clients have finished a task that began in
it. Clients look, and the coordinator decides, in the same rounds as if all clients
waited (`coterie.collaboration.divisions`). A late client looks with its next task. Its
answer about a model counts if that model still exists and is still trained. Its own
model always keeps its steps. A client without a task in a trial chooses a half with its
next task: in the contest, or after its group has divided.

Without delays, this is the method of rounds, with the same minibatches, up to rounding.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..collaboration.divisions import CONTEST, PIECES, REST, TRIAL, places
from ..optim.steps import LocalDescent
from ..types import Arrivals, Flow, Info, Oracle, Task, TaskKind
from .coteries_arrivals import FlowState, begin, decide, hear, move, place
from .coteries_client import CHOICES, candidates, newcomer_models, sharing
from .coteries_task import (
    CHOOSE,
    FIRST,
    LOOK,
    LOOKS,
    NOTHING,
    TaskInput,
    TaskResult,
    task_of,
)

_QUORUM = 0.75

_IN_REST = TaskInput._fields.index("halves")
"""The number of rows of a task in a rest."""


def flow_of_coteries(
    sizes: Tensor, shares: Tensor, rule: LocalDescent, steps: int, sure: float
) -> Flow:
    """The flow of `coteries`, for clients that work at their own pace."""

    def arrive(state: FlowState, now: Arrivals) -> list[int]:
        i = torch.tensor(now.clients, device=state.own.device)
        (phase, looks), found = divmod(now.kind // 2, LOOKS), TaskResult(*now.answers)
        hear(state, i, found, phase, looks)
        before, moved = state.server, torch.zeros_like(state.fresh)
        over = int(state.fresh.sum()) >= _QUORUM * len(state.own)
        if over:
            moved = decide(state, sizes, sure)
        move(state, i, found, phase, before)
        if over:
            place(state, before, moved)
            state.fresh = torch.zeros_like(state.fresh)
            state.number += 1
        return now.clients

    def personal(state: FlowState) -> Tensor:
        group = state.models[state.server.member]
        models = torch.stack(candidates(state.own, group, state.offset), 1)
        return models[torch.arange(len(group), device=group.device), state.choice]

    def welcome(state: FlowState, oracle: Oracle) -> Tensor:
        member, taken = state.server.member, steps * state.number
        of = state.models[member], member, state.choice
        return newcomer_models(oracle, *of, rule=rule, steps=steps, taken=taken)

    def info(state: FlowState) -> Info:
        return sharing(state.server.member, state.choice)

    program = functools.partial(task_of, rule=rule, steps=steps)
    kinds = tuple(
        _kind(program, phase, looks, asks=asks)
        for phase in (REST, TRIAL, CONTEST, PIECES)
        for looks in range(LOOKS)
        for asks in (False, True)
    )
    return Flow(
        functools.partial(begin, shares=shares),
        functools.partial(_ask, steps=steps),
        arrive,
        personal,
        welcome,
        info,
        kinds=kinds,
        together=True,
    )


def _kind(
    program: functools.partial[TaskResult], phase: int, looks: int, *, asks: bool
) -> TaskKind:
    """A kind of task: its program, and the rows that travel to the client and back.

    A client's own model never travels. In a trial, the group's model travels only if
    the client evaluates it.
    """
    down, up = ["notes"], ["told"]
    if phase != TRIAL or looks in (CHOOSE, FIRST) or asks:
        down += ["group"]
    if phase != TRIAL:
        up += ["group"]
    if phase != REST:
        down, up = [*down, "halves", "pick"], [*up, "half"]
    if phase in (TRIAL, CONTEST) and looks:
        up += ["pick"]
    if asks:
        up += ["evidence"]
    given, answered = TaskInput._fields, TaskResult._fields
    return TaskKind(
        functools.partial(program, phase=phase, looks=looks, asks=asks),
        "each",
        reads=_IN_REST if phase == REST else None,
        down=tuple(given.index(name) for name in down),
        up=tuple(answered.index(name) for name in up),
    )


def _ask(state: FlowState, client: int, time: float, *, steps: int) -> Task:
    """The task of a client that begins now."""
    server, known = state.server, places(state.server)
    member, phase, pick = server.member[client], server.clock.phase, server.pick[client]
    asks = server.clock.asks
    period = state.number // state.every if state.every else 0
    looked, other = int(state.looked[client]), int(state.other[client])
    halves = state.halves[server.pair[client]]
    takes = phase == CONTEST and int(state.took[client]) != state.stage
    # A client that missed the look at which all choose chooses at its next.
    chooses = (period + 1) // CHOICES > (looked + 1) // CHOICES
    looks = CHOOSE if chooses else LOOK
    if looked < 0:
        phase, looks, asks = REST, FIRST, False
    elif other >= 0:
        asks, phase = False, TRIAL
        halves = torch.stack([state.models[member], state.models[other]])
        pick = torch.zeros_like(pick)
    elif takes:
        phase = TRIAL
    elif period == looked:
        looks, asks = NOTHING, False
    state.looked[client], state.offered[client] = period, other
    state.began[client], state.since[client] = state.number, state.stage
    few = state.level, known.together[client], known.second[client]
    notes = torch.stack([number.to(state.own) for number in few])
    rows = TaskInput(
        own=state.own[client],
        group=state.models[member],
        offset=state.offset[client],
        usual=state.ballot.usual[client],
        notes=torch.cat([notes, state.ballot.everybody[client]]),
        halves=halves,
        pick=pick,
    )
    # The very first task has all rows, because memory is laid out for them.
    read = len(rows) if phase != REST or looks == FIRST else _IN_REST
    work = (2 + (phase in (CONTEST, PIECES))) * steps
    return Task(rows[:read], 2 * (LOOKS * phase + looks) + asks, work=work)
