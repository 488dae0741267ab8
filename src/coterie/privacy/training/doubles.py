"""Clients without data: a double of an oracle, to see what a method would send.

Gradients and losses are random numbers, which depend on a `world`; models are short.
Answers of verbs between clients may be those of another run, so that two worlds differ
in what clients know alone and agree in all that was ever released.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ... import seeds
from ...clients.traffic import Sending, Wrap
from ...types import CentralProgram, Comparison, Option, Program, Sent

Answer = TypeVar("Answer")


class Seen(NamedTuple):
    """One call of a verb between clients."""

    verb: str
    rows: tuple[Tensor, ...]  # what clients give
    others: tuple[Tensor, ...]  # shares or weights, and groups or pairs
    answer: Any  # a tensor, a tuple of them, or a comparison
    program: str = ""  # of a coordinator


class DoubleClients:
    """Clients that answer with random numbers; see `coterie.types.Clients`."""

    def __init__(
        self, rng: torch.Generator, who: Tensor, told: torch.Generator | None = None
    ) -> None:
        """Clients at these positions, whose losses are drawn from `told`, if given."""
        self._rng, self.who = rng, who
        self._told = rng if told is None else told

    def grad(self, points: Tensor) -> Tensor:
        """Random gradients."""
        return torch.randn(points.shape, generator=self._rng, dtype=points.dtype)

    def hvp(self, points: Tensor, vectors: Tensor) -> Tensor:
        """Random products."""
        return self.grad(points)

    def loss(self, points: Tensor) -> Tensor:
        """Random losses, by which every client chooses as it likes."""
        return self._rand(points, len(points))

    def losses(self, points: Tensor) -> Tensor:
        """Random losses of thirty samples.

        Questions differ more than clients, and these more than samples, so that whoever
        looks for what is surely better for many finds it now and then.
        """
        rand, n = self._rand, len(points)
        each = 0.1 * rand(points, n, 1) + 0.1 * rand(points, n, 30)
        return 0.8 * rand(points, 1, 1) + each

    def _rand(self, like: Tensor, *shape: int) -> Tensor:
        return torch.rand(*shape, generator=self._told, dtype=like.dtype)

    def held(self) -> DoubleClients:
        """The same."""
        return self

    whole = validation = held


class Double:
    """An oracle without data; see `coterie.types.Oracle`."""

    def __init__(
        self,
        present: Bool[Tensor, " n"],
        names: tuple[int | str, ...],
        answers: Sequence[Seen] | None = None,
        told: tuple[int | str, ...] | None = None,
    ) -> None:
        """Of a round.

        Args:
            present: who takes part.
            names: of the stream of random numbers, the world among them.
            answers: what verbs answer, call after call; None: what they compute.
            told: names the stream of losses, where these are released; None: as all.
        """
        self.active = self.present = present
        self.mine = slice(0, len(present))
        self.gradients = torch.zeros(len(present), dtype=torch.float64)
        self.sent: list[Sent] = []
        self.seen: list[Seen] = []
        self._answers, self._names, self._told_names = answers, names, told
        self._rng = seeds.generator(*names)
        self._losses = None if told is None else seeds.generator(*told)

    def wrapped(self, wrap: Wrap) -> Sending:
        """What the wrap makes of it."""
        return wrap(self)

    def without(self, absent: Bool[Tensor, " n"]) -> Double:
        """The same round without these."""
        present = self.present & ~absent
        return Double(present, self._names, self._answers, self._told_names)

    def grads(self, x: Float[Tensor, "n d"]) -> Tensor:
        """Random gradients."""
        return self._clients(self.active).grad(x) * self.active[:, None]

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """What the program makes of random numbers."""
        active = self.active if who is None else self.active & who
        clients = self._clients(active)
        asked = clients.who
        given = [row[asked] for row in rows]
        found = program(clients, *given, **options)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(
            row.index_copy(0, asked, result)
            for row, result in zip(rows, found, strict=False)
        )

    def average(
        self, shares: Tensor, rows: Tensor, groups: Tensor | None = None
    ) -> Tensor:
        """Weighted means, of all; those of groups are not told apart."""
        part = shares.to(rows) * self.active
        total = part.sum(-1, keepdim=True)
        mean = (part / torch.where(total > 0, total, 1)) @ rows.flatten(1)
        found = mean.expand(len(rows), *mean.shape)
        others = (shares,) if groups is None else (shares, groups)
        return self._told("average", (rows,), others, found)

    def mix(
        self, weights: Tensor, rows: Tensor, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """Mixtures; `exchanges` do not matter for what they depend on."""
        return self._told("mix", (rows,), (weights,), weights.to(rows) @ rows)

    def central(
        self, program: CentralProgram, *rows: Tensor, **options: Option
    ) -> tuple[Tensor, ...]:
        """What the program makes of the rows."""
        found = program(*rows, **options)
        found = found if isinstance(found, tuple) else (found,)
        return self._told("central", rows, (), found, program.__name__)

    def blended(
        self,
        x: Tensor,
        weights: Tensor,
        *,
        home: Tensor | None = None,
        release: object = None,
    ) -> Tensor:
        """Random gradients."""
        shared = x if home is None else x[:, ~home]
        # One's own columns have a gradient that nobody else knows.
        found = self.grads(x)
        shared_g = self._told(
            "blended", (shared,), (weights,), found if home is None else found[:, ~home]
        )
        if home is None:
            return shared_g
        found[:, ~home] = shared_g
        return found

    def compare(
        self,
        x: Tensor,
        *,
        samples: int | None = None,
        pairs: Tensor | None = None,
        home: Tensor | None = None,
        release: object = None,
    ) -> Comparison:
        """All alike: nobody sends more than where everybody helps everybody."""
        n, one = len(self.present), x.new_ones(len(self.present))
        asks = torch.ones(n, n, dtype=torch.bool) if pairs is None else pairs
        known = asks & self.present[:, None] & self.present | torch.diag(self.present)
        none = x.new_zeros(n, n)
        found = Comparison(none, one, none, one, none, one, 2 * one, known)
        shared = x if home is None else x[:, ~home]
        return self._told("compare", (shared,), (asks,), found)

    def _clients(self, active: Tensor) -> DoubleClients:
        return DoubleClients(self._rng, active.nonzero()[:, 0], self._losses)

    def _told(
        self,
        verb: str,
        rows: tuple[Tensor, ...],
        others: tuple[Tensor, ...],
        answer: Answer,
        program: str = "",
    ) -> Answer:
        """The answer of this run, or of the other, after the call is written down."""
        number = len(self.seen)
        if self._answers is not None and number < len(self._answers):
            answer = self._answers[number].answer
        # Methods may write into what they get.
        self.seen.append(Seen(verb, _copied(rows), others, _copied(answer), program))
        return _copied(answer)


def _copied(rows: Any) -> Any:
    if isinstance(rows, Comparison):
        return rows
    if isinstance(rows, tuple):
        return tuple(row.clone() for row in rows)
    # An average stays one row in memory, by which methods know it.
    return rows if rows.stride(0) == 0 else rows.clone()
