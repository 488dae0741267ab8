"""How a study trains an algorithm: in rounds, or in virtual time.

Whatever it is, it begins with a state, yields rounds, and gives every client a model,
of which it is kept what becomes of test samples.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import seeds
from ..checks import InputError, own_code, parameters_of
from ..clients.simulation import Simulation
from ..data.federation import short_name
from ..engine.checkpoints import Moment
from ..engine.clocks import Rings
from ..engine.periods import Pace, begun, paced, run_waiting, run_without_waiting
from ..engine.rounds import Round, beginning, participants, run_rounds
from ..engine.times import usual_work
from ..models import tally
from ..optim.hessians import sharpness
from ..privacy.accounts import by_pairs, epsilons, totals, unsummed
from ..privacy.per_sample import PrivateSimulation
from ..privacy.training import (
    Counted,
    Guarded,
    GuardedFlow,
    Limits,
    Mechanism,
    costs_of,
    counted,
    events_of,
    foresee,
    privately,
    privately_in_time,
    spent_on_samples,
)
from ..records import SNAPSHOT_CLIENTS, Cell
from ..theory.mixing import loss_rates
from ..types import SERVER, Algorithm, Flow, Oracle, State
from .config import Entry, Study, algorithm_factory
from .divided import Division
from .ingredients import RECIPES, ingredients_of, is_measured
from .setup import Setup, drawn_anew


class Training(NamedTuple):
    """How to begin, how to go on, and which models clients use."""

    init: Callable[[], State]
    rounds: Callable[..., Iterator[Round]]  # given `rounds` and `start`
    personal: Callable[[State, Oracle], Tensor]
    inner: Callable[[State], State]  # what the algorithm itself calls its state
    lr: float = math.nan  # its step size, where it has one


def training_of(setup: Setup, entry: Entry) -> Training:
    """How a study trains an entry, whose method has one face."""
    method, clients = setup.algorithm(entry), None
    if setup.study.privacy is not None:
        guard = guard_of(setup, entry)
        method, clients = guard.method, guard.clients
    training = _training(setup, method, clients)
    known = parameters_of(algorithm_factory(entry.name)).get("lr")
    lr = entry.options.get("lr", math.nan if known is None else known.default)
    training = training._replace(lr=float(lr))
    return _told(training, entry.name) if ":" in entry.name else training


class Guard(NamedTuple):
    """A method whose clients guard their data, and what that will cost."""

    method: Algorithm
    mechanism: Mechanism
    costs: list[Tensor]  # (N,) mu^2 of the beginning and each round, at most
    clients: PrivateSimulation | None = None  # who hide single samples


def guard_of(setup: Setup, entry: Entry) -> Guard:
    """How an entry is trained privately, found once for each seed."""
    found: dict[str, Guard] = vars(setup).setdefault("_guards", {})
    key = repr((entry.name, sorted(entry.options.items())))
    if key not in found:
        found[key] = _guarded(setup, entry)
    return found[key]


def _guarded(setup: Setup, entry: Entry) -> Guard:
    study, privacy, n = setup.study, setup.study.privacy, len(setup.federation)
    assert privacy is not None  # asked of studies that have it
    _refuse_measured(entry)
    method, share = setup.algorithm(entry), study.run.participation
    if privacy.unit == "sample":
        return _guarded_samples(setup, entry, method)
    if study.time is not None:
        return _guarded_in_time(setup, entry, method)
    rounds = range(1, study.run.rounds + 1)
    actives = [participants(n, share, setup.seed, t) for t in rounds]
    personal = bool(study.model.get("personal"))
    foreseen = foresee(
        method, actives, seed=setup.seed, label=entry.label, personal=personal
    )
    units = costs_of(
        method,
        foreseen,
        actives,
        seed=setup.seed,
        personal=personal,
        secure=privacy.secure,
    )
    mechanism = privacy.mechanism(units, setup.seed)
    noise, sensitivity = mechanism.noise, mechanism.sensitivity
    costs = [(sensitivity / noise) ** 2 * c for c in units] if noise else []
    limits = _limits(setup)
    _refuse_spent(entry, privacy.budget, limits, costs)
    private = privately(
        method,
        foreseen,
        mechanism,
        setup.federation.clients,
        limits=limits,
        costs=costs,
    )
    return Guard(private, mechanism, costs)


def _limits(setup: Setup) -> Limits:
    federation, privacy = setup.federation, setup.study.privacy
    assert privacy is not None  # asked of studies that have it
    named = [short_name(federation.names, int(who)) for who in federation.clients]
    return privacy.limits(named)


def _guarded_samples(setup: Setup, entry: Entry, method: Algorithm) -> Guard:
    privacy, simulation = setup.study.privacy, setup.simulation
    assert privacy is not None and privacy.noise is not None  # refused before
    if setup.study.time is not None:
        raise InputError("`privacy.unit` sample is for rounds, but there is [time].")
    settings = {"clip": privacy.clip, "noise": privacy.noise}
    tried = PrivateSimulation(simulation, **settings)
    try:
        # A round that is thrown away: what cannot be private is refused in it.
        state = method.init(setup.x.clone(), beginning(tried))
        method.step(state, tried.at(1), seeds.generator(setup.seed, "algorithm", 1))
    except InputError as refusal:
        raise InputError(
            f"{entry.label} cannot be trained privately: {refusal}"
        ) from None
    clients = PrivateSimulation(simulation, **settings)
    mechanism = Mechanism(privacy.clip, privacy.noise, setup.seed)
    return Guard(counted(method, clients), mechanism, [], clients)


def _guarded_in_time(setup: Setup, entry: Entry, method: Algorithm) -> Guard:
    privacy = setup.study.privacy
    if method.flow is None:
        raise InputError(
            f"{entry.label} waits for the slowest client, which [privacy] with [time] "
            "does not count: `waits = false`, or leave [time] out."
        )
    if privacy is None or privacy.noise is None:
        raise InputError(
            "`privacy.noise` must be given with [time]: how often a client answers is "
            "not known before."
        )
    mechanism = privacy.mechanism([], setup.seed)
    clients = setup.federation.clients.cpu()
    private = privately_in_time(
        method, mechanism, clients, label=entry.label, limits=_limits(setup)
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


def _told(training: Training, name: str) -> Training:
    """The same, with one sentence where a method of one's own raises."""

    def rounds(**options: Any) -> Iterator[Round]:
        with own_code("algorithm.name", name):
            yield from training.rounds(**options)

    told = own_code("algorithm.name", name)  # which decorates, too
    init, personal = told(training.init), told(training.personal)
    return Training(init, rounds, personal, training.inner, training.lr)


