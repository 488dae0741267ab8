"""Local training where nobody waits, as nobody has a reason to.

A client takes `steps` gradient steps, and then the next ones.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from torch import Tensor

from ..checks import InputError, integer
from ..engine.events import Arrivals, Asynchronous, Kind, Task
from ..optim.steps import descent, sgd, velocity
from ..types import Oracle


@dataclass
class State:
    """Models and momentum, from where all began, and how many tasks are done."""

    x: Tensor  # (N, D)
    v: Tensor  # (N, D), or (N, 0) without momentum
    start: Tensor  # (D,)
    tasks: int = 0
    floats: float = 0.0  # nothing is sent


def own_pace(
    *,
    lr: float = 0.1,
    steps: int = 1,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: str = "constant",
) -> Asynchronous:
    """Local training: every client by itself, at its own pace; nothing is sent.

    A newcomer begins where the others began and takes as many steps as they on average.

    Args:
        lr: step size.
        steps: gradient steps of a task.
        momentum: of the gradient steps.
        weight_decay: of the gradient steps.
        schedule: of the step size; in time there is only `constant`.
    """
    rule = descent(
        lr=lr, momentum=momentum, weight_decay=weight_decay, schedule=schedule
    )
    integer("steps", steps, at_least=1)
    if schedule != "constant":
        raise InputError(f"`schedule` must be constant with [time], got {schedule!r}.")

    def arrive(state: State, now: Arrivals) -> list[int]:
        state.x[now.clients], state.v[now.clients] = now.answers
        state.tasks += len(now.clients)
        return now.clients

    def welcome(state: State, oracle: Oracle) -> Tensor:
        x = state.start.repeat(len(oracle.active), 1)
        taken = steps * round(state.tasks / len(state.x))
        v = velocity(rule, x)
        return oracle.each(sgd, x, v, steps=taken, t=0, **rule._asdict())[0]

    program = functools.partial(sgd, steps=steps, t=0, **rule._asdict())
    return Asynchronous(
        lambda x: State(x.clone(), velocity(rule, x), x.mean(0)),
        lambda state, client: Task((state.x[client], state.v[client]), work=steps),
        arrive,
        lambda state: state.x,
        welcome,
        kinds=(Kind(program, "each"),),
        together=True,
        messages="none",
    )
