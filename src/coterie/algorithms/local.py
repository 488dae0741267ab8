"""Every client trains alone: x_i <- x_i - lr g_i(x_i).

The yardstick of personalisation: whoever does worse than this would rather not take
part.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import integer
from ..optim.steps import descent, sgd, velocity
from ..types import Algorithm, Info, Oracle, Rows


class State(NamedTuple):
    """Models, momentum, and how many gradient steps were taken."""

    x: Rows  # (n, D)
    v: Rows  # (n, D), or (n, 0) without momentum
    t: int


class Alone(NamedTuple):
    """The same, and the model from which all of them began."""

    x: Rows  # (n, D)
    v: Rows  # (n, D), or (n, 0) without momentum
    t: int
    start: Tensor  # (D,)


def local(
    *,
    lr: float = 0.1,
    steps: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: str = "constant",
) -> Algorithm:
    """Local training: every client by itself, nothing is sent.

    A newcomer begins where the others began and takes as many steps by itself.

    Args:
        lr: step size.
        steps: gradient steps in one round.
        momentum: of the gradient steps.
        weight_decay: of the gradient steps.
        schedule: of the step size, see `coterie.optim.steps`.
    """
    rule = descent(
        lr=lr, momentum=momentum, weight_decay=weight_decay, schedule=schedule
    )
    integer("steps", steps, at_least=1)

    def init(x: Tensor, oracle: Oracle) -> Alone:
        del oracle
        return Alone(x, velocity(rule, x), 0, x.mean(0))

    def step(state: Alone, oracle: Oracle, rng: torch.Generator) -> tuple[Alone, Info]:
        del rng
        x, v, t, start = state
        x, v = oracle.each(sgd, x, v, steps=steps, t=t, **rule._asdict())
        return Alone(x, v, t + steps, start), {}

    def welcome(state: Alone, oracle: Oracle) -> Tensor:
        x = state.start.repeat(len(oracle.active), 1)
        v = velocity(rule, x)
        return oracle.each(sgd, x, v, steps=state.t, t=0, **rule._asdict())[0]

    return Algorithm(init, step, welcome=welcome)
