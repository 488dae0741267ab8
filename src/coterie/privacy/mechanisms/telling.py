"""Clients that release a loss whenever a program asks for it.

A method may send losses, or choices that it makes by losses. With the clients of this
module, both are computed from releases only. Other results of client programs stay with
clients, or leave as rows do: clipped and with noise.

An attack listens to losses in the same place (`privacy.attacks.told_losses`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from ... import seeds
from ...optim.steps import StepNumber, step_numbers
from ...seeds import Stream
from ...types import (
    Evaluation,
    Option,
    OwnLoss,
    Program,
    RunningStatistics,
    statistics_of,
)
from .per_sample.clients import IndexedClients
from .per_sample.losses import as_samples, bounded_mean
from .rows import Mechanism


@runtime_checkable
class LossAnswers(Protocol):
    """How clients answer questions for their losses."""

    def mean_losses(
        self, clients: IndexedClients, points: Tensor, *, held_out: bool
    ) -> Float[Tensor, " n"]:
        """Mean losses at models; `held_out` says whether of validation samples."""

    def losses(
        self, clients: IndexedClients, points: Tensor, *, held_out: bool
    ) -> Float[Tensor, "n b"]:
        """Numbers for samples, whose means may leave clients."""


class Questions:
    """The losses that a client program has asked for, and the names of their noise."""

    def __init__(
        self,
        mechanism: Mechanism,
        names: Int[Tensor, " n"],
        call: tuple[int, int],
    ) -> None:
        """Starts with no question.

        Args:
            mechanism: the mechanism that releases losses.
            names: identities of the clients at hand.
            call: the round, and the number of this call of `each` in the round.
        """
        self.mechanism, self.asked = mechanism, 0
        self._names, self._call = names, call

    def put_by(self, program: Program) -> Program:
        """The program, whose clients release losses."""

        def telling(
            clients: IndexedClients, *rows: Tensor, **options: Option
        ) -> Tensor | tuple[Tensor, ...]:
            self.asked = 0  # in debug mode, it asks each client the same questions
            return program(TellingClients(clients, self), *rows, **options)

        return telling

    def mean_losses(
        self, clients: IndexedClients, points: Tensor, *, held_out: bool
    ) -> Float[Tensor, " n"]:
        """Released mean losses."""
        if math.isinf(self.mechanism.clip):
            self.asked += 1
            return clients.loss(points)
        return self.release(clients.losses(points), clients.who)[0]

    def losses(
        self, clients: IndexedClients, points: Tensor, *, held_out: bool
    ) -> Float[Tensor, "n b"]:
        """Numbers with released means."""
        return self.release(clients.losses(points), clients.who)[1]

    def _stream(self, purpose: str, question: int) -> int:
        t, call = self._call
        return seeds.key(self.mechanism.seed, "privacy", t, purpose, call, question)

    def release(
        self, losses: Float[Tensor, "n b"], who: Int[Tensor, " n"]
    ) -> tuple[Tensor, Tensor]:
        """Released mean losses (n,), and numbers (n, b) with these means."""
        most, noise = 2 * self.mechanism.clip, self.mechanism.noise
        number, names = self.asked, self._names.to(losses.device)[who]
        self.asked += 1
        if math.isfinite(most):
            losses = losses.clamp(0, most)
        mean = bounded_mean(losses, most)[:, None]
        if not noise or not len(mean):
            return mean[:, 0], losses
        stream = self._stream("losses", number)
        mean = self.mechanism.release(mean, most / 2 + 0 * mean, stream, names)[:, 0]
        deviation = mean.new_full(mean.shape, noise)
        stream = self._stream("spread", number)
        return mean, as_samples(mean, losses, deviation, most, stream, names)


class TellingClients:
    """Clients whose losses go through `LossAnswers`; see `types.Clients`."""

    def __init__(
        self, clients: IndexedClients, answers: LossAnswers, *, held_out: bool = False
    ) -> None:
        """Wraps clients; `held_out` says whether they use validation samples."""
        self._clients, self._answers, self.who = clients, answers, clients.who
        self._held_out = held_out

    def grad(
        self,
        points: Float[Tensor, "n d"],
        *rows: Tensor,
        loss: OwnLoss | None = None,
        **options: Any,
    ) -> Float[Tensor, "n d"]:
        """Row j is the gradient of client j's samples, which stays with it."""
        return self._clients.grad(points, *rows, loss=loss, **options)

    def evaluate(self, points: Float[Tensor, "n d"]) -> Evaluation:
        """Answers for client j's samples, which stay with it."""
        return self._clients.evaluate(points)

    def class_counts(self) -> Float[Tensor, "n c"]:
        """Counts of client j's classes, which stay with it."""
        return self._clients.class_counts()

    def stream(self, *names: int | str) -> Stream:
        """The answer of the wrapped clients."""
        return self._clients.stream(*names)

    @property
    def statistics(self) -> RunningStatistics | None:
        """The running statistics in a row; None: there are none."""
        return statistics_of(self._clients)

    def hvp(self, points: Tensor, vectors: Tensor) -> Float[Tensor, "n d"]:
        """Row j is the Hessian times vectors[j], which stays with its client."""
        return self._clients.hvp(points, vectors)

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Entry j is client j's mean loss at points[j], as it may be known."""
        held_out = self._held_out
        return self._answers.mean_losses(self._clients, points, held_out=held_out)

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Row j has numbers with this mean."""
        return self._answers.losses(self._clients, points, held_out=self._held_out)

    def step_numbers(self, t: int, steps: int) -> Iterable[StepNumber]:
        """The numbers of the next local steps, which depend on sizes alone."""
        return step_numbers(self._clients, t, steps)

    def same_batch(self) -> TellingClients:
        """The same clients with one minibatch for every question to come."""
        return self._with(self._clients.same_batch(), held_out=self._held_out)

    def whole(self) -> TellingClients:
        """The same clients with all of their training data for every question."""
        return self._with(self._clients.whole(), held_out=False)

    def validation(self) -> TellingClients:
        """The same clients with all of their validation data, for choosing."""
        return self._with(self._clients.validation(), held_out=True)

    def _with(self, clients: IndexedClients, *, held_out: bool) -> TellingClients:
        return TellingClients(clients, self._answers, held_out=held_out)