def _training(
    setup: Setup, method: Algorithm, clients: PrivateSimulation | None = None
) -> Training:
    if method.flow is not None:
        return _without_waiting(setup, method, method.flow)
    if clients is not None:
        rounds = functools.partial(
            run_rounds,
            method,
            clients,
            setup.x,
            seed=setup.seed,
            participation=setup.study.run.participation,
        )
        return Training(
            lambda: method.init(setup.x, beginning(clients)),
            rounds,
            method.personal,
            lambda state: state.state,
        )
    common = (method, setup.simulation, setup.x)
    seed, share = setup.seed, setup.study.run.participation
    if setup.study.time is None:
        rounds = functools.partial(run_rounds, *common, seed=seed, participation=share)
        return Training(
            lambda: method.init(setup.x, beginning(setup.simulation)),
            rounds,
            method.personal,
            lambda state: state,
        )
    return Training(
        lambda: paced(method, setup.simulation, setup.x),
        functools.partial(
            run_waiting,
            *common,
            pace=pace_of(setup, method),
            seed=seed,
            participation=share,
        ),
        lambda state, oracle: method.personal(state.state, oracle),
        lambda state: state.state,
    )


def _without_waiting(setup: Setup, method: Algorithm, flow: Flow) -> Training:
    common, seed = (method, setup.simulation, setup.x), setup.seed
    pace = pace_of(setup, method)
    return Training(
        lambda: begun(*common, pace, seed),
        functools.partial(run_without_waiting, *common, pace=pace, seed=seed),
        lambda state, oracle: flow.personal(state.state),
        lambda state: state.state,
    )


def spent_of(state: Any, study: Study) -> dict[str, Tensor]:
    """The epsilon (N,) of each client so far; nothing where nobody promises any."""
    state = state.state if isinstance(state, Moment) else state
    if not isinstance(state, Guarded | GuardedFlow) or study.privacy is None:
        return {}
    privacy = study.privacy
    found = {"epsilon": epsilons(state.spent, privacy.delta)}
    if privacy.secure and isinstance(state, Guarded):
        events = unsummed(events_of(state.ledger), 2 * privacy.clip)
        alone = totals(events, len(state.spent))
        found["epsilon_local"] = epsilons(alone, privacy.delta)
    return found


def worst_epsilon(state: Any, study: Study) -> float | None:
    """That of the client who has released most, where there is one."""
    found = spent_of(state, study)
    return float(found["epsilon"].max()) if found else None


def stopped_text(cell: Cell, study: Study) -> str:
    """Where the budget ended a run, one sentence; nothing elsewhere."""
    if not isinstance(cell.state, Guarded) or not cell.state.stopped:
        return ""
    budget = study.privacy and study.privacy.budget
    return (
        f"{cell.label} (seed {cell.seed}): the budget of epsilon {budget!r} was used "
        f"up before round {cell.state.stopped}, and models stay as they were."
    )


