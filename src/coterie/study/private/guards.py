"""How an entry of a study is trained privately."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

from torch import Tensor

from ... import seeds
from ...checks import InputError
from ...data.federation import short_name
from ...engine.rounds import beginning, participants
from ...privacy.gaussian import mu_of
from ...privacy.per_sample import PrivateSimulation, usual_loss_clip
from ...privacy.subsampled import quick_epsilons
from ...privacy.training import (
    Limits,
    Mechanism,
    Noises,
    Planned,
    costs_of,
    counted,
    foresee,
    foreseen_steps,
    noise_for_samples,
    privately,
    privately_in_time,
    with_noise,
)
from ...types import Algorithm
from ..config import Entry, algorithm_factory
from ..ingredients import RECIPES, ingredients_of, is_measured
from ..setup import Setup
from .answers import answers_of


class Guard(NamedTuple):
    """A method whose clients guard their data, and what that will cost."""

    method: Algorithm
    mechanism: Mechanism
    costs: list[Tensor]  # (N,) mu^2 of the beginning and each round, at most
    clients: PrivateSimulation | None = None  # who hide single samples


Hearing = Callable[[Algorithm], Algorithm]


def guard_of(setup: Setup, entry: Entry) -> Guard:
    """How an entry is trained privately, found once for each seed."""
    found: dict[str, Guard] = vars(setup).setdefault("_guards", {})
    key = repr((entry.name, sorted(entry.options.items())))
    if key not in found:
        found[key] = guarded(setup, entry)
    return found[key]


def guarded(setup: Setup, entry: Entry, hearing: Hearing = lambda it: it) -> Guard:
    """How an entry is trained privately.

    Args:
        setup: of a seed.
        entry: the algorithm.
        hearing: wraps a method that tells losses, to hear them as they are told.
    """
    study, privacy, n = setup.study, setup.study.privacy, len(setup.federation)
    assert privacy is not None  # asked of studies that have it
    _refuse_measured(entry)
    method, share = setup.algorithm(entry), study.run.participation
    if privacy.unit == "sample":
        return _guarded_samples(setup, entry, method, hearing)
    if study.time is not None:
        return _guarded_in_time(setup, entry, method)
    rounds = range(1, study.run.rounds + 1)
    actives = [participants(n, share, setup.seed, t) for t in rounds]
    personal = bool(study.model.get("personal"))
    foreseen = foresee(
        method,
        actives,
        seed=setup.seed,
        label=entry.label,
        personal=personal,
        columns=setup.x.shape[1],
    )
    try:
        units = costs_of(
            method, foreseen, actives, seed=setup.seed, secure=privacy.secure
        )
    except InputError as refusal:
        raise _refusal(entry, refusal) from None
    loss_clip = usual_loss_clip(setup.federation)
    mechanism = privacy.mechanism(units, setup.seed, loss_clip)
    noise, sensitivity = mechanism.noise, mechanism.sensitivity
    costs = [(sensitivity / noise) ** 2 * c for c in units] if noise else []
    limits = _limits(setup)
    _refuse_spent(entry, privacy.budget, limits, costs)
    private = privately(
        method if foreseen.told is None else hearing(method),
        foreseen,
        mechanism,
        setup.federation.clients,
        limits=limits,
        costs=costs,
    )
    return Guard(private, mechanism, costs)


def _refusal(entry: Entry, why: InputError) -> InputError:
    return InputError(f"{entry.label} cannot be trained privately: {why}")


def _limits(setup: Setup) -> Limits:
    federation, privacy = setup.federation, setup.study.privacy
    assert privacy is not None  # asked of studies that have it
    named = [short_name(federation.names, int(who)) for who in federation.clients]
    return privacy.limits(named)


def _guarded_samples(
    setup: Setup, entry: Entry, method: Algorithm, hearing: Hearing
) -> Guard:
    privacy, simulation = setup.study.privacy, setup.simulation
    assert privacy is not None  # asked of studies that have it
    if setup.study.time is not None:
        raise InputError("`privacy.unit` sample is for rounds, but there is [time].")
    made = functools.partial(
        PrivateSimulation, simulation, clip=privacy.clip, loss_clip=privacy.loss_clip
    )
    tried = made(noise=privacy.noise or 0.0)
    try:
        # A round that is thrown away: what cannot be private is refused in it.
        state = method.init(setup.x.clone(), beginning(tried))
        rng = seeds.generator(setup.seed, "algorithm", 1)
        state, _ = method.step(state, tried.at(1), rng)
        method.personal(state, tried.at(1, purpose="use"))
    except InputError as refusal:
        raise _refusal(entry, refusal) from None
    noises, planned = _planned(setup, entry, method, tried)
    clients = made(noise=noises.training, held_out_noise=noises.held_out)
    mechanism = Mechanism(privacy.clip, noises.training, setup.seed)
    private = counted(hearing(method), clients, planned)
    return Guard(private, mechanism, [], clients)


def _planned(
    setup: Setup, entry: Entry, method: Algorithm, clients: PrivateSimulation
) -> tuple[Noises, Planned | None]:
    """The noise of single samples, and what they may release where that is limited."""
    study, privacy, n = setup.study, setup.study.privacy, len(setup.federation)
    assert privacy is not None  # asked of studies that have it
    noises = Noises(privacy.noise or 0.0, privacy.noise or 0.0)
    if privacy.noise is not None and privacy.budget is None:
        return noises, None
    share, rounds = study.run.participation, range(1, study.run.rounds + 1)
    actives = [participants(n, share, setup.seed, t) for t in rounds]
    personal = bool(study.model.get("personal"))
    try:
        asked = foreseen_steps(
            method, clients, actives, seed=setup.seed, personal=personal
        )
    except InputError as refusal:
        raise InputError(
            f"what {entry.label} asks cannot be counted before training, on short "
            "models without data: [privacy] needs `noise` for it, and no `budget` "
            f"({refusal})"
        ) from None
    if privacy.epsilon is not None:
        noises = noise_for_samples(asked.rounds, privacy.epsilon, privacy.delta)
    rounds_ = with_noise(asked.rounds, noises)
    planned = Planned(rounds_, privacy.delta, _limits(setup), asked.sends)
    if not asked.sends:
        return noises, planned
    first = [a + b for a, b in zip(*planned.rounds[:2], strict=True)]
    _refuse_spent(
        entry, privacy.budget, planned.limits, [quick_epsilons(first, privacy.delta)]
    )
    return noises, planned


def _guarded_in_time(setup: Setup, entry: Entry, method: Algorithm) -> Guard:
    privacy = setup.study.privacy
    if method.flow is None:
        raise InputError(
            f"{entry.label} waits for the slowest client, which [privacy] with [time] "
            "does not count: `waits = false`, or leave [time] out."
        )
    assert privacy is not None  # asked of studies that have it
    limits, answers = _limits(setup), []
    if privacy.epsilon is not None:
        answers = [answers_of(setup, method, entry.label)]
        # Held also if a method answered more often than was foreseen.
        most = mu_of(privacy.epsilon, privacy.delta) ** 2
        limits = limits._replace(of_all=min(limits.of_all, most))
    mechanism = privacy.mechanism(
        answers, setup.seed, usual_loss_clip(setup.federation)
    )
    clients = setup.federation.clients.cpu()
    private = privately_in_time(
        method, mechanism, clients, label=entry.label, limits=limits
    )
    return Guard(private, mechanism, [])


def _refuse_spent(
    entry: Entry, budget: object, limits: Limits, costs: list[Tensor]
) -> None:
    """Refuses budgets that the first round would exceed."""
    needed = sum(costs[:2])
    if isinstance(needed, Tensor) and bool((needed > limits.of_all).any()):
        raise InputError(
            f"`privacy.budget` {budget!r} would be spent in the first round of "
            f"{entry.label}: it needs more noise."
        )


def _refuse_measured(entry: Entry) -> None:
    """Refuses ingredients that are made from data before training, uncounted."""
    for name in ingredients_of(algorithm_factory(entry.name)):
        choice = str(entry.options.get(name, RECIPES[name][1]))
        if is_measured(name, choice):
            raise InputError(
                f"`{name}` {choice!r} of {entry.label} is made from the clients' data "
                "before training, which nobody counts: with [privacy] it must be known "
                "or come from a file."
            )
