"""How a gradient becomes a step: step sizes, momentum and weight decay.

    g <- g + weight_decay x,   v <- momentum v + g,   x <- x - lr(t) v

as in torch.optim.SGD. Each row is treated by itself, so the same code moves all N
models in a simulation and the single model at a site. Schedules count gradient steps
from 0.

Steps inside a client may depend on the client's own data:

    lr = "curvature(c)"          c / (L_i + decay), L_i the curvature of its loss
    lr = "adam(c)"               Adam with step size c; see `optimisers` for more words
    weight_decay = "samples(k)"  k / (n_i C), of weights and not of biases
    weight_decay = "samples(k, s)"   the same, with s for models that clients share

L_i is the largest eigenvalue of the client's Hessian at the start, n_i is its number of
training samples, and C is the number of clients that train the model together. The mean
of k / (n_i C) over these clients, weighted by samples, is k divided by the number of
all their samples.
"""

from __future__ import annotations

import math
import re
import typing
from collections.abc import Iterable
from typing import Annotated, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import InputError, brief, call, number, one_of
from ..options import BelowOne, Formula, NotNegative, Positive
from ..types import (
    Clients,
    ClientsInEpochs,
    ClientsWithMeasurements,
    Oracle,
    RunningStatistics,
    StepNumbers,
    statistics_of,
    without_statistics,
)
from .optimisers import Optimiser, adam_step, optimiser_of
from .projections import cap_norms

_SCHEDULES = {"constant": 0, "step": 2, "inverse": 1, "cosine": 1}


def schedule(name: str, text: str) -> str:
    """Returns the text if it is a schedule, such as `step(10, 0.5)`."""
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


def local_lr(name: str, value: float | str) -> None:
    """Refuses a value that cannot be a step size inside a client."""
    if isinstance(value, str):
        optimiser_of(name, str(value))
    else:
        number(name, value, above=0)


def local_decay(name: str, value: float | str) -> None:
    """Refuses a value that cannot be a weight decay inside a client."""
    if not isinstance(value, str):
        number(name, value, at_least=0)
        return
    if value == "samples":
        raise InputError(
            f'`{name}` {value!r} needs a number in brackets, such as "samples(1)".'
        )
    if not re.fullmatch(r"samples\([^()]+\)", value):
        raise InputError(
            f"`{name}` must be a number or samples(1), got {brief(value)}."
        )
    given = call(name, value)[1]
    if len(given) > 2:
        raise InputError(f"`{name}` samples takes 2 numbers, got {brief(value)}.")
    for each in given:
        number(f"{name} samples", each, above=0)


LocalLr = Annotated[float | Formula, local_lr]
LocalDecay = Annotated[float | Formula, local_decay]


class LocalDescent(NamedTuple):
    """A step rule inside a client, whose fields are options of methods.

    Args:
        lr: step size at the start; `curvature(c)` is c divided by the curvature of the
            client's own loss, `adam(c)` takes steps of Adam. For more options of steps,
            such as `sgd(c, clip=1)`, see `coterie.optim.optimisers`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient. `samples(k)` is
            k divided by the number of samples on which the model is trained, and
            `samples(k, s)` has s in place of k for models that clients share.
        schedule: the same option as in `Descent`.
    """

    lr: LocalLr = 0.1
    momentum: BelowOne = 0.0
    weight_decay: LocalDecay = 0.0
    schedule: Schedule = "constant"


class Descent(NamedTuple):
    """A step rule, whose fields are options of methods with gradient steps.

    Args:
        lr: step size at the start.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient.
        schedule: `constant`; `step(k, f)` multiplies by f every k steps; `inverse(k)`
            is lr k / (k + t); `cosine(k)` falls to 0 at step k along half a cosine.
    """

    lr: Positive = 0.1
    momentum: BelowOne = 0.0
    weight_decay: NotNegative = 0.0
    schedule: Schedule = "constant"


class RowDescent(NamedTuple):
    """A step rule with separate numbers for each of n clients."""

    lr: Float[Tensor, "n 1"]
    momentum: float
    weight_decay: Float[Tensor, "n 1"] | Float[Tensor, "n d"] | None  # None: 0
    schedule: str
    optimiser: Optimiser
    statistics: RunningStatistics | None = None  # which no option of steps concerns


AnyDescent = Descent | RowDescent
"""A rule for the steps of `descend`."""


