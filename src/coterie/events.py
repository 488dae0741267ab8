"""Virtual time: clients that compute at their own pace, one event after the other.

    for event in run_events(method, simulation, x, clock=clock, updates=1000):
        print(event.time, event.clients, event.delays)

A client that begins a task gets its rows, a snapshot, and its answer depends on nothing
else; so all tasks that are under way are computed together, in one vectorised pass,
when the first of their answers is needed. The draws of a client's task number c are
those of round c + 1 in `coterie.rounds`: without delays, events are rounds.

Beside tasks, pairs of clients may meet, when an edge of a graph rings; that takes no
time. Events are ordered by time and then by the order in which they were foreseen.
Tasks that end at the very same time arrive one after the other, or together if the
method says so.
"""

from __future__ import annotations

import copy
import heapq
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from . import seeds
from .checks import InputError, TrainingError, integer
from .clocks import Clock, Rings
from .oracle import Simulation
from .types import Clients, Program, State

_DRAWN = 64
"""Durations of a client, or rings of an edge, that are drawn at once."""


class Arrivals(NamedTuple):
    """A task that ended, or several at the same time."""

    time: float
    clients: list[int]  # in the order in which their ends were foreseen
    answers: tuple[Tensor, ...]  # (m, ...) what their programs returned
    delays: list[int]  # answers that arrived since a task began, its own with them
    k: int  # answers that arrived before these
    seed: int

    def generator(self) -> torch.Generator:
        """A stream for what the method draws now."""
        return seeds.generator(self.seed, "events", self.k)


class Asynchronous(NamedTuple):
    """A method whose clients need not wait for each other.

    The state belongs to one run, and `arrive` changes it in place: a new (N, D) tensor
    for each of a million events would be most of the work.
    """

    init: Callable[[Tensor], State]
    task: Callable[[State, int], tuple[Tensor, ...]]
    """The rows with which a client begins a task now."""
    arrive: Callable[[State, Arrivals], Iterable[int]]
    """Takes answers in; returns who gets a new task, also one who is still busy."""
    personal: Callable[[State], Float[Tensor, "n d"]]
    program: Program | None = None  # None: a gradient at the first row
    together: bool = False  # whether tasks that end at the same time arrive at once
    meet: Callable[[State, int, int], None] | None = (
        None  # two clients whose edge rings
    )


class Event(NamedTuple):
    """What just happened."""

    time: float
    clients: list[int]
    delays: list[int]
    updates: int  # answers that have arrived so far
    state: State


class Moment(NamedTuple):
    """A run between two events: all that is needed to go on from there."""

    time: float
    updates: int
    order: int  # events foreseen so far
    queue: list[tuple[float, int, int]]  # time, order, client or -1 - edge
    state: State
    rows: tuple[Tensor, ...]  # (N, ...) what clients compute on
    answers: tuple[Tensor, ...]  # (N, ...), as far as they are computed
    computed: list[bool]
    began: list[int]  # answers that had arrived when the task began
    numbers: list[int]  # tasks that a client has begun
    busy: list[bool]
    waiting: list[deque[tuple[tuple[Tensor, ...], int]]]
    since: list[float]  # when a client became idle or busy
    idle: list[float]  # how long it was idle before
    rung: list[int]  # rings of each edge so far
    ring: list[float]  # when it rings next


