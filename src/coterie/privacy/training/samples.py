"""A method whose every gradient hides every single sample, with what was released."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...types import Algorithm, Info, Oracle, State
from ..per_sample import PrivateSimulation
from ..subsampled import Step, counted_epsilons, quick_epsilons, steps_of


class Counted(NamedTuple):
    """The state of a method, and what its clients have released."""

    state: State
    t: int  # rounds so far
    releases: list[Any]
    """Of each client, (noise, rate, how often) of every kind of release: noise in units
    of the sensitivity, and the chance that a sample takes part."""


def counted(algorithm: Algorithm, clients: PrivateSimulation) -> Algorithm:
    """The algorithm, whose state counts what these clients release.

    Args:
        algorithm: with rounds.
        clients: whose oracles it will get.
    """

    def begun(x: Tensor, oracle: Oracle) -> Counted:
        clients.ledger.taken()  # of other beginnings
        state = algorithm.init(x, oracle)
        nothing: list[Any] = [[] for _ in range(len(clients))]
        return Counted(state, 0, _added(nothing, steps_of(clients.ledger.taken())))

    def step(
        now: Counted, oracle: Oracle, rng: torch.Generator
    ) -> tuple[Counted, Info]:
        clients.ledger.taken()
        state, info = algorithm.step(now.state, oracle, rng)
        new = steps_of(clients.ledger.taken())
        return Counted(state, now.t + 1, _added(now.releases, new)), info

    def personal(now: Counted, oracle: Oracle) -> Tensor:
        # Who evaluates brings an oracle of ordinary clients, which has no noise.
        private = clients.at(now.t, purpose="use")
        return algorithm.personal(now.state, private)

    return Algorithm(begun, step, personal)


def spent_on_samples(now: Counted, delta: float) -> Tensor:
    """(N,) the epsilon of each client towards whoever sees all that it sent."""
    return counted_epsilons([_steps(kinds) for kinds in now.releases], delta=delta)


def bound_on_samples(now: Counted, delta: float) -> Tensor:
    """(N,) bounds of it that are quick enough for every round."""
    return quick_epsilons([_steps(kinds) for kinds in now.releases], delta)


def _steps(kinds: Sequence[Any]) -> Counter[Step]:
    return Counter({(noise, rate): count for noise, rate, count in kinds})


def _added(releases: list[Any], new: Sequence[Counter[Step]]) -> list[Any]:
    """What was released before and what is new, client by client."""
    return [
        [(*kind, count) for kind, count in sorted((_steps(kinds) + more).items())]
        if more
        else kinds
        for kinds, more in zip(releases, new, strict=True)
    ]
