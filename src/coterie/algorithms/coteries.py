"""Groups found on the way, a model trained alone beside them, and a cautious choice.

In round t every client i of group c

    v_i <- `steps` local steps from v_i            its own model, that nobody else sees
    u_i <- `steps` local steps from w_c            and then  w_c <- mean of u_i over c

and reports how well v_i, w_c and u_i do on its held-out (validation) samples. These
decide two things. Groups divide, from one group on, where two halves of a group are
surely better for its members than the whole (`coterie.collaboration.divisions`). And
each client uses that of v_i, w_c and u_i which should have the least loss, by its own
evidence and everybody's (`coterie.collaboration.evidence.choices`): so, where nobody
helps, local training; where all are alike, FedAvg; where labels are skewed, fine-tuned
FedAvg; and where there are groups, FedAvg in each.

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
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import InputError
from ..collaboration.divisions import (
    MODELS,
    OWN,
    News,
    Standing,
    judged,
    one_group,
    proposed,
)
from ..collaboration.evidence import unflat
from ..collaboration.weights import shares_of
from ..optim.steps import Descent, velocity
from ..options import Count, Positive, Sizes, method
from ..types import Algorithm, Info, Oracle, Rows
from .coteries_client import coteries_round, sharing, welcomed
from .coteries_in_time import flow_of_coteries


class State(NamedTuple):
    """Models, momentum, what is known of groups, and gradient steps taken.

    Everybody's model is there in probation only, and candidates where some are tried.
    """

    own: Rows  # (n, D)
    group: Rows  # (n, D) as it will be received
    tuned: Rows  # (n, D) the same after the last local steps
    everyone: Rows  # (n, D) or (n, 0)
    everyone_tuned: Rows  # (n, D) or (n, 0)
    candidates: Rows  # (n, 2, D) or (n, 0, D)
    own_velocity: Rows  # (n, D), or (n, 0) without momentum
    group_velocity: Rows
    everyone_velocity: Rows
    cap: Rows  # (n,) of a sample's loss, 0 before the first
    standing: Standing
    t: int


@method(in_rounds=("momentum", "schedule"))
def coteries(
    sizes: Sizes,
    *,
    rule: Descent = Descent(),
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
        rows = x, w, w, none, none, x.new_empty(len(x), 0, x.shape[1]), v, v, v[:, :0]
        return State(*rows, x.new_zeros(len(x)), one_group(x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        before, share = state.group, shares.to(state.own)[oracle.mine]
        state, news = _trained(state, oracle, rule, steps, sure)
        state = _averaged(state, oracle, share, news)
        update = state.tuned - before
        state = _with_candidates(state, oracle, share, news, update)
        standing = state.standing
        rows = standing.choice, standing.member, share
        weights, groups = oracle.central(sharing, *rows)
        alone = (standing.choice == OWN).to(share)
        return state, {"weights": weights, "groups": groups, "alone": alone}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        group, standing = state.group, state.standing
        return welcomed(oracle, group, standing, rule=rule, steps=steps, taken=state.t)

    flow = flow_of_coteries(shares, rule, steps, sure)
    return Algorithm(init, step, lambda state, oracle: in_use(state), welcome, flow)


def in_use(state: State) -> Float[Tensor, "n d"]:
    """The model that each client uses."""
    models = [state.own, state.group, state.tuned]
    if state.everyone.shape[1]:
        models += [state.everyone, state.everyone_tuned]
    choice = state.standing.choice[None, :, None].expand(1, -1, state.own.shape[1])
    return torch.stack(models).gather(0, choice)[0]


def _trained(
    state: State, oracle: Oracle, rule: Descent, steps: int, sure: float
) -> tuple[State, News]:
    """After the local steps, with what a coordinator makes of the reports."""
    old, n = state.standing, len(state.own)
    nothing = state.own.new_zeros(n, 1 + MODELS + MODELS**2, dtype=torch.float64)
    velocities = state.own_velocity, state.group_velocity, state.everyone_velocity
    own, tuned, everyone, v, w_v, e_v, cap, pick, report = oracle.each(
        coteries_round,
        *(state.own, state.group, state.everyone, *velocities, state.cap),
        *(torch.zeros_like(old.member), nothing),
        *(state.candidates, old.trial | (old.sibling >= 0)),
        rule=rule,
        steps=steps,
        t=state.t,
    )
    # As columns: numbers that happen to be as many as parameters are no models.
    known = old._replace(record=old.record[..., None])
    rows = *known, oracle.active, pick, report[..., None]
    found = oracle.central(_verdict, *rows, t=state.t // steps, sure=sure)
    # An inactive client has no local steps of the group's model behind it.
    after = state._replace(
        own=own,
        tuned=torch.where(oracle.active[:, None], tuned, state.tuned),
        everyone_tuned=everyone,
        own_velocity=v,
        group_velocity=w_v,
        everyone_velocity=e_v,
        cap=cap,
        standing=Standing(*found[: len(old)]),
        t=state.t + steps,
    )
    return after, News(*found[len(old) :])


def _verdict(*rows: Tensor, t: int, sure: float) -> tuple[Tensor, ...]:
    """What a coordinator makes of the reports: standing and news, row by row."""
    *known, active, pick, report = rows
    old, told = Standing(*known), unflat(report[..., 0], MODELS)
    if not bool((told.samples > 0).any()):
        raise InputError(
            "coteries chooses by validation data, but no client that takes part has "
            "any: give a `validation` share above 0, or another method."
        )
    old = old._replace(record=old.record[..., 0])
    new, news = judged(old, active, pick, told, t=t, sure=sure)
    return *new, *news


def _averaged(state: State, oracle: Oracle, share: Tensor, news: News) -> State:
    """New models of the groups, and everybody's as long as it is on trial."""
    standing, none = state.standing, state.own[:, :0]
    alone = state._replace(everyone=none, everyone_tuned=none, everyone_velocity=none)
    if bool(news.merged[0]):
        return alone._replace(
            group=oracle.average(share, state.everyone_tuned),
            tuned=state.everyone_tuned,
            group_velocity=state.everyone_velocity,
        )
    if int(standing.probation[0]) >= 0:
        beside = state.everyone_tuned, state.everyone_velocity
        if not state.everyone.shape[1]:  # it begins: so far, the group was everybody
            beside = state.tuned, state.group_velocity
        everyone = oracle.average(share, beside[0])
        alone = state._replace(
            everyone=everyone, everyone_tuned=beside[0], everyone_velocity=beside[1]
        )
    heard = oracle.average(share, torch.ones_like(share)[:, None], standing.member)
    w = oracle.average(share, state.tuned, standing.member)
    # A buffer is about the model that it was filled with.
    v = torch.where(news.moved[:, None], 0, state.group_velocity)
    return alone._replace(
        group=torch.where(heard > 0, w, state.group), group_velocity=v
    )


