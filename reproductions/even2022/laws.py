"""Clients with laws in place of data: everybody draws one fresh sample at every call.

No finite data set can give that, so the data of a simulation are drawn anew for every
round. Models are linear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

import coterie as co
from coterie.data import Federation, Part
from coterie.engine.rounds import Round, run_rounds
from coterie.models import build, linear
from coterie.types import Algorithm, Oracle

REAL = torch.float64


class Fresh:
    """A federation whose clients draw one fresh sample each in every round."""

    def __init__(
        self, draw: Callable[[int], tuple[Tensor, Tensor]], outputs: int = 1
    ) -> None:
        """Prepares clients who draw features (N, P) and responses at t = 1, 2, ..."""
        self.draw, (features, targets) = draw, draw(1)
        n, shape = len(features), features.shape[1:]
        own = Part(torch.arange(n), torch.arange(n), torch.ones(n, dtype=torch.long))
        data = (features.clone(), targets.clone(), "regression", outputs, own, own, own)
        self.simulation = co.Simulation(
            Federation("fresh", *data, clients=torch.arange(n)),
            build(lambda: linear(shape, outputs, bias=False), 0),
            batch_size=0,
            dtype=REAL,
        )

    def __len__(self) -> int:
        """How many clients there are."""
        return len(self.simulation)

    def at(
        self, t: int, active: Tensor | None = None, *, purpose: str = "step"
    ) -> Oracle:
        """The oracle of call t, for one sample of each client."""
        features, targets = self.draw(t)
        self.simulation.federation.features.copy_(features)
        self.simulation.federation.targets.copy_(targets)
        return self.simulation.at(t, active, purpose=purpose)


def means(draw: Callable[[int], Tensor]) -> Fresh:
    """Estimating means: the loss |x - xi|^2 / 2 of samples xi (N, D)."""
    n, d = draw(1).shape
    half = torch.full((n, 1), math.sqrt(0.5), dtype=REAL)
    return Fresh(lambda t: (half, half * draw(t)), outputs=d)


def regressions(
    draw: Callable[[int], tuple[Tensor, Tensor]], *, factor: float = 1.0
) -> Fresh:
    """Linear regression: the loss factor (a'x - b)^2 / 2 of a (N, D) and b (N,)."""
    root = math.sqrt(factor / 2)
    return Fresh(lambda t: tuple(root * part for part in draw(t)))


def calls(algorithm: Algorithm, law: Fresh, x: Tensor, rounds: int) -> Iterator[Round]:
    """Runs an algorithm on a law, call after call."""
    return run_rounds(algorithm, law, x, rounds=rounds)