def rule_in_numbers(
    rule: LocalDescent,
    clients: Clients,
    x: Float[Tensor, "n d"],
    together: Int[Tensor, " n"] | float = 1.0,
    *,
    pull: float = 0.0,
    of_models: bool = True,
) -> AnyDescent:
    """The rule with numbers in place of texts, one for each client if they differ.

    Args:
        rule: the rule of local steps.
        clients: the clients that take these steps.
        x: the clients' models.
        together: C, the number of clients that train the same model.
        pull: curvature of a term that is added to the loss.
        of_models: whether the rows are models, with biases and running statistics.
    """
    lr, momentum, weight_decay, schedule = rule
    statistics = statistics_of(clients) if of_models else None
    if not isinstance(lr, str) and not isinstance(weight_decay, str):
        if statistics is None:
            return Descent(lr, momentum, weight_decay, schedule)
    optimiser = optimiser_of("lr", str(lr)) if isinstance(lr, str) else Optimiser()
    refuse_idle_momentum(optimiser, momentum)
    size = optimiser.size if isinstance(lr, str) else lr
    sizes, decays = x.new_full((len(x), 1), size), None
    measures = optimiser.word == "curvature" or isinstance(weight_decay, str)
    if not measures:
        if weight_decay and not isinstance(weight_decay, str):
            decays = torch.full_like(sizes, weight_decay)
        return RowDescent(sizes, momentum, decays, schedule, optimiser, statistics)
    if not isinstance(clients, ClientsWithMeasurements):
        raise InputError(
            "with [privacy] and [time], `lr` and `weight_decay` must be numbers, got "
            f"{lr!r} and {weight_decay!r}."
        )
    decays = torch.ones_like(sizes)
    if isinstance(weight_decay, str):
        given = call("weight_decay", weight_decay)[1]
        count = torch.as_tensor(together, device=x.device)
        k = torch.where(count > 1, given[-1], given[0]).to(x)
        decays = (k / (clients.sizes.to(x) * count))[:, None]
    else:
        decays = decays * weight_decay
    if optimiser.word == "curvature":
        sizes = sizes / (clients.curvature[:, None] + decays + pull)
    if isinstance(weight_decay, str) and of_models:
        decays = decays * clients.weights
    return RowDescent(sizes, momentum, decays, schedule, optimiser, statistics)


def refuse_idle_momentum(optimiser: Optimiser, momentum: float) -> None:
    """Refuses momentum if the optimiser ignores it, or no momentum if it needs one."""
    if optimiser.is_adam and momentum:
        raise InputError(
            f"`momentum` must be 0 with `lr` adam, which has `beta1`, got {momentum:g}."
        )
    if optimiser.nesterov and not momentum:
        raise InputError("`nesterov` needs a `momentum` above 0, got 0.")


def refuse_idle_options(rule: LocalDescent) -> LocalDescent:
    """The rule, if its optimiser and its momentum fit."""
    if isinstance(rule.lr, str):
        refuse_idle_momentum(optimiser_of("lr", rule.lr), rule.momentum)
    return rule


StepNumber = int | StepNumbers
"""The number of a step, the same for all clients, or one for each client."""


def step_numbers(clients: Clients, t: StepNumber, steps: int) -> Iterable[StepNumber]:
    """The numbers of the next local steps, from number t.

    A client program takes its gradients in a loop over these numbers, and gives each
    number to `descend`. If local steps are counted in epochs, so are `t` and `steps`,
    and clients take different numbers of steps.
    """
    if isinstance(t, StepNumbers):
        return (t,)
    if isinstance(clients, ClientsInEpochs):
        return clients.step_numbers(t, steps)
    return range(t, t + steps)


@typing.overload
def step_size(rule: Descent, t: int) -> float: ...


@typing.overload
def step_size(rule: RowDescent, t: StepNumber) -> Tensor: ...


@typing.overload
def step_size(rule: AnyDescent, t: StepNumber) -> float | Tensor: ...


def step_size(rule: AnyDescent, t: StepNumber) -> float | Tensor:
    """The step size of gradient step t = 0, 1, ...

    >>> step_size(Descent(1.0, schedule="step(10, 0.5)"), 25)
    0.25
    """
    if isinstance(t, StepNumbers):
        return _sizes_in_epochs(rule, t.number)
    if isinstance(rule, RowDescent) and t + 1 < rule.optimiser.warmup:
        return _size_by_schedule(rule, t) * ((t + 1) / rule.optimiser.warmup)
    return _size_by_schedule(rule, t)


