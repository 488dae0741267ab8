"""Groups found on the way, a model trained alone beside them, and a cautious choice.

In round t every client i of group c

    v_i <- `steps` local steps from v_i            its own model, that nobody else sees
    u_i <- `steps` local steps from w_c            and then  w_c <- mean of u_i over c
    o_i <- o_i + (u_i - w_c - o_i) / 4             by what it differs from its group

and, before it begins, reports how well v_i, w_c and w_c + o_i do on its held-out
(validation) samples. These decide two things. Groups divide, from one group on, where
two halves of a group are surely better for its members than the whole
(`coterie.collaboration.divisions`). And each client uses that of v_i, w_c and w_c + o_i
which should have the least loss, by its own evidence and everybody's
(`coterie.collaboration.evidence.choices`): so, where nobody helps, local training;
where all are alike, FedAvg; where labels are skewed, personalised FedAvg; and where
there are groups, FedAvg in each.

What it minimises is the mean held-out loss of the models in use, over partitions into
groups and over choices, greedily; a difference counts beyond its standard error only.

References:
    Sattler, Müller, Samek, "Clustered federated learning: model-agnostic distributed
    multitask optimization under privacy constraints", IEEE TNNLS, 2020, arXiv
    1910.01991, for halves by directions of updates; the rest is ours.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..checks import InputError
from ..collaboration.divisions import (
    MODELS,
    News,
    Standing,
    judged,
    one_group,
    proposed,
)
from ..collaboration.evidence import unflat
from ..collaboration.weights import shares_of
from ..optim.steps import LocalDescent, velocity
from ..options import Count, Positive, Sizes, method
from ..types import Algorithm, Info, Numbers, Options, Oracle, Rows, Server
from .coteries_client import coteries_round, followed, sharing, welcomed
from .coteries_in_time import flow_of_coteries


class Coordinator(NamedTuple):
    """What the coordinator remembers of all N clients."""

    standing: Standing
    shares: Tensor  # (N,)


class Place(NamedTuple):
    """What a client was told of its group, and which model it should use."""

    member: Rows  # (n,) its group
    choice: Rows  # (n,)
    waits: Rows  # (n,) whether its group divided while it was away
    trial: Rows  # (n,) whether halves of its group are tried in the next round
    together: Rows  # (n,) how many clients its group has


class State(NamedTuple):
    """Models, momentum, what is known of groups, and gradient steps taken.

    Everybody's model is there in probation only, and candidates where some are tried.
    """

    own: Rows  # (n, D)
    group: Rows  # (n, D) as it will be received
    offset: Rows  # (n, D) by what a client differs from it
    everyone: Rows  # (n, D) or (n, 0)
    everyone_offset: Rows  # (n, D) or (n, 0)
    candidates: Rows  # (n, 2, D) or (n, 0, D)
    own_velocity: Rows  # (n, D), or (n, 0) without momentum
    group_velocity: Rows
    everyone_velocity: Rows
    cap: Rows  # (n,) of a sample's loss, 0 before the first
    place: Place
    server: Server
    t: int

    @property
    def standing(self) -> Standing:
        """What the coordinator knows of all clients."""
        return self.server.standing


@method(in_rounds=("momentum", "schedule"))
def coteries(
    sizes: Sizes,
    *,
    rule: LocalDescent = LocalDescent(),
    steps: Count = 1,
    weighting: str = "samples",
    sure: Positive = 2.5,
) -> Algorithm:
    """Coteries: groups that divide on evidence, with training alone as insurance.

    It costs two local trainings, a third while the first groups are on probation, and
    chooses by validation data, which it therefore needs. A newcomer gets the group
    model that fits its training data best, and uses it as most of that group do.

    Args:
        sizes: (N,) training samples of each client.
        rule: of all local steps.
        steps: local gradient steps in one round, of each model.
        weighting: `samples` or `uniform` weights of the averages.
        sure: standard errors by which groups must be better than their union.
    """
    shares = shares_of(sizes, weighting)

    def init(x: Tensor, oracle: Oracle) -> State:
        w = oracle.average(x.new_ones(len(x)), x)
        none, v = x[:, :0], velocity(rule, x)
        own = x, w, torch.zeros_like(x)
        rows = *own, none, none, x.new_empty(len(x), 0, x.shape[1]), v, v, v[:, :0]
        told = Numbers(shares.to(x)[oracle.mine])
        server, *place = oracle.central(_begin, None, told)
        return State(*rows, x.new_zeros(len(x)), Place(*place), server, 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        before, share = state.group, shares.to(state.own)[oracle.mine]
        state, ends, news, groups = _trained(state, oracle, rule, steps, sure)
        state = _averaged(state, oracle, share, ends, news, groups)
        state = _with_candidates(state, oracle, news, ends.group - before)
        return state, sharing(state.place.member, state.place.choice)

    def welcome(state: State, oracle: Oracle) -> Tensor:
        of = state.place.member, state.place.choice
        work: Options = {"steps": steps, "taken": state.t}
        return welcomed(oracle, state.group, *of, rule=rule, **work)

    flow = flow_of_coteries(shares, rule, steps, sure)
    return Algorithm(init, step, lambda state, oracle: in_use(state), welcome, flow)


def in_use(state: State) -> Float[Tensor, "n d"]:
    """The model that each client uses."""
    models = [state.own, state.group, state.group + state.offset]
    if state.everyone.shape[1]:
        models += [state.everyone, state.everyone + state.everyone_offset]
    choice = state.place.choice[None, :, None].expand(1, -1, state.own.shape[1])
    return torch.stack(models).gather(0, choice)[0]


class Ends(NamedTuple):
    """Where the local steps of active clients end, from the models they received."""

    group: Rows  # (n, D)
    everyone: Rows  # (n, D) or (n, 0)
    steady: Rows  # (n,) who took them in the group that it belongs to


class Groups(NamedTuple):
    """What clients are told of all groups."""

    heard: Rows  # (n,) whether anybody of one's own takes part
    number: int  # their names are below it


def _trained(
    state: State, oracle: Oracle, rule: LocalDescent, steps: int, sure: float
) -> tuple[State, Ends, News, Groups]:
    """After the local steps, with what a coordinator makes of the reports."""
    old, n = state.place, len(state.own)
    nothing = state.own.new_zeros(n, 1 + MODELS + MODELS**2, dtype=torch.float64)
    velocities = state.own_velocity, state.group_velocity, state.everyone_velocity
    own, group, everyone, v, w_v, e_v, cap, pick, report = oracle.each(
        coteries_round,
        *(state.own, state.group, state.everyone, *velocities, state.cap),
        *(torch.zeros_like(old.member), nothing),
        *(state.candidates, old.trial | old.waits),
        *(state.offset, state.everyone_offset, old.together),
        rule=rule,
        steps=steps,
        t=state.t,
        everybody=float(len(oracle.present)),
    )
    told = Numbers(pick), Numbers(report)
    server, *found = oracle.central(
        _verdict, state.server, *told, t=state.t // steps, sure=sure
    )
    after = state._replace(
        own=own,
        own_velocity=v,
        group_velocity=w_v,
        everyone_velocity=e_v,
        cap=cap,
        place=Place(*found[: len(old)]),
        server=server,
        t=state.t + steps,
    )
    ends = Ends(group, everyone, oracle.active & ~old.waits)
    *news, heard, count = found[len(old) :]
    return after, ends, News(*news), Groups(heard, int(count[0]))


def _begin(
    server: None, who: Tensor, shares: Float[Tensor, " n"]
) -> tuple[Coordinator | Tensor, ...]:
    """A coordinator's program: one group of all, before the first round."""
    standing = one_group(shares[:, None])
    return Coordinator(standing, shares), *_places(standing)


