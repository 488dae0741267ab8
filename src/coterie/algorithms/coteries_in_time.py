"""Coteries where nobody waits: answers move models one by one, verdicts come in turn.

A client begins with its group's model w_c as it is, and when it has finished its steps,

    w_c <- w_c + p_i (u_i - the w_c it began with),   p_i its share in its group;

in trials and contests, the half that it takes likewise, with its share in that half.

A round is over once three quarters of the clients have done a task that began in it.
Looks, tellings and verdicts of a coordinator belong to the same rounds as where all
wait (`coterie.collaboration.divisions`). A client that is late looks with its next
task. Its update counts for the models that it shares when it arrives. Evidence counts
if it is about the halves that compete now. A client that told nothing in a trial after
which its group divided has its next task as in a trial, and so takes its half.

Without delays, this is the method of rounds, with the same minibatches, to rounding.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..collaboration.divisions import (
    CONTEST,
    PAIRS,
    REST,
    TRIAL,
    Coordinator,
    Evidence,
    one_group,
    places,
    with_directions,
    with_evidence,
)
from ..collaboration.evidence import choices
from ..optim.steps import LocalDescent
from ..types import Arrivals, Flow, Info, Kind, Oracle, Task
from .coteries_client import (
    GROUP,
    Ballot,
    averaged,
    candidates,
    cut,
    empty_ballot,
    followed,
    plan,
    sharing,
    welcomed,
)
from .coteries_task import FIRST, LOOK, LOOKS, NOTHING, TELL, Asked, Found, task_of

_QUORUM = 0.75

_IN_REST = Asked._fields.index("halves")
"""How many rows a task has while nothing competes."""


@dataclass
class Underway:
    """Models, what clients know and told, when they began, and what is decided."""

    own: Tensor  # (N, D)
    models: Tensor  # (N, D) of the groups, by name
    offset: Tensor  # (N, D) by what a client differs from its group
    halves: Tensor  # (N, 2, D) of the groups, by name, in trials and contests
    half_offset: Tensor  # (N, D) from the half that a client takes
    drift: Tensor  # (N, D) mean update of shared models since it was counted
    drifts: Tensor  # (N,) of how many tasks
    ballot: Ballot
    first: Tensor  # (N, 3) what each told at first
    choice: Tensor  # (N,)
    level: Tensor  # () of a loss that others are told, at most
    most: Tensor  # () of the length of an update
    server: Coordinator
    looked: Tensor  # (N,) the period of its last look, -1 before the first
    began: Tensor  # (N,) the round in which its task began
    fresh: Tensor  # (N,) whether it has done a task that began in this round
    since: Tensor  # (N,) the stage in which its task began; -1: of another group
    told: Tensor  # (N,) the stage in which it told evidence last
    heard: Tensor  # (N,) whether that is new
    other: Tensor  # (N,) the other half of its group that divided, or -1
    offered: Tensor  # (N,) the same when its task began
    stage: int = 0  # it is odd while halves compete
    every: int = 0  # rounds from one look to the next, 0 before it is planned
    number: int = 0  # of the round


def flow_of_coteries(
    sizes: Tensor, shares: Tensor, rule: LocalDescent, steps: int, sure: float
) -> Flow:
    """Coteries for clients that work at their own pace; see `coteries`."""

    def arrive(state: Underway, now: Arrivals) -> list[int]:
        i = torch.tensor(now.clients, device=state.own.device)
        (phase, looks), found = divmod(now.kind, LOOKS), Found(*now.answers)
        _hear(state, i, found, phase, looks)
        before, moved = state.server, torch.zeros_like(state.fresh)
        over = int(state.fresh.sum()) >= _QUORUM * len(state.own)
        if over:
            moved = _decide(state, sizes, sure)
        _move(state, i, found, phase, before)
        if over:
            _place(state, before, moved)
            state.fresh = torch.zeros_like(state.fresh)
            state.number += 1
        return now.clients

    def personal(state: Underway) -> Tensor:
        group = state.models[state.server.member]
        models = torch.stack(candidates(state.own, group, state.offset), 1)
        return models[torch.arange(len(group), device=group.device), state.choice]

    def welcome(state: Underway, oracle: Oracle) -> Tensor:
        member, taken = state.server.member, steps * state.number
        of = state.models[member], member, state.choice
        return welcomed(oracle, *of, rule=rule, steps=steps, taken=taken)

    def info(state: Underway) -> Info:
        return sharing(state.server.member, state.choice)

    program = functools.partial(task_of, rule=rule, steps=steps)
    kinds = tuple(
        _kind(functools.partial(program, phase=phase, looks=looks), phase, looks)
        for phase in (REST, TRIAL, CONTEST)
        for looks in range(LOOKS)
    )
    return Flow(
        functools.partial(_begin, shares=shares),
        functools.partial(_ask, steps=steps),
        arrive,
        personal,
        welcome,
        info,
        kinds=kinds,
        together=True,
    )


def _kind(program: functools.partial[Found], phase: int, looks: int) -> Kind:
    """What travels: shared models, a few numbers, and no model of one's own.

    Where nobody looks in a trial, the whole is known from its halves.
    """
    down, up = ["notes"], ["told"]
    if phase != TRIAL or looks:
        down += ["group"]
    if phase != TRIAL:
        up += ["group"]
    if phase != REST:
        down, up = [*down, "halves", "pick"], [*up, "half"]
    if phase != REST and looks:
        up += ["pick", "evidence"]
    given, answered = Asked._fields, Found._fields
    return Kind(
        program,
        "each",
        reads=_IN_REST if phase == REST else None,
        down=tuple(given.index(name) for name in down),
        up=tuple(answered.index(name) for name in up),
    )


def _begin(x: Float[Tensor, "n d"], *, shares: Tensor) -> Underway:
    """One group of all, of whom nobody has begun."""
    n, no = len(x), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    zero, shares = no.long(), shares.to(x)
    return Underway(
        own=x.clone(),
        models=x.mean(0).repeat(n, 1),
        offset=torch.zeros_like(x),
        halves=x.new_zeros(n, 2, x.shape[1]),
        half_offset=torch.zeros_like(x),
        drift=torch.zeros_like(x),
        drifts=x.new_zeros(n),
        ballot=Ballot(*(part.clone() for part in empty_ballot(x))),
        first=x.new_zeros(n, 3),
        choice=zero + GROUP,
        level=x.new_zeros(()),
        most=x.new_tensor(torch.inf),
        server=one_group(shares, torch.zeros_like(shares), x.shape[1]),
        looked=zero - 1,
        began=zero.clone(),
        fresh=no,
        since=zero.clone(),
        told=zero - 1,
        heard=no.clone(),
        other=zero - 1,
        offered=zero - 1,
    )


def _ask(state: Underway, client: int, time: float, *, steps: int) -> Task:
    """What a client does that begins now."""
    server, place = state.server, places(state.server)
    member, phase = server.member[client], server.clock.phase
    period = state.number // state.every if state.every else 0
    looked, other = int(state.looked[client]), int(state.other[client])
    halves, half_offset = state.halves[member], state.half_offset[client]
    pick, looks = server.pick[client], NOTHING
    if period > looked or other >= 0:
        # Every other look tells, or the next one of a client that missed it.
        looks = TELL if period // 2 > looked // 2 else LOOK
    if looked < 0:
        phase, looks = REST, FIRST
    elif other >= 0:
        phase, halves = TRIAL, torch.stack([state.models[member], state.models[other]])
        half_offset, pick = torch.zeros_like(half_offset), torch.zeros_like(pick)
    state.looked[client], state.offered[client] = period, other
    state.began[client], state.since[client] = state.number, state.stage
    few = state.level, place.together[client], place.second[client]
    notes = torch.stack([number.to(state.own) for number in few])
    rows = Asked(
        own=state.own[client],
        group=state.models[member],
        offset=state.offset[client],
        cap=state.ballot.cap[client],
        notes=torch.cat([notes, state.ballot.everybody[client]]),
        halves=halves,
        half_offset=half_offset,
        pick=pick,
    )
    # The first task of all has all rows, for the size of what is kept.
    read = len(rows) if phase != REST or looks == FIRST else _IN_REST
    return Task(
        rows[:read], LOOKS * phase + looks, work=(2 + (phase == CONTEST)) * steps
    )


def _hear(state: Underway, i: Tensor, found: Found, phase: int, looks: int) -> None:
    """Takes in all that is not a shared model."""
    chose = state.offered[i] >= 0
    if bool(chose.any()):
        _join(state, i[chose], found.pick[chose])
    if looks == FIRST:
        state.first[i], server = found.told, state.server
        held = server.samples.index_copy(0, i, found.told[:, 0].to(server.samples))
        state.server = server._replace(samples=held)
    elif looks:
        _learn(state, i, found, tells=looks == TELL)
    counts = (state.since[i] == state.stage) & ~chose
    if phase != REST and looks and bool(counts.any()):
        who, pick, server = i[counts], found.pick[counts], state.server
        told = found.evidence[counts].to(server.evidence.total)
        parts = zip(server.evidence, told.split(PAIRS, 1), strict=True)
        # What a client differs from one half by says nothing of the other.
        state.half_offset[who[pick != server.pick[who]]] = 0
        state.server = server._replace(
            pick=server.pick.index_copy(0, who, pick),
            evidence=Evidence(*(a.index_copy(0, who, b) for a, b in parts)),
        )
        state.told[who], state.heard[who] = state.stage, True
    (end, start), _ = _ends(found, phase)
    state.drifts[i] += 1
    state.drift[i] += (end - start - state.drift[i]) / state.drifts[i][:, None]
    state.own[i], state.fresh[i] = found.own, state.began[i] == state.number


def _ends(found: Found, phase: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Where steps of whole and half ended and began, or of that one which took any."""
    whole, half = (found.group, found.group_start), (found.half, found.half_start)
    return half if phase == TRIAL else whole, whole if phase == REST else half


