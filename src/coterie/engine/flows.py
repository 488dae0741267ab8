"""What a method without waiting is: tasks for clients, and what their answers do."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import seeds
from ..types import Clients, Info, Oracle, Program, State


def gradient(clients: Clients, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """A client program: one gradient."""
    return clients.grad(x)


class Kind(NamedTuple):
    """A kind of task: a client program, and whose samples it uses."""

    program: Program = gradient
    verb: str = "grads"  # of the oracle, whose draws in rounds these are
    reads: int | None = None  # how many of a task's rows; None: all


class Task(NamedTuple):
    """What a client is asked to compute, as it is when the client is asked."""

    rows: tuple[Tensor, ...]
    kind: int = 0  # which of the method's
    round: int | None = None  # whose samples it uses; None: one more than its number
    work: float = 1.0  # gradients of a minibatch that it takes
    samples: float = 0.0  # gradients of single samples, beside these


class Arrivals(NamedTuple):
    """A task that ended, or several of a kind at the same time."""

    time: float
    clients: list[int]  # in the order in which their ends were foreseen
    answers: tuple[Tensor, ...]  # (m, ...) what their programs returned
    delays: list[int]  # answers that arrived since a task began, its own with them
    k: int  # answers that arrived before these
    seed: int
    kind: int = 0

    def generator(self) -> torch.Generator:
        """A stream for what the method draws now."""
        return seeds.generator(self.seed, "events", self.k)


class Asynchronous(NamedTuple):
    """A method whose clients need not wait for each other.

    The state belongs to one run, and `arrive` changes it in place: a new (N, D) tensor
    for each of a million events would be most of the work. It is a dataclass of
    tensors, numbers and lists of numbers.
    """

    init: Callable[[Tensor], State]
    task: Callable[[State, int], Task]
    """What a client that begins now is asked."""
    arrive: Callable[[State, Arrivals], Iterable[int]]
    """Takes answers in; returns who gets a new task, also one who is still busy."""
    personal: Callable[[State], Float[Tensor, "n d"]]
    welcome: Callable[[State, Oracle], Tensor] | None = None
    """As of an `Algorithm`: models for clients that were not there in training."""
    info: Callable[[State], Info] = lambda state: {"floats": state.floats}
    """As of a round, but `floats` is the number of values sent since the start."""
    kinds: tuple[Kind, ...] = (Kind(),)
    together: bool = False  # whether tasks that end at the same time arrive at once
    meet: Callable[[State, int, int], None] | None = None
    """Two clients whose edge rings."""
    edges: Int[Tensor, "e 2"] | None = None  # the pairs of those who may meet
    couples: bool = False
    """Tasks begin in pairs only, where an edge rings between two who are free."""
    messages: str = "relayed"
    """Tasks and answers travel if `relayed`; `none` are sent, or they are `instant`."""
