"""Every client trains alone: x_i <- x_i - lr g_i(x_i).

Every other method is compared with this one: a client should not take part in a method
that gives it a worse model. In a study with time, a client takes `steps` gradient
steps, and at once begins the next `steps`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    sgd,
    train_alone,
    velocity,
)
from ..options import BelowOne, Count, method
from ..types import (
    Algorithm,
    Arrivals,
    Flow,
    Info,
    Oracle,
    OwnRows,
    Releases,
    Rows,
    Task,
    TaskKind,
)


class State(NamedTuple):
    """Models, momentum, and the number of gradient steps."""

    x: Rows  # (n, D)
    v: Rows  # (n, D), or (n, 0) without momentum
    t: int


class WithStart(NamedTuple):
    """A `State` with the first models."""

    x: OwnRows  # (n, D)
    v: OwnRows  # (n, D), or (n, 0) without momentum
    t: int
    start: OwnRows  # (n, D)


@method(in_rounds=("schedule",))
def local(
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
) -> Algorithm:
    """Local training: every client trains alone, and nothing is sent.

    A newcomer begins at the same model as the other clients, and takes as many steps.

    Args:
        lr: step size; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: gradient steps in one round.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)

    def init(x: Tensor, oracle: Oracle) -> WithStart:
        return WithStart(x, velocity(rule, x), 0, x)

    def step(
        state: WithStart, oracle: Oracle, rng: torch.Generator
    ) -> tuple[WithStart, Info]:
        x, v, t, start = state
        x, v = oracle.each(sgd, x, v, steps=steps, t=t, rule=rule)
        return WithStart(x, v, t + steps, start), {}

    def welcome(state: WithStart, oracle: Oracle) -> Tensor:
        x = state.start.mean(0).repeat(len(oracle.active), 1)
        return train_alone(oracle, x, rule, state.t)

    made = Algorithm(init, step, welcome=welcome, flow=_flow(rule, steps))
    return made._replace(releases=Releases())


@dataclass
class FlowState:
    """Models, momentum, the first model, and the number of finished tasks."""

    x: Tensor  # (N, D)
    v: Tensor  # (N, D), or (N, 0) without momentum
    start: Tensor  # (D,)
    tasks: int = 0


def _flow(rule: LocalDescent, steps: int) -> Flow:
    """Local training at each client's own pace.

    A newcomer takes as many steps as the others did on average.
    """

    def init(x: Tensor) -> FlowState:
        return FlowState(x.clone(), velocity(rule, x), x.mean(0))

    def arrive(state: FlowState, now: Arrivals) -> list[int]:
        state.x[now.clients], state.v[now.clients] = now.answers
        state.tasks += len(now.clients)
        return now.clients

    def welcome(state: FlowState, oracle: Oracle) -> Tensor:
        x = state.start.repeat(len(oracle.active), 1)
        taken = steps * round(state.tasks / len(state.x))
        return train_alone(oracle, x, rule, taken)

    program = functools.partial(sgd, steps=steps, t=0, rule=rule)
    return Flow(
        init,
        lambda state, client, time: Task(
            (state.x[client], state.v[client]), work=steps
        ),
        arrive,
        welcome=welcome,
        kinds=(TaskKind(program, "each", down=(), up=()),),
        together=True,
        messages="none",
    )