def _with_candidates(
    state: State, oracle: Oracle, share: Tensor, news: News, update: Tensor
) -> State:
    """With the halves that are tried in the next round, where there are some."""
    standing, candidates = state.standing, state.candidates[:, :0]
    if bool(news.dividing[0]):
        heard = oracle.active & news.due
        rows = update, share, heard, standing.member
        moved, trial = oracle.central(_halves, *rows)
        # Columns that stay at home come back as they were, and are as the group's.
        candidates = (state.group - update)[:, None] + moved
        standing = standing._replace(trial=trial & (standing.sibling < 0))
    if bool(news.undecided[0]):
        (other,) = oracle.central(_siblings, state.group, *standing[:2])
        both = torch.stack([state.group, other], 1)
        if candidates.shape[1]:
            waits = (standing.sibling >= 0)[:, None, None]
            both = torch.where(waits, both, candidates)
        candidates = both
    return state._replace(candidates=candidates, standing=standing)


def _halves(update: Tensor, *rows: Tensor) -> tuple[Tensor, Tensor]:
    """Updates and what halves differ by (n, 2, D), and who has such halves."""
    changes, trial = proposed(update, *rows)
    return update[:, None] + changes, trial


def _siblings(
    group: Float[Tensor, "n d"], member: Int[Tensor, " n"], sibling: Int[Tensor, " n"]
) -> Float[Tensor, "n d"]:
    """For who was away when its group divided, the model of the other half."""
    same = sibling[:, None] == member
    return torch.where(same.any(1)[:, None], group[same.int().argmax(1)], group)
