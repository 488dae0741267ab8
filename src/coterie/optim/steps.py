"""How one gradient becomes one step: step sizes, momentum, weight decay.

    g <- g + weight_decay x,   v <- momentum v + g,   x <- x - lr(t) v

as in torch.optim.SGD. Everything is row-wise, so the same code moves all N models in a
simulation and the single one of a site. Schedules count gradient steps from 0.
"""

from __future__ import annotations

import math
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import InputError, call, number, one_of
from ..options import BelowOne, NotNegative, Positive
from ..types import Clients, Oracle

_SCHEDULES = {"constant": 0, "step": 2, "inverse": 1, "cosine": 1}


def schedule(name: str, text: str) -> str:
    """Returns the text if it names a schedule with its numbers."""
    word, arguments = call(name, text)
    one_of(name, word, _SCHEDULES)
    if len(arguments) != _SCHEDULES[word]:
        raise InputError(
            f"`{name}` {word} takes {_SCHEDULES[word]} numbers, got {text!r}."
        )
    for position, argument in enumerate(arguments):
        number(f"{name} argument {position + 1}", argument, above=0)
    if arguments:
        number(f"{name} argument 1", arguments[0], at_least=1)
    return text


Schedule = Annotated[str, schedule]


class Descent(NamedTuple):
    """A step rule, whose fields are options of every method that descends.

    Args:
        lr: step size at the start.
        momentum: factor of the running sum of gradients.
        weight_decay: factor of the model that is added to its gradient.
        schedule: `constant`; `step(k, f)` multiplies by f every k steps; `inverse(k)`
            is lr k / (k + t); `cosine(k)` falls to 0 at step k along half a cosine.
    """

    lr: Positive = 0.1
    momentum: BelowOne = 0.0
    weight_decay: NotNegative = 0.0
    schedule: Schedule = "constant"


class PlainDescent(NamedTuple):
    """A step rule without momentum, with the options of a `Descent`."""

    lr: Positive = 0.1
    weight_decay: NotNegative = 0.0
    schedule: Schedule = "constant"


def step_size(rule: Descent | PlainDescent, t: int) -> float:
    """The step size of gradient step t = 0, 1, ...

    >>> step_size(Descent(1.0, schedule="step(10, 0.5)"), 25)
    0.25
    """
    name, arguments = call("schedule", rule.schedule)
    if name == "step":
        try:
            return rule.lr * arguments[1] ** (t // int(arguments[0]))
        except OverflowError:  # where f is above 1: models will not be finite
            return math.inf
    if name == "inverse":
        return rule.lr * arguments[0] / (arguments[0] + t)
    if name == "cosine":
        return rule.lr * (1 + math.cos(math.pi * min(1.0, t / arguments[0]))) / 2
    return rule.lr


def velocity(rule: Descent, x: Float[Tensor, "n d"]) -> Float[Tensor, "n v"]:
    """The momentum buffer to begin with: zeros, and no columns where none is needed."""
    return x.new_zeros(len(x), x.shape[1] if rule.momentum else 0)


def decayed(
    rule: Descent | PlainDescent, x: Float[Tensor, "n d"], g: Float[Tensor, "n d"]
) -> Float[Tensor, "n d"]:
    """The gradient with weight decay, in the memory of g."""
    return g.add_(x, alpha=rule.weight_decay) if rule.weight_decay else g


def descend(
    rule: Descent,
    x: Float[Tensor, "n d"],
    g: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    t: int,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n v"]]:
    """Models and momentum after gradient step t.

    The memory of g, which nobody needs after, holds a result: N D values less to
    allocate in every step.
    """
    g = decayed(rule, x, g)
    if rule.momentum:
        v = g.add_(v, alpha=rule.momentum)
        return x.add(v, alpha=-step_size(rule, t)), v
    return torch.add(x, g, alpha=-step_size(rule, t), out=g), v


def sgd(
    clients: Clients,
    x: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    *,
    rule: Descent,
    steps: int,
    t: int,
) -> tuple[Tensor, Tensor]:
    """A client program: `steps` local gradient steps, the first of them number t."""
    for t_local in range(t, t + steps):
        x, v = descend(rule, x, clients.grad(x), v, t_local)
    return x, v


def train_alone(
    oracle: Oracle, x: Float[Tensor, "n d"], rule: Descent, steps: int
) -> Float[Tensor, "n d"]:
    """The models after gradient steps of every client by itself, from rest."""
    return oracle.each(sgd, x, velocity(rule, x), rule=rule, steps=steps, t=0)[0]


def proximal_sgd(
    clients: Clients,
    v: Float[Tensor, "n d"],
    v_velocity: Float[Tensor, "n v"],
    w: Float[Tensor, "n d"],
    *,
    rule: Descent,
    lam: float,
    steps: int,
    t: int,
) -> tuple[Tensor, Tensor]:
    """A client program: SGD steps on f_i(v) + lam/2 |v - w|^2, the first number t."""
    away = torch.empty_like(v)  # v - w, in the same memory in every step
    for t_local in range(t, t + steps):
        g = clients.grad(v).add_(torch.sub(v, w, out=away), alpha=lam)
        v, v_velocity = descend(rule, v, g, v_velocity, t_local)
    return v, v_velocity


def proximal_point(
    clients: Clients, w: Float[Tensor, "n d"], rule: Descent, *, lam: float, steps: int
) -> Float[Tensor, "n d"]:
    """Nearly argmin_v f_i(v) + lam/2 |v - w|^2, by SGD steps from w."""
    start = w, velocity(rule, w), w
    return proximal_sgd(clients, *start, rule=rule, lam=lam, steps=steps, t=0)[0]


def follow(
    oracle: Oracle,
    weights: Float[Tensor, "m m"],
    rule: Descent,
    x: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    *,
    steps: int,
    t: int,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n v"]]:
    """Steps of all active models along blended gradients, the first is number t."""
    moving = None if bool(oracle.active.all()) else oracle.active[:, None]
    for t_now in range(t, t + steps):
        new = descend(rule, x, oracle.blended(x, weights), v, t_now)
        if moving is not None:
            new = torch.where(moving, new[0], x), torch.where(moving, new[1], v)
        x, v = new
    return x, v
