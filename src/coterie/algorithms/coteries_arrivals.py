"""What answers do to the state of coteries, where nobody waits.

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
    cut,
    empty_ballot,
    few_of,
    follow,
    plan,
    prior,
)
from .coteries_task import CHOOSE, FIRST, Found


@dataclass
class FlowState:
    """Models, what clients know and told, when they began, and what is decided."""

    own: Tensor  # (N, D)
    models: Tensor  # (N, D) of the groups, by name
    offset: Tensor  # (N, D) by what a client differs from its group
    halves: Tensor  # (N, 2, D) of pairs, by name, or of pieces, in the first place
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
    took: Tensor  # (N,) the stage in which it took a half last
    heard: Tensor  # (N,) whether it has looked since the last verdict
    other: Tensor  # (N,) the other half of its group that divided, or -1
    offered: Tensor  # (N,) the same when its task began
    stage: int = 0  # it is odd while halves compete
    every: int = 0  # rounds from one look to the next, 0 before it is planned
    number: int = 0  # of the round


def begin(x: Float[Tensor, "n d"], *, shares: Tensor) -> FlowState:
    """One group of all, of whom nobody has begun."""
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


def hear(state: FlowState, i: Tensor, found: Found, phase: int, looks: int) -> None:
    """Takes in all that is not a shared model."""
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


def _ends(found: Found, phase: int) -> tuple[tuple[Tensor, Tensor], ...]:
    """Where steps of whole and half ended and began, or of that one which took any."""
    whole, half = (found.group, found.group_start), (found.half, found.half_start)
    return half if phase == TRIAL else whole, whole if phase == REST else half


def _competes(state: FlowState, i: Int[Tensor, " m"], phase: int) -> Bool[Tensor, " m"]:
    """Whose task of that phase was about the halves that are there now."""
    same = (state.since[i] == state.stage) & (state.offered[i] < 0)
    return same & (phase != REST)


def _join(state: FlowState, i: Int[Tensor, " m"], pick: Int[Tensor, " m"]) -> None:
    """A client that was busy when its group divided goes to the half that it takes.

    If its group has divided again since, and it stays, it has yet to choose there.
    """
    offered, leaves = state.offered[i], pick == 1
    server, who, to = state.server, i[leaves], offered[leaves]
    pair = to
    if server.clock.phase == PIECES:
        # A newcomer of a group tries a piece of that group.
        pair = server.pair[(server.member == to[:, None]).int().argmax(1)]
    state.server = server._replace(
        member=server.member.index_copy(0, who, to),
        pair=server.pair.index_copy(0, who, pair),
    )
    state.other[i[leaves | (state.other[i] == offered)]] = -1
    state.offset[i[leaves]] = 0
    _forget(state.ballot, i[leaves])


def _forget(ballot: Ballot, who: Tensor) -> None:
    """All that these know of the models before counts as one look."""
    ballot.looks[who] = ballot.looks[who].clamp(max=1)


def _learn(state: FlowState, i: Int[Tensor, " m"], found: Found) -> None:
    """What clients find out for themselves, what all are told, and choices."""
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
    state: FlowState, i: Int[Tensor, " m"], found: Found, phase: int, now: Coordinator
) -> None:
    """Moves models by the answers that arrive.

    Places are as they were before a verdict. `phase` is that of the tasks.
    """
    share, (whole, half) = now.shares, _ends(found, phase)
    most, counts = state.most.expand(len(i)), _competes(state, i, phase)
    everybody = torch.ones_like(i, dtype=torch.bool)
    end = cut(*whole, most, everybody)
    half_end = cut(*half, most, everybody)[counts]
    if bool(counts.any()):
        taken, halves = 2 * now.pair + now.pick, state.halves.view(-1, end.shape[1])
        who, of = i[counts], taken[i[counts]]
        part = _parts(share, taken)[who, None]
        halves.index_add_(0, of, part * (half_end - half[1][counts]))
    of, same = now.member[i], state.since[i] >= 0
    if now.clock.phase == TRIAL:
        # The whole is the mean of its halves, by who takes them.
        one, two = state.halves[now.member].unbind(1)
        state.models[now.member] = one.lerp(two, places(now).second[:, None])
    else:
        of_group = same & ((state.offered[i] >= 0) | (phase != TRIAL))
        part = (_parts(share, now.member)[i] * of_group)[:, None]
        state.models.index_add_(0, of, part * (end - whole[1]))
    state.offset[i] = follow(state.offset[i], end, state.models[of], same)


def _parts(share: Float[Tensor, " n"], of: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The share of each client in those who have the same number."""
    return share / share.new_zeros(2 * len(of)).index_add(0, of, share)[of]


def place(state: FlowState, old: Coordinator, moved: Bool[Tensor, " n"]) -> None:
    """After a verdict: groups that were halves, or halves where a trial begins."""
    new, pick = state.server, old.pick
    if bool(moved.any()):
        state.models[new.member[moved]] = state.halves[old.pair, pick][moved]
        state.offset[moved] = 0
        _forget(state.ballot, moved)
        second = moved & (pick == 1)
        names = torch.zeros_like(old.member)
        names[old.member[second]] = new.member[second]
        other = torch.where(second, old.member, names[old.member])
        # Nobody chooses between pieces.
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
