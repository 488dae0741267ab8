"""The ledger: who released what to whom, with which sensitivity and noise.

Each verb (a call by which clients exchange rows, such as `average` or `mix`) appends
events. Nobody changes events afterwards, and accountants are pure functions of events.
There are two ways to be private. A `Release` carries its own noise. A gossip
protocol draws noise once, as an `Input`. Every `Exchange` then sends linear
combinations of all inputs so far, so a client learns a projection of the inputs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from jaxtyping import Bool, Float64, Int
from torch import Tensor

from ...checks import number

LOSSES = "losses"
"""The `verb` of a release of mean losses, because clients send losses by no verb."""


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
    held_out: bool = False  # of validation samples alone, not of training samples
    shares: Float64[Tensor, " l"] | None = None  # of each sender in a sum


class Input(NamedTuple):
    """Inputs with fresh noise, which clients add to their rows; nothing is sent."""

    round: int
    who: Bool[Tensor, " n"]
    sensitivity: float
    noise: float


class Exchange(NamedTuple):
    """Rows sent over links as they are, and mixed: x <- gamma W x + (1 - gamma) x'.

    x' are the rows before the last exchange of the same round (Chebyshev's recursion).
    With gamma = 1, the exchange is plain gossip.
    """

    round: int
    links: Int[Tensor, "l 2"]
    weights: Tensor  # (N, N), sparse or not
    gamma: float = 1.0


class Meetings(NamedTuple):
    """Pairs of clients that met at the same time, where both clients sent their rows x.

    No client is in two pairs. Every client holds a second row z, which nobody sees.
    Inputs change z in the same way as x. Before a meeting, each of the two clients
    moves its x a part of the way to its z, and its z an equal part of the way to its x.
    Then x_v, x_w <- (x_v + x_w) / 2, z_v <- z_v + gamma (x_w - x_v), z_w <- z_w - gamma
    (x_w - x_v). If no row moves and gamma = 0, z has no effect.
    """

    round: int
    pairs: Int[Tensor, "m 2"]
    moved: Float64[Tensor, "m 2"]  # of the way from x to z, between 0 and 1/2
    gamma: float = 0.0


Event = Release | Input | Exchange | Meetings


def refuse_sizes(event: Release | Input) -> None:
    """Refuses wrong noise and sensitivity; an infinite sensitivity is allowed."""
    number("noise", event.noise, at_least=0)
    if event.sensitivity != math.inf:
        number("sensitivity", event.sensitivity, at_least=0)


class Ledger:
    """Events in the order in which they happened."""

    def __init__(self, clients: int, events: tuple[Event, ...] = ()) -> None:
        """A ledger of this number of clients."""
        self.clients, self._events = clients, list(events)

    def append(self, event: Event) -> None:
        """Adds an event."""
        self._events.append(event)

    def take(self) -> Ledger:
        """A ledger with all events so far, which leave this one."""
        events, self._events = tuple(self._events), []
        return Ledger(self.clients, events)

    @property
    def events(self) -> tuple[Event, ...]:
        """All events so far."""
        return tuple(self._events)

    def __len__(self) -> int:
        return len(self._events)

    def __iter__(self) -> Iterator[Event]:
        return iter(self._events)

    def __repr__(self) -> str:
        return f"Ledger({self.clients} clients, {len(self)} events)"
