"""Where a run in virtual time stands between two events."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..types import State
from .flows import Asynchronous


class Moment(NamedTuple):
    """A run between two events: all that is needed to go on from there."""

    time: float
    updates: int
    order: int  # events foreseen so far
    lost: int  # rings that found a busy end
    queue: list[tuple[float, int, int]]  # time, order, client or -1 - edge
    state: State
    rows: tuple[Tensor, ...]  # (N, ...) what clients compute on
    answers: list[list[Tensor]]  # by kind, (N, ...) each, as far as they are computed
    computed: list[bool]
    kinds: list[int]
    rounds: list[int]  # whose samples a task uses
    work: list[float]
    began: list[int]  # answers that had arrived when the task began
    numbers: list[int]  # tasks that a client has begun
    drawn: list[int]  # gradients whose times were drawn
    busy: list[bool]
    waiting: list[list[Any]]
    """By client: tasks that it will do, each with its `began`, and when it comes."""
    queued: list[int]  # clients who would begin, were not so many others at work
    spans: list[tuple[float, float]]  # from when to when each computes, or has
    begun: list[tuple[int, float, float]]  # those that no event has told of yet
    idle: list[float]  # how long before that it did not
    gradients: list[float]  # of single samples, in answers that arrived
    rung: list[int]  # rings of each edge so far
    ring: list[float]  # when it rings next


def beginning(method: Asynchronous, state: State, n: int, edges: int) -> Moment:
    """Before anybody has a task."""
    rows = tuple(
        torch.zeros((n, *row.shape), dtype=row.dtype, device=row.device)
        for row in method.task(copy.deepcopy(state), 0).rows  # a try
    )
    return Moment(
        time=0.0,
        updates=0,
        order=0,
        lost=0,
        queue=[],
        state=state,
        rows=rows,
        answers=[[] for _ in method.kinds],
        computed=[False] * n,
        kinds=[0] * n,
        rounds=[0] * n,
        work=[0.0] * n,
        began=[0] * n,
        numbers=[0] * n,
        drawn=[0] * n,
        busy=[False] * n,
        waiting=[[] for _ in range(n)],
        queued=[],
        spans=[(0.0, 0.0)] * n,
        begun=[],
        idle=[0.0] * n,
        gradients=[0.0] * n,
        rung=[0] * edges,
        ring=[0.0] * edges,
    )
