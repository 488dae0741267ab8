"""Counts what an oracle sends: the links, and the number of values on each.

`average` and `central` send through a server: up from every client that takes part, and
back down to it. `mix`, `blended` and `compare` send from peer to peer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..types import (
    SERVER,
    CentralProgram,
    Comparison,
    Message,
    Option,
    Oracle,
    Program,
    RunningStatistics,
    Transfer,
    Widths,
    statistics_of,
)
from .blends import Release, as_it_is


@runtime_checkable
class Sending(Oracle, Protocol):
    """An oracle that other code may wrap to change what a client sends."""

    def wrap_with(self, wrap: Wrap) -> Oracle:
        """This oracle inside a wrap that changes all that a client sends."""

    def without_clients(self, absent: Bool[Tensor, " n"]) -> Sending:
        """The same oracle without these clients. `absent` marks them among all N."""

    def blended(
        self,
        x: Tensor,
        weights: Tensor,
        *,
        home: Tensor | None = None,
        release: Release | None = None,
    ) -> Tensor:
        """Blends as in `Oracle.blended`, but `home` columns stay at the client.

        `release` maps the gradients of pairs to the rows that are sent (None: gradients
        are sent).
        """

    def compare(
        self,
        x: Tensor,
        *,
        samples: int | None = None,
        pairs: Tensor | None = None,
        home: Tensor | None = None,
        release: tuple[Release, Release] = (as_it_is, as_it_is),
    ) -> Comparison:
        """Comparisons as in `Oracle.compare`, of gradients that `release` changed."""


Wrap = Callable[[Sending], Sending]

Inner = TypeVar("Inner", bound=Oracle)


class Wrapping(Generic[Inner]):
    """The parts of an oracle that a wrapping oracle passes on unchanged."""

    def __init__(self, oracle: Inner) -> None:
        """Wraps an oracle."""
        self._oracle = oracle

    @property
    def active(self) -> Bool[Tensor, " n"]:
        """(n,) which clients at hand take part in this round."""
        return self._oracle.active

    @property
    def present(self) -> Bool[Tensor, " m"]:
        """(N,) which clients take part in this round."""
        return self._oracle.present

    @property
    def mine(self) -> Any:
        """The positions of the clients at hand among all N, as an index of rows."""
        return self._oracle.mine

    @property
    def home(self) -> Bool[Tensor, " d"] | None:
        """Columns of a model that never leave their client; None: all may."""
        return self._oracle.home

    @property
    def widths(self) -> Widths:
        """The number of classes, and of features before the head."""
        return self._oracle.widths

    @property
    def statistics(self) -> RunningStatistics | None:
        """The running statistics in a row; None: there are none."""
        return statistics_of(self._oracle)

    @property
    def gradients(self) -> Float[Tensor, " n"]:
        """(n,) gradients of single samples that each client has evaluated."""
        return self._oracle.gradients

    @property
    def sent(self) -> list[Transfer]:
        """What the verbs have sent."""
        return self._oracle.sent

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """The answer of the wrapped oracle."""
        return self._oracle.grads(x)

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """The answer of the wrapped oracle."""
        return self._oracle.each(program, *rows, who=who, at_home=at_home, **options)

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """The answer of the wrapped oracle."""
        return self._oracle.average(shares, rows, groups, count=count)

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """The answer of the wrapped oracle."""
        return self._oracle.mix(weights, rows, exchanges=exchanges, gamma=gamma)

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """The answer of the wrapped oracle."""
        return self._oracle.central(program, server, *rows, **options)


def server_links(present: Bool[Tensor, " n"]) -> Int[Tensor, "l 2"]:
    """The links from every client that takes part to the server."""
    who = present.nonzero()
    return torch.cat([who, torch.full_like(who, SERVER)], 1)


def peer_links(
    weights: Tensor, present: Bool[Tensor, " n"], *, readers: bool = False
) -> Int[Tensor, "l 2"]:
    """The links from clients k to i, one for each weight with different i and k.

    Contributors that take no part send nothing.

    Args:
        weights: (N, N), sparse or not.
        present: which clients take part.
        readers: whether to leave out readers that take no part as well.
    """
    if weights.layout == torch.strided:
        i, k = weights.nonzero().unbind(1)
    else:
        coalesced = weights.to_sparse_coo().coalesce()
        i, k = coalesced.indices()[:, coalesced.values() != 0]
    present = present.to(i.device)
    used = (i != k) & present[k]
    if readers:
        used &= present[i]
    return torch.stack([k[used], i[used]], 1)


class Meter:
    """Counts what the verbs of a round send, in `sent`."""

    def __init__(self, present: Bool[Tensor, " n"], sent: list[Transfer]) -> None:
        """Prepares to add to `sent` what the present clients send."""
        self.sent, self._present = sent, present
        # Verb, id of weights, weights and links. Keeping the weights makes sure that no
        # other tensor gets their id.
        self._links: tuple[str, int, Tensor, Tensor] | None = None

    @cached_property
    def _upwards(self) -> Tensor:
        return server_links(self._present)

    def count_server(self, verb: str, up: int, down: int) -> None:
        """Counts values from every client to the server, and back down."""
        self.sent.append(Transfer(verb, up, self._upwards))
        self.sent.append(Transfer(verb, down, self._upwards.flip(1)))

    def count_peers(
        self,
        verb: str,
        weights: Tensor,
        values: int,
        *,
        readers: bool = False,
        back: int = 0,
    ) -> None:
        """Counts `values` over every link, and `back` in the other direction."""
        if self._links is None or self._links[:2] != (verb, id(weights)):
            links = peer_links(weights, self._present, readers=readers)
            self._links = verb, id(weights), weights, links
        links = self._links[3]
        self.sent.append(Transfer(verb, values, links))
        if back:
            self.sent.append(Transfer(verb, back, links.flip(1)))

    def count_at_hand(
        self, verb: str, weights: Tensor, values: int, start: int
    ) -> None:
        """Counts the values that each client of this process sends along its weights.

        Args:
            verb: the verb that sends.
            weights: (n, N) of the clients at hand; mutual, see `mix_rows_at_hand`.
            values: the number of values on every link.
            start: the position of the first client at hand.
        """
        i, k = weights.to_dense().nonzero().unbind(1)
        i = i + start
        used = (i != k) & self._present.to(i.device)[i]
        links = torch.stack([i[used], k[used]], 1)
        self.sent.append(Transfer(verb, values, links, partial=True))
