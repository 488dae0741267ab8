"""Rounds of equal virtual time, for methods with and without waiting clients.

Both generators yield rounds; round t is the state at time t * `period`. If clients
wait, the method has rounds of its own, which we call turns. We compute a turn when it
begins, to find out how long it takes. Its result counts from the time at which the
slowest client has finished.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from .. import seeds
from ..checks import InputError, integer, number
from ..types import (
    Algorithm,
    ClientsInRounds,
    ClientsInTime,
    Info,
    State,
    Traffic,
    Transfer,
    traffic_of,
)
from .checkpoints import Moment
from .clocks import Clock, LinkDelays, Rings
from .events import ROUNDING, EventLoop
from .rounds import Lapse, Round, init_oracle, participants
from .times import begins, refuse_seconds

_AT_ONCE = 100
"""It is an error if this number of turns, or answers per client, take no time."""


class ClientsInBoth(ClientsInRounds, ClientsInTime, Protocol):
    """Clients that can answer in rounds, and in virtual time."""


class WaitingState(NamedTuple):
    """The state of an algorithm with waiting clients, between two of its turns."""

    state: State
    turns: int  # the number of turns that have ended
    time: float  # when the last of them ended
    busy: Float64[Tensor, " n"]  # seconds that each client has computed
    tasks: Int[Tensor, " n"]  # the number of turns in which it took part
    drawn: Int[Tensor, " n"]  # the number of gradients whose times were drawn


class _Turn(NamedTuple):
    """A turn that has begun."""

    after: WaitingState
    info: Info
    gradients: Float64[Tensor, " n"]
    active: Bool[Tensor, " n"]
    spans: list[tuple[int, float, float]]
    sent: list[Transfer]


class Pace(NamedTuple):
    """How long things take; see `coterie.engine.events.EventLoop`."""

    clock: Clock
    period: float  # seconds of a round
    links: LinkDelays | None = None
    capacity: int | None = None
    rings: Rings | None = None

    @property
    def of_run(self) -> dict[str, Any]:
        """The options of an `EventLoop`."""
        return {name: it for name, it in self._asdict().items() if name != "period"}


def start_waiting(
    algorithm: Algorithm, simulation: ClientsInRounds, x: Float[Tensor, "n d"]
) -> WaitingState:
    """The state of an algorithm before its first turn."""
    n = len(x)
    busy, none = torch.zeros(n, dtype=torch.float64), torch.zeros(n, dtype=torch.int64)
    state = algorithm.init(x, init_oracle(simulation))
    return WaitingState(state, 0, 0.0, busy, none, none)


def run_waiting(
    algorithm: Algorithm,
    simulation: ClientsInBoth,
    x: Float[Tensor, "n d"],
    *,
    pace: Pace,
    rounds: int,
    seed: int = 0,
    participation: float = 1.0,
    start: tuple[int, WaitingState] | None = None,
) -> Iterator[Round]:
    """Yields rounds of an algorithm whose turns last until the slowest client is done.

    In a turn, a client needs the time for its gradients. If the algorithm sends
    anything, the client also needs the time for one message to it and one message back.

    Args:
        algorithm: what to run.
        simulation: the clients.
        x: starting models.
        pace: how long computations and messages take.
        rounds: the last round.
        seed: selects the random streams of the loop.
        participation: share of the clients that take part in a turn.
        start: a finished round and its state, from which to go on.
    """
    integer("rounds", rounds, at_least=1)
    number("participation", participation, above=0, at_most=1)
    done, now = (
        start if start is not None else (0, start_waiting(algorithm, simulation, x))
    )
    turn, at_once = None, 0
    for t in range(done + 1, rounds + 1):
        info: Info = {}
        sent: list[Transfer] = []
        gradients = torch.zeros(len(simulation), dtype=torch.float64)
        active = torch.zeros(len(simulation), dtype=torch.bool)
        spans, updates, until = [], 0, t * pace.period
        while True:
            if turn is None:
                turn = _turn(algorithm, simulation, now, pace, seed, participation)
            if turn.after.time > until * (1 + ROUNDING):
                break
            at_once = at_once + 1 if turn.after.time == now.time else 0
            _refuse_standstill(at_once, now.time)
            now, info = turn.after, turn.info
            sent += turn.sent
            gradients += turn.gradients
            active |= turn.active
            spans += turn.spans
            updates += int(turn.active.sum())
            turn = None
        busy = now.busy.clone()
        for client, begin, end in turn.spans:  # as far as it has come
            busy[client] += max(0.0, min(end, until) - begin)
        idle = (until - busy).clamp(min=0)  # of rounding
        lapse = Lapse(until, updates, [], spans, busy, idle, now.tasks)
        yield Round(t, now, info, gradients, active, traffic_of(sent), lapse)


def _turn(
    algorithm: Algorithm,
    simulation: ClientsInBoth,
    now: WaitingState,
    pace: Pace,
    seed: int,
    participation: float,
) -> _Turn:
    """The state after the next turn of an algorithm, and how long the turn takes."""
    turn = now.turns + 1
    active = participants(len(simulation), participation, seed, turn)
    oracle = simulation.at(turn, active)
    rng = seeds.generator(seed, "algorithm", turn)
    state, info = algorithm.step(now.state, oracle, rng)
    who = active.nonzero()[:, 0]
    names = simulation.names[who]
    gradients = oracle.gradients.cpu()
    work = gradients[who] / simulation.batch_counts[who]
    seconds = _seconds(pace.clock, names, now.drawn[who], work)
    there = back = torch.zeros_like(seconds)
    if pace.links is not None and traffic_of(oracle.sent).total > 0:
        there, back = pace.links.relay_delays(names, 2 * now.tasks[who], 2).unbind(1)
    spans, ends = [], [now.time] * min(pace.capacity or len(who), len(who))
    rows = zip(who.tolist(), names.tolist(), seconds.tolist(), there, back, strict=True)
    for client, name, length, out, home in rows:
        refuse_seconds(length, name, int(now.drawn[client]))
        # The next client takes the place that becomes free first.
        begin = begins(pace.clock, name, heapq.heappop(ends) + float(out))
        spans.append((client, begin, begin + length))
        heapq.heappush(ends, begin + length + float(home))
    after = WaitingState(
        state,
        turn,
        max(ends),
        now.busy.index_add(0, who, seconds),
        now.tasks.index_add(0, who, torch.ones_like(who)),
        now.drawn.index_add(0, who, work.ceil().long()),
    )
    return _Turn(after, info, gradients, active, spans, oracle.sent)


def _seconds(clock: Clock, names: Tensor, first: Tensor, work: Tensor) -> Tensor:
    """The seconds that `work` gradients of each client take, from number `first` on.

    There is one draw per gradient; the last gradient may be partial.
    """
    most = int(work.ceil().max())
    parts = (work[:, None] - torch.arange(most)).clamp(0, 1)
    drawn = clock.durations(names, first, most)
    # Times that are not used may be infinite.
    return torch.where(parts > 0, parts * drawn, 0.0).sum(1)


def _refuse_standstill(at_once: int, time: float) -> None:
    if at_once >= _AT_ONCE:
        raise InputError(
            f"computing must take time, but at {time:g} virtual seconds "
            f"{at_once} turns in a row took none, so no round would ever end."
        )


def run_without_waiting(
    algorithm: Algorithm,
    simulation: ClientsInTime,
    x: Float[Tensor, "n d"],
    *,
    pace: Pace,
    rounds: int,
    seed: int = 0,
    start: tuple[int, Moment] | None = None,
) -> Iterator[Round]:
    """Yields rounds of an algorithm's flow, which reacts to answers as they arrive.

    Args:
        algorithm: what to run.
        simulation: the clients.
        x: starting models.
        pace: how long computations and messages take.
        rounds: the last round.
        seed: selects the random draws of the method.
        start: a finished round and its state, from which to go on.
    """
    integer("rounds", rounds, at_least=1)
    done, moment = start if start is not None else (0, None)
    run = EventLoop(algorithm, simulation, x, **pace.of_run, seed=seed, start=moment)
    flow = algorithm.flow
    assert flow is not None  # or else it could not have been begun
    everybody = torch.ones(len(simulation), dtype=torch.bool)
    # What was sent with the first tasks belongs to the first round.
    before = Traffic() if done == 0 else run.sent
    at_once = 0
    for t in range(done + 1, rounds + 1):
        updates, gradients, until = run.updates, run.gradients.clone(), t * pace.period
        delays: list[int] = []
        spans: list[tuple[int, float, float]] = []
        last = run.time
        for event in run.until(until):
            at_once = at_once + 1 if event.time == last else 0
            last = event.time
            _refuse_standstill(at_once // len(simulation), last)
            delays += event.delays
            spans += event.spans
        idle = torch.tensor(run.idle, dtype=torch.float64)
        lapse = Lapse(
            until,
            run.updates - updates,
            delays,
            spans,
            run.time - idle,
            idle,
            torch.tensor(run.tasks),
        )
        gradients, now = run.gradients - gradients, run.sent
        sent = Traffic(now.server - before.server, now.peers - before.peers)
        before = now
        info = flow.info(run.state)
        yield Round(t, run.moment(), info, gradients, everybody, sent, lapse)


def start_flow(
    algorithm: Algorithm,
    simulation: ClientsInTime,
    x: Float[Tensor, "n d"],
    pace: Pace,
    seed: int,
) -> Moment:
    """The state of a flow whose first tasks have just begun."""
    return EventLoop(algorithm, simulation, x, **pace.of_run, seed=seed).moment()
