"""Virtual time: clients compute at their own pace; events happen one after the other.

    for event in run_events(algorithm, simulation, x, clock=clock, updates=1000):
        print(event.time, event.clients, event.delays)

A client that begins a task gets a copy of the rows that it needs. Its answer depends on
nothing else. So all tasks of a kind that are in progress are computed together, in one
vectorised pass, when the first answer is needed. Task c of a client uses the random
draws of round c + 1 in `coterie.engine.rounds`. So without delays, events are rounds.

In addition to tasks, pairs of clients may meet: each edge of a graph has a clock that
rings at random times. When the clock rings, both clients send something, and the method
uses these messages when they arrive. In a loss network, both clients begin to compute
instead, and are busy until they have exchanged their models. If one of them is already
busy, the ring has no effect (it is lost). Events are ordered by their times; events of
equal time are in the order in which they entered the queue. Answers that arrive at the
same time are handled one after the other, or together if the method says so.
"""

from __future__ import annotations

import heapq
import itertools
import math
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..checks import InputError, TrainingError, integer, number
from ..graphs.families import refuse_apart
from ..types import Algorithm, ClientsInTime, Meeting, State, Task, Traffic
from .answers import Answers
from .checkpoints import Moment, Totals, copy_moment, first_moment, restore_moment
from .clocks import Clock, LinkDelays, Rings
from .messages import Messages, flow_of
from .times import Times, places, tempo, work_of

_FOREVER = sys.float_info.max

ROUNDING = 1e-9
"""Relative rounding error by which a sum of equal times may exceed their product."""

_ANSWER, _RING, _LETTER = range(3)  # what happens


class Event(NamedTuple):
    """An arrival of answers, which has just happened."""

    time: float
    clients: list[int]
    delays: list[int]
    updates: int  # answers that have arrived so far
    state: State
    spans: list[tuple[int, float, float]]
    """Computations begun since the last event: position of the client, begin, end."""


