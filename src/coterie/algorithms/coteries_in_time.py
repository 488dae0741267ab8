"""Coteries where nobody waits: answers move models one by one, verdicts come in turn.

A client begins with its group's model w_c as it is, and when it has finished its steps,

    w_c <- w_c + p_i (u_i - the w_c it began with),   p_i its share in its group;

in trials and contests, the half that it takes likewise, with its share in that half.

A round is over once three quarters of the clients have done a task that began in it.
Looks, tellings and verdicts of a coordinator belong to the same rounds as where all
wait (`coterie.collaboration.divisions`). A client that is late looks with its next
task. What it answers about a model counts if the model is still there, and is still
trained; its own model keeps its steps. A client that had no occasion to take a half in
a trial does so with its next task: in the contest, or after its group has divided.

Without delays, this is the method of rounds, with the same minibatches, to rounding.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from ..collaboration.divisions import CONTEST, PIECES, REST, TRIAL, places
from ..optim.steps import LocalDescent
from ..types import Arrivals, Flow, Info, Oracle, Task, TaskKind
from .coteries_arrivals import FlowState, begin, decide, hear, move, place
from .coteries_client import candidates, newcomer_models, sharing
from .coteries_task import CHOOSE, FIRST, LOOK, LOOKS, NOTHING, Asked, Found, task_of

_QUORUM = 0.75

_IN_REST = Asked._fields.index("halves")
"""How many rows a task has while nothing competes."""


def flow_of_coteries(
    sizes: Tensor, shares: Tensor, rule: LocalDescent, steps: int, sure: float
) -> Flow:
    """Coteries for clients that work at their own pace; see `coteries`."""

    def arrive(state: FlowState, now: Arrivals) -> list[int]:
        i = torch.tensor(now.clients, device=state.own.device)
        (phase, looks), found = divmod(now.kind // 2, LOOKS), Found(*now.answers)
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
    program: functools.partial[Found], phase: int, looks: int, *, asks: bool
) -> TaskKind:
    """What travels: shared models, a few numbers, and no client's own model.

    Where nobody looks in a trial, the whole is known from its halves.
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
    given, answered = Asked._fields, Found._fields
    return TaskKind(
        functools.partial(program, phase=phase, looks=looks, asks=asks),
        "each",
        reads=_IN_REST if phase == REST else None,
        down=tuple(given.index(name) for name in down),
        up=tuple(answered.index(name) for name in up),
    )


def _ask(state: FlowState, client: int, time: float, *, steps: int) -> Task:
    """What a client does that begins now."""
    server, known = state.server, places(state.server)
    member, phase, pick = server.member[client], server.clock.phase, server.pick[client]
    asks = server.clock.asks
    period = state.number // state.every if state.every else 0
    looked, other = int(state.looked[client]), int(state.other[client])
    halves = state.halves[server.pair[client]]
    takes = phase == CONTEST and int(state.took[client]) != state.stage
    # Every other look is one to choose, or the next one of a client that missed it.
    looks = CHOOSE if period // 2 > looked // 2 else LOOK
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
    rows = Asked(
        own=state.own[client],
        group=state.models[member],
        offset=state.offset[client],
        usual=state.ballot.usual[client],
        notes=torch.cat([notes, state.ballot.everybody[client]]),
        halves=halves,
        pick=pick,
    )
    # The first task of all has all rows, for the size of what is kept.
    read = len(rows) if phase != REST or looks == FIRST else _IN_REST
    work = (2 + (phase in (CONTEST, PIECES))) * steps
    return Task(rows[:read], 2 * (LOOKS * phase + looks) + asks, work=work)
