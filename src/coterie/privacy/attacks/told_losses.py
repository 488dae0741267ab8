"""An attacker that sees every loss that clients release.

If a method chooses by losses, its clients release every loss as soon as the method asks
(`privacy.mechanisms` and its `per_sample`). So we wrap the private method. Outside of
it, losses have already left their clients, bounded and with noise.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...clients.traffic import Wrapping
from ...optim.steps import StepNumber, step_numbers
from ...seeds import Stream
from ...types import (
    Algorithm,
    Comparison,
    Evaluation,
    Info,
    Option,
    Oracle,
    OwnLoss,
    Program,
    RunningStatistics,
    State,
    statistics_of,
)
from ..mechanisms.per_sample.clients import IndexedClients
from .listening import Listener


class LossListeningOracle(Wrapping[Oracle]):
    """An oracle whose losses a listener hears; see `coterie.types.Oracle`."""

    def __init__(self, oracle: Oracle, listener: Listener) -> None:
        """Wraps an oracle whose answers have left their clients."""
        super().__init__(oracle)
        self._listener = listener

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """Runs a client program, and hears the losses of its clients."""
        if at_home:
            return self._oracle.each(program, *rows, who=who, at_home=True, **options)

        @functools.wraps(program)
        def listener(
            clients: IndexedClients, *rows: Tensor, **options: Option
        ) -> Tensor | tuple[Tensor, ...]:
            return program(HeardClients(clients, self._listener), *rows, **options)

        return self._oracle.each(listener, *rows, who=who, at_home=False, **options)

    def blended(self, x: Tensor, weights: Tensor) -> Tensor:
        """The answer of the wrapped oracle."""
        return self._oracle.blended(x, weights)

    def compare(self, x: Tensor, **settings: Any) -> Comparison:
        """The answer of the wrapped oracle."""
        return self._oracle.compare(x, **settings)


class HeardClients:
    """Clients whose losses a listener hears; see `coterie.types.Clients`."""

    def __init__(
        self, clients: IndexedClients, listener: Listener, *, held_out: bool = False
    ) -> None:
        """Wraps clients; `held_out` says whether they use validation samples."""
        self._clients, self._listener, self.who = clients, listener, clients.who
        self._held_out = held_out

    def grad(
        self,
        points: Float[Tensor, "n d"],
        *rows: Tensor,
        loss: OwnLoss | None = None,
        **options: Any,
    ) -> Float[Tensor, "n d"]:
        """The answer of the wrapped clients."""
        return self._clients.grad(points, *rows, loss=loss, **options)

    def evaluate(self, points: Float[Tensor, "n d"]) -> Evaluation:
        """The answer of the wrapped clients."""
        return self._clients.evaluate(points)

    def class_counts(self) -> Float[Tensor, "n c"]:
        """The answer of the wrapped clients."""
        return self._clients.class_counts()

    def stream(self, *names: int | str) -> Stream:
        """The answer of the wrapped clients."""
        return self._clients.stream(*names)

    @property
    def statistics(self) -> RunningStatistics | None:
        """The running statistics in a row; None: there are none."""
        return statistics_of(self._clients)

    def hvp(self, points: Tensor, vectors: Tensor) -> Float[Tensor, "n d"]:
        """The answer of the wrapped clients."""
        return self._clients.hvp(points, vectors)

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Mean losses, which the listener hears."""
        found = self._clients.loss(points)
        self._listener.loss(self.who, points, found, held_out=self._held_out)
        return found

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Numbers in place of losses; the listener hears their mean."""
        found = self._clients.losses(points)
        mean = found.nanmean(1) if found.numel() else found.sum(1)
        self._listener.loss(self.who, points, mean, held_out=self._held_out)
        return found

    def step_numbers(self, t: int, steps: int) -> Iterable[StepNumber]:
        """The numbers of the next local steps, which depend on sizes alone."""
        return step_numbers(self._clients, t, steps)

    def same_batch(self) -> HeardClients:
        """The same clients with one minibatch for every question to come."""
        return HeardClients(self._clients.same_batch(), self._listener)

    def whole(self) -> HeardClients:
        """The same clients with all of their training data for every question."""
        return HeardClients(self._clients.whole(), self._listener)

    def validation(self) -> HeardClients:
        """The same clients with all of their validation data, for choosing."""
        return HeardClients(self._clients.validation(), self._listener, held_out=True)


def telling_losses_to(listener: Listener, algorithm: Algorithm) -> Algorithm:
    """The algorithm (with rounds), where a listener gets all losses of its clients.

    The listener gets no losses that stay with their clients when models are used.
    """

    def init(x: Tensor, oracle: Oracle) -> State:
        return algorithm.init(x, LossListeningOracle(oracle, listener))

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        return algorithm.step(state, LossListeningOracle(oracle, listener), rng)

    return algorithm._replace(init=init, step=step)
