"""How one gradient becomes one step: step sizes, momentum, weight decay.

    g <- g + weight_decay x,   v <- momentum v + g,   x <- x - lr(t) v

as in torch.optim.SGD. Everything is row-wise, so the same code moves all N models in a
simulation and the single one of a site. Schedules count gradient steps from 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import InputError, call, number, one_of
from ..types import Clients, Oracle

_SCHEDULES = {"constant": 0, "step": 2, "inverse": 1, "cosine": 1}


class Descent(NamedTuple):
    """The scalars that define a step rule; as options they travel to any site."""

    lr: float
    momentum: float
    weight_decay: float
    schedule: str


def descent(
    *, lr: float, momentum: float, weight_decay: float, schedule: str
) -> Descent:
    """The step rule with these settings, checked.

    Args:
        lr: step size at the start.
        momentum: factor of the running sum of gradients.
        weight_decay: factor of the model that is added to its gradient.
        schedule: `constant`; `step(k, f)` multiplies by f every k steps; `inverse(k)`
            is lr k / (k + t); `cosine(k)` falls to 0 at step k along half a cosine.
    """
    number("lr", lr, above=0)
    number("momentum", momentum, at_least=0, below=1)
    number("weight_decay", weight_decay, at_least=0)
    rule = Descent(lr, momentum, weight_decay, schedule)
    name, arguments = call("schedule", schedule)
    one_of("schedule", name, _SCHEDULES)
    if len(arguments) != _SCHEDULES[name]:
        raise InputError(
            f"`schedule` {name} takes {_SCHEDULES[name]} numbers, got {schedule!r}."
        )
    for position, argument in enumerate(arguments):
        number(f"schedule argument {position + 1}", argument, above=0)
    if arguments:
        number("schedule argument 1", arguments[0], at_least=1)
    return rule


def step_size(rule: Descent, t: int) -> float:
    """The step size of gradient step t = 0, 1, ...

    >>> step_size(Descent(1.0, 0.0, 0.0, "step(10, 0.5)"), 25)
    0.25
    """
    name, arguments = call("schedule", rule.schedule)
    if name == "step":
        return rule.lr * arguments[1] ** (t // int(arguments[0]))
    if name == "inverse":
        return rule.lr * arguments[0] / (arguments[0] + t)
    if name == "cosine":
        return rule.lr * (1 + math.cos(math.pi * min(1.0, t / arguments[0]))) / 2
    return rule.lr


def velocity(rule: Descent, x: Float[Tensor, "n d"]) -> Float[Tensor, "n v"]:
    """The momentum buffer to begin with: zeros, and no columns where none is needed."""
    return x.new_zeros(len(x), x.shape[1] if rule.momentum else 0)


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
    if rule.weight_decay:
        g.add_(x, alpha=rule.weight_decay)
    if rule.momentum:
        v = g.add_(v, alpha=rule.momentum)
        return x.add(v, alpha=-step_size(rule, t)), v
    return torch.add(x, g, alpha=-step_size(rule, t), out=g), v


def sgd(
    clients: Clients,
    x: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    *,
    steps: int,
    t: int,
    **rule: float | str,
) -> tuple[Tensor, Tensor]:
    """A client program: `steps` local gradient steps, the first of them number t."""
    settings = Descent(**rule)  # type: ignore[arg-type]
    for t_local in range(t, t + steps):
        x, v = descend(settings, x, clients.grad(x), v, t_local)
    return x, v


def proximal_sgd(
    clients: Clients,
    v: Float[Tensor, "n d"],
    v_velocity: Float[Tensor, "n v"],
    w: Float[Tensor, "n d"],
    *,
    steps: int,
    t: int,
    lam: float,
    **rule: float | str,
) -> tuple[Tensor, Tensor]:
    """A client program: SGD steps on f_i(v) + lam/2 |v - w|^2, the first number t."""
    settings = Descent(**rule)  # type: ignore[arg-type]
    away = torch.empty_like(v)  # v - w, in the same memory in every step
    for t_local in range(t, t + steps):
        g = clients.grad(v).add_(torch.sub(v, w, out=away), alpha=lam)
        v, v_velocity = descend(settings, v, g, v_velocity, t_local)
    return v, v_velocity


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
