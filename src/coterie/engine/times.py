"""Times in one run: of computing, of sending messages, and between rings of edges."""

from __future__ import annotations

import math
from collections import deque

import torch
from jaxtyping import Float64
from torch import Tensor

from ..checks import InputError
from ..types import ClientsInTime, Flow, Task, TaskKind, Tempo
from .clocks import Clock, LinkDelays, Rings

_DRAWN = 64
"""The number of durations of a client, or rings of an edge, drawn at once."""


class Times:
    """Times from clock, links and rings, by the positions of clients and edges."""

    def __init__(
        self,
        clock: Clock,
        links: LinkDelays | None,
        rings: Rings | None,
        names: list[int],
    ) -> None:
        self._clock, self._links, self._rings = clock, links, rings
        self._names = names
        self._seconds: list[deque[float]] = [deque() for _ in names]
        edges = 0 if rings is None else len(rings.rates)
        self._next: list[deque[float]] = [deque() for _ in range(edges)]

    @property
    def travelling(self) -> bool:
        """Whether messages take time."""
        return self._links is not None

    def seconds(self, client: int, number: int) -> float:
        """How long a client's gradient takes; calls need consecutive numbers."""
        drawn = self._seconds[client]
        if not drawn:
            name, first = torch.tensor([self._names[client]]), torch.tensor([number])
            drawn.extend(self._clock.durations(name, first, _DRAWN)[0].tolist())
        seconds = drawn.popleft()
        refuse_seconds(seconds, self._names[client], number)
        return seconds

    def begins(self, client: int, time: float) -> float:
        """When a client that is free at `time` may begin."""
        return begins(self._clock, self._names[client], time)

    def relay_delay(self, client: int, number: int) -> float:
        """How long a message between a client and a server travels."""
        if self._links is None:
            return 0.0
        name, first = torch.tensor([self._names[client]]), torch.tensor([number])
        return float(self._links.relay_delays(name, first, 1))

    def link_delay(self, v: int, w: int, number: int) -> float:
        """How long a message between two clients travels."""
        if self._links is None:
            return 0.0
        names = torch.tensor([[self._names[v], self._names[w]]])
        return float(self._links.delays(names, torch.tensor([number]), 1))

    def rings(self, edge: int, number: int, since: float) -> float:
        """When an edge next rings after `time`; calls must have consecutive numbers."""
        drawn = self._next[edge]
        if not drawn:
            assert self._rings is not None  # there is an edge
            which, first = torch.tensor([edge]), torch.tensor([number])
            before = torch.tensor([since], dtype=torch.float64)
            drawn.extend(self._rings.times(which, first, _DRAWN, before)[0].tolist())
        return drawn.popleft()


def work_of(task: Task, kind: TaskKind, size: float, batch: float) -> float:
    """The number of minibatch gradients in a task of a client with `size` samples."""
    return task.work + (min(task.samples, size) + kind.passes * size) / batch


def usual_work(flow: Flow, clients: ClientsInTime) -> Float64[Tensor, " n"]:
    """(N,) the number of minibatch gradients in a task of the first kind."""
    passes = flow.kinds[0].passes
    if not passes:
        return torch.ones(len(clients), dtype=torch.float64)
    return passes * clients.sizes / clients.batch_counts


def tempo(
    flow: Flow,
    clients: ClientsInTime,
    clock: Clock,
    links: LinkDelays | None,
    rings: Rings,
) -> Tempo:
    """Average times, computed from the first draws of every client and edge.

    If a client never ends a task, we assume that it is as slow as the slowest other
    client.
    """
    names, edges = clients.names, torch.tensor(places(rings, clients.names.tolist()))
    seconds = clock.durations(names, torch.zeros_like(names), _DRAWN).mean(1)
    ends = seconds.isfinite()
    slowest = float(seconds[ends].max()) if ends.any() else 0.0
    seconds = torch.where(ends, seconds, slowest)
    travel = torch.zeros_like(rings.rates)
    if links is not None:
        first = torch.zeros(len(edges), dtype=torch.long)
        travel = links.delays(rings.edges, first, _DRAWN).mean(1)
    return Tempo(edges, rings.rates, travel, usual_work(flow, clients) * seconds)


def refuse_seconds(seconds: float, client: int, number: int) -> None:
    """Refuses a negative time or NaN; a computation may take for ever."""
    if not seconds >= 0:
        raise InputError(
            f"`clock` must give times of at least 0, got {seconds} for client "
            f"{client}, task {number}."
        )


def begins(clock: Clock, client: int, time: float) -> float:
    """When a client may begin, which must not be before `time`."""
    start = clock.ready(client, time)
    if not time <= start < math.inf:
        raise InputError(
            f"`clock` must let client {client} begin at {time} or at a later time, "
            f"got {start}."
        )
    return start


def places(rings: Rings | None, names: list[int]) -> list[tuple[int, int]]:
    """The positions of both ends of every edge that rings."""
    if rings is None:
        return []
    place = {name: i for i, name in enumerate(names)}
    try:
        return [(place[v], place[w]) for v, w in rings.edges.tolist()]
    except KeyError as error:
        raise InputError(
            f"`rings` names client {error}, but there are {len(place)} clients."
        ) from None
