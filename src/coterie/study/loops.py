"""How a study trains an algorithm: in rounds, or in virtual time.

Either way, training begins with a state, yields rounds and gives every client a model.
At the end the outcomes of test samples are kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..checks import own_code, parameters_of
from ..clients.simulation import Simulation
from ..data.federation import Federation
from ..engine.periods import run_waiting, run_without_waiting, start_flow, start_waiting
from ..engine.rounds import Round, init_oracle, run_rounds
from ..models import Objective, tally
from ..optim.hessians import sharpness
from ..privacy.mechanisms import PerSampleState
from ..privacy.mechanisms.per_sample import PrivateSimulation
from ..records import Cell
from ..types import Algorithm, Flow, Oracle, State
from .config import Entry, algorithm_factory, trained_options
from .division import Division
from .paces import pace_of
from .private import Guard, exact_epsilon, guard_of, releases_of, without_data
from .setup import Setup, draws_each_seed


class Training(NamedTuple):
    """How training begins and goes on, and which models clients use."""

    init: Callable[[], State]
    rounds: Callable[..., Iterator[Round]]  # given `rounds` and `start`
    personal: Callable[[State, Oracle], Tensor]
    inner: Callable[[State], State]  # the algorithm's own state
    asked: Simulation  # the clients whom it asks
    lr: float = math.nan  # its step size, if it has one
    blank: Callable[[], State] | None = None  # as `init`, for clients without data
    # The global model of the algorithm's own state, if the method has one
    shared: Callable[[State], Tensor] | None = None

    def like(self) -> State:
        """A state of the same types; with [privacy] no client is asked for it."""
        return (self.blank or self.init)()


def training_of(setup: Setup, entry: Entry, *, held: bool = False) -> Training:
    """The training of an entry, in rounds or in time; for `held` see `guard_of`."""
    if setup.study.privacy is None:
        training = _training(setup, entry, setup.algorithm(entry))
    else:
        guard = guard_of(setup, entry, held=held)
        training = _training(setup, entry, guard.method, guard.clients)
        if setup.study.time is None:  # in time, nobody is asked at the start
            blank = functools.partial(_blank_state, setup, guard)
            training = training._replace(blank=blank)
    known = parameters_of(algorithm_factory(entry.name)).get("lr")
    lr = trained_options(entry).get("lr", math.nan if known is None else known.default)
    lr = math.nan if isinstance(lr, str) else float(lr)  # each client has its own
    own = setup.algorithm(entry)
    shared = own.shared if own.flow is None else None
    training = training._replace(lr=lr, shared=shared)
    return _naming_own_code(training, entry.name) if ":" in entry.name else training


def _blank_state(setup: Setup, guard: Guard) -> State:
    """The first state, made with clients without data."""
    clients = without_data(setup) if guard.blank is None else guard.blank
    return guard.method.init(setup.x.clone(), init_oracle(clients))


def _naming_own_code(training: Training, name: str) -> Training:
    """The same training, where errors of a user's method become one sentence."""

    def rounds(**options: Any) -> Iterator[Round]:
        with own_code("algorithm.name", name):
            yield from training.rounds(**options)

    told = own_code("algorithm.name", name)  # also a decorator
    return training._replace(
        init=told(training.init),
        rounds=rounds,
        personal=told(training.personal),
        blank=told(training.like),
    )


def _training(
    setup: Setup,
    entry: Entry,
    method: Algorithm,
    clients: PrivateSimulation | None = None,
) -> Training:
    asked = setup.asked_by(entry)
    if method.flow is not None:
        return _without_waiting(setup, asked, method, method.flow)
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
            lambda: method.init(setup.x, init_oracle(clients)),
            rounds,
            method.personal,
            lambda state: state.state,
            asked,
        )
    common = (method, asked, setup.x)
    seed, share = setup.seed, setup.study.run.participation
    if setup.study.time is None:
        rounds = functools.partial(
            run_rounds, *common, seed=seed, participation=share, in_place=True
        )
        return Training(
            lambda: method.init(setup.x, init_oracle(asked)),
            rounds,
            method.personal,
            lambda state: state,
            asked,
        )
    return Training(
        lambda: start_waiting(method, asked, setup.x),
        functools.partial(
            run_waiting,
            *common,
            pace=pace_of(setup, method),
            seed=seed,
            participation=share,
        ),
        lambda state, oracle: method.personal(state.state, oracle),
        lambda state: state.state,
        asked,
    )


def _without_waiting(
    setup: Setup, asked: Simulation, method: Algorithm, flow: Flow
) -> Training:
    common, seed = (method, asked, setup.x), setup.seed
    pace = pace_of(setup, method)
    return Training(
        lambda: start_flow(*common, pace, seed),
        functools.partial(run_without_waiting, *common, pace=pace, seed=seed),
        lambda state, oracle: flow.personal(state.state),
        lambda state: state.state,
        asked,
    )


def sharpness_of(cell: Cell, setup: Setup, x: Tensor) -> dict[str, Tensor]:
    """The sharpness of each client's training loss at its model, with [diagnostics].

    It changes nothing in the method's rounds, and does not count as gradients.
    """
    table = setup.study.diagnostics
    if table is None:
        return {}
    found = torch.full_like(x[:, :1], torch.nan)
    if len(cell.rounds) % table.every == 0:
        oracle = setup.simulation.at(cell.t, purpose="diagnostics")
        (found,) = oracle.each(sharpness, found, x, iterations=table.iterations)
    return {"sharpness": setup.division.join(found[:, 0]).cpu()}


def with_outcomes(cell: Cell, setup: Setup, x: Tensor) -> Cell:
    """The cell with the outcomes of test samples, its confusion and its calibration."""
    simulation = setup.simulation
    cell = replace(
        cell,
        outcomes=outcomes_of(setup, x, simulation, setup.division),
        releases=releases_of(cell.state, setup),
    )
    if isinstance(cell.state, PerSampleState):
        last = cell.metrics[-1] | {"epsilon": exact_epsilon(cell.state, setup.study)}
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
    """The outcome of every test sample of some clients, (M,) each, client by client.

    A sample is identified by its place in the data table. So seeds can be paired if
    they test the same samples.

    Args:
        setup: the setup of the seed.
        x: a model for each client at hand.
        simulation: the simulation of these clients.
        division: the division of the training clients among processes; None: all
            clients are here.
    """
    federation = simulation.federation if division is None else setup.federation
    table = tested_samples(setup, federation)
    found = simulation.outcomes(x, "test", len(table["sample"]))
    for name, values in found.items():
        if division is not None:
            values = division.join_samples(values, federation.test.size)
        table[name] = as_kept(name, values, simulation.objective)
    return table


def tested_samples(setup: Setup, federation: Federation) -> dict[str, Tensor]:
    """Client and place in the data table of every test sample, client by client."""
    size = federation.test.size
    index, mask = federation.test.rows(
        torch.arange(len(federation), device=size.device)
    )
    sample = index[mask]
    if draws_each_seed(setup.study):  # each seed has a table with other rows
        sample = sample + (setup.seed << 32)
    who = federation.clients.repeat_interleave(size)
    return {"client": who.cpu(), "sample": sample.cpu()}


def as_kept(name: str, values: Tensor, objective: Objective) -> Tensor:
    """Outcomes in the form that is stored: small whole numbers if all are 0 or 1."""
    right = ((values == 0) | (values == 1)).all()
    is_right = name in objective.per_sample and bool(right)
    return values.to("cpu", torch.uint8 if is_right else torch.float32)
