"""Every client trains alone: x_i <- x_i - lr g_i(x_i).

The yardstick of personalisation: whoever does worse than this would rather not take
part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import integer
from ..descent import descent, sgd, velocity
from ..types import Algorithm, Info, Oracle


class State(NamedTuple):
    """Models, momentum, and how many gradient steps were taken."""

    x: Tensor  # (N, D)
    v: Tensor  # (N, D), or (N, 0) without momentum
    t: int


def local(
    *,
    lr: float = 0.1,
    steps: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: str = "constant",
) -> Algorithm:
    """Local training: every client by itself, nothing is sent.

    Args:
        lr: step size.
        steps: gradient steps in one round.
        momentum: of the gradient steps.
        weight_decay: of the gradient steps.
        schedule: of the step size, see `coterie.descent`.
    """
    rule = descent(
        lr=lr, momentum=momentum, weight_decay=weight_decay, schedule=schedule
    )
    integer("steps", steps, at_least=1)

    def init(x: Tensor) -> State:
        return State(x, velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        del rng
        x, v, t = state
        x, v = oracle.each(sgd, x, v, steps=steps, t=t, **rule._asdict())
        return State(x, v, t + steps), {"floats": 0.0}

    return Algorithm(init, step)
