"""How an entry of a study is trained privately."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool
from torch import Tensor

from .... import seeds
from ....checks import InputError, integer, own_code
from ....data.federation import places_of
from ....engine.rounds import init_oracle, participants
from ....privacy.accounting.accounts import totals
from ....privacy.accounting.calibration import (
    Limits,
    Noises,
    noise_for_samples,
    with_noise,
)
from ....privacy.accounting.gaussian import mu_of
from ....privacy.accounting.ledger import Ledger
from ....privacy.accounting.subsampled import quick_epsilons, steps_of
from ....privacy.mechanisms import (
    AskedSteps,
    Mechanism,
    StepPlan,
    Witness,
    costs_of,
    count_releases,
    make_private,
    make_private_in_time,
    plan_calls,
    plan_steps,
)
from ....privacy.mechanisms.dry_run import verify_releases
from ....privacy.mechanisms.noise import SYSTEM, NoiseSource, refuse_inexact
from ....privacy.mechanisms.per_sample import PrivateSimulation, usual_loss_clip
from ....types import Algorithm
from ...config import Entry
from ...identity import whole_name
from ...setup import Setup
from .answers import answers_of
from .blanks import without_data
from .budgets import Least, least_of_rounds, least_of_samples, refuse_spent
from .partners import refuse_unnoised, releases_before


class Guard(NamedTuple):
    """A private method, and what its training will cost."""

    method: Algorithm
    mechanism: Mechanism
    costs: list[Tensor]  # (N,) mu^2 of the beginning and each round, at most
    clients: PrivateSimulation | None = None  # that hide single samples
    sums: bool = False  # whether sums are enough for what a server averages
    verbs: frozenset[str] = frozenset()  # through which something new leaves clients
    blank: PrivateSimulation | None = None  # the clients without their data
    planned: StepPlan | None = None  # of single samples, if it was foreseen


@runtime_checkable
class WithNoise(Protocol):
    """A group that adds the noise of sums itself, to whole numbers."""

    noise: NoiseSource


Hearing = Callable[[Algorithm], Algorithm]


def guard_of(setup: Setup, entry: Entry, *, held: bool = False) -> Guard:
    """The guard of an entry, made once for each seed.

    With `held`, `privacy.epsilon` is also a budget, because rounds may be repeated.
    """
    key = _settings(entry), held
    if key not in setup.guards:
        setup.guards[key] = make_guard(setup, entry, held=held)
    return setup.guards[key]


def _settings(entry: Entry) -> str:
    options = sorted(entry.options.items())
    settings = entry.label, entry.name, entry.waits, options
    return repr((*settings, entry.optimizer) if entry.optimizer else settings)


def _name(setup: Setup, entry: Entry) -> str:
    """A name that no other training has, so that its noise and samples are its own."""
    return f"{_settings(entry)} of {whole_name(setup.study, setup.read)}"


def _seed(setup: Setup, entry: Entry) -> int:
    return seeds.key(setup.seed, "run", _name(setup, entry))


def make_guard(
    setup: Setup,
    entry: Entry,
    hearing: Hearing = lambda it: it,
    *,
    held: bool = False,
    witness: Witness | None = None,
) -> Guard:
    """The guard of an entry; for `held` see `guard_of`.

    Args:
        setup: the setup of a seed.
        entry: the algorithm.
        hearing: wraps a method that reports losses, to read each loss when it is
            reported.
        held: whether `privacy.epsilon` is also a budget.
        witness: in an audit, gets rows of whole clients before their release.
    """
    study, privacy = setup.study, setup.study.privacy
    assert privacy is not None  # only called with [privacy]
    refuse_unnoised(study, entry)
    if privacy.colluders is not None:
        most = max(1, len(setup.federation) - 1)
        integer("privacy.colluders", privacy.colluders, at_least=1, at_most=most)
    method = setup.algorithm(entry)
    with own_code("algorithm.name", entry.name):  # a dry run calls the method
        if privacy.unit == "sample":
            return _guard_samples(setup, entry, method, hearing, held)
        if study.time is not None:
            return _guard_in_time(setup, entry, method)
        return _guard_clients(setup, entry, method, hearing, held, witness)


def _guard_clients(
    setup: Setup,
    entry: Entry,
    method: Algorithm,
    hearing: Hearing,
    held: bool,
    witness: Witness | None,
) -> Guard:
    study, privacy, n = setup.study, setup.study.privacy, len(setup.federation)
    assert privacy is not None  # only called with [privacy]
    actives = _participants(setup)
    foreseen = plan_calls(
        method,
        actives,
        seed=setup.seed,
        label=entry.label,
        personal=bool(study.model.get("personal")),
        columns=setup.x.shape[1],
    )
    try:
        units = costs_of(
            method,
            foreseen,
            actives,
            seed=setup.seed,
            secure=privacy.secure,
            colluders=privacy.assumed_colluders,
        )
    except InputError as refusal:
        raise _refusal(entry, refusal) from None
    loss_clip = usual_loss_clip(setup.federation)
    before = releases_before(setup, entry)
    told = totals(before, n)
    mechanism = privacy.mechanism(
        units, _seed(setup, entry), loss_clip, before=float(told.max())
    )
    group = setup.simulation.group
    if isinstance(group, WithNoise):
        mechanism = mechanism._replace(source=group.noise)
    _refuse_inexact(setup, mechanism.sensitivity, mechanism.noise)
    noise, sensitivity = mechanism.noise, mechanism.sensitivity
    quiet = not any(bool(cost.any()) for cost in units)  # nothing is sent
    scale = (sensitivity / noise) ** 2 if noise else 0.0
    costs = [scale * cost for cost in units] if noise or quiet else []
    costs[:1] = [cost + told for cost in costs[:1]]
    limits = _limits(setup, held=held)
    if costs:
        refuse_spent(setup, entry, limits, least_of_rounds(costs))
    private = make_private(
        method if foreseen.by_key is None else hearing(method),
        foreseen,
        mechanism,
        setup.federation.clients,
        limits=limits,
        costs=costs,
        before=before,
        witness=witness,
    )
    return Guard(private, mechanism, costs, sums=foreseen.sums, verbs=foreseen.verbs)


def refuse_unsummed(setup: Setup) -> None:
    """Refuses secure sums if no method of the study has any."""
    study = setup.study
    if study.privacy is None or not study.privacy.secure:
        return
    if not any(guard_of(setup, entry).sums for entry in study.algorithms):
        labels = ", ".join(entry.label for entry in study.algorithms)
        raise InputError(
            "`privacy.aggregation` secure needs a method whose server averages rows of "
            f"clients, but no rows are averaged by {labels}: leave it out."
        )


def _refuse_inexact(setup: Setup, sensitivity: float, noise: float) -> None:
    """Refuses secret noise that cannot be drawn as exactly as it is charged for."""
    privacy = setup.study.privacy
    if noise and privacy is not None and privacy.noise_source == SYSTEM:
        refuse_inexact(setup.x.shape[1], sensitivity / noise)


def _refusal(entry: Entry, why: InputError) -> InputError:
    return InputError(f"{entry.label} cannot be trained privately: {why}")


def _limits(setup: Setup, *, held: bool = False) -> Limits:
    federation, privacy = setup.federation, setup.study.privacy
    assert privacy is not None  # only called with [privacy]
    limits = privacy.limits(places_of(federation))
    if not held or privacy.epsilon is None:
        return limits
    most = privacy.limit(privacy.epsilon)
    return limits._replace(of_all=min(limits.of_all, most))


def _guard_samples(
    setup: Setup, entry: Entry, method: Algorithm, hearing: Hearing, held: bool
) -> Guard:
    privacy, simulation = setup.study.privacy, setup.simulation
    assert privacy is not None  # only called with [privacy]
    if setup.study.time is not None:
        raise InputError(
            "`privacy.unit` sample cannot be used with [time]: leave [time] out."
        )
    made = functools.partial(
        PrivateSimulation,
        name=_name(setup, entry),
        noise_source=privacy.noise_source,
    )
    clip, loss_clip = privacy.clip, privacy.loss_clip
    blank = without_data(setup)
    tried = made(blank, clip=clip, loss_clip=loss_clip, noise=privacy.noise or 0.0)
    begin, first = init_oracle(tried), tried.at(1)
    try:
        # A round of clients without data, which refuses what cannot be private.
        state = method.init(setup.x.clone(), begin)
        rng = seeds.generator(setup.seed, "algorithm", 1)
        state, _ = method.step(state, first, rng)
        method.personal(state, tried.at(1, purpose="use"))
    except InputError as refusal:
        raise _refusal(entry, refusal) from None
    verify_releases(
        method,
        _participants(setup),
        seed=setup.seed,
        label=entry.label,
        personal=bool(setup.study.model.get("personal")),
        columns=setup.x.shape[1],
    )
    silent = not begin.sent and not first.sent
    noises, planned = _plan_samples(
        setup, entry, method, tried, silent=silent, held=held
    )
    _refuse_inexact(setup, 1.0, noises.training)
    if planned is not None and not planned.sends:  # what stays at home needs no noise
        clip, loss_clip = math.inf, None
    clients = made(
        simulation,
        clip=clip,
        loss_clip=loss_clip,
        noise=noises.training,
        held_out_noise=noises.held_out,
    )
    mechanism = Mechanism(privacy.clip, noises.training, setup.seed)
    before = releases_before(setup, entry)
    private = count_releases(hearing(method), clients, planned, before)
    return Guard(private, mechanism, [], clients, blank=tried, planned=planned)


def _plan_samples(
    setup: Setup,
    entry: Entry,
    method: Algorithm,
    clients: PrivateSimulation,
    *,
    silent: bool,
    held: bool = False,
) -> tuple[Noises, StepPlan | None]:
    """The noise for the unit sample, and the plan of releases, if these are limited.

    Releases are also limited if a method was `silent` in its first round, so that it
    stays silent.
    """
    privacy, n = setup.study.privacy, len(setup.federation)
    assert privacy is not None  # only called with [privacy]
    noises = Noises(privacy.noise or 0.0, privacy.noise or 0.0)
    if privacy.noise is not None and privacy.budget is None and not silent:
        return noises, None
    try:
        asked = steps_asked(setup, method, clients)
    except InputError as refusal:
        raise InputError(
            f"what {entry.label} asks cannot be counted before training, on short "
            "models without data: set `noise` in [privacy], and no `budget` "
            f"({refusal})"
        ) from None
    told = steps_of(Ledger(n, releases_before(setup, entry)))
    if not asked.sends:
        noises = Noises(0.0, 0.0)
    elif privacy.epsilon is not None:
        if float(quick_epsilons(told, privacy.delta).max()) >= privacy.epsilon:
            raise InputError(
                "`privacy.partners` must leave something of `privacy.epsilon` "
                f"{privacy.epsilon:g} for training, got {privacy.partner_share:g}."
            )
        noises = noise_for_samples(asked.rounds, privacy.epsilon, privacy.delta, told)
    limits = _limits(setup, held=held)
    rounds_ = with_noise(asked.rounds, noises)
    rounds_[0] = [a + b for a, b in zip(rounds_[0], told, strict=True)]
    sends = asked.sends or any(told)
    planned = StepPlan(rounds_, privacy.delta, limits, sends, asked.losses)
    if sends and privacy.budget is not None:
        own = limits.of_each is not None
        least = least_of_samples(planned.rounds, privacy.delta, own=own)
        refuse_spent(setup, entry, limits, least)
    return noises, planned


def steps_asked(
    setup: Setup, method: Algorithm, clients: PrivateSimulation
) -> AskedSteps:
    """What a method will ask of single samples in every round, for a noise of 1."""
    personal = bool(setup.study.model.get("personal"))
    given = method, clients, _participants(setup)
    return plan_steps(*given, seed=setup.seed, personal=personal)


def _participants(setup: Setup) -> list[Bool[Tensor, " n"]]:
    """(N,) for each round, which clients take part in it."""
    run, n = setup.study.run, len(setup.federation)
    rounds = range(1, run.rounds + 1)
    return [participants(n, run.participation, setup.seed, t) for t in rounds]


def _guard_in_time(setup: Setup, entry: Entry, method: Algorithm) -> Guard:
    privacy = setup.study.privacy
    if method.flow is None:
        raise InputError(
            f"{entry.label} waits for the slowest client, which cannot be private in "
            "time: set `waits = false`, or leave [time] out."
        )
    assert privacy is not None  # only called with [privacy]
    limits, answers = _limits(setup), []
    if privacy.epsilon is not None:
        answers = [answers_of(setup, method, entry.label)]
        # The limit holds even if a method answers more often than was foreseen.
        most = mu_of(privacy.epsilon, privacy.delta) ** 2
        limits = limits._replace(of_all=min(limits.of_all, most))
    mechanism = privacy.mechanism(
        answers, _seed(setup, entry), usual_loss_clip(setup.federation)
    )
    _refuse_inexact(setup, mechanism.sensitivity, mechanism.noise)
    clients = setup.federation.clients.cpu()
    private = make_private_in_time(
        method, mechanism, clients, label=entry.label, limits=limits
    )
    if mechanism.noise and method.flow.messages != "none":
        one = (mechanism.sensitivity / mechanism.noise) ** 2
        each = torch.full((len(clients),), one, dtype=torch.float64)
        refuse_spent(setup, entry, _limits(setup), Least(each, each), what="answer")
    return Guard(private, mechanism, [])
