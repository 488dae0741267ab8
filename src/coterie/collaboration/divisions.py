"""Groups that divide where held-out data say so: what a coordinator decides in a round.

All clients begin in one group. Where the updates of a group's members point apart, two
halves of it are proposed; every member takes the half whose model has the smaller loss
on its training data, and the group divides if, on the members' held-out samples, these
halves are better than the whole by `sure` standard errors. The first division is on
probation: everybody's model is trained beside the groups for a while, and unless they
are better by as much again, all are one group as before and wait twice as long for the
next attempt. Without it, skewed labels would divide a federation whose members need
each other.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .evidence import Moments, best_on_the_whole, choices, surely_better

OWN, RAW, TUNED, ALL_RAW, ALL_TUNED, HALF = range(6)
"""The models that a client compares: its own; its group's as received, and after its
local steps; in probation everybody's; and the half of its group that it would take."""

MODELS = 6

_BEGIN = 1
"""The first round, from 0, after which halves are proposed."""

_REST = 4
"""Rounds for which a group whose halves were no better is left alone."""

_ALIKE = 1e-6
"""Sum of cubes of a unit vector below which rounding may have made its sign."""

_PROBATION, _LONGEST = 3, 6
"""Rounds for which everybody's model is trained beside the first groups, at least and
at most."""

_PAUSE = 8
"""Rounds until the next attempt, where groups were not better."""

_MEMORY = 0.8
"""How much of the recorded losses is kept in a round."""


class Standing(NamedTuple):
    """What a coordinator knows of each client's group, models and choice."""

    member: Tensor  # (n,) its group, a whole number
    sibling: (
        Tensor  # (n,) the other half, if its group divided while it was away; or -1
    )
    rest: Tensor  # (n,) the round before which its group is left alone
    trial: Tensor  # (n,) whether halves of its group are tried in the next round
    record: (
        Tensor  # (n, 6) discounted losses of the first five models, and their weight
    )
    choice: Tensor  # (n,) which model it should use
    probation: Tensor  # (n,) when it may end, the same for all; or -1
    settled: Tensor  # (n,) whether groups have passed it
    pause: Tensor  # (n,) rounds until the next attempt, if they do not


class News(NamedTuple):
    """What follows for the rest of the round; the last four are the same for all."""

    moved: Bool[Tensor, " n"]  # whose group has changed
    due: Bool[Tensor, " n"]  # whose group may be divided
    dividing: Bool[Tensor, " n"]  # whether there is such a group
    merged: Bool[Tensor, " n"]  # whether all are one group again
    undecided: Bool[Tensor, " n"]  # whether somebody was away when its group divided
    tried: Bool[Tensor, " n"]  # whether everybody's model is trained beside the groups


def one_group(x: Float[Tensor, "n d"]) -> Standing:
    """Everybody together, and nothing known."""
    zero = torch.zeros(len(x), dtype=torch.long, device=x.device)
    no = zero.bool()
    record = x.new_zeros(len(x), MODELS)
    pause = zero + _PAUSE
    return Standing(zero, zero - 1, zero, no, record, zero + RAW, zero - 1, no, pause)


def halves(
    update: Float[Tensor, "n d"], shares: Float[Tensor, " n"]
) -> Float[Tensor, "2 d"] | None:
    """Mean updates of two halves, or None where all point to the same side.

    The halves are the two sides of the direction in which the normalised updates differ
    most.
    """
    unit = torch.nn.functional.normalize(update.double())
    apart = unit - unit.mean(0)
    values, vectors = torch.linalg.eigh(apart @ apart.T)
    if values[-1] < len(update) * torch.finfo(update.dtype).eps ** 0.5:
        return None
    v = vectors[:, -1]
    # The sign of an eigenvector means nothing. Where both sides are alike, as those of
    # two clients are, the way from one to the other decides, and not rounding.
    sign = (v**3).sum()
    if abs(sign) < _ALIKE:
        way = v @ unit
        sign = way[(way.abs() > way.abs().max() / 2).int().argmax()]
    side = (v if sign >= 0 else -v) > 0
    weight = torch.stack([~side, side]) * shares
    return (weight / weight.sum(1, keepdim=True)).to(update) @ update


def proposed(
    update: Float[Tensor, "n d"],
    shares: Float[Tensor, " n"],
    heard: Bool[Tensor, " n"],
    member: Int[Tensor, " n"],
) -> tuple[Tensor, Tensor]:
    """By how much the halves of each group differ from it (n, 2, D), and who has such.

    Args:
        update: what local steps added to the group's model.
        shares: of each client in an average.
        heard: whose updates count.
        member: the groups.
    """
    heard = heard & update.isfinite().all(1)  # a direction of nothing is none
    changes = update.new_zeros(len(update), 2, update.shape[1])
    trial = torch.zeros_like(heard)
    for group in member[heard].unique():
        here = (member == group) & heard
        found = halves(update[here], shares[here]) if int(here.sum()) > 1 else None
        if found is not None:
            mean = shares[here] / shares[here].sum() @ update[here]
            changes[member == group] = found - mean
            trial |= member == group
    return changes, trial