def _size_by_schedule(rule: AnyDescent, t: int) -> float | Tensor:
    """The step size by the schedule, without warm-up."""
    name, arguments = call("schedule", rule.schedule)
    if name == "step":
        try:
            return rule.lr * arguments[1] ** (t // int(arguments[0]))
        except OverflowError:  # f is above 1, and models will not be finite
            return rule.lr * math.inf
    if name == "inverse":
        return rule.lr * arguments[0] / (arguments[0] + t)
    if name == "cosine":
        return rule.lr * (1 + math.cos(math.pi * min(1.0, t / arguments[0]))) / 2
    return rule.lr


def _sizes_in_epochs(rule: AnyDescent, t: Float[Tensor, "n 1"]) -> float | Tensor:
    """The step size of each client's own step."""
    name, arguments = call("schedule", rule.schedule)
    warmup = rule.optimiser.warmup if isinstance(rule, RowDescent) else 0
    if name == "constant" and not warmup:
        return rule.lr
    share, done = torch.ones_like(t, dtype=torch.float64), t.double()
    if name == "step":
        share = arguments[1] ** (done / int(arguments[0])).floor()
    elif name == "inverse":
        share = arguments[0] / (arguments[0] + done)
    elif name == "cosine":
        share = (1 + (math.pi * (done / arguments[0]).clamp(max=1)).cos()) / 2
    if warmup:
        share = share * ((done + 1) / warmup).clamp(max=1)
    return rule.lr * share.to(t)


def velocity(
    rule: LocalDescent | Descent, x: Float[Tensor, "n d"]
) -> Float[Tensor, "n v"]:
    """The first buffer: zeros, without columns if the rule needs no buffer.

    The buffer holds the running sum of gradients. For Adam, it holds the means of
    gradients, the means of their squares, and the number of steps.
    """
    optimiser = optimiser_of("lr", rule.lr) if isinstance(rule.lr, str) else Optimiser()
    refuse_idle_momentum(optimiser, rule.momentum)
    return x.new_zeros(len(x), optimiser.columns(x.shape[1], rule.momentum))


def add_weight_decay(
    rule: Descent, x: Float[Tensor, "n d"], g: Float[Tensor, "n d"]
) -> Float[Tensor, "n d"]:
    """The gradient with weight decay, written to the memory of g."""
    return g.add_(x, alpha=rule.weight_decay) if rule.weight_decay else g


def descend(
    rule: AnyDescent,
    x: Float[Tensor, "n d"],
    g: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    t: StepNumber,
    *,
    reuse: bool = False,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n v"]]:
    """Models and momentum after gradient step t.

    Results may be written to the memory of g, which saves N D values in every step.
    With `reuse`, the memory of x and v may be used, too. Then the caller must not use
    these any more.
    """
    if isinstance(t, StepNumbers):
        return _descend_in_epochs(rule, x, g, v, t, reuse)
    if isinstance(rule, RowDescent):
        return _descend_rows(rule, x, g, v, t, reuse)
    g = add_weight_decay(rule, x, g)
    if rule.momentum:
        v = g.add_(v, alpha=rule.momentum)
        return x.add(v, alpha=-step_size(rule, t)), v
    return torch.add(x, g, alpha=-step_size(rule, t), out=g), v


def _descend_in_epochs(
    rule: AnyDescent, x: Tensor, g: Tensor, v: Tensor, t: StepNumbers, reuse: bool
) -> tuple[Tensor, Tensor]:
    """Models and momentum as in `descend`; waiting clients keep theirs."""
    if isinstance(rule, Descent):
        lr, decay = x.new_full((len(x), 1), rule.lr), None
        if rule.weight_decay:
            decay = torch.full_like(lr, rule.weight_decay)
        rule = RowDescent(lr, rule.momentum, decay, rule.schedule, Optimiser())
    new = _descend_rows(rule, x, g, v, t, reuse and t.moving is None)
    if t.moving is None:
        return new
    return torch.where(t.moving, new[0], x), torch.where(t.moving, new[1], v)


def _descend_rows(
    rule: RowDescent, x: Tensor, g: Tensor, v: Tensor, t: StepNumber, reuse: bool
) -> tuple[Tensor, Tensor]:
    """As `descend`, with the numbers and the optimiser of each row.

    Running statistics move by their own rates, and the rest as if they were not there.
    """
    if rule.statistics is None:
        return _optimise_rows(rule, x, g, v, t, reuse)
    columns, rates, _ = rule.statistics
    moved = x[:, columns] - rates.to(x) * g[:, columns]
    rest, slope = (part.index_fill(1, columns, 0.0) for part in (x, g))
    new, v = _optimise_rows(rule, rest, slope, v, t, reuse)
    return new.index_copy(1, columns, moved), v


def _optimise_rows(
    rule: RowDescent, x: Tensor, g: Tensor, v: Tensor, t: StepNumber, reuse: bool
) -> tuple[Tensor, Tensor]:
    """A step of the optimiser."""
    lr, optimiser, decay = step_size(rule, t), rule.optimiser, rule.weight_decay
    if optimiser.clip < math.inf:
        g = cap_norms(g, optimiser.clip)
    if optimiser.is_adam:
        constant = not optimiser.warmup and rule.schedule == "constant"
        return adam_step(
            *(x, g, v, optimiser),
            lr=lr,
            decay=decay,
            reuse=reuse,
            one_lr=constant or not isinstance(t, StepNumbers),
        )
    if decay is not None:
        g = g.addcmul_(decay.expand_as(x), x)
    if rule.momentum:
        v = (
            g.add(v, alpha=rule.momentum)
            if optimiser.nesterov
            else g.add_(v, alpha=rule.momentum)
        )
        g = g.add_(v, alpha=rule.momentum) if optimiser.nesterov else v
    return torch.addcmul(x, lr, g, value=-1), v


def sgd(
    clients: Clients,
    x: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    *,
    rule: LocalDescent | Descent,
    steps: int,
    t: int,
    together: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """A client program: models and momentum after `steps` local steps from number t.

    `together` is the number of clients that train the same model.
    """
    own = rule_in_numbers(LocalDescent(*rule), clients, x, together)
    return take_steps(clients, x, v, own, steps, t)


def with_rates(clients: Clients, lr: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """Step sizes of all columns, with the rates of running statistics in theirs."""
    found = statistics_of(clients)
    if found is None:
        return lr
    return lr.index_copy(1, found.columns, found.rates.to(lr).expand(len(lr), -1))


def take_steps(
    clients: Clients,
    x: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    rule: AnyDescent,
    steps: int,
    t: int,
) -> tuple[Float[Tensor, "n d"], Float[Tensor, "n v"]]:
    """Models and momentum after these gradient steps."""
    start = v
    for t_local in step_numbers(clients, t, steps):
        x, v = descend(rule, x, clients.grad(x), v, t_local, reuse=v is not start)
    return x, v


def train_alone(
    oracle: Oracle, x: Float[Tensor, "n d"], rule: LocalDescent | Descent, steps: int
) -> Float[Tensor, "n d"]:
    """The models after local gradient steps, with a fresh buffer."""
    return oracle.each(sgd, x, velocity(rule, x), rule=rule, steps=steps, t=0)[0]


def proximal_sgd(
    clients: Clients,
    v: Float[Tensor, "n d"],
    v_velocity: Float[Tensor, "n v"],
    w: Float[Tensor, "n d"],
    *,
    rule: LocalDescent | Descent,
    lam: float,
    steps: int,
    t: int,
    together: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """A client program: v after SGD on f_i(v) + lam/2 |v - w|^2, from step number t."""
    away = torch.empty_like(v)  # v - w, in the same memory in every step
    rows = rule_in_numbers(LocalDescent(*rule), clients, v, together, pull=lam)
    start = v_velocity
    for t_local in step_numbers(clients, t, steps):
        pull = without_statistics(clients, torch.sub(v, w, out=away))
        g = clients.grad(v).add_(pull, alpha=lam)
        reuse = v_velocity is not start
        v, v_velocity = descend(rows, v, g, v_velocity, t_local, reuse=reuse)
    return v, v_velocity


def proximal_point(
    clients: Clients,
    w: Float[Tensor, "n d"],
    rule: LocalDescent | Descent,
    *,
    lam: float,
    steps: int,
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
    """Active clients' models after steps along blended gradients, from number t."""
    moving = None if bool(oracle.active.all()) else oracle.active[:, None]
    for t_now in range(t, t + steps):
        new = descend(rule, x, oracle.blended(x, weights), v, t_now)
        if moving is not None:
            new = torch.where(moving, new[0], x), torch.where(moving, new[1], v)
        x, v = new
    return x, v
