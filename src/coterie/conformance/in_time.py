"""Checks of what methods promise in virtual time, where clients do not wait."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from ..checks import TrainingError
from ..engine.clocks import Clock, clock
from ..engine.events import EventLoop
from ..types import TaskKind
from .cases import (
    EVENTS,
    PACES,
    ROUNDS,
    Case,
    NotApplicable,
    Setting,
    agree,
    close,
    event_loop,
    flow_of,
    simulation_of,
    starting_rows,
    trajectory,
)
from .federations import CLIENTS, small_federation

_NO_TIME = clock("constant(0)")
_ALMOST = 100
"""The most arrivals that a round may take."""


def check_runs_do_not_meet(case: Case) -> None:
    """A method stores nothing outside its runs: two runs do not affect each other."""
    federation = small_federation()
    algorithm = case.build(federation)
    x = starting_rows(federation, Setting())
    one, other = (
        event_loop(algorithm, federation),
        event_loop(algorithm, federation, x=5 + x),
    )
    for _ in range(EVENTS):
        one.step()
        other.step()
    agree(one.state, case.usual.states[-1], "a second run disturbs the first")


def check_without_delays(case: Case) -> None:
    """If no client is late, models are those of rounds."""
    federation, setting = small_federation(), Setting()
    algorithm = case.build(federation)
    if "rounds" not in algorithm.faces:
        raise NotApplicable("the method has no rounds.")
    run = event_loop(algorithm, federation, paces=_NO_TIME)
    simulation = simulation_of(federation, setting)
    states = trajectory(algorithm, federation, setting, rounds=2 * ROUNDS).states
    for t, state in enumerate(states[1:], 1):
        wanted = algorithm.personal(state, simulation.at(t, purpose="use"))
        _arrive_at(run, wanted, t)


def _arrive_at(run: EventLoop, wanted: Tensor, t: int) -> None:
    """Goes on with events until the models are those of round t."""
    gap = math.inf
    for _ in range(_ALMOST):
        run.step()
        try:
            return close(run.personal(), wanted, "")
        except AssertionError:
            gap = min(gap, float((run.personal() - wanted).abs().max()))
    raise AssertionError(
        f"without delays, models are never those of round {t}: "
        f"they differ by {gap:.2g} at least."
    )


def check_work(case: Case) -> None:
    """Clients compute as much as the `work` of their tasks says."""
    federation = small_federation()
    algorithm = case.build(federation)
    flow = flow_of(algorithm)
    taken = torch.zeros(len(federation), dtype=torch.float64)

    def counting(kind: TaskKind) -> TaskKind:
        def program(clients: Any, *rows: Tensor) -> Any:
            answers = kind.program(clients, *rows)
            taken.add_(clients._gradients)  # of this question alone
            return answers

        return kind._replace(program=program)

    counted = flow._replace(kinds=tuple(counting(kind) for kind in flow.kinds))
    run = event_loop(algorithm._replace(flow=counted), federation, grouped=False)
    for _ in range(EVENTS):
        before, said = taken.clone(), run.gradients.clone()
        event = run.step()
        found, told = (taken - before).tolist(), (run.gradients - said).tolist()
        for client in event.clients:
            assert math.isclose(found[client], told[client], rel_tol=1e-9), (
                f"a task of client {client} took {found[client]:g} gradients of "
                f"samples, but its `work` says {told[client]:g}."
            )


@dataclass(frozen=True)
class _ClockWithoutReturn:
    """A clock by which one client never returns."""

    client: int
    others: Clock = PACES

    def durations(
        self, clients: Int[Tensor, " n"], first: Int[Tensor, " n"], count: int
    ) -> Float64[Tensor, "n {count}"]:
        seconds = self.others.durations(clients, first, count)
        return seconds.masked_fill(clients[:, None] == self.client, math.inf)

    def ready(self, client: int, time: float) -> float:
        return self.others.ready(client, time)


def check_nobody_waits(case: Case) -> None:
    """One client that never returns does not stop the others."""
    federation = small_federation()
    algorithm = case.build(federation)
    if flow_of(algorithm).starts is not None:
        raise NotApplicable("a token waits for the client that has it.")
    run = event_loop(algorithm, federation, paces=_ClockWithoutReturn(2))
    answered: set[int] = set()
    try:
        while run.updates < 12 * CLIENTS:
            clients = run.step().clients
            answered |= set(clients) if run.updates > 4 * CLIENTS else set()
    except TrainingError as error:
        raise AssertionError(f"one client that never returns: {error}") from error
    silent = set(range(CLIENTS)) - answered - {2}
    # A client that exchanges models with one that never returns cannot return either.
    assert len(silent) <= flow_of(algorithm).couples, (
        f"one client never returns, and so do clients {sorted(silent)}."
    )
    assert run.personal().isfinite().all(), "models are not finite."
