"""Coteries where nobody waits: answers move models one by one, verdicts come in turn.

A client begins with its group's model w_c as it is, and when it has finished its steps,

    w_c <- w_c + p_i (u_i - the w_c it began with),   p_i its share in its group;

where it is on probation, everybody's model likewise. Once three quarters of the clients
have done a task that began after the last verdict, a coordinator decides as at the end
of a round in which these took part (`coterie.collaboration.divisions`): slow clients do
not hold up the others, and choose their half later, where their group has divided.
Without delays, this is the method of rounds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..collaboration.divisions import (
    MODELS,
    Standing,
    judged,
    one_group,
    proposed,
)
from ..collaboration.evidence import unflat
from ..optim.steps import LocalDescent
from ..types import Arrivals, Clients, Flow, Info, Kind, Options, Oracle, Task
from .coteries_client import coteries_round, followed, sharing, welcomed

_QUORUM = 0.75


@dataclass
class Underway:
    """Models, what clients began with and reported, and where all of them stand."""

    own: Tensor  # (N, D)
    models: Tensor  # (N, D) of the groups, by name
    tuned: Tensor  # (N, D) where its last local steps ended
    offset: Tensor  # (N, D) by what it differs from its group
    began: Tensor  # (N, D) with which model of its group each client began
    update: Tensor  # (N, D) what its last task added to that
    changes: Tensor  # (N, 2, D) by which halves of its group differ from it
    everyone: Tensor  # (D,)
    everyone_offset: Tensor  # (N, D)
    everyone_began: Tensor  # (N, D)
    cap: Tensor  # (N,)
    pick: Tensor  # (N,) the half that each client took
    report: Tensor  # (N, 43) the moments of its losses
    heard: Tensor  # (N,) whether they are new
    fresh: Tensor  # (N,) whether of a task that began after the last verdict
    since: Tensor  # (N,) verdicts before its task began
    offered: Tensor  # (N,) the other half that it has, of a group now divided; or -1
    standing: Standing
    verdicts: int = 0
    trying: bool = False  # whether candidates are sent


def flow_of_coteries(
    shares: Tensor, rule: LocalDescent, steps: int, sure: float
) -> Flow:
    """Coteries for clients that work at their own pace; see `coteries`."""

    def init(x: Tensor) -> Underway:
        w, rows = x.mean(0), torch.zeros_like(x)
        no = torch.zeros(len(x), dtype=torch.bool, device=x.device)
        return Underway(
            own=x.clone(),
            models=w.repeat(len(x), 1),
            tuned=w.repeat(len(x), 1),
            offset=rows.clone(),
            began=rows,
            update=rows.clone(),
            changes=x.new_zeros(len(x), 2, x.shape[1]),
            everyone=w.clone(),
            everyone_offset=rows.clone(),
            everyone_began=rows.clone(),
            cap=x.new_zeros(len(x)),
            pick=no.long(),
            report=x.new_zeros(len(x), 1 + MODELS + MODELS**2),
            heard=no,
            fresh=no.clone(),
            since=no.long(),
            offered=no.long() - 1,
            standing=one_group(x),
        )

    def task(state: Underway, client: int, time: float) -> Task:
        standing, trying = state.standing, state.trying
        on_probation = int(standing.probation[0]) >= 0
        has_two = standing.trial[client] | (standing.sibling[client] >= 0)
        state.began[client] = state.models[standing.member[client]]
        state.everyone_began[client] = state.everyone
        state.since[client] = state.verdicts
        halves = state.began[client] + state.changes[client]
        state.offered[client] = standing.sibling[client]
        if int(standing.sibling[client]) >= 0:
            other = state.models[standing.sibling[client]]
            halves = torch.stack([state.began[client], other])
        rows = (
            *(state.own[client], state.began[client], state.cap[client]),
            *(state.offset[client], halves, has_two),
            *(state.everyone, state.everyone_offset[client]),
        )
        read = len(rows) if on_probation or not state.verdicts else 6 if trying else 4
        kind = int(on_probation) + 2 * trying
        return Task(rows[:read], kind, work=(2 + on_probation) * steps)

    def arrive(state: Underway, now: Arrivals) -> list[int]:
        _take(state, now, shares.to(state.own))
        if int(state.fresh.sum()) >= _QUORUM * len(state.own):
            _judge(state, shares.to(state.own), sure)
        return now.clients

    def personal(state: Underway) -> Tensor:
        standing = state.standing
        everyone = state.everyone.expand_as(state.own)
        group = state.models[standing.member]
        models = [state.own, group, group + state.offset]
        models += [everyone, everyone + state.everyone_offset]
        choice = standing.choice[None, :, None].expand(1, -1, state.own.shape[1])
        return torch.stack(models).gather(0, choice)[0]

    def welcome(state: Underway, oracle: Oracle) -> Tensor:
        group = state.models[state.standing.member]
        of, taken = (
            (state.standing.member, state.standing.choice),
            steps * state.verdicts,
        )
        return welcomed(oracle, group, *of, rule=rule, steps=steps, taken=taken)

    def info(state: Underway) -> Info:
        return sharing(state.standing.member, state.standing.choice)

    program = functools.partial(_task, rule=rule, steps=steps)
    # Beside its own model, a client gets its group's, halves of it, and everybody's.
    kinds = (
        Kind(program, "each", reads=4, down=(1,), up=(1, 4)),
        Kind(functools.partial(program, halves=False), "each", None, (1, 6), (1, 4, 5)),
        Kind(program, "each", reads=6, down=(1, 4), up=(1, 3, 4)),
        Kind(program, "each", down=(1, 4, 6), up=(1, 3, 4, 5)),
    )
    return Flow(init, task, arrive, personal, welcome, info, kinds=kinds, together=True)


def _task(
    clients: Clients,
    own: Float[Tensor, "n d"],
    group: Float[Tensor, "n d"],
    cap: Float[Tensor, " n"],
    offset: Float[Tensor, "n d"],
    candidates: Float[Tensor, "n 2 d"] | None = None,
    asked: Bool[Tensor, " n"] | None = None,
    everyone: Float[Tensor, "n d"] | None = None,
    everyone_offset: Float[Tensor, "n d"] | None = None,
    *,
    rule: LocalDescent,
    steps: int,
    halves: bool = True,
) -> tuple[Tensor, ...]:
    """The client program of a round, for what is sent in this kind of task."""
    none = own[:, :0]
    if candidates is None or asked is None or not halves:
        candidates, asked = own[:, None][:, :0], torch.zeros_like(cap).bool()
    if everyone is None or everyone_offset is None:
        everyone = everyone_offset = none
    pick = torch.zeros_like(asked).long()
    velocities, place = (none, none, none), cap[:, None]
    rows = own, group, everyone, *velocities, cap, pick, place, candidates, asked
    beside = offset, everyone_offset, torch.ones_like(pick)
    work: Options = {"rule": rule, "steps": steps, "t": 0, "everybody": 1.0}
    found = coteries_round(clients, *rows, *beside, **work)
    own, tuned, everyone, _, _, _, cap, pick, report = found
    return own, tuned, cap, pick, report.to(own), everyone


def _take(state: Underway, now: Arrivals, shares: Tensor) -> None:
    """Models move by what arrives; the rest is kept for the next verdict."""
    own, tuned, cap, pick, report, everyone = now.answers
    i = torch.tensor(now.clients, device=own.device)
    steady = state.standing.sibling[i] < 0
    choosing = (state.offered[i] >= 0) & ~steady
    if bool(choosing.any()):
        state.standing = _decided(state.standing, i, state.offered[i], pick, choosing)
        state.offset[i[choosing]] = 0
    standing = state.standing
    member, update = standing.member, tuned - state.began[i]
    total = torch.zeros_like(shares).index_add(0, member, shares)
    part = (shares / total[member])[i]
    state.models.index_add_(0, member[i], part[:, None] * update)
    apart = tuned - state.models[member[i]]
    state.offset[i] = followed(state.offset[i], apart, steady)
    if now.kind % 2 and int(standing.probation[0]) >= 0:
        change = everyone - state.everyone_began[i]
        state.everyone.add_((shares / shares.sum())[i] @ change)
        kept, apart = state.everyone_offset[i], everyone - state.everyone
        state.everyone_offset[i] = followed(kept, apart, torch.ones_like(steady))
    state.own[i], state.tuned[i], state.update[i] = own, tuned, update
    state.cap[i], state.pick[i], state.report[i] = cap, pick, report
    state.heard[i], state.fresh[i] = True, state.since[i] == state.verdicts


def _decided(
    standing: Standing,
    i: Int[Tensor, " m"],
    offered: Int[Tensor, " m"],
    pick: Int[Tensor, " m"],
    choosing: Bool[Tensor, " m"],
) -> Standing:
    """Who was busy when its group divided goes to the half that it took.

    If its group has divided again since, and it stays, it has yet to choose there.
    """
    member, sibling = standing.member.clone(), standing.sibling.clone()
    leaves = choosing & (pick == 1)
    member[i[leaves]] = offered[leaves]
    sibling[i[leaves | (choosing & (sibling[i] == offered))]] = -1
    record = standing.record.index_fill(0, i[choosing], 0)
    return standing._replace(member=member, sibling=sibling, record=record)


def _judge(state: Underway, shares: Tensor, sure: float) -> None:
    """What a coordinator decides, and what follows for the models."""
    old, heard = state.standing, state.heard
    report = unflat(state.report.double(), MODELS)
    fresh, t = state.fresh, state.verdicts
    new, news = judged(old, heard, state.pick, report, t=t, sure=sure, fresh=fresh)
    if bool(news.merged[0]):
        state.models[:], state.offset = state.everyone, state.everyone_offset.clone()
        state.offered = torch.full_like(state.offered, -1)
    elif int(new.probation[0]) >= 0 > int(old.probation[0]):
        state.everyone = shares[heard] / shares[heard].sum() @ state.tuned[heard]
        state.everyone_offset = state.offset.clone()
    moved = news.moved & (old.sibling < 0) & ~news.merged
    for name in new.member[moved].unique().tolist():
        here = heard & (new.member == name)
        if bool(here.any()):
            state.models[name] = shares[here] / shares[here].sum() @ state.tuned[here]
    apart = state.tuned - state.models[new.member]
    first = followed(torch.zeros_like(apart), apart, heard)
    state.offset = torch.where(moved[:, None], first, state.offset)
    rows = state.update, shares, fresh & news.due, new.member
    state.changes, trial = proposed(*rows)
    state.standing = new._replace(trial=trial & (new.sibling < 0))
    state.trying = bool(trial.any()) or bool(news.undecided[0])
    state.heard, state.fresh = torch.zeros_like(heard), torch.zeros_like(heard)
    state.verdicts += 1
