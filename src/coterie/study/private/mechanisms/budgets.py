"""Refuses budgets that are too small for any release, before training."""

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
    """The least that each client spends when it releases anything: mu^2, or epsilon."""

    first: Float64[Tensor, " n"]  # after the first round with any release
    own: Float64[Tensor, " n"]  # after the cheapest round with this client's release


def least_of_rounds(costs: Sequence[Float64[Tensor, " n"]]) -> Least:
    """The least spending in mu^2, from the cost of each round, the beginning first."""
    later = torch.stack(list(costs[1:]))
    paid = later[later.any(1)][:1].sum(0)
    cheapest = torch.where(later > 0, later, math.inf).amin(0)
    return Least(costs[0] + paid, costs[0] + _or_nothing(cheapest))


def least_of_samples(
    rounds: Sequence[Sequence[Counter[Step]]], delta: float, *, own: bool
) -> Least:
    """The least spending in epsilon, from each round's releases about single samples.

    The first of `rounds` is the beginning. With `own`, each client may have its own
    budget.
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
    """Refuses budgets that allow no release at all, or no release of some client."""
    privacy, federation = setup.study.privacy, setup.federation
    assert privacy is not None  # only called with [privacy]

    def refuse(name: str, budget: float, place: int, spent: Tensor) -> None:
        epsilon = spent if privacy.unit == "sample" else epsilons(spent, privacy.delta)
        who = client_name(federation.names, int(federation.clients[place]))
        raise InputError(
            f"`{name}` {budget:g} would be spent in the first {what} of {entry.label}: "
            f"it costs {who} epsilon {float(epsilon[place]):.3g}, so use more noise or "
            "a larger budget."
        )

    if not isinstance(privacy.budget, Mapping):
        worst = int(least.first.argmax())
        if privacy.budget is not None and least.first[worst] > limits.of_all * ENOUGH:
            refuse("privacy.budget", privacy.budget, worst, least.first)
        return
    places = places_of(federation)
    assert limits.of_each is not None  # budgets are by client
    for name, budget in privacy.budget.items():
        if least.own[places[name]] > limits.of_each[places[name]] * ENOUGH:
            refuse(f"privacy.budget.{name}", budget, places[name], least.own)