class Run:
    """Events one after the other; `moment` is a copy to resume from."""

    def __init__(
        self,
        method: Asynchronous,
        simulation: Simulation,
        x: Float[Tensor, "n d"],
        *,
        clock: Clock,
        rings: Rings | None = None,
        seed: int = 0,
        start: Moment | None = None,
        grouped: bool = True,
    ) -> None:
        """Prepares a run, and hands every client its first task.

        Args:
            method: who reacts to what.
            simulation: the clients.
            x: starting models.
            clock: how long tasks take.
            rings: when pairs of clients meet; None: never.
            seed: names what the method draws.
            start: where another run stopped, to go on from there.
            grouped: compute tasks that are under way together; False, one by one.
        """
        if len(x) != len(simulation):
            raise InputError(f"`x` must have {len(simulation)} rows, got {len(x)}.")
        if (rings is None) != (method.meet is None):
            needs = "needs" if rings is None else "cannot use"
            raise InputError(f"the method {needs} `rings`, when pairs of clients meet.")
        self._method, self._simulation, self._clock = method, simulation, clock
        self._rings = rings
        self._seed, self._grouped = seed, grouped
        self._names = simulation.federation.clients.tolist()
        self._ends = self._places(rings)
        self._drawn_rings: list[deque[float]] = [deque() for _ in self._ends]
        n = len(x)
        self._drawn: list[deque[float]] = [deque() for _ in range(n)]
        if start is not None:
            self._take(copy.deepcopy(start))
            return
        state = method.init(x)
        rows = tuple(
            torch.zeros((n, *row.shape), dtype=row.dtype, device=row.device)
            for row in method.task(state, 0)
        )
        self._take(
            Moment(
                time=0.0,
                updates=0,
                order=0,
                queue=[],
                state=state,
                rows=rows,
                answers=(),
                computed=[False] * n,
                began=[0] * n,
                numbers=[0] * n,
                busy=[False] * n,
                waiting=[deque() for _ in range(n)],
                since=[0.0] * n,
                idle=[0.0] * n,
                rung=[0] * len(self._ends),
                ring=[0.0] * len(self._ends),
            )
        )
        for edge in range(len(self._ends)):
            self._ring_again(edge)
        for client in range(n):
            self._hand(client)

    def _take(self, moment: Moment) -> None:
        self._now = moment
        self.time, self.updates, self._order = moment.time, moment.updates, moment.order
        self._answers = moment.answers

    def moment(self) -> Moment:
        """A copy of where the run stands, to resume from."""
        now = self._now._replace(
            time=self.time,
            updates=self.updates,
            order=self._order,
            answers=self._answers,
        )
        return copy.deepcopy(now)

    @property
    def state(self) -> State:
        """The method's state now."""
        return self._now.state

    @property
    def idle(self) -> list[float]:
        """How long each client has been idle so far."""
        now = self._now
        return [
            spent + (0.0 if busy else self.time - since)
            for spent, busy, since in zip(now.idle, now.busy, now.since, strict=True)
        ]

    def personal(self) -> Float[Tensor, "n d"]:
        """The models of all clients now."""
        return self._method.personal(self._now.state)

    def _places(self, rings: Rings | None) -> list[tuple[int, int]]:
        """The positions of both ends of every edge."""
        if rings is None:
            return []
        place = {name: i for i, name in enumerate(self._names)}
        try:
            return [(place[v], place[w]) for v, w in rings.edges.tolist()]
        except KeyError as error:
            raise InputError(
                f"`rings` names client {error}, but there are {len(place)} clients."
            ) from None

    def _ring_again(self, edge: int) -> None:
        now, drawn = self._now, self._drawn_rings[edge]
        if not drawn:
            assert self._rings is not None  # there is an edge
            which, first = torch.tensor([edge]), torch.tensor([now.rung[edge]])
            since = torch.tensor([now.ring[edge]], dtype=torch.float64)
            times = self._rings.times(which, first, _DRAWN, since)
            drawn.extend(times[0].tolist())
        now.ring[edge] = drawn.popleft()
        now.rung[edge] += 1
        heapq.heappush(now.queue, (now.ring[edge], self._order, -1 - edge))
        self._order += 1

    def _meet(self) -> None:
        """Lets all pairs meet whose edge rings before the next arrival."""
        queue, meet = self._now.queue, self._method.meet
        while queue and queue[0][2] < 0:
            self.time, _, code = heapq.heappop(queue)
            assert meet is not None  # or there would be no edge
            meet(self._now.state, *self._ends[-1 - code])
            self._ring_again(-1 - code)

    def step(self) -> Event:
        """Goes on to the next arrival; pairs that meet before it do so."""
        now = self._now
        self._meet()
        if not now.queue or math.isinf(now.queue[0][0]):
            missing = [i for i, busy in enumerate(now.busy) if busy]
            names = ", ".join(str(self._names[i]) for i in missing[:5])
            raise TrainingError(
                f"nothing will ever happen after time {self.time:g} and {self.updates} "
                f"updates: all wait for clients whose task never ends ({names})."
            )
        self.time = now.queue[0][0]
        clients = [heapq.heappop(now.queue)[2]]
        while self._method.together and now.queue and now.queue[0][0] == self.time:
            if now.queue[0][2] < 0:
                break
            clients.append(heapq.heappop(now.queue)[2])
        answers = self._answers_of(clients)
        delays = []
        for j, client in enumerate(clients):
            delays.append(self.updates + j + 1 - now.began[client])
            now.busy[client], now.since[client] = False, self.time
            if now.waiting[client]:
                self._begin(client, *now.waiting[client].popleft())
        arrivals = Arrivals(
            self.time, clients, answers, delays, self.updates, self._seed
        )
        self.updates += len(clients)
        for client in self._method.arrive(now.state, arrivals):
            self._hand(client)
        return Event(self.time, clients, delays, self.updates, now.state)

    def _hand(self, client: int) -> None:
        """Gives a client a task, which it begins now or after those that it has."""
        rows = self._method.task(self._now.state, client)
        if self._now.busy[client]:
            kept = tuple(row.clone() for row in rows)
            self._now.waiting[client].append((kept, self.updates))
        else:
            self._begin(client, rows, self.updates)

    def _begin(self, client: int, rows: tuple[Tensor, ...], version: int) -> None:
        now = self._now
        for kept, row in zip(now.rows, rows, strict=True):
            kept[client] = row
        start = self._clock.ready(self._names[client], self.time)
        end = start + self._duration(client, now.numbers[client])
        now.idle[client] += start - now.since[client]
        now.computed[client], now.busy[client] = False, True
        now.began[client], now.since[client] = version, start
        now.numbers[client] += 1
        heapq.heappush(now.queue, (end, self._order, client))
        self._order += 1

    def _duration(self, client: int, number: int) -> float:
        drawn = self._drawn[client]
        if not drawn:
            name, first = torch.tensor([self._names[client]]), torch.tensor([number])
            drawn.extend(self._clock.durations(name, first, _DRAWN)[0].tolist())
        return drawn.popleft()

    def _answers_of(self, clients: list[int]) -> tuple[Tensor, ...]:
        """The answers of these clients, computed with all that are under way."""
        now = self._now
        missing = [i for i in clients if not now.computed[i]]
        if missing:
            if self._grouped:
                missing = [
                    i
                    for i, (busy, computed) in enumerate(
                        zip(now.busy, now.computed, strict=True)
                    )
                    if busy and not computed
                ]
                self._compute(missing)
            else:
                for client in missing:
                    self._compute([client])
        if len(clients) == 1:
            return tuple(answer[clients[0]][None] for answer in self._answers)
        return tuple(answer[clients] for answer in self._answers)

    def _compute(self, clients: list[int]) -> None:
        now, program = self._now, self._method.program
        who = torch.tensor(clients, device=now.rows[0].device)
        asked = self._simulation.staggered(
            who,
            [now.numbers[i] for i in clients],
            verb="grads" if program is None else "each",
        )
        rows = tuple(row[who] for row in now.rows)
        found = (gradient if program is None else program)(asked, *rows)
        found = found if isinstance(found, tuple) else (found,)
        if not self._answers:
            n = len(now.busy)
            self._answers = tuple(
                torch.zeros((n, *answer.shape[1:]), dtype=answer.dtype).to(answer)
                for answer in found
            )
        for kept, answer in zip(self._answers, found, strict=True):
            kept[who] = answer
        for client in clients:
            now.computed[client] = True


def gradient(clients: Clients, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """A client program: one gradient."""
    return clients.grad(x)


def run_events(
    method: Asynchronous,
    simulation: Simulation,
    x: Float[Tensor, "n d"],
    *,
    clock: Clock,
    updates: int,
    seed: int = 0,
    **options: Any,
) -> Iterator[Event]:
    """Yields events until so many answers have arrived; see `Run` for the options."""
    integer("updates", updates, at_least=1)
    run = Run(method, simulation, x, clock=clock, seed=seed, **options)
    while run.updates < updates:
        yield run.step()