def _join(state: Underway, i: Int[Tensor, " m"], pick: Int[Tensor, " m"]) -> None:
    """Who was busy when its group divided goes to the half that it takes.

    If its group has divided again since, and it stays, it has yet to choose there.
    """
    offered, leaves = state.offered[i], pick == 1
    member = state.server.member.index_copy(0, i[leaves], offered[leaves])
    state.server = state.server._replace(member=member)
    state.other[i[leaves | (state.other[i] == offered)]] = -1
    state.offset[i[leaves]] = 0
    _forget(state.ballot, i[leaves])


def _forget(ballot: Ballot, who: Tensor) -> None:
    """All that these know of the models before counts as one look."""
    ballot.looks[who] = ballot.looks[who].clamp(max=1)
    ballot.tellings[who] = ballot.tellings[who].clamp(max=1)


def _learn(state: Underway, i: Int[Tensor, " m"], found: Found, *, tells: bool) -> None:
    """What clients find out for themselves, what all are told, and choices."""
    of = state.ballot
    of.losses[i], of.looks[i] = averaged(of.losses[i], of.looks[i], found.losses)
    of.samples[i], of.cap[i] = found.samples, found.cap
    if tells:
        of.told[i], of.tellings[i] = averaged(of.told[i], of.tellings[i], found.told)
        of.everybody[:] = of.told[of.tellings > 0].mean(0)
    state.choice[i] = choices(of.losses[i], of.samples[i], of.everybody[i])


