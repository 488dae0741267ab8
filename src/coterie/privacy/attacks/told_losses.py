"""Somebody who hears every loss that clients tell.

Methods that choose by losses release them as soon as they ask (`privacy.mechanisms`
and its `per_sample`). So a method is wrapped from outside, where answers have left
their clients already: bounded, and with their noise.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ...clients.traffic import Wrapping
from ...types import (
    Algorithm,
    CentralProgram,
    Comparison,
    Info,
    Message,
    Option,
    Oracle,
    Program,
    State,
)
from ..mechanisms.per_sample.clients import IndexedClients
from .listening import Listener


class LossListeningOracle(Wrapping[Oracle]):
    """An oracle of which losses are heard; see `coterie.types.Oracle`."""

    def __init__(self, oracle: Oracle, listener: Listener) -> None:
        """Wraps an oracle whose answers have left their clients."""
        super().__init__(oracle)
        self._listener = listener

    def grads(self, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """As it is."""
        return self._oracle.grads(x)

    def each(
        self,
        program: Program,
        *rows: Tensor,
        who: Bool[Tensor, " n"] | None = None,
        at_home: bool = False,
        **options: Option,
    ) -> tuple[Tensor, ...]:
        """Runs a client program, and hears what losses its clients tell."""
        if at_home:
            return self._oracle.each(program, *rows, who=who, at_home=True, **options)

        @functools.wraps(program)
        def listener(
            clients: IndexedClients, *rows: Tensor, **options: Option
        ) -> Tensor | tuple[Tensor, ...]:
            return program(HeardClients(clients, self._listener), *rows, **options)

        return self._oracle.each(listener, *rows, who=who, at_home=False, **options)

    def average(
        self,
        shares: Tensor,
        rows: Message,
        groups: Int[Tensor, " n"] | None = None,
        *,
        count: int | None = None,
    ) -> Tensor:
        """As it is."""
        return self._oracle.average(shares, rows, groups, count=count)

    def mix(
        self, weights: Tensor, rows: Message, *, exchanges: int = 1, gamma: float = 1.0
    ) -> Tensor:
        """As it is."""
        return self._oracle.mix(weights, rows, exchanges=exchanges, gamma=gamma)

    def central(
        self, program: CentralProgram, server: Any, *rows: Message, **options: Option
    ) -> tuple[Any, ...]:
        """As it is."""
        return self._oracle.central(program, server, *rows, **options)

    def blended(self, x: Tensor, weights: Tensor) -> Tensor:
        """As it is."""
        return self._oracle.blended(x, weights)

    def compare(self, x: Tensor, **settings: Any) -> Comparison:
        """As it is."""
        return self._oracle.compare(x, **settings)


class HeardClients:
    """Clients who are heard when they tell losses; see `coterie.types.Clients`."""

    def __init__(
        self, clients: IndexedClients, listener: Listener, *, held_out: bool = False
    ) -> None:
        """Wraps clients who tell what leaves, of validation samples or of others."""
        self._clients, self._listener, self.who = clients, listener, clients.who
        self._held_out = held_out

    def grad(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        """As it is."""
        return self._clients.grad(points)

    def hvp(self, points: Tensor, vectors: Tensor) -> Float[Tensor, "n d"]:
        """As it is."""
        return self._clients.hvp(points, vectors)

    def loss(self, points: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """Mean losses, which are heard."""
        found = self._clients.loss(points)
        self._listener.loss(self.who, points, found, held_out=self._held_out)
        return found

    def losses(self, points: Float[Tensor, "n d"]) -> Float[Tensor, "n b"]:
        """Numbers in place of losses, of which the mean is heard."""
        found = self._clients.losses(points)
        mean = found.nanmean(1) if found.numel() else found.sum(1)
        self._listener.loss(self.who, points, mean, held_out=self._held_out)
        return found

    def held(self) -> HeardClients:
        """The same clients with one minibatch for every question to come."""
        return HeardClients(self._clients.held(), self._listener)

    def whole(self) -> HeardClients:
        """The same clients with all of their training data for every question."""
        return HeardClients(self._clients.whole(), self._listener)

    def validation(self) -> HeardClients:
        """The same clients with all of their validation data, for choosing."""
        return HeardClients(self._clients.validation(), self._listener, held_out=True)


def telling_losses_to(listener: Listener, algorithm: Algorithm) -> Algorithm:
    """The algorithm with rounds, whose clients tell losses where somebody hears them.

    What is asked at home, for the models in use, is not heard.
    """

    def init(x: Tensor, oracle: Oracle) -> State:
        return algorithm.init(x, LossListeningOracle(oracle, listener))

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        return algorithm.step(state, LossListeningOracle(oracle, listener), rng)

    return algorithm._replace(init=init, step=step)
