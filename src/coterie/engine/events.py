"""Virtual time: clients that compute at their own pace, one event after the other.

    for event in run_events(method, simulation, x, clock=clock, updates=1000):
        print(event.time, event.clients, event.delays)

A client that begins a task gets its rows, a snapshot, and its answer depends on nothing
else; so all tasks of a kind that are under way are computed together, in one vectorised
pass, when the first of their answers is needed. The draws of a client's task number c
are those of round c + 1 in `coterie.engine.rounds`: without delays, events are rounds.

Beside tasks, pairs of clients may meet, when an edge of a graph rings: that takes no
time, or, in a loss network, both compute and are busy until they have exchanged their
models. Events are ordered by time and then by the order in which they were foreseen.
Tasks that end at the very same time arrive one after the other, or together if the
method says so.
"""

from __future__ import annotations

import copy
import heapq
import math
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..checks import InputError, TrainingError, integer, number, one_of
from ..clients.simulation import Simulation
from ..graphs.families import refuse_apart
from ..types import State
from .checkpoints import Moment, beginning
from .clocks import Clock, Delays, Rings
from .flows import Arrivals, Asynchronous, Kind, Task, gradient

__all__ = [
    "ROUNDING",
    "Arrivals",
    "Asynchronous",
    "Event",
    "Kind",
    "Moment",
    "Run",
    "Task",
    "begins",
    "gradient",
    "refuse_seconds",
    "run_events",
]

_DRAWN = 64
"""Durations of a client, or rings of an edge, that are drawn at once."""

_FOREVER = sys.float_info.max

ROUNDING = 1e-9
"""Relative: a sum of many equal times may exceed their product by so much."""


