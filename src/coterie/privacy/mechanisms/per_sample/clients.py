"""Clients that answer client programs privately, with noise for every sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from ....seeds import Stream
from ....types import Clients, Evaluation, OwnLoss
from .mechanisms import QuestionLog, refuse


@runtime_checkable
class IndexedClients(Clients, Protocol):
    """Clients that answer without noise, and know their positions."""

    who: Int[Tensor, " n"]  # positions among the clients at hand

    def same_batch(self) -> IndexedClients:
        """The same clients with one minibatch for every question to come."""

    def whole(self) -> IndexedClients:
        """The same clients with all of their training data for every question."""

    def validation(self) -> IndexedClients:
        """The same clients with all of their validation data, for choosing."""


@dataclass
class Use:
    """How many questions used the same samples."""

    sampled: bool
    times: int = 0  # for gradients
    losses: int = 0  # for losses
    held_out: bool = False  # validation samples


class Uses:
    """The questions of a client program.

    In debug mode, a program runs once for each client and repeats its questions.
    Repeated questions count once.
    """

    def __init__(self) -> None:
        self.found: list[Use] = []

    def begin(self) -> None:
        """Forgets earlier questions, because a program begins."""
        self.found = []

    def add(self, use: Use) -> Use:
        """Adds questions about other samples than before."""
        self.found.append(use)
        return use


class PrivateClients:
    """Clients that add noise to their answers; see `coterie.types.Clients`."""

    def __init__(
        self,
        clients: IndexedClients,
        log: QuestionLog,
        call: tuple[str, int],
        said: str,
        used: Uses | None = None,
        numbers: Iterator[int] | None = None,
        use: Use | None = None,
        calls: Callable[[int], PrivateClients] | None = None,
    ) -> None:
        """Wraps clients whose kernel clips.

        Args:
            clients: the same clients without noise.
            log: names the noise of questions, and enters them in the ledger.
            call: verb and number of the question to the oracle.
            said: the name of the client program in errors.
            used: collects questions; None: they enter the ledger at once.
            numbers: numbers the questions, over all clients of a program.
            use: counts questions about the same samples; None: every question has fresh
                samples.
            calls: gives the clients of the same task in another call.
        """
        self._clients, self._log, self._call = clients, log, call
        self._said, self._used, self._use = said, used, use
        self._calls = calls
        self._numbers = count() if numbers is None else numbers
        self.who = clients.who

    def grad(
        self,
        points: Float[Tensor, "n d"],
        *rows: Tensor,
        loss: OwnLoss | None = None,
        **options: Any,
    ) -> Float[Tensor, "n d"]:
        """Row j is the private gradient of client j's samples at points[j]."""
        if loss is not None:
            refuse(self._said, "gradients of the method's own loss")
        if self._use is not None and self._use.held_out:
            refuse(self._said, "gradients of validation data")
        g = self._clients.grad(points)
        sampled = self._note_question()
        mechanism, who = self._log.mechanism, self._clients.who
        keys = self._log.keys(*self._call, next(self._numbers))
        samples = mechanism.expected if sampled else mechanism.sizes
        return mechanism.add_noise(g, keys, who, samples)

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Entry j is the private mean loss of client j's samples at points[j]."""
        mean, _ = self._private_losses(points)
        mechanism, use = self._log.mechanism, self._use
        noisy = use is not None and mechanism.loss_noise(held_out=use.held_out)
        return mean if noisy else self._clients.loss(points)

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Row j has numbers whose mean is client j's private mean loss."""
        return self._private_losses(points)[1]

    def evaluate(self, points: Float[Tensor, "n d"]) -> Evaluation:
        """Always refuses, because nothing bounds these answers."""
        refuse(self._said, "outputs, features or labels of samples")

    def class_counts(self) -> Float[Tensor, "n c"]:
        """Always refuses, because counts have no noise."""
        refuse(self._said, "class counts")

    def stream(self, *names: int | str) -> Stream:
        """A random stream, which is not made of data."""
        return self._clients.stream(*names)

    def hvp(self, points: Tensor, vectors: Tensor) -> Float[Tensor, "n d"]:
        """Always refuses, because nothing bounds these products."""
        refuse(self._said, "Hessian-vector products")

    def same_batch(self) -> PrivateClients:
        """The same clients with one minibatch for every question to come."""
        if self._use is not None:
            return self._with(self._clients.same_batch(), self._use)
        return self._with(self._clients.same_batch(), self._note_use(Use(sampled=True)))

    def whole(self) -> PrivateClients:
        """The same clients with all of their training data for every question."""
        return self._with(self._clients.whole(), self._note_use(Use(sampled=False)))

    def validation(self) -> PrivateClients:
        """The same clients with all of their validation data, for losses."""
        use = self._note_use(Use(sampled=False, held_out=True))
        return self._with(self._clients.validation(), use)

    def call(self, number: int) -> PrivateClients:
        """The same clients, with samples and noise of this call."""
        assert self._calls is not None  # only clients of a task have calls
        return self._calls(number)

    def _private_losses(self, points: Tensor) -> tuple[Tensor, Tensor]:
        """Private mean losses, and numbers for samples with these means."""
        if self._use is None or self._use.sampled:
            refuse(self._said, "losses of a minibatch")
        self._use.losses += 1
        (verb, call), question = self._call, next(self._numbers)
        keys = self._log.keys(verb, call, question)
        spread = self._log.keys(f"{verb}, spread", call, question)
        losses, who = self._clients.losses(points), self._clients.who
        return self._log.mechanism.add_noise_to_losses(
            losses, (keys, spread), who, held_out=self._use.held_out
        )

    def _note_question(self) -> bool:
        """Notes a question; returns whether it is about a minibatch."""
        if self._use is None:
            self._note_use(Use(sampled=True, times=1))
            return True
        self._use.times += 1
        return self._use.sampled

    def _note_use(self, use: Use) -> Use:
        if self._used is not None:
            return self._used.add(use)
        if not use.times:
            refuse(self._said, "one minibatch for several questions in time")
        who = (self._clients.who + self._log.mechanism.first).cpu()
        self._log.enter(self._call[0], who, times=use.times, sampled=use.sampled)
        return use

    def _with(self, clients: IndexedClients, use: Use) -> PrivateClients:
        return PrivateClients(
            clients,
            self._log,
            self._call,
            self._said,
            self._used,
            self._numbers,
            use,
        )
