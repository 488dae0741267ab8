"""Quadratic losses of six clients, two of whom join after training."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from coterie.clients.simulation import Simulation
from coterie.types import Algorithm, State
from support.quadratics import SAMPLES, quadratics, start
from support.rounds import simulate, train


def newcomers() -> Simulation:
    """Clients 4 and 5."""
    return simulate(quadratics().select(torch.tensor([4, 5])))


def before_newcomers(
    method: Callable[..., Algorithm], rounds: int, **options: Any
) -> tuple[Algorithm, State]:
    """The method of all six clients, and its state after rounds of the first four."""
    some = simulate(quadratics().select(torch.arange(4)))
    states, _ = train(method(SAMPLES[:4], **options), some, start(4), rounds)
    return method(SAMPLES, **options), states[-1]
