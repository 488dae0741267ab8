"""The noise that an epsilon needs, and the accuracy that it costs.

The noise follows from the messages of a method in all planned rounds, without any data.
To find the cost, we train with and without privacy, and compare scores on validation
data. No epsilon covers these trials. So use pilot data, or similar public data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from ..checks import InputError, number
from ..data.federation import has_validation
from ..engine.checkpoints import Moment
from ..privacy.accounting.accounts import totals
from ..privacy.accounting.gaussian import EPSILONS, refuse_epsilon
from ..privacy.accounting.ledger import Event, Release
from ..privacy.mechanisms import Mechanism, PerSampleState, PrivateState, events_of
from ..privacy.mechanisms.settings import Privacy
from ..scores.roles import role_names
from ..study.config import Entry, Study
from ..study.loops import training_of
from ..study.private import guard_of, releases_before, spent_of
from ..study.setup import Setup, prepare
from ..study.training import mean_score

_AROUND = (0.5, 1.0, 2.0)
"""Factors of epsilon that are tried, to see what a larger epsilon would bring."""


class PrivacyCost(NamedTuple):
    """The score that a method reached with an epsilon."""

    label: str
    epsilon: float  # infinite: without privacy
    noise: float  # standard deviation per coordinate; for the unit sample, in clips
    releases: float  # of the client with the most
    score: float  # mean over clients, on validation data
    reason: str = ""  # why it cannot be trained privately
    roles: Mapping[str, float] = MappingProxyType({})
    """With secure sums, the epsilon of the worst client against each role."""


def plan_privacy(
    study: Study,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[PrivacyCost]:
    """The score that every method of a study reaches, by epsilon.

    Args:
        study: the table [privacy] of the study says how rows are clipped.
        epsilon: None takes the epsilon in [privacy].
        delta: None takes the delta in [privacy], or 1e-5.
        progress: a function of the number of finished trainings, and of all trainings.
    """
    settings = _settings(study, epsilon, delta)
    middle = settings.epsilon
    if middle is None:
        raise InputError("a plan needs --epsilon, because [privacy] gives the noise.")
    least, most = EPSILONS[0] / min(_AROUND), EPSILONS[1] / max(_AROUND)
    number("epsilon", middle, at_least=least, at_most=most)
    setup = prepare(replace(study, privacy=None), study.run.seeds[0])
    tried = [math.inf, *(middle * factor for factor in reversed(_AROUND))]
    found: list[PrivacyCost] = []
    total = len(study.algorithms) * len(tried)
    for entry in study.algorithms:
        found += _try_epsilons(
            setup, entry, settings, tried, progress, total, len(found)
        )
    return found


def _settings(study: Study, epsilon: float | None, delta: float | None) -> Privacy:
    if epsilon is not None:
        refuse_epsilon("epsilon", epsilon)
    given = study.privacy or Privacy(epsilon=epsilon or 1.0)
    if epsilon is not None:
        given = replace(given, epsilon=epsilon, noise=None)
    return replace(given, delta=given.delta if delta is None else delta, budget=None)


def _try_epsilons(
    setup: Setup,
    entry: Entry,
    settings: Privacy,
    epsilons: Sequence[float],
    progress: Callable[[int, int], None],
    total: int,
    done: int,
) -> list[PrivacyCost]:
    found = []
    for epsilon in epsilons:
        private = None if epsilon == math.inf else replace(settings, epsilon=epsilon)
        here = replace(setup, study=replace(setup.study, privacy=private))
        try:
            noise = 0.0 if private is None else guard_of(here, entry).mechanism.noise
            score, releases, roles = _train_and_score(here, entry)
        except InputError as refusal:
            found += [PrivacyCost(entry.label, epsilon, 0, 0, math.nan, str(refusal))]
            if private is not None:
                break  # a smaller epsilon is refused too
            continue
        found.append(
            PrivacyCost(entry.label, epsilon, noise, releases, score, "", roles)
        )
        progress(done + len(found), total)
    return found


def _train_and_score(
    setup: Setup, entry: Entry
) -> tuple[float, float, dict[str, float]]:
    """The mean validation score after all rounds, the releases, and epsilon by role."""
    training, rounds = training_of(setup, entry), setup.study.run.rounds
    if not has_validation(setup.federation):
        raise InputError(
            "a plan of the cost of privacy needs validation data: `split.validation` "
            "must be above 0, got 0."
        )
    state = training.init()
    for r in training.rounds(rounds=rounds, start=(0, state)):
        state = r.state
    simulation = setup.simulation
    x = training.personal(state, training.asked.at(rounds, purpose="use"))
    found = simulation.evaluate(x, "validation")
    score, releases = mean_score(simulation.objective, found), 0.0
    privacy, roles = setup.study.privacy, dict[str, float]()
    if privacy is not None:
        releases = _releases(setup, entry, state)
    if privacy is not None and privacy.secure:
        spent = spent_of(state, setup.study)
        names = role_names(privacy.table())
        roles = {name: float(spent[column].max()) for column, name in names.items()}
    return score, releases, roles


def _releases(setup: Setup, entry: Entry, state: Any) -> float:
    """The largest number of releases of a client, in rows or minibatches."""
    if isinstance(state, PerSampleState):
        return float(max(kinds.total() for kinds in state.visible_releases))
    state = state.state if isinstance(state, Moment) else state
    mechanism, before = guard_of(setup, entry).mechanism, releases_before(setup, entry)
    if not mechanism.noise:
        return float(len(before))
    spent, unit = state.spent, (mechanism.sensitivity / mechanism.noise) ** 2
    if isinstance(state, PrivateState):
        events = [_as_rows(event, mechanism) for event in events_of(state.ledger)]
        spent = totals(events, len(spent))
    trained = float((spent - totals(before, len(spent))).max())
    return len(before) + max(0.0, trained / unit)


def _as_rows(event: Event, mechanism: Mechanism) -> Event:
    """The event, with a sum replaced by the row that each client added to it."""
    if not isinstance(event, Release) or not event.summed:
        return event
    return event._replace(noise=mechanism.noise, summed=False, shares=None)