def _decide(state: Underway, sizes: Tensor, sure: float) -> Bool[Tensor, " n"]:
    """What a coordinator decides at the end of a round, and whose half is its group."""
    server, nobody = state.server, torch.zeros_like(state.fresh)
    if not state.every:
        who = state.drifts.nonzero()[:, 0]
        told = torch.cat([state.first, sizes.to(state.first)[:, None]], 1)
        server, level, every = plan(server, who, told[who])
        state.level, state.every = level[0].to(state.level), int(every[0])
    if state.number % state.every:
        return nobody
    if server.clock.phase == REST:
        who = state.drifts.nonzero()[:, 0]
        state.server, most = with_directions(server, who, state.drift[who])
        state.most = most.to(state.most)
        state.drift[who], state.drifts[who] = 0, 0
        return nobody
    who = state.heard.nonzero()[:, 0]
    told = torch.cat(server.evidence, 1)[who]
    new, moved = with_evidence(server, who, server.pick[who], told, sure=sure)
    state.server, state.heard = new, nobody
    return moved


def _move(
    state: Underway, i: Int[Tensor, " m"], found: Found, phase: int, now: Coordinator
) -> None:
    """Models move by what arrives, with places as they are before a verdict.

    `phase` is that of the tasks.
    """
    of, share, count = now.member[i], now.shares, len(now.member)
    (whole, start), (half, half_start) = _ends(found, phase)
    most = state.most.expand(len(i))
    end, half_end = cut(whole, start, most), cut(half, half_start, most)
    if now.clock.phase != REST:
        taken = 2 * now.member + now.pick
        total = share.new_zeros(2 * count).index_add(0, taken, share)
        part = (share / total[taken])[i, None]
        halves = state.halves.flatten(0, 1)
        halves.index_add_(0, taken[i], part * (half_end - half_start))
        competes = (state.since[i] == state.stage) & (state.offered[i] < 0)
        competes &= phase != REST
        apart = half_end - halves[taken[i]]
        state.half_offset[i] = followed(state.half_offset[i], apart, competes)
    if now.clock.phase == TRIAL:
        # The whole is the mean of its halves, by who takes them.
        second = places(now).second[:, None]
        one, two = state.halves[now.member].unbind(1)
        state.models[now.member] = one.lerp(two, second)
    else:
        total = share.new_zeros(count).index_add(0, now.member, share)
        part = (share / total[now.member])[i, None]
        state.models.index_add_(0, of, part * (end - start))
    apart = end - state.models[of]
    state.offset[i] = followed(state.offset[i], apart, state.since[i] >= 0)


def _place(state: Underway, old: Coordinator, moved: Bool[Tensor, " n"]) -> None:
    """After a verdict: groups that were halves, or halves where a trial begins."""
    new, pick = state.server, old.pick
    if bool(moved.any()):
        state.models[new.member[moved]] = state.halves[old.member, pick][moved]
        state.offset[moved] = state.half_offset[moved]
        _forget(state.ballot, moved)
        second = moved & (pick == 1)
        names = torch.zeros_like(old.member)
        names[old.member[second]] = new.member[second]
        other = torch.where(second, old.member, names[old.member])
        silent = moved & (state.told != state.stage)
        state.other = torch.where(silent, other, state.other)
        state.since[moved] = -1
    begins = old.clock.phase == REST != new.clock.phase
    if begins:
        of, offset = 2 * new.member + new.pick, torch.zeros_like(state.halves)
        total = new.shares.new_zeros(2 * len(of)).index_add(0, of, new.shares)
        part = (new.shares / total[of])[:, None]
        offset.flatten(0, 1).index_add_(0, of, part * state.offset)
        state.halves = state.models[:, None] + offset
        state.half_offset = torch.zeros_like(state.offset)
    if begins or old.clock.phase != REST == new.clock.phase:
        state.stage += 1
