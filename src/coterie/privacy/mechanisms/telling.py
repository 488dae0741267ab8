"""Clients whose losses are released whenever they are asked for.

A method that sends losses, or choices made of them, sends then what is made of releases
alone. All else that its client programs compute stays with the clients, and leaves as
rows do.
"""

from __future__ import annotations

import math

from jaxtyping import Float, Int
from torch import Tensor

from ... import seeds
from ...types import Option, Program
from .per_sample.clients import IndexedClients
from .per_sample.losses import as_samples, bounded_mean
from .rows import Mechanism


class Questions:
    """How many losses a client program has asked for, and the names of their noise."""

    def __init__(
        self,
        mechanism: Mechanism,
        names: Int[Tensor, " n"],
        call: tuple[int, int],
    ) -> None:
        """Of a call of `each`.

        Args:
            mechanism: of losses.
            names: identities of the clients at hand.
            call: its round, and its number there.
        """
        self.mechanism, self.asked = mechanism, 0
        self._names, self._call = names, call

    def put_by(self, program: Program) -> Program:
        """The program, whose clients tell losses."""

        def telling(
            clients: IndexedClients, *rows: Tensor, **options: Option
        ) -> Tensor | tuple[Tensor, ...]:
            self.asked = 0  # in debug mode it asks each client the same
            return program(TellingClients(clients, self), *rows, **options)

        return telling

    def _stream(self, purpose: str, question: int) -> int:
        t, call = self._call
        return seeds.key(self.mechanism.seed, "privacy", t, purpose, call, question)

    def release(
        self, losses: Float[Tensor, "n b"], who: Int[Tensor, " n"]
    ) -> tuple[Tensor, Tensor]:
        """Mean losses (n,) as they leave, and numbers (n, b) with these means."""
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
    """What a client program sees of clients who tell losses; see `types.Clients`."""

    def __init__(self, clients: IndexedClients, questions: Questions) -> None:
        """Wraps clients who answer as it is."""
        self._clients, self._questions, self.who = clients, questions, clients.who

    def grad(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """Row j is the gradient of client j's samples, which stays with it."""
        return self._clients.grad(points)

    def hvp(self, points: Tensor, vectors: Tensor) -> Float[Tensor, "n d"]:
        """Row j is the Hessian times vectors[j], which stays with its client."""
        return self._clients.hvp(points, vectors)

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Entry j is client j's mean loss at points[j], as it is released."""
        if math.isinf(self._questions.mechanism.clip):
            self._questions.asked += 1
            return self._clients.loss(points)
        losses = self._clients.losses(points)
        return self._questions.release(losses, self.who)[0]

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Row j has numbers with client j's mean loss at points[j], as released."""
        return self._questions.release(self._clients.losses(points), self.who)[1]

    def held(self) -> TellingClients:
        """The same clients with one minibatch for every question to come."""
        return TellingClients(self._clients.held(), self._questions)

    def whole(self) -> TellingClients:
        """The same clients with all of their training data for every question."""
        return TellingClients(self._clients.whole(), self._questions)

    def validation(self) -> TellingClients:
        """The same clients with all of their validation data, for choosing."""
        return TellingClients(self._clients.validation(), self._questions)