def _places(of: Standing) -> Place:
    """What clients are told of where they stand."""
    together = torch.bincount(of.member, minlength=len(of.member))[of.member]
    return Place(of.member, of.choice, of.sibling >= 0, of.trial, together)


def _verdict(
    server: Coordinator,
    who: Int[Tensor, " p"],
    pick: Int[Tensor, " p"],
    report: Float[Tensor, "p m"],
    *,
    t: int,
    sure: float,
) -> tuple[Coordinator | Tensor, ...]:
    """A coordinator's program: what it makes of reports, places, news and groups."""
    n = len(server.shares)
    if not bool((unflat(report, MODELS).samples > 0).any()):
        raise InputError(
            "coteries chooses by validation data, but no client that takes part has "
            "any: give a `validation` share above 0, or another method."
        )
    active = torch.zeros(n, dtype=torch.bool, device=who.device)
    active[who] = True
    picks = torch.zeros_like(active, dtype=torch.long).index_copy(0, who, pick)
    reports = report.new_zeros(n, report.shape[1]).index_copy(0, who, report)
    told = unflat(reports, MODELS)
    new, news = judged(server.standing, active, picks, told, t=t, sure=sure)
    heard = torch.isin(new.member, new.member[active & (server.shares > 0)])
    count = torch.full_like(new.member, int(new.member.max()) + 1)
    return server._replace(standing=new), *_places(new), *news, heard, count


