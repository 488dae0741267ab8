"""Where a run in virtual time stands between two events."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..types import Flow, State, Task


@dataclass
class Client:
    """A client: the task that it has, if it is busy, and what it has done so far."""

    busy: bool = False
    kind: int = 0
    round: int = 0  # whose samples the task uses
    work: float = 0.0  # gradients of a minibatch that it takes
    began: int = 0  # answers that had arrived when it began
    peer: int = -1  # who sent it; -1: a server
    computed: bool = False  # whether the answer is
    tasks: int = 0  # that the client has begun
    drawn: int = 0  # gradients whose times were drawn
    begin: float = 0.0  # from when to when it computes, or has
    end: float = 0.0
    idle: float = 0.0  # how long before that it did not
    gradients: float = 0.0  # of single samples, in answers that arrived
    waiting: list[Any] = field(default_factory=list)
    """Tasks that it will do, each with its `began`, and when it comes."""


@dataclass
class Edge:
    """An edge: how often it has rung, and when it rings next."""

    rung: int = 0
    ring: float = 0.0


@dataclass
class Totals:
    """What has happened so far."""

    time: float = 0.0
    updates: int = 0  # answers that have arrived
    order: int = 0  # events that were foreseen
    lost: int = 0  # rings that found a busy end
    server: float = 0.0  # values that went to a server, or came from it
    peers: float = 0.0  # values that clients sent to each other


class Moment(NamedTuple):
    """A run between two events: all that is needed to go on from there."""

    totals: Totals
    state: State
    rows: tuple[Tensor, ...]  # (N, ...) what clients compute on
    answers: list[list[Tensor]]  # by kind, (N, ...) each, as far as they are computed
    clients: tuple[Client, ...]
    edges: tuple[Edge, ...]
    queue: list[tuple[float, int, int, int]]  # time, order, what happens, and to whom
    queued: list[int]  # clients who would begin, were not so many others at work
    begun: list[tuple[int, float, float]]  # spans that no event has told of yet
    letters: list[Any]
    """What travels over edges: order, edge, when it was read, and what both sent."""
    links: list[Any]  # both ends, and how many messages took the direct way


def first_moment(flow: Flow, state: State, n: int, edges: int) -> Moment:
    """Before anybody has a task."""
    first = (0,) if flow.starts is None else flow.starts
    rows = flow.task(copy.deepcopy(state), first[0], 0.0).rows if first else ()
    return Moment(
        Totals(),
        state,
        tuple(
            torch.zeros((n, *row.shape), dtype=row.dtype, device=row.device)
            for row in rows
        ),
        [[] for _ in flow.kinds],
        tuple(Client() for _ in range(n)),
        tuple(Edge() for _ in range(edges)),
        queue=[],
        queued=[],
        begun=[],
        letters=[],
        links=[],
    )


def copy_moment(moment: Moment) -> Moment:
    """The same, of which nothing changes when the run goes on."""
    return Moment(
        replace(moment.totals),
        copy.deepcopy(moment.state),
        tuple(row.clone() for row in moment.rows),
        [[answer.clone() for answer in kept] for kept in moment.answers],
        # What waits is never changed itself.
        tuple(replace(c, waiting=[*c.waiting]) for c in moment.clients),
        tuple(replace(edge) for edge in moment.edges),
        [*moment.queue],
        [*moment.queued],
        [*moment.begun],
        [*moment.letters],
        [[*link] for link in moment.links],
    )


def restore_moment(moment: Moment) -> Moment:
    """A copy, also of one that was in a file.

    There, lists lie on the CPU, and tuples in them have become lists.
    """
    moment = copy_moment(moment)
    times: tuple[list[Any], ...] = (moment.queue, moment.begun)
    for listed in times:
        listed[:] = [tuple(values) for values in listed]
    device = _device(moment)
    for kept in moment.answers:
        kept[:] = [answer.to(device) for answer in kept]
    for place, (order, edge, since, *sent) in enumerate(moment.letters):
        there = [payload.to(device) for payload in sent]
        moment.letters[place] = [order, edge, since, *there]
    for client in moment.clients:
        for place, ((rows, *rest), version, comes) in enumerate(client.waiting):
            task = Task(tuple(row.to(device) for row in rows), *rest)
            client.waiting[place] = [task, version, comes]
    return moment


def _device(moment: Moment) -> torch.device:
    """Where a run computes; a file says it of tuples and states only."""
    parts = moment.rows or vars(moment.state).values()
    found = [part.device for part in parts if isinstance(part, Tensor)]
    return found[0] if found else torch.device("cpu")
