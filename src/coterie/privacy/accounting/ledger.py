"""The ledger: who released what to whom, with which sensitivity and noise.

Verbs append events, which nobody changes afterwards; accountants are pure functions of
them. There are two ways to be private. A `Release` carries noise of its own. In a
protocol of gossip, noise is drawn once, as an `Input`, and every `Exchange` sends
linear combinations of all inputs so far, so that what a client learns is a projection.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from jaxtyping import Bool, Float64, Int
from torch import Tensor

from ...checks import number

LOSSES = "losses"
"""Stands for a verb where what left clients are mean losses."""


class Release(NamedTuple):
    """Rows that left their clients, each with fresh Gaussian noise."""

    round: int
    verb: str
    links: Int[Tensor, "l 2"]  # from whom, to whom: positions, or SERVER
    sensitivity: float  # how far a row moves, in L2, when the unit of privacy changes
    noise: float  # standard deviation of every coordinate of what each sender sends
    rate: float = 1.0  # the chance that a unit takes part (subsampling)
    summed: bool = False  # receivers see only the sum of rows times `shares`
    apart: bool = False  # every link has a row and noise of its own, not every sender
    held_out: bool = False  # of validation samples, and none of the training samples
    shares: Float64[Tensor, " l"] | None = None  # of each sender in a sum


class Input(NamedTuple):
    """Fresh noisy inputs, added to rows that these clients hold; nothing is sent."""

    round: int
    who: Bool[Tensor, " n"]
    sensitivity: float
    noise: float


class Exchange(NamedTuple):
    """Rows sent over links as they are, and mixed: x <- gamma W x + (1 - gamma) x'.

    x' are the rows before the last exchange of the same round (Chebyshev's recursion);
    with gamma = 1 this is plain gossip.
    """

    round: int
    links: Int[Tensor, "l 2"]
    weights: Tensor  # (N, N), sparse or not
    gamma: float = 1.0


class Meetings(NamedTuple):
    """Pairs who met at once, none of them touching another: both sent their rows x.

    Every client holds a second row z, which nobody sees and which inputs change as they
    change x. Before a meeting each end has moved by its part of the way from x to z,
    and from z to x; then x_v, x_w <- (x_v + x_w) / 2, z_v <- z_v + gamma (x_w - x_v),
    z_w <- z_w - gamma (x_w - x_v). Where nobody moves and gamma = 0, z is nothing.
    """

    round: int
    pairs: Int[Tensor, "m 2"]
    moved: Float64[Tensor, "m 2"]  # of the way from x to z, between 0 and 1/2
    gamma: float = 0.0


Event = Release | Input | Exchange | Meetings


def refuse_sizes(event: Release | Input) -> None:
    """Refuses noise and sensitivity that are none; rows without bound may be there."""
    number("noise", event.noise, at_least=0)
    if event.sensitivity != math.inf:
        number("sensitivity", event.sensitivity, at_least=0)


class Ledger:
    """Events in the order in which they happened, until they are taken out."""

    def __init__(self, clients: int, events: tuple[Event, ...] = ()) -> None:
        """A ledger of so many clients."""
        self.clients, self._events = clients, list(events)

    def append(self, event: Event) -> None:
        """Writes down what has happened."""
        self._events.append(event)

    def take(self) -> Ledger:
        """All that has happened, which is to be kept elsewhere from now on."""
        events, self._events = tuple(self._events), []
        return Ledger(self.clients, events)

    @property
    def events(self) -> tuple[Event, ...]:
        """All that has happened."""
        return tuple(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __repr__(self) -> str:
        return f"Ledger({self.clients} clients, {len(self)} events)"
