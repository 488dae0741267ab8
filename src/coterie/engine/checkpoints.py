"""The state of a run in virtual time between two events."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..types import Flow, State, Task


@dataclass
class Client:
    """A client: its task, if it is busy, and what it has done so far."""

    busy: bool = False
    kind: int = 0
    round: int = 0  # the task uses the samples of this round
    work: float = 0.0  # gradients of a minibatch that the task takes
    began: int = 0  # the number of answers that had arrived when it began
    peer: int = -1  # the client that sent the task; -1: a server
    computed: bool = False  # whether its answer is computed
    tasks: int = 0  # the number of tasks that the client has begun
    drawn: int = 0  # the number of gradients whose times were drawn
    begin: float = 0.0  # when the last computation begins, or began
    end: float = 0.0  # when it ends, or ended
    idle: float = 0.0  # seconds before `begin` in which the client did not compute
    gradients: float = 0.0  # of single samples, in answers that arrived
    waiting: list[Any] = field(default_factory=list)
    """The client's next tasks, each with its `began` and the time of its arrival."""


@dataclass
class Edge:
    """An edge: the number of its rings so far, and the time of its next ring."""

    rung: int = 0
    ring: float = 0.0


@dataclass
class Totals:
    """What has happened so far."""

    time: float = 0.0
    updates: int = 0  # answers that have arrived
    order: int = 0  # events that were put into the queue
    lost: int = 0  # rings of edges with a busy end
    server: float = 0.0  # values that went to a server, or came from it
    peers: float = 0.0  # values that clients sent to each other


class Moment(NamedTuple):
    """The state of a run between two events: everything needed to continue."""

    totals: Totals
    state: State
    rows: tuple[Tensor, ...]  # (N, ...) inputs of the clients' tasks
    answers: list[list[Tensor]]  # by kind, (N, ...) each, as far as computed
    clients: tuple[Client, ...]
    edges: tuple[Edge, ...]
    queue: list[tuple[float, int, int, int]]  # time, order, what happens, and to whom
    queued: list[int]  # clients that wait because `capacity` others are at work
    begun: list[tuple[int, float, float]]  # spans that no event has reported yet
    letters: list[Any]
    """Messages that travel: order, edge, time of sending, and what both ends sent."""
    links: list[Any]  # both ends, and the number of messages sent directly


def first_moment(flow: Flow, state: State, n: int, edges: int) -> Moment:
    """The moment before anybody has a task."""
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
    """A copy that does not change when the run goes on."""
    return Moment(
        replace(moment.totals),
        copy.deepcopy(moment.state),
        tuple(row.clone() for row in moment.rows),
        [[answer.clone() for answer in kept] for kept in moment.answers],
        # Waiting tasks never change.
        tuple(replace(c, waiting=[*c.waiting]) for c in moment.clients),
        tuple(replace(edge) for edge in moment.edges),
        [*moment.queue],
        [*moment.queued],
        [*moment.begun],
        [*moment.letters],
        [[*link] for link in moment.links],
    )


def restore_moment(moment: Moment) -> Moment:
    """A copy from which a run can go on; the moment may come from a file.

    In a file, tensors in lists are on the CPU, and tuples in lists have become lists.
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
    """The device of a run, from a tensor whose device a file keeps."""
    parts = moment.rows or vars(moment.state).values()
    found = [part.device for part in parts if isinstance(part, Tensor)]
    return found[0] if found else torch.device("cpu")