def judged(
    old: Standing,
    active: Bool[Tensor, " n"],
    pick: Int[Tensor, " n"],
    report: Moments,
    *,
    t: int,
    sure: float,
    fresh: Bool[Tensor, " n"] | None = None,
) -> tuple[Standing, News]:
    """The standing after round t, whose held-out losses are reported by the active.

    Args:
        old: the standing before.
        active: who took part.
        pick: the half, 0 or 1, that each client took, where it tried two.
        report: the moments of its losses.
        t: the round, counted from 0.
        sure: standard errors by which groups must be better to be divided.
        fresh: whose models were those of the standing before; None: all who took part.
    """
    fresh = active if fresh is None else fresh
    new, moved = _divided(old, fresh, pick, report, t, sure)
    new = new._replace(record=_recorded(new.record, active, moved, report))
    new, merged = _after_probation(new, old, fresh, report, t, sure)
    new = new._replace(choice=_chosen(new, active, report), trial=new.trial & False)
    large = torch.bincount(new.member)[new.member] > 1
    due = (new.rest <= t) & large & (new.sibling < 0) & (t >= _BEGIN)
    tried = int(new.probation[0]) >= 0
    flags = (bool(due.any()), merged, bool((new.sibling >= 0).any()), tried)
    return new, News(moved, due, *(torch.full_like(active, flag) for flag in flags))


def _divided(
    old: Standing,
    active: Tensor,
    pick: Tensor,
    report: Moments,
    t: int,
    sure: float,
) -> tuple[Standing, Tensor]:
    """Groups that pass their trial are divided; who was away decides on its return."""
    member, sibling, rest = old.member.clone(), old.sibling.clone(), old.rest.clone()
    back = active & (sibling >= 0)
    member[back & (pick == 1)] = sibling[back & (pick == 1)]
    sibling[back] = -1
    moved, probation = back.clone(), old.probation
    for group in old.member[old.trial].unique():
        everyone = old.member == group
        here = everyone & active & old.trial
        gain = surely_better(report.pooled(here), HALF, RAW)
        if gain <= 0:
            rest[everyone] = t + 1 + _REST
        second = here & (pick == 1)
        if gain <= sure or not bool(second.any()) or bool((second == here).all()):
            continue
        name = int(torch.bincount(member, minlength=len(member) + 1).argmin())
        member[second] = name
        sibling[everyone & ~here] = name
        moved |= everyone
        if bool(everyone.all()) and not bool(old.settled[0]):
            probation = torch.full_like(probation, t + _PROBATION)
    sibling[~torch.isin(sibling, member)] = -1  # of halves that nobody is left in
    new = old._replace(member=member, sibling=sibling, rest=rest, probation=probation)
    return new, moved


def _recorded(
    record: Tensor, active: Tensor, moved: Tensor, report: Moments
) -> Float[Tensor, "n 6"]:
    """Discounted held-out losses; who has a new group goes on with those of its half.

    All that it knew before then counts as one round: it is about another group, but
    about its own model, too.
    """
    losses = report.sums / report.samples.clamp(min=1)[:, None]
    losses[:, RAW] = torch.where(moved, losses[:, HALF], losses[:, RAW])
    losses[:, HALF] = 1  # in its place, the weight
    record = torch.where(moved[:, None], record / record[:, -1:].clamp(min=1), record)
    told = active & (report.samples > 0)
    return torch.where(told[:, None], _MEMORY * record + losses.to(record), record)


def _after_probation(
    new: Standing, old: Standing, active: Tensor, report: Moments, t: int, sure: float
) -> tuple[Standing, bool]:
    """Groups stay if they are surely better than all together.

    Where they are better, but not surely, probation goes on for a while.
    """
    end = int(old.probation[0])
    if end < 0 or t < end:
        return new, False
    told = Moments(*(part[active] for part in report))
    grouped = best_on_the_whole(told, [RAW, TUNED])
    together = best_on_the_whole(told, [ALL_RAW, ALL_TUNED])
    over = torch.full_like(new.probation, -1)
    # Who is not heard now may use everybody's model, which goes.
    choice = torch.where(new.choice > TUNED, new.choice - 2, new.choice)
    gain = surely_better(told, grouped, together)
    if gain > sure:
        settled = torch.ones_like(new.settled)
        return new._replace(probation=over, settled=settled, choice=choice), False
    if gain > 0 and t < end + _LONGEST - _PROBATION:
        return new, False
    record = new.record.clone()
    record[:, [RAW, TUNED]] = record[:, [ALL_RAW, ALL_TUNED]]
    one = one_group(new.record)
    rest, pause = t + 1 + new.pause, 2 * new.pause
    return one._replace(record=record, rest=rest, pause=pause, choice=choice), True


def _chosen(new: Standing, active: Tensor, report: Moments) -> Int[Tensor, " n"]:
    """The model that each client should use, by what all have recorded."""
    told = active & (report.samples > 0) & (new.record[:, -1] > 0)
    if not bool(told.any()):
        return new.choice
    losses = new.record[told, :-1] / new.record[told, -1:]
    models = [OWN, RAW, TUNED]
    if int(new.probation[0]) >= 0:
        weight = report.samples[told].to(losses)
        whole = weight @ losses
        if whole[[ALL_RAW, ALL_TUNED]].min() < whole[[RAW, TUNED]].min():
            models = [OWN, ALL_RAW, ALL_TUNED]
    found = choices(losses[:, models], report.samples[told])
    best = torch.tensor(models, device=losses.device)[found]
    return new.choice.masked_scatter(told, best)