def _releases(state: Any, setup: Setup) -> dict[str, Tensor]:
    """What each client has told whom, in the words of epsilon, a row for each pair."""
    privacy, clients = setup.study.privacy, setup.federation.clients.cpu()
    state = state.state if isinstance(state, Moment) else state
    if isinstance(state, Counted) and privacy is not None:
        found = spent_on_samples(state, len(clients), privacy.delta)
        to = torch.full_like(clients, SERVER)  # or whoever sees what is sent
        return {"client": clients, "to": to, "epsilon": found}
    if not isinstance(state, Guarded | GuardedFlow) or privacy is None:
        return {}
    if len(clients) > SNAPSHOT_CLIENTS or not bool(state.spent.any()):
        return {}  # so many pairs are not kept
    if isinstance(state, Guarded):
        squares = by_pairs(events_of(state.ledger), len(clients))
    else:  # anybody may come to see what is made of it
        squares = state.spent[:, None].repeat(1, len(clients) + 1).fill_diagonal_(0)
    sender, receiver = (squares > 0).nonzero().unbind(1)
    to = torch.cat([clients, torch.tensor([SERVER])])[receiver]
    found = epsilons(squares[sender, receiver], privacy.delta)
    return {"client": clients[sender], "to": to, "epsilon": found}


def pace_of(setup: Setup, method: Algorithm) -> Pace:
    """How long things take in a study of time."""
    time, seed = setup.study.time, setup.seed
    assert time is not None  # asked of studies that have one
    everybody = len(setup.federation) + setup.study.run.newcomers
    pace = Pace(
        time.clock(seed, everybody),
        float(time.period),  # which may be of NumPy
        time.messages(seed),
        time.capacity or None,
    )
    flow = method.flow
    if flow is None or flow.edges is None:
        return pace
    edges, work = flow.edges.cpu(), usual_work(flow, setup.simulation)
    rates = time.rates(len(edges), float(work.max()))
    if flow.couples and not time.rings:
        # Theorem 5.5, for what is typical of every node, and of messages.
        seconds = work * time.medians(pace.clock, setup.federation.clients.cpu())
        busy = time.typical_message + seconds[edges].amax(1)
        rates = loss_rates(edges, busy)
    return pace._replace(
        rings=Rings(setup.federation.clients.cpu()[edges], rates, seed)
    )


def diagnosed(cell: Cell, setup: Setup, x: Tensor) -> dict[str, Tensor]:
    """How sharp each client's training loss is at its model, if a study asks for it.

    It asks clients for nothing that the method's rounds use, and counts as no gradient.
    """
    table = setup.study.diagnostics
    if table is None:
        return {}
    found = torch.full_like(x[:, :1], torch.nan)
    if len(cell.rounds) % table.every == 0:
        oracle = setup.simulation.at(cell.t, purpose="diagnostics")
        (found,) = oracle.each(sharpness, found, x, iterations=table.iterations)
    return {"sharpness": setup.division.joined(found[:, 0]).cpu()}


def concluded(cell: Cell, setup: Setup, x: Tensor) -> Cell:
    """The cell with what becomes of test samples at the end, and of labels in them."""
    simulation = setup.simulation
    cell = replace(
        cell,
        outcomes=outcomes_of(setup, x, simulation, setup.division),
        releases=_releases(cell.state, setup),
    )
    if isinstance(cell.state, Counted):
        last = cell.metrics[-1] | {"epsilon": cell.releases["epsilon"]}
        cell = replace(cell, metrics=[*cell.metrics[:-1], last])
    if not simulation.objective.labelled:
        return cell
    here = tally(simulation.names.tolist(), simulation.outputs(x, "test"))
    everywhere = simulation.group.gather(here)
    confusion, calibration = (
        {name: torch.cat([table[name] for table in tables]) for name in tables[0]}
        for tables in zip(*everywhere, strict=True)
    )
    return replace(cell, confusion=confusion, calibration=calibration)


def outcomes_of(
    setup: Setup, x: Tensor, simulation: Simulation, division: Division | None = None
) -> dict[str, Tensor]:
    """What becomes of every test sample of some clients, (M,) each, client by client.

    A sample is known by its place in the data table, so that seeds can be paired where
    they test the same samples.

    Args:
        setup: of the seed.
        x: a model for each client at hand.
        simulation: of them.
        division: of all who train among processes; None: the clients are all here.
    """
    federation = simulation.federation if division is None else setup.federation
    size = federation.test.size
    index, mask = federation.test.rows(
        torch.arange(len(federation), device=size.device)
    )
    sample = index[mask]
    if drawn_anew(setup.study):  # places of one table are not those of another
        sample = sample + (setup.seed << 32)
    who = federation.clients.repeat_interleave(size)
    table = {"client": who.cpu(), "sample": sample.cpu()}
    single = simulation.objective.per_sample
    for name, values in simulation.outcomes(x, "test", len(sample)).items():
        if division is not None:
            values = division.joined_samples(values, size)
        is_right = name in single and bool(((values == 0) | (values == 1)).all())
        table[name] = values.to("cpu", torch.uint8 if is_right else torch.float32)
    return table
