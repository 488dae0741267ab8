"""What a client does in a round of coteries, and who learns with whom after it."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..collaboration.best_fit import best_fit
from ..collaboration.divisions import (
    ALL_RAW,
    ALL_TUNED,
    HALF,
    MODELS,
    OWN,
    RAW,
    TUNED,
)
from ..collaboration.evidence import bounded, moments
from ..optim.steps import LocalDescent, of_clients, sgd, take_steps, velocity
from ..types import ALONE, EVERYBODY, Clients, Info, Oracle

_CAP = 1.0
"""What a sample's loss counts for at most, in units of the first model's mean loss.

With less, sure models are preferred to accurate ones; with more, noisy labels hide what
helps.
"""

_RATE = 0.25
"""Of the mean by which a client differs: the last four rounds or so."""


def coteries_round(
    clients: Clients,
    own: Float[Tensor, "n d"],
    group: Float[Tensor, "n d"],
    everyone: Float[Tensor, "n e"],
    own_velocity: Float[Tensor, "n v"],
    group_velocity: Float[Tensor, "n v"],
    everyone_velocity: Float[Tensor, "n u"],
    cap: Float[Tensor, " n"],
    pick: Int[Tensor, " n"],
    report: Float[Tensor, "n m"],
    candidates: Float[Tensor, "n h d"],
    asked: Bool[Tensor, " n"],
    offset: Float[Tensor, "n d"],
    everyone_offset: Float[Tensor, "n e"],
    together: Int[Tensor, " n"],
    *,
    rule: LocalDescent,
    steps: int,
    t: int,
    everybody: float,
) -> tuple[Tensor, ...]:
    """A client program: held-out losses of all models, and then their local steps."""
    held = clients.validation()

    def train(x: Tensor, v: Tensor, together: Tensor | float) -> tuple[Tensor, Tensor]:
        own = of_clients(rule, clients, x, together)
        return take_steps(clients, x, v, own, steps, t)

    raw = held.losses(group)
    losses = dict.fromkeys(range(MODELS), raw)
    cap = torch.where(cap > 0, cap, _CAP * raw.nanmean(1).nan_to_num())
    if candidates.shape[1]:
        data = clients.whole()
        fits = torch.stack([data.loss(half) for half in candidates.unbind(1)], 1)
        pick = torch.where(asked, fits.argmin(1), 0)
        half = held.losses(candidates[torch.arange(len(pick)), pick])
        losses[HALF] = torch.where(asked[:, None], half, raw)
    losses[OWN] = held.losses(own)
    # Before there are groups, one's group is everybody.
    losses[TUNED] = losses[ALL_TUNED] = held.losses(group + offset)
    own, own_velocity = train(own, own_velocity, 1.0)
    group, group_velocity = train(group, group_velocity, together)
    if everyone.shape[1]:
        losses[ALL_RAW] = held.losses(everyone)
        losses[ALL_TUNED] = held.losses(everyone + everyone_offset)
        everyone, everyone_velocity = train(everyone, everyone_velocity, everybody)
    # In units of one's own cap: a client of another scale weighs no more than others.
    found = bounded(torch.stack(list(losses.values()), 1), cap[:, None, None])
    velocities = own_velocity, group_velocity, everyone_velocity
    report = moments(found).flat()
    return own, group, everyone, *velocities, cap, pick, report


def followed(
    offset: Float[Tensor, "n d"],
    apart: Float[Tensor, "n d"],
    active: Bool[Tensor, " n"],
) -> Float[Tensor, "n d"]:
    """The mean of the last rounds' `apart`, at first all of it: a client's offset.

    Args:
        offset: so far; 0 where nothing is known.
        apart: where local steps end, seen from the new shared model.
        active: who took steps.
    """
    rate = torch.where(offset.any(1), _RATE, 1.0) * active
    return offset + rate.to(offset)[:, None] * (apart - offset)


def sharing(member: Int[Tensor, " n"], choice: Int[Tensor, " n"]) -> Info:
    """What a round tells: who learns with whom, and who uses a model of its own.

    All members contribute to a group's model, also those who use their own.
    """
    alone = choice == OWN
    uses = torch.where(alone, ALONE, torch.where(choice > TUNED, EVERYBODY, member))
    return {"member": member, "uses": uses, "alone": alone.float()}


def welcomed(
    oracle: Oracle,
    group: Float[Tensor, "n d"],
    member: Int[Tensor, " n"],
    choice: Int[Tensor, " n"],
    *,
    rule: LocalDescent,
    steps: int,
    taken: int,
) -> Float[Tensor, "m d"]:
    """Models for newcomers: of the group that fits best, used as its members do.

    Group models, groups and choices are of those who trained, with `taken` steps so
    far.
    """
    labels = member.unique()
    of_group = (member == labels[:, None]).int()
    models = group[of_group.argmax(1)]
    best = best_fit(oracle, models.expand(len(oracle.active), -1, -1))
    w = models[best]
    of_members = [choice[part.bool()].mode().values for part in of_group]
    usual = torch.stack(of_members)[best]
    rows = w, velocity(rule, w)
    tuned = oracle.each(sgd, *rows, rule=rule, steps=steps, t=0)[0]
    alone = w
    if bool((usual == OWN).any()):
        alone = oracle.each(sgd, *rows, rule=rule, steps=taken, t=0)[0]
    usual = usual[:, None]
    w = torch.where((usual == RAW) | (usual == ALL_RAW), w, tuned)
    return torch.where(usual == OWN, alone, w)
