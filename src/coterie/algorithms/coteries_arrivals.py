"""How answers change the state of coteries if clients do not wait.

See `coterie.algorithms.coteries_in_time`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..collaboration.divisions import (
    PAIRS,
    PIECES,
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
from .coteries_client import (
    GROUP,
    Ballot,
    add_look,
    comparison_of,
    empty_ballot,
    few_of,
    follow,
    limit_update,
    plan,
    prior,
)
from .coteries_task import CHOOSE, FIRST, TaskResult


@dataclass
class FlowState:
    """Models, the knowledge and the task of each client, and what is decided."""

    own: Tensor  # (N, D)
    models: Tensor  # (N, D) row g is the model of group g
    offset: Tensor  # (N, D) the difference of each client from its group
    halves: Tensor  # (N, 2, D) row p is pair p; a piece is the first of its row
    drift: Tensor  # (N, D) mean update since the coordinator last used it
    drifts: Tensor  # (N,) the number of tasks in that mean
    ballot: Ballot
    first: Tensor  # (N, 3) what each client sent after its first task
    choice: Tensor  # (N,)
    level: Tensor  # () the usual loss, which is the unit of losses that clients send
    most: Tensor  # () the largest length of an update
    server: Coordinator
    looked: Tensor  # (N,) the period of its last look, -1 before the first
    began: Tensor  # (N,) the round in which its task began
    fresh: Tensor  # (N,) whether it has finished a task that began in this round
    since: Tensor  # (N,) the stage in which its task began; -1 if its group divided
    took: Tensor  # (N,) the stage in which it last took a half
    heard: Tensor  # (N,) whether it has looked since the last decision
    other: Tensor  # (N,) a new group that it may still join, or -1
    offered: Tensor  # (N,) the value of `other` when its task began
    stage: int = 0  # it is odd while halves compete
    every: int = 0  # rounds from one look to the next, 0 before they are planned
    number: int = 0  # the current round


def begin(x: Float[Tensor, "n d"], *, shares: Tensor) -> FlowState:
    """The state before the first task: all clients are in one group."""
    n, no = len(x), torch.zeros(len(x), dtype=torch.bool, device=x.device)
    zero, shares = no.long(), shares.to(x)
    return FlowState(
        own=x.clone(),
        models=x.mean(0).repeat(n, 1),
        offset=torch.zeros_like(x),
        halves=x.new_zeros(n, 2, x.shape[1]),
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
        took=zero - 1,
        heard=no.clone(),
        other=zero - 1,
        offered=zero - 1,
    )


def hear(
    state: FlowState, i: Tensor, found: TaskResult, phase: int, looks: int
) -> None:
    """Stores the answers, except for shared models."""
    chose = state.offered[i] >= 0
    if bool(chose.any()):
        _join(state, i[chose], found.pick[chose])
    if looks == FIRST:
        state.first[i], server = found.told, state.server
        held = server.samples.index_copy(0, i, found.told[:, 0].to(server.samples))
        state.server = server._replace(samples=held)
    elif looks == CHOOSE:
        _learn(state, i, found)
    counts = _competes(state, i, phase)
    if looks and bool(counts.any()):
        who, pick, server = i[counts], found.pick[counts], state.server
        server = server._replace(pick=server.pick.index_copy(0, who, pick))
        if found.evidence.shape[1]:
            told = found.evidence[counts][:, 1:].to(server.evidence.total)
            parts = zip(server.evidence, told.split(PAIRS, 1), strict=True)
            known = Evidence(*(a.index_copy(0, who, b) for a, b in parts))
            server = server._replace(evidence=known)
        state.server, state.heard[who] = server, True
        if phase == TRIAL:
            state.took[who] = state.stage
    (end, start), _ = _ends(found, phase)
    same = (state.since[i] >= 0).to(end)
    state.drifts[i] += same
    rate = (same / state.drifts[i].clamp(min=1))[:, None]
    state.drift[i] += rate * (end - start - state.drift[i])
    state.own[i], state.fresh[i] = found.own, state.began[i] == state.number


def _ends(found: TaskResult, phase: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """(end, start) of the steps of the whole, and of the half.

    In a trial only the half takes steps, and in a rest only the whole. Both pairs are
    then the same.
    """
    whole, half = (found.group, found.group_start), (found.half, found.half_start)
    return half if phase == TRIAL else whole, whole if phase == REST else half


def _competes(state: FlowState, i: Int[Tensor, " m"], phase: int) -> Bool[Tensor, " m"]:
    """Whether each task of that phase was about the halves that compete now."""
    same = (state.since[i] == state.stage) & (state.offered[i] < 0)
    return same & (phase != REST)


def _join(state: FlowState, i: Int[Tensor, " m"], pick: Int[Tensor, " m"]) -> None:
    """Moves clients that were busy when their group divided to the half that they take.

    If the group has divided again and a client stays, it must choose once more.
    """
    offered, leaves = state.offered[i], pick == 1
    server, who, to = state.server, i[leaves], offered[leaves]
    pair = to
    if server.clock.phase == PIECES:
        # A client that joins a group tries a piece of that group.
        pair = server.pair[(server.member == to[:, None]).int().argmax(1)]
    state.server = server._replace(
        member=server.member.index_copy(0, who, to),
        pair=server.pair.index_copy(0, who, pair),
    )
    state.other[i[leaves | (state.other[i] == offered)]] = -1
    state.offset[i[leaves]] = 0
    _forget(state.ballot, i[leaves])


def _forget(ballot: Ballot, who: Tensor) -> None:
    """Makes all earlier looks of these clients count as one."""
    ballot.looks[who] = ballot.looks[who].clamp(max=1)


def _learn(state: FlowState, i: Int[Tensor, " m"], found: TaskResult) -> None:
    """Updates the ballots of clients, the means over all clients, and the choices."""
    of, shares = state.ballot, state.server.shares.to(state.own)
    mine = Ballot(*(part[i] for part in of))
    of.looks[i], of.losses[i], of.told[i] = add_look(mine, found.losses, found.told)
    of.samples[i], of.usual[i] = found.samples, found.usual
    weights = shares * (of.looks > 0)
    of.everybody[:] = weights / weights.sum() @ comparison_of(of.told)
    of.noise[i] = (found.told - found.exact).square().mean(1) * few_of(shares)
    mine = Ballot(*(part[i] for part in of))
    state.choice[i] = choices(mine.losses, mine.samples, prior(mine, state.level))


def decide(state: FlowState, sizes: Tensor, sure: float) -> Bool[Tensor, " n"]:
    """Updates the coordinator after a round; returns which groups have divided.

    The answer is true for every client whose half has become its group.
    """
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
        drift, rounds = state.drift[who], state.drifts[who]
        state.server, most = with_directions(server, who, drift, rounds)
        state.most = most.to(state.most)
        state.drift[who], state.drifts[who] = 0, 0
        return nobody
    who = state.heard.nonzero()[:, 0]
    told = torch.cat(server.evidence, 1)[who]
    new, moved = with_evidence(server, who, server.pick[who], told, sure=sure)
    state.server, state.heard = new, nobody
    return moved


def move(
    state: FlowState,
    i: Int[Tensor, " m"],
    found: TaskResult,
    phase: int,
    now: Coordinator,
) -> None:
    """Updates models with the answers that arrive.

    `phase` is the phase of the tasks, and `now` is the coordinator before its decision.
    """
    share, (whole, half) = now.shares, _ends(found, phase)
    most, counts = state.most.expand(len(i)), _competes(state, i, phase)
    everybody = torch.ones_like(i, dtype=torch.bool)
    end = limit_update(*whole, most, everybody)
    half_end = limit_update(*half, most, everybody)[counts]
    if bool(counts.any()):
        taken, halves = 2 * now.pair + now.pick, state.halves.view(-1, end.shape[1])
        who, of = i[counts], taken[i[counts]]
        part = _parts(share, taken)[who, None]
        halves.index_add_(0, of, part * (half_end - half[1][counts]))
    of, same = now.member[i], state.since[i] >= 0
    if now.clock.phase == TRIAL:
        # The whole is the mean of its halves, weighted by the clients that take them.
        one, two = state.halves[now.member].unbind(1)
        state.models[now.member] = one.lerp(two, places(now).second[:, None])
    else:
        of_group = same & ((state.offered[i] >= 0) | (phase != TRIAL))
        part = (_parts(share, now.member)[i] * of_group)[:, None]
        state.models.index_add_(0, of, part * (end - whole[1]))
    state.offset[i] = follow(state.offset[i], end, state.models[of], same)


def _parts(share: Float[Tensor, " n"], of: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The share of each client among the clients with the same number."""
    return share / share.new_zeros(2 * len(of)).index_add(0, of, share)[of]


def place(state: FlowState, old: Coordinator, moved: Bool[Tensor, " n"]) -> None:
    """Sets the models of new groups, or of halves if they begin to compete."""
    new, pick = state.server, old.pick
    if bool(moved.any()):
        state.models[new.member[moved]] = state.halves[old.pair, pick][moved]
        state.offset[moved] = 0
        _forget(state.ballot, moved)
        second = moved & (pick == 1)
        names = torch.zeros_like(old.member)
        names[old.member[second]] = new.member[second]
        other = torch.where(second, old.member, names[old.member])
        # Clients do not choose between pieces.
        chooses = old.clock.phase != PIECES
        silent = moved & (state.took != state.stage) & chooses
        state.other = torch.where(silent, other, state.other)
        state.since[moved] = -1
    rested, rests = (one.clock.phase == REST for one in (old, new))
    if rested and not rests:
        of, group_of = 2 * new.pair + new.pick, torch.zeros_like(new.member)
        group_of[new.pair] = new.member
        part = _parts(new.shares, of)[:, None]
        halves = state.models[group_of].repeat_interleave(2, 0)
        state.halves = halves.index_add_(0, of, part * state.offset).unflatten(
            0, (-1, 2)
        )
    state.stage += rested != rests
