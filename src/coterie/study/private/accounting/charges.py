"""The cost of rounds that are in no checkpoint, but may have sent their releases.

For the unit client, a cost is the mu^2 of each client. For the unit sample, it is the
number of releases of each kind, for each client. Both are bounds that were found
without data: no run of these rounds costs more.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from ....checks import InputError
from ....engine.checkpoints import Moment
from ....privacy.accounting.accounts import totals
from ....privacy.accounting.calibration import Noises, with_noise
from ....privacy.accounting.ledger import Ledger, Release
from ....privacy.accounting.subsampled import Step, steps_of
from ....privacy.mechanisms import PerSampleState, PrivateFlow, PrivateState
from ....privacy.mechanisms.methods import as_lists
from ....privacy.mechanisms.partners import PAIRS
from ....privacy.mechanisms.receivers import add_releases
from ....types import SERVER, State
from ...config import Entry
from ...setup import Setup
from ..mechanisms.answers import answers_until
from ..mechanisms.guards import Guard, guard_of, steps_asked
from ..mechanisms.partners import releases_before

Cost = Tensor | list[Counter[Step]]
"""(N,) mu^2, or the steps of each client."""

REPEATED = "repeated"
"""The verb in events of rounds that may have left before a run was killed."""

_TO_PEERS = {"mix", "blended", "compare"}
_TO_SERVER = {"average", "central"}


def cost_of(
    setup: Setup, entry: Entry, rounds: Sequence[int], *, quick: bool = False
) -> Cost | None:
    """The largest cost of rounds for each client; round 0 is the beginning.

    With `quick`, the result is None if the cost must still be computed. An `InputError`
    says why a cost cannot be computed at all.
    """
    guard, n = guard_of(setup, entry), len(setup.federation)
    if guard.clients is not None:
        return _cost_of_samples(setup, entry, guard, rounds, quick=quick)
    if setup.study.time is None:
        if not guard.costs:  # without noise
            return torch.full((n,), math.inf, dtype=torch.float64)
        return sum((guard.costs[t] for t in rounds), torch.zeros(n).double())
    if quick:
        return None
    answers = answers_until(setup, setup.algorithm(entry), entry.label)
    new = sum((answers[t] - answers[t - 1] for t in rounds if t), torch.zeros(n))
    mechanism = guard.mechanism
    one = (mechanism.sensitivity / (mechanism.noise or math.nan)) ** 2
    return torch.where(new > 0, one * new.double(), 0.0).nan_to_num(math.inf)


def _cost_of_samples(
    setup: Setup, entry: Entry, guard: Guard, rounds: Sequence[int], *, quick: bool
) -> Cost | None:
    planned = None if guard.planned is None else guard.planned.rounds
    if planned is None:
        if quick:
            return None
        privacy = setup.study.privacy
        assert guard.blank is not None and privacy is not None  # of samples
        noise = privacy.noise or 0.0
        try:
            asked = steps_asked(setup, setup.algorithm(entry), guard.blank)
        except InputError as refusal:
            raise InputError(
                f"{entry.label} (seed {setup.seed}) cannot go on: rounds up to "
                f"{max(rounds)} may have been sent before the run was killed, and "
                f"their cost cannot be computed without data ({refusal}) Start again "
                "with another name for the study."
            ) from None
        planned = with_noise(asked.rounds, Noises(noise, noise))
        told = steps_of(Ledger(len(setup.federation), releases_before(setup, entry)))
        planned[0] = [a + b for a, b in zip(planned[0], told, strict=True)]
    nothing = [Counter[Step]() for _ in setup.federation.clients]
    return reduce(_both, [planned[t] for t in rounds], nothing)


def _both(some: list[Counter[Step]], more: list[Counter[Step]]) -> list[Counter[Step]]:
    return [a + b for a, b in zip(some, more, strict=True)]


def charge(state: State, cost: Cost, guard: Guard, t: int) -> State:
    """The state of a run after round t, with the costs of lost rounds charged.

    We assume that rows have reached everybody to whom the method may send them.
    """
    if isinstance(state, Moment):
        assert isinstance(state.state, PrivateFlow) and isinstance(cost, Tensor)
        state.state.spent += cost
    elif isinstance(state, PrivateState):
        assert isinstance(cost, Tensor)  # of whole clients
        # All others together know up to N times as much of a sum as was promised.
        many = len(cost) if guard.mechanism.secure and guard.sums else 1
        events = _events(many * cost, guard.verbs, t)
        ledger = [*state.ledger, *as_lists(events)]
        return state._replace(spent=state.spent + cost, ledger=ledger)
    elif isinstance(state, PerSampleState):
        assert not isinstance(cost, Tensor)  # of samples
        told, pays = state.told, torch.tensor([bool(steps) for steps in cost])
        received = told.received
        if not bool(received.any()):  # who receives rows is not known yet
            received = received | pays[:, None]
        told = told._replace(common=add_releases(told.common, cost), received=received)
        return state._replace(releases=add_releases(state.releases, cost), told=told)
    return state


def _events(cost: Tensor, verbs: Iterable[str], t: int) -> list[Release]:
    """Releases with this mu^2, one for all clients that pay the same."""
    found, n = [], len(cost)
    server, peers = bool(_TO_SERVER & {*verbs}), bool(_TO_PEERS & {*verbs})
    for square in cost[cost > 0].unique().tolist():
        links = []
        for client in (cost == square).nonzero()[:, 0].tolist():
            others = [k for k in range(n) if k != client] if n <= PAIRS else []
            others = others or [(client + 1) % n]
            links += [(client, k) for k in others] if peers else []
            links += [(client, SERVER)] if server or not peers else []
        to = torch.tensor(links)
        noise = 1 / math.sqrt(square)
        found.append(Release(t, REPEATED, to, 1.0, noise))
    return found


def spent_in(state: Any) -> Cost | None:
    """What each client has paid so far; None if nothing is promised."""
    state = state.state if isinstance(state, Moment) else state
    if isinstance(state, PerSampleState):
        return state.visible_releases
    if isinstance(state, PrivateState | PrivateFlow):
        return state.spent
    return None


def without_partners(cost: Cost, setup: Setup, entry: Entry) -> Cost:
    """The cost without releases that choose partners, which are charged separately."""
    before = releases_before(setup, entry)
    if not before:
        return cost
    if isinstance(cost, Tensor):
        return (cost - totals(before, len(cost))).clamp(min=0.0)
    told = steps_of(Ledger(len(cost), before))
    return [a - b for a, b in zip(cost, told, strict=True)]


def worst_of(cost: Cost) -> float | list[Any]:
    """A bound on what the client that pays most has paid; see `records.LedgerEntry`."""
    if isinstance(cost, Tensor):
        return float(cost.max())
    union = reduce(lambda a, b: a | b, cost, Counter[Step]())
    return [[*kind, count] for kind, count in sorted(union.items())]
