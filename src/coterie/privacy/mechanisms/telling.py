"""Clients that release a loss whenever a program asks for it.

A method may send losses, or choices that it makes by losses. With the clients of this
module, both are computed from releases only. Other results of client programs stay with
clients, or leave as rows do: clipped and with noise.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

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
    """Clients that release their losses; see `types.Clients`."""

    def __init__(self, clients: IndexedClients, questions: Questions) -> None:
        """Wraps clients, who answer without noise."""
        self._clients, self._questions, self.who = clients, questions, clients.who

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
        """Entry j is client j's released mean loss at points[j]."""
        if math.isinf(self._questions.mechanism.clip):
            self._questions.asked += 1
            return self._clients.loss(points)
        losses = self._clients.losses(points)
        return self._questions.release(losses, self.who)[0]

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Row j has numbers with client j's released mean loss at points[j]."""
        return self._questions.release(self._clients.losses(points), self.who)[1]

    def step_numbers(self, t: int, steps: int) -> Iterable[StepNumber]:
        """The numbers of the next local steps, which depend on sizes alone."""
        return step_numbers(self._clients, t, steps)

    def same_batch(self) -> TellingClients:
        """The same clients with one minibatch for every question to come."""
        return TellingClients(self._clients.same_batch(), self._questions)

    def whole(self) -> TellingClients:
        """The same clients with all of their training data for every question."""
        return TellingClients(self._clients.whole(), self._questions)

    def validation(self) -> TellingClients:
        """The same clients with all of their validation data, for choosing."""
        return TellingClients(self._clients.validation(), self._questions)
