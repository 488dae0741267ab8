"""An attacker that sees every loss that clients release.

If a method chooses by losses, its clients release every loss as soon as the method asks
(`privacy.mechanisms` and its `per_sample`). So we wrap the private method. Outside of
it, losses have already left their clients, bounded and with noise.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...clients.traffic import Wrapping
from ...types import Algorithm, Comparison, Info, Option, Oracle, Program, State
from ..mechanisms.per_sample.clients import IndexedClients
from ..mechanisms.telling import TellingClients
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
        def heard_program(
            clients: IndexedClients, *rows: Tensor, **options: Option
        ) -> Tensor | tuple[Tensor, ...]:
            telling = TellingClients(clients, HeardLosses(self._listener))
            return program(telling, *rows, **options)

        return self._oracle.each(
            heard_program, *rows, who=who, at_home=False, **options
        )

    def blended(self, x: Tensor, weights: Tensor) -> Tensor:
        """The answer of the wrapped oracle."""
        return self._oracle.blended(x, weights)

    def compare(self, x: Tensor, **settings: Any) -> Comparison:
        """The answer of the wrapped oracle."""
        return self._oracle.compare(x, **settings)


class HeardLosses(NamedTuple):
    """Losses of clients, which a listener hears; see `LossAnswers`."""

    listener: Listener

    def mean_losses(
        self, clients: IndexedClients, points: Tensor, *, held_out: bool
    ) -> Float[Tensor, " n"]:
        """Mean losses, which the listener hears."""
        found = clients.loss(points)
        self.listener.loss(clients.who, points, found, held_out=held_out)
        return found

    def losses(
        self, clients: IndexedClients, points: Tensor, *, held_out: bool
    ) -> Float[Tensor, "n b"]:
        """Numbers in place of losses; the listener hears their mean."""
        found = clients.losses(points)
        mean = found.nanmean(1) if found.numel() else found.sum(1)
        self.listener.loss(clients.who, points, mean, held_out=held_out)
        return found


def telling_losses_to(listener: Listener, algorithm: Algorithm) -> Algorithm:
    """The algorithm (with rounds), where a listener gets all losses of its clients.

    The listener gets no losses that stay with their clients when models are used.
    """

    def init(x: Tensor, oracle: Oracle) -> State:
        return algorithm.init(x, LossListeningOracle(oracle, listener))

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        return algorithm.step(state, LossListeningOracle(oracle, listener), rng)

    return algorithm._replace(init=init, step=step)
