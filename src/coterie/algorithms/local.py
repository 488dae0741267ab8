"""Every client trains alone: x_i <- x_i - lr g_i(x_i).

The yardstick of personalisation: whoever does worse than this would rather not take
part. Nobody has a reason to wait: in time, a client takes `steps` gradient steps, and
then the next ones.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..checks import integer, rounds_only
from ..optim.steps import Descent, descent, sgd, velocity
from ..types import Algorithm, Arrivals, Flow, Info, InRounds, Kind, Oracle, Rows, Task


class State(NamedTuple):
    """Models, momentum, and how many gradient steps were taken."""

    x: Rows  # (n, D)
    v: Rows  # (n, D), or (n, 0) without momentum
    t: int


class Alone(NamedTuple):
    """The same, and the models from which they began."""

    x: Rows  # (n, D)
    v: Rows  # (n, D), or (n, 0) without momentum
    t: int
    start: Rows  # (n, D)


def local(
    *,
    lr: float = 0.1,
    steps: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: InRounds[str] = "constant",
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
        return Alone(x, velocity(rule, x), 0, x)

    def step(state: Alone, oracle: Oracle, rng: torch.Generator) -> tuple[Alone, Info]:
        del rng
        x, v, t, start = state
        x, v = oracle.each(sgd, x, v, steps=steps, t=t, **rule._asdict())
        return Alone(x, v, t + steps, start), {}

    def welcome(state: Alone, oracle: Oracle) -> Tensor:
        x = state.start.mean(0).repeat(len(oracle.active), 1)
        v = velocity(rule, x)
        return oracle.each(sgd, x, v, steps=state.t, t=0, **rule._asdict())[0]

    return Algorithm(init, step, welcome=welcome, flow=_flow(rule, steps))


@dataclass
class Underway:
    """Models and momentum, from where all began, and how many tasks are done."""

    x: Tensor  # (N, D)
    v: Tensor  # (N, D), or (N, 0) without momentum
    start: Tensor  # (D,)
    tasks: int = 0


def _flow(rule: Descent, steps: int) -> Flow:
    """Every client at its own pace.

    A newcomer takes as many steps as the others on average.
    """

    def init(x: Tensor) -> Underway:
        rounds_only(schedule=(rule.schedule, "constant"))
        return Underway(x.clone(), velocity(rule, x), x.mean(0))

    def arrive(state: Underway, now: Arrivals) -> list[int]:
        state.x[now.clients], state.v[now.clients] = now.answers
        state.tasks += len(now.clients)
        return now.clients

    def welcome(state: Underway, oracle: Oracle) -> Tensor:
        x = state.start.repeat(len(oracle.active), 1)
        taken = steps * round(state.tasks / len(state.x))
        v = velocity(rule, x)
        return oracle.each(sgd, x, v, steps=taken, t=0, **rule._asdict())[0]

    program = functools.partial(sgd, steps=steps, t=0, **rule._asdict())
    return Flow(
        init,
        lambda state, client: Task((state.x[client], state.v[client]), work=steps),
        arrive,
        lambda state: state.x,
        welcome,
        kinds=(Kind(program, "each", down=(), up=()),),
        together=True,
        messages="none",
    )
