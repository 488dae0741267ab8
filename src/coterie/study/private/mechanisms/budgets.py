"""Budgets that would be spent before anything is released, refused before training."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from ....checks import InputError
from ....data.federation import client_name, places_of
from ....privacy.accounting.accounts import epsilons
from ....privacy.accounting.calibration import ENOUGH, Limits
from ....privacy.accounting.subsampled import Step, epsilons_of_steps
from ...config import Entry
from ...setup import Setup


class Least(NamedTuple):
    """What each client has spent when it has released anything: mu^2, or epsilon."""

    first: Float64[Tensor, " n"]  # after the first round in which anybody does
    own: Float64[Tensor, " n"]  # after the cheapest in which this client does


def least_of_rounds(costs: Sequence[Float64[Tensor, " n"]]) -> Least:
    """Of rounds that cost so much, mu^2; the first is the beginning."""
    later = torch.stack(list(costs[1:]))
    paid = later[later.any(1)][:1].sum(0)
    cheapest = torch.where(later > 0, later, math.inf).amin(0)
    return Least(costs[0] + paid, costs[0] + _or_nothing(cheapest))


def least_of_samples(
    rounds: Sequence[Sequence[Counter[Step]]], delta: float, *, own: bool
) -> Least:
    """Of rounds that release so much of single samples; the first is the beginning.

    Args:
        rounds: of each client.
        delta: of all.
        own: whether there are budgets of single clients.
    """
    begun, nothing = rounds[0], [Counter[Step]()] * len(rounds[0])
    some = next((new for new in rounds[1:] if any(new)), nothing)
    after = [a + b for a, b in zip(begun, some, strict=True)]
    first = epsilons_of_steps(after, delta=delta)
    cheapest = torch.full_like(first, math.inf)
    for new in rounds[1:] if own else []:
        after = [a + b for a, b in zip(begun, new, strict=True)]
        releases = torch.tensor([bool(one) for one in new])
        spent = epsilons_of_steps(after, delta=delta)
        spent = torch.where(releases, spent, math.inf)
        cheapest = cheapest.minimum(spent)
    return Least(first, _or_nothing(cheapest))


def _or_nothing(cheapest: Tensor) -> Tensor:
    return torch.where(cheapest.isinf(), 0.0, cheapest)


def refuse_spent(
    setup: Setup, entry: Entry, limits: Limits, least: Least, *, what: str = "round"
) -> None:
    """Refuses budgets with which nothing, or nothing of a client, could be released."""
    privacy, federation = setup.study.privacy, setup.federation
    assert privacy is not None  # asked of studies that have it

    def refuse(name: str, budget: float, place: int, spent: Tensor) -> None:
        epsilon = spent if privacy.unit == "sample" else epsilons(spent, privacy.delta)
        who = client_name(federation.names, int(federation.clients[place]))
        raise InputError(
            f"`{name}` {budget:g} would be spent in the first {what} of {entry.label}: "
            f"it costs {who} epsilon {float(epsilon[place]):.3g}, so that nothing "
            "could be released without more noise."
        )

    if not isinstance(privacy.budget, Mapping):
        worst = int(least.first.argmax())
        if privacy.budget is not None and least.first[worst] > limits.of_all * ENOUGH:
            refuse("privacy.budget", privacy.budget, worst, least.first)
        return
    places = places_of(federation)
    assert limits.of_each is not None  # of clients by name
    for name, budget in privacy.budget.items():
        if least.own[places[name]] > limits.of_each[places[name]] * ENOUGH:
            refuse(f"privacy.budget.{name}", budget, places[name], least.own)
