"""A method whose every gradient hides every single sample, with its ledger."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...types import Algorithm, Info, Oracle, State
from ..ledger import Ledger
from ..per_sample import PrivateSimulation
from ..subsampled import sampled_epsilons
from .methods import events_of, listed


class Counted(NamedTuple):
    """The state of a method, and what its clients have released."""

    state: State
    ledger: list[Any]  # events, see `events_of`


def counted(algorithm: Algorithm, clients: PrivateSimulation) -> Algorithm:
    """The algorithm, whose state holds the ledger of these clients.

    Args:
        algorithm: with rounds.
        clients: whom it will ask.
    """

    def begun(x: Tensor, oracle: Oracle) -> Counted:
        return Counted(algorithm.init(x, oracle), [])

    def step(
        now: Counted, oracle: Oracle, rng: torch.Generator
    ) -> tuple[Counted, Info]:
        before = len(clients.ledger)
        state, info = algorithm.step(now.state, oracle, rng)
        new = listed(clients.ledger.events[before:])
        return Counted(state, [*now.ledger, *new]), info

    def personal(now: Counted, oracle: Oracle) -> Tensor:
        return algorithm.personal(now.state, oracle)

    return Algorithm(begun, step, personal)


def spent_on_samples(now: Counted, clients: int, delta: float) -> Tensor:
    """(N,) the epsilon of each client towards whoever sees all that it sent."""
    return sampled_epsilons(Ledger(clients, events_of(now.ledger)), delta=delta)