class Event(NamedTuple):
    """What just happened."""

    time: float
    clients: list[int]
    delays: list[int]
    updates: int  # answers that have arrived so far
    state: State
    spans: list[tuple[int, float, float]]
    """Who has begun since the event before, and from when to when each computes."""


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
        links: Delays | None = None,
        capacity: int | None = None,
        seed: int = 0,
        start: Moment | None = None,
        grouped: bool = True,
    ) -> None:
        """Prepares a run, and hands every client its first task.

        Args:
            method: who reacts to what.
            simulation: the clients.
            x: starting models.
            clock: how long the gradient of a minibatch takes.
            rings: when pairs of clients meet; None: never.
            links: how long messages travel: to a client and back for every task, or
                over the edge that rings; None: no time.
            capacity: how many clients may be at work at once; the others wait for their
                turn. None: all.
            seed: names what the method draws.
            start: where another run stopped, to go on from there.
            grouped: compute tasks that are under way together; False, one by one.
        """
        if len(x) != len(simulation):
            raise InputError(f"`x` must have {len(simulation)} rows, got {len(x)}.")
        if (rings is None) != (method.meet is None and not method.couples):
            needs = "needs" if rings is None else "cannot use"
            raise InputError(f"the method {needs} `rings`, when pairs of clients meet.")
        one_of("messages", method.messages, ("relayed", "none", "instant"))
        if links is not None and method.messages == "instant":
            raise InputError(
                "`links` cannot be set for a method whose messages take no time; a "
                f"loss network has links; got {links.law!r}."
            )
        if capacity is not None:
            integer("capacity", capacity, at_least=1)
            if method.couples:
                raise InputError("`capacity` cannot be set where tasks begin in pairs.")
        self._method, self._simulation, self._clock = method, simulation, clock
        self._rings, self._links = rings, links
        self._capacity = len(x) if capacity is None else capacity
        self._seed, self._grouped = seed, grouped
        self._samples = simulation.batch_counts.tolist()
        self._names = simulation.federation.clients.tolist()
        self._ends = self._places(rings)
        if rings is not None:
            refuse_apart("rings", torch.tensor(self._ends), len(x))
        self._drawn_rings: list[deque[float]] = [deque() for _ in self._ends]
        n = len(x)
        self._drawn: list[deque[float]] = [deque() for _ in range(n)]
        if start is not None:
            self._take(copy.deepcopy(start))
            return
        state = method.init(x)
        self._take(beginning(method, state, n, len(self._ends)))
        for edge in range(len(self._ends)):
            self._ring_again(edge)
        for client in () if method.couples else range(n):
            self._hand(client)

    def _take(self, moment: Moment) -> None:
        self._now = moment
        self.time, self.updates, self.lost = moment.time, moment.updates, moment.lost
        self._order = moment.order
        self._at_work = sum(moment.busy)
        self._returning = sum(
            what >= 0 and math.isfinite(time) for time, _, what in moment.queue
        )
        # In a file, answers lie on the CPU, and there are lists in place of tuples.
        times: tuple[list[Any], ...] = (moment.queue, moment.spans, moment.begun)
        for listed in times:
            listed[:] = [tuple(values) for values in listed]
        device = moment.rows[0].device
        for kind, kept in enumerate(moment.answers):
            moment.answers[kind] = [answer.to(device) for answer in kept]
        for waits in moment.waiting:
            for place, ((rows, *rest), version, comes) in enumerate(waits):
                there = tuple(row.to(device) for row in rows)
                waits[place] = [Task(there, *rest), version, comes]

    def moment(self) -> Moment:
        """A copy of where the run stands, to resume from."""
        now = self._now._replace(
            time=self.time, updates=self.updates, order=self._order, lost=self.lost
        )
        return copy.deepcopy(now)

    @property
    def state(self) -> State:
        """The method's state now."""
        return self._now.state

    @property
    def idle(self) -> list[float]:
        """How long each client has been idle so far."""
        return [
            # Until the last task began, if it has, and since it ended, if it has.
            spent - max(0.0, begin - self.time) + max(0.0, self.time - end)
            for spent, (begin, end) in zip(self._now.idle, self._now.spans, strict=True)
        ]

    @property
    def tasks(self) -> list[int]:
        """How many tasks each client has finished."""
        now = self._now
        pairs = zip(now.numbers, now.busy, strict=True)
        return [begun - busy for begun, busy in pairs]

    @property
    def gradients(self) -> Float64[Tensor, " n"]:
        """Gradients of single samples in all answers of each client so far."""
        return torch.tensor(self._now.gradients, dtype=torch.float64)

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
        self._foresee(now.ring[edge], -1 - edge)

    def _foresee(self, time: float, what: int) -> None:
        heapq.heappush(self._now.queue, (time, self._order, what))
        self._order += 1
        self._returning += what >= 0 and math.isfinite(time)

    def _meet(self, until: float) -> None:
        """Lets all pairs meet whose edge rings before the next arrival."""
        queue, meet = self._now.queue, self._method.meet
        while queue and queue[0][2] < 0 and queue[0][0] <= until:
            if until == _FOREVER and not self._returning and not self._can_couple():
                return
            self.time, _, code = heapq.heappop(queue)
            edge = -1 - code
            if meet is None:
                self._couple(edge)
            else:
                meet(self._now.state, *self._ends[edge])
            self._ring_again(edge)

    def _can_couple(self) -> bool:
        """Whether there are two who may begin together, now or later."""
        busy = self._now.busy
        return self._method.couples and any(
            not busy[v] and not busy[w] for v, w in self._ends
        )

    def _couple(self, edge: int) -> None:
        """Two who are free begin tasks that end together; else the ring is lost."""
        now, pair = self._now, self._ends[edge]
        if any(
            now.busy[client]
            or begins(self._clock, self._names[client], self.time) > self.time
            for client in pair
        ):
            self.lost += 1
            return
        ends = []
        for client in pair:
            self._record(client, self._method.task(now.state, client), self.updates)
            ends.append(self._compute_until(client, self.time))
        travel = 0.0
        if self._links is not None:
            names = torch.tensor([[self._names[client] for client in pair]])
            number = torch.tensor([now.rung[edge] - 1])
            travel = float(self._links.delays(names, number, 1))
        for client in pair:
            self._foresee(max(ends) + travel, client)

    def step(self) -> Event:
        """Goes on to the next arrival; pairs that meet before it do so."""
        event = self._next(_FOREVER)
        if event is not None:
            return event
        missing = [i for i, busy in enumerate(self._now.busy) if busy]
        names = ", ".join(str(self._names[i]) for i in missing[:5]) or "there are none"
        raise TrainingError(
            f"nothing will ever happen after time {self.time:g} and {self.updates} "
            f"updates: all wait for clients whose task never ends ({names})."
        )

    def until(self, time: float) -> Iterator[Event]:
        """Goes on until that time, arrival by arrival."""
        number("time", time, at_least=0)
        while (event := self._next(time * (1 + ROUNDING))) is not None:
            yield event
        self.time = max(self.time, time)

    def _next(self, until: float) -> Event | None:
        """The next arrival, if it is not after that time."""
        now = self._now
        self._meet(until)
        # What is left may be rings alone, or tasks that never end.
        if not now.queue or now.queue[0][0] > until or now.queue[0][2] < 0:
            return None
        self.time = now.queue[0][0]
        clients = [heapq.heappop(now.queue)[2]]
        while self._method.together and now.queue and now.queue[0][0] == self.time:
            if now.queue[0][2] < 0:
                break
            clients.append(heapq.heappop(now.queue)[2])
        delays = [
            self.updates + j + 1 - now.began[client] for j, client in enumerate(clients)
        ]
        arrivals = self._arrivals(clients, delays)
        self.updates += len(clients)
        self._at_work -= len(clients)
        self._returning -= len(clients)
        for client in clients:
            now.busy[client] = False
            now.gradients[client] += self._samples[client] * now.work[client]
            if now.waiting[client]:
                self._begin(client, *now.waiting[client].pop(0))
        for some in arrivals:
            for client in self._method.arrive(now.state, some):
                self._hand(client)
        while now.queued and self._at_work < self._capacity:
            self._give(now.queued.pop(0))
        begun = now.begun[:]
        now.begun.clear()
        return Event(self.time, clients, delays, self.updates, now.state, begun)

    def _arrivals(self, clients: list[int], delays: list[int]) -> list[Arrivals]:
        """What has arrived, kind by kind."""
        kinds, now = self._now.kinds, (self.updates, self._seed)
        if len(clients) == 1 or len(self._method.kinds) == 1:
            kind = kinds[clients[0]]
            answers = self._answers_of(clients, kind)
            return [Arrivals(self.time, clients, answers, delays, *now, kind)]
        found = []
        for kind in sorted({kinds[client] for client in clients}):
            pairs = [
                (client, delay)
                for client, delay in zip(clients, delays, strict=True)
                if kinds[client] == kind
            ]
            some, late = (list(part) for part in zip(*pairs, strict=True))
            answers = self._answers_of(some, kind)
            found.append(Arrivals(self.time, some, answers, late, *now, kind))
        return found

    def _hand(self, client: int) -> None:
        """Gives a client a task, or a place behind those who wait to be at work."""
        now = self._now
        if not 0 <= client < len(now.busy):
            raise InputError(
                f"`arrive` must return clients from 0 to {len(now.busy) - 1}, "
                f"got {client}."
            )
        full = self._at_work >= self._capacity or len(now.queued) > 0
        if full and not now.busy[client]:
            now.queued.append(client)
        else:
            self._give(client)

    def _give(self, client: int) -> None:
        """Gives a client a task, which it begins now or after those that it has."""
        now = self._now
        task = self._method.task(now.state, client)
        place = now.numbers[client] + len(now.waiting[client])
        comes = self.time + self._travel(client, 2 * place)
        if now.busy[client]:
            kept = task._replace(rows=tuple(row.clone() for row in task.rows))
            now.waiting[client].append([kept, self.updates, comes])
        else:
            self._begin(client, task, self.updates, comes)

    def _travel(self, client: int, message: int) -> float:
        """How long a message to or from a client travels."""
        if self._links is None or self._method.messages == "none":
            return 0.0
        name, first = torch.tensor([self._names[client]]), torch.tensor([message])
        return float(self._links.relayed(name, first, 1))

    def _record(self, client: int, task: Task, version: int) -> None:
        """Notes with what a client begins."""
        now = self._now
        rows, kind, draws, work, samples = task
        if len(rows) > len(now.rows) or not work >= 0:
            raise InputError(
                f"a task must have at most {len(now.rows)} rows, as the first had, and "
                f"work of at least 0, got {len(rows)} and {work}."
            )
        for kept, row in zip(now.rows, rows, strict=False):
            kept[client] = row
        now.computed[client], now.busy[client] = False, True
        now.began[client], now.kinds[client] = version, kind
        now.work[client] = work + samples / self._samples[client]
        now.numbers[client] += 1
        now.rounds[client] = now.numbers[client] if draws is None else draws
        self._at_work += 1

    def _begin(self, client: int, task: Any, version: int, comes: float) -> None:
        """Lets a client begin a task that comes to it at that time."""
        self._record(client, task, version)
        # One that came before the client was free begins when it was: while its answer
        # travels, a client goes on. Answers arrive in the order of tasks.
        end = self._compute_until(client, max(comes, self._now.spans[client][1]))
        back = self._travel(client, 2 * self._now.numbers[client] - 1)
        self._foresee(max(self.time, end + back), client)

    def _compute_until(self, client: int, time: float) -> float:
        """When a client who may begin at that time will have computed its task."""
        now = self._now
        start = begins(self._clock, self._names[client], time)
        duration, left = 0.0, now.work[client]
        while left > 0:  # a draw for every gradient, the last may be a part of one
            duration += min(1.0, left) * self._seconds(client)
            left -= 1
        now.idle[client] += start - now.spans[client][1]
        now.spans[client] = start, start + duration
        now.begun.append((client, start, start + duration))
        return start + duration

    def _seconds(self, client: int) -> float:
        """How long a client's next gradient takes."""
        now, drawn = self._now, self._drawn[client]
        if not drawn:
            name = torch.tensor([self._names[client]])
            first = torch.tensor([now.drawn[client]])
            drawn.extend(self._clock.durations(name, first, _DRAWN)[0].tolist())
        seconds = drawn.popleft()
        refuse_seconds(seconds, self._names[client], now.drawn[client])
        now.drawn[client] += 1
        return seconds

    def _answers_of(self, clients: list[int], kind: int) -> tuple[Tensor, ...]:
        """The answers of these clients, computed with all that are under way."""
        now = self._now
        missing = [i for i in clients if not now.computed[i]]
        if missing:
            if self._grouped:
                of_kind = zip(now.busy, now.computed, now.kinds, strict=True)
                missing = [
                    i
                    for i, (busy, computed, its) in enumerate(of_kind)
                    if busy and not computed and its == kind
                ]
                self._compute(missing, kind)
            else:
                for client in missing:
                    self._compute([client], kind)
        if len(clients) == 1:
            return tuple(answer[clients[0]][None] for answer in now.answers[kind])
        return tuple(answer[clients] for answer in now.answers[kind])

    def _compute(self, clients: list[int], kind: int) -> None:
        now, (program, verb, reads) = self._now, self._method.kinds[kind]
        # A compiled kernel is made anew for every size, so there are few of them: some
        # client is asked several times.
        spare = self._simulation.width(len(clients)) - len(clients)
        places = torch.tensor(clients + clients[:1] * spare, device=now.rows[0].device)
        rounds = [now.rounds[i] for i in clients]
        rounds += rounds[:1] * spare
        asked = self._simulation.staggered(places, rounds, verb=verb)
        found = program(asked, *(row[places] for row in now.rows[:reads]))
        who = places[: len(clients)]
        found = found if isinstance(found, tuple) else (found,)
        found = tuple(answer[: len(clients)] for answer in found)
        if not now.answers[kind]:
            n = len(now.busy)
            now.answers[kind] = [
                torch.zeros((n, *answer.shape[1:]), dtype=answer.dtype).to(answer)
                for answer in found
            ]
        for kept, answer in zip(now.answers[kind], found, strict=True):
            kept[who] = answer
        for client in clients:
            now.computed[client] = True


def refuse_seconds(seconds: float, client: int, number: int) -> None:
    """Refuses a time that no computation takes; one may take for ever."""
    if not seconds >= 0:
        raise InputError(
            f"`clock` must give times of at least 0, got {seconds} for client "
            f"{client}, task {number}."
        )


def begins(clock: Clock, client: int, time: float) -> float:
    """When a client may begin, by a clock that must not go backwards."""
    start = clock.ready(client, time)
    if not time <= start < math.inf:
        raise InputError(
            f"`clock` must let client {client} begin at {time} or at a later time, "
            f"got {start}."
        )
    return start


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