def _averaged(
    state: State,
    oracle: Oracle,
    share: Tensor,
    ends: Ends,
    news: News,
    groups: Groups,
) -> State:
    """New models of the groups, and everybody's as long as it is on trial."""
    member, none, active = state.place.member, state.own[:, :0], oracle.active
    alone = state._replace(everyone=none, everyone_offset=none, everyone_velocity=none)
    if bool(news.merged[0]):
        w = oracle.average(share, ends.everyone)
        return alone._replace(
            group=w,
            offset=followed(state.everyone_offset, ends.everyone - w, active),
            group_velocity=state.everyone_velocity,
        )
    if bool(news.tried[0]):
        beside = ends.everyone, state.everyone_offset, state.everyone_velocity
        if not state.everyone.shape[1]:  # it begins: so far, the group was everybody
            beside = ends.group, state.offset, state.group_velocity
        end, offset, v = beside
        w = oracle.average(share, end)
        alone = state._replace(
            everyone=w,
            everyone_offset=followed(offset, end - w, active),
            everyone_velocity=v,
        )
    w = oracle.average(share, ends.group, member, count=groups.number)
    # What is known of a model, and its buffer, say nothing of another group's.
    moved = news.moved[:, None]
    offset = torch.where(moved, 0, state.offset)
    return alone._replace(
        group=torch.where(groups.heard[:, None], w, state.group),
        offset=followed(offset, ends.group - w, ends.steady),
        group_velocity=torch.where(moved, 0, state.group_velocity),
    )


def _with_candidates(state: State, oracle: Oracle, news: News, update: Tensor) -> State:
    """With the halves that are tried in the next round, where there are some."""
    server, place, before = state.server, state.place, state.candidates
    candidates = before[:, :0]
    if bool(news.dividing[0]):
        server, moved, trial = oracle.central(
            _halves, server, update, Numbers(news.due)
        )
        # Columns that stay at home come back as they were, and are as the group's.
        candidates = (state.group - update)[:, None] + moved
        place = place._replace(trial=trial)
    if bool(news.undecided[0]):
        server, other, told = oracle.central(_siblings, server, state.group)
        # Where nobody of the other half is there, its model is as it was.
        last = before[:, 1] if before.shape[1] else state.group
        other = torch.where((told & place.waits)[:, None], other, last)
        both = torch.stack([state.group, other], 1)
        if candidates.shape[1]:
            both = torch.where(place.waits[:, None, None], both, candidates)
        candidates = both
    return state._replace(candidates=candidates, place=place, server=server)


def _halves(
    server: Coordinator,
    who: Int[Tensor, " p"],
    update: Float[Tensor, "p d"],
    due: Bool[Tensor, " p"],
) -> tuple[Coordinator, Tensor, Tensor]:
    """A coordinator's program: updates with what halves differ by, and who has such."""
    standing, n = server.standing, len(server.shares)
    everybody = update.new_zeros(n, update.shape[1]).index_copy(0, who, update)
    heard = torch.zeros(n, dtype=torch.bool, device=who.device)
    heard[who] = due
    changes, trial = proposed(everybody, server.shares, heard, standing.member)
    trial = trial & (standing.sibling < 0)
    server = server._replace(standing=standing._replace(trial=trial))
    return server, everybody[:, None] + changes, trial


def _siblings(
    server: Coordinator, who: Int[Tensor, " p"], group: Float[Tensor, "p d"]
) -> tuple[Coordinator, Tensor, Tensor]:
    """A coordinator's program: the model of the other half, and who gets one.

    It is for those who were away when their group divided.
    """
    standing = server.standing
    same = standing.sibling[:, None] == standing.member[who]
    return server, group[same.int().argmax(1)], same.any(1)