class EventLoop:
    """An iterator over events; `moment()` gives a copy from which to resume."""

    def __init__(
        self,
        algorithm: Algorithm,
        clients: ClientsInTime,
        x: Float[Tensor, "n d"],
        *,
        clock: Clock,
        rings: Rings | None = None,
        links: LinkDelays | None = None,
        capacity: int | None = None,
        seed: int = 0,
        start: Moment | None = None,
        grouped: bool = True,
    ) -> None:
        """Prepares a run, and gives clients their first tasks.

        Args:
            algorithm: the algorithm; its flow runs.
            clients: the clients that compute the answers.
            x: starting models.
            clock: how long the gradient of a minibatch takes.
            rings: when pairs of clients meet (None: never).
            links: how long messages travel: to a client and back for every task, or
                over the edge whose clock rings (None: no time).
            capacity: the number of clients that may compute at the same time; others
                wait for their turn (None: all).
            seed: selects the random draws of the method.
            start: the moment at which an earlier run stopped; this run goes on from
                there.
            grouped: whether to compute tasks in progress together, not one by one.
        """
        if len(x) != len(clients):
            raise InputError(f"`x` must have {len(clients)} rows, got {len(x)}.")
        flow = self._flow = flow_of(algorithm, rings, links, capacity)
        self._capacity = len(x) if capacity is None else capacity
        self._seed = seed
        self._samples = clients.batch_counts.tolist()
        self._sizes = clients.sizes.tolist()
        self._names = clients.names.tolist()
        self._ends = places(rings, self._names)
        if rings is not None:
            refuse_apart("rings", torch.tensor(self._ends), len(x))
        self._times = Times(clock, links, rings, self._names)
        self._answers = Answers(flow, clients, grouped=grouped)
        if start is not None:
            self._take(restore_moment(start))
            return
        state = flow.init(x)
        if flow.ringing is not None and rings is not None:
            flow.ringing(state, tempo(flow, clients, clock, links, rings))
        self._take(first_moment(flow, state, len(x), len(self._ends)))
        for edge in range(len(self._ends)):
            self._ring_again(edge)
        if not flow.couples:
            for client in range(len(x)) if flow.starts is None else flow.starts:
                self._hand(client)

    def _take(self, moment: Moment) -> None:
        self._now = moment
        self._totals: Totals = moment.totals
        self._at_work = sum(client.busy for client in moment.clients)
        self._returning = sum(
            what == _ANSWER and math.isfinite(time) for time, _, what, _ in moment.queue
        )
        self._letters = {letter[0]: letter for letter in moment.letters}
        self._messages = Messages(self._flow, self._times, moment)

    def moment(self) -> Moment:
        """A copy of the run's state, to resume from."""
        letters = list(self._letters.values())
        links = self._messages.links
        return copy_moment(self._now._replace(letters=letters, links=links))

    @property
    def time(self) -> float:
        """The virtual time now."""
        return self._totals.time

    @property
    def updates(self) -> int:
        """The number of answers that have arrived."""
        return self._totals.updates

    @property
    def lost_rings(self) -> int:
        """The number of rings without effect, because one end was busy."""
        return self._totals.lost

    @property
    def sent(self) -> Traffic:
        """The numbers of values sent so far."""
        return Traffic(self._totals.server, self._totals.peers)

    @property
    def state(self) -> State:
        """The method's state now."""
        return self._now.state

    @property
    def idle(self) -> list[float]:
        """The seconds that each client has been idle so far."""
        # Idle time before the last task began, and since this task ended.
        return [
            c.idle - max(0.0, c.begin - self.time) + max(0.0, self.time - c.end)
            for c in self._now.clients
        ]

    @property
    def tasks(self) -> list[int]:
        """The number of tasks that each client has finished."""
        return [client.tasks - client.busy for client in self._now.clients]

    @property
    def gradients(self) -> Float64[Tensor, " n"]:
        """(N,) gradients of single samples in each client's answers so far."""
        counts = [c.gradients for c in self._now.clients]
        return torch.tensor(counts, dtype=torch.float64)

    def personal(self) -> Float[Tensor, "n d"]:
        """The models of all clients now."""
        return self._flow.personal(self._now.state)

    def step(self) -> Event:
        """The next arrival, after all meetings before it."""
        event = self._next(_FOREVER)
        if event is not None:
            return event
        busy = [client.busy for client in self._now.clients]
        missing = [str(name) for name in itertools.compress(self._names, busy)][:5]
        names = ", ".join(missing) or "there are none"
        raise TrainingError(
            f"nothing will ever happen after time {self.time:g} and {self.updates} "
            f"updates: all wait for clients whose task never ends ({names})."
        )

    def until(self, time: float) -> Iterator[Event]:
        """Yields the arrivals until that time."""
        number("time", time, at_least=0)
        while (event := self._next(time * (1 + ROUNDING))) is not None:
            yield event
        self._totals.time = max(self.time, time)

    def _foresee(self, time: float, what: int, whose: int) -> int:
        order = self._totals.order
        heapq.heappush(self._now.queue, (time, order, what, whose))
        self._totals.order += 1
        self._returning += what == _ANSWER and math.isfinite(time)
        return order

    def _ring_again(self, number: int) -> None:
        edge = self._now.edges[number]
        edge.ring = self._times.rings(number, edge.rung, edge.ring)
        edge.rung += 1
        self._foresee(edge.ring, _RING, number)

    def _meet(self, until: float) -> None:
        """Handles rings and messages between clients until the next answer."""
        queue = self._now.queue
        while queue and queue[0][2] != _ANSWER and queue[0][0] <= until:
            if until == _FOREVER and not self._returning and not self._can_couple():
                return
            self._totals.time, order, what, edge = heapq.heappop(queue)
            if what == _LETTER:
                self._deliver(*self._letters.pop(order)[1:])
                continue
            (self._couple if self._flow.couples else self._exchange)(edge)
            self._ring_again(edge)

    def _can_couple(self) -> bool:
        """Whether any edge has two free ends, which can begin together."""
        free = [not client.busy for client in self._now.clients]
        return self._flow.couples and any(free[v] and free[w] for v, w in self._ends)

    def _exchange(self, edge: int) -> None:
        """Lets both ends of an edge send their present rows, for use on arrival."""
        assert self._flow.send is not None  # or else no edge rings
        state, time = self._now.state, self.time
        v, w = self._ends[edge]
        sent = [self._flow.send(state, client, time).clone() for client in (v, w)]
        self._totals.peers += sum(payload.numel() for payload in sent)
        travel = self._times.link_delay(v, w, self._now.edges[edge].rung - 1)
        if not travel:
            self._deliver(edge, time, *sent)
            return
        order = self._foresee(time + travel, _LETTER, edge)
        self._letters[order] = [order, edge, time, *sent]

    def _deliver(self, edge: int, since: float, one: Tensor, other: Tensor) -> None:
        assert self._flow.meet is not None  # or else nothing was sent
        meeting = Meeting(self.time, since, self._ends[edge], (one, other))
        self._flow.meet(self._now.state, meeting)

    def _couple(self, edge: int) -> None:
        """Lets both ends begin tasks that end together, unless one is busy."""
        now, pair = self._now, self._ends[edge]
        if any(
            now.clients[client].busy
            or self._times.begins(client, self.time) > self.time
            for client in pair
        ):
            self._totals.lost += 1
            return
        ends = []
        for client, other in (pair, pair[::-1]):
            asked = self._flow.task(now.state, client, self.time)
            task = asked._replace(peer=other)
            self._messages.count_down(client, task)
            self._record(client, task, self.updates)
            ends.append(self._compute_until(client, self.time))
        travel = self._times.link_delay(*pair, now.edges[edge].rung - 1)
        for client in pair:
            self._foresee(max(ends) + travel, _ANSWER, client)

    def _next(self, until: float) -> Event | None:
        """The next answers that arrive, or None if none arrives before `until`."""
        now, totals = self._now, self._totals
        self._meet(until)
        # The queue may have only rings, or tasks that never end.
        if not now.queue or now.queue[0][0] > until or now.queue[0][2] != _ANSWER:
            return None
        totals.time = now.queue[0][0]
        clients = [heapq.heappop(now.queue)[3]]
        while self._flow.together and now.queue and now.queue[0][0] == totals.time:
            if now.queue[0][2] != _ANSWER:
                break
            clients.append(heapq.heappop(now.queue)[3])
        delays = [
            totals.updates + j + 1 - now.clients[client].began
            for j, client in enumerate(clients)
        ]
        arrivals = self._answers.arrivals(now, clients, delays, self._seed)
        for some in arrivals:
            self._messages.count_up(some)
        totals.updates += len(clients)
        self._at_work -= len(clients)
        self._returning -= len(clients)
        for place in clients:
            client = now.clients[place]
            client.busy = False
            client.gradients += self._samples[place] * client.work
            if client.waiting:
                self._begin(place, *client.waiting.pop(0))
        for some in arrivals:
            for place in self._flow.arrive(now.state, some):
                self._hand(place)
            totals.peers += sum(some.sent)
        while now.queued and self._at_work < self._capacity:
            self._give(now.queued.pop(0))
        spans = now.begun[:]
        now.begun.clear()
        return Event(totals.time, clients, delays, totals.updates, now.state, spans)

    def _hand(self, place: int) -> None:
        """Gives a client a task, or a place in the queue if too many compute."""
        now = self._now
        if not 0 <= place < len(now.clients):
            raise InputError(
                "`arrive` and `starts` must name clients from 0 to "
                f"{len(now.clients) - 1}, got {place}."
            )
        full = self._at_work >= self._capacity or len(now.queued) > 0
        if full and not now.clients[place].busy:
            now.queued.append(place)
        else:
            self._give(place)

    def _give(self, place: int) -> None:
        """Gives a client a task, which it begins now or after its present tasks."""
        client = self._now.clients[place]
        task = self._flow.task(self._now.state, place, self.time)
        self._messages.count_down(place, task)
        number = 2 * (client.tasks + len(client.waiting))
        comes = self.time + self._messages.there(place, task, number)
        if client.busy:
            kept = task._replace(rows=tuple(row.clone() for row in task.rows))
            client.waiting.append([kept, self.updates, comes])
        else:
            self._begin(place, task, self.updates, comes)

    def _record(self, place: int, task: Task, version: int) -> None:
        """Records the task that a client begins."""
        now, client = self._now, self._now.clients[place]
        rows, kind, draws, work, _, peer = task
        if len(rows) > len(now.rows) or not work >= 0:
            raise InputError(
                f"a task must have at most {len(now.rows)} rows, as the first had, and "
                f"work of at least 0, got {len(rows)} and {work}."
            )
        for kept, row in zip(now.rows, rows, strict=False):
            kept[place] = row
        client.computed, client.busy, client.began = False, True, version
        client.kind, client.peer = kind, -1 if peer is None else peer
        held = self._sizes[place], self._samples[place]
        client.work = work_of(task, self._flow.kinds[kind], *held)
        client.tasks += 1
        client.round = client.tasks if draws is None else draws
        self._at_work += 1

    def _begin(self, place: int, task: Task, version: int, comes: float) -> None:
        """Lets a client begin a task that reaches it at time `comes`."""
        self._record(place, task, version)
        client = self._now.clients[place]
        # If the client is busy when a task comes, the task begins when the client is
        # free. A client is free while its answer travels. Answers arrive in the order
        # of tasks.
        end = self._compute_until(place, max(comes, client.end))
        back = self._messages.back(place, task, 2 * client.tasks - 1)
        self._foresee(max(self.time, end + back), _ANSWER, place)

    def _compute_until(self, place: int, time: float) -> float:
        """The time when a client ends its task, if it is free to begin at `time`."""
        client = self._now.clients[place]
        start = self._times.begins(place, time)
        duration, left = 0.0, client.work
        while left > 0:  # one draw per gradient; the last may be partial
            seconds = self._times.seconds(place, client.drawn)
            client.drawn += 1
            duration += min(1.0, left) * seconds
            left -= 1
        client.idle += start - client.end
        client.begin, client.end = start, start + duration
        self._now.begun.append((place, start, start + duration))
        return start + duration


def run_events(
    algorithm: Algorithm,
    clients: ClientsInTime,
    x: Float[Tensor, "n d"],
    *,
    clock: Clock,
    updates: int,
    seed: int = 0,
    **options: Any,
) -> Iterator[Event]:
    """Yields events until `updates` answers have arrived.

    The options are the same as for `EventLoop`.
    """
    integer("updates", updates, at_least=1)
    run = EventLoop(algorithm, clients, x, clock=clock, seed=seed, **options)
    while run.updates < updates:
        yield run.step()
