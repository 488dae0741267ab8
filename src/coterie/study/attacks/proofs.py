"""What attacks have proved, next to what an account promises."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from ...engine.checkpoints import Moment
from ...privacy.accounting.accounts import epsilons
from ...privacy.accounting.ledger import Event
from ...privacy.accounting.subsampled import Step, epsilons_of_steps, quick_epsilons
from ...privacy.attacks import Decisions
from ...privacy.mechanisms import PerSampleState, PrivateFlow, PrivateState, events_of
from ..config import Study


class Proof(NamedTuple):
    """What one attack on one algorithm has proved, next to what is promised."""

    label: str
    attack: str
    right: int
    guesses: int
    lower: float  # epsilon is larger than this
    most: float  # the largest lower bound that this number of guesses could give
    upper: float  # the accountant's epsilon; infinite: nothing is promised

    @property
    def broken(self) -> bool:
        """Whether the promise is disproved."""
        return self.lower > self.upper


class Account(NamedTuple):
    """What a training has released, for the client that released most."""

    delta: float
    square: float = 0.0  # mu^2, of the unit client
    events: tuple[Event, ...] = ()
    steps: Mapping[Step, int] | None = None  # of the unit sample

    def epsilon(self, factor: float = 1.0) -> float:
        """The accountant's epsilon, if every release had `factor` times its mu."""
        if not factor:
            return 0.0
        if self.steps is None:
            square = torch.tensor([self.square * factor**2], dtype=torch.float64)
            return float(epsilons(square, self.delta))
        steps = {
            (noise / factor, rate, held_out): count
            for (noise, rate, held_out), count in self.steps.items()
        }
        # The exact account takes a second for each client.
        return float(epsilons_of_steps([steps], delta=self.delta))

    def proved_epsilons(
        self, made: Decisions, confidence: float
    ) -> tuple[float, float]:
        """The epsilon that the guesses prove, and the epsilon if all were right."""
        if not made.mu:  # a model that is the same with the canary and without
            return 0.0, 0.0
        least, most = made.at_least(confidence), made.could(confidence)
        return self.epsilon(least / made.mu), self.epsilon(most / made.mu)


def account_of(state: Any, study: Study) -> Account | None:
    """The account of a training; None where nothing is promised."""
    if study.privacy is None:
        return None
    state = state.state if isinstance(state, Moment) else state
    delta = study.privacy.delta
    if isinstance(state, PerSampleState):
        released = state.visible_releases
        worst = int(quick_epsilons(released, delta).argmax())
        return Account(delta, steps=released[worst])
    if not isinstance(state, PrivateState | PrivateFlow):
        return None
    events = events_of(state.ledger) if isinstance(state, PrivateState) else ()
    return Account(delta, float(state.spent.max()), events)


def promised_epsilon(account: Account | None) -> float:
    """The accountant's epsilon; infinite where nothing is promised."""
    return math.inf if account is None else account.epsilon()
