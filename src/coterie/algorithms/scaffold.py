"""FedAvg with control variates, which correct the drift of local steps.

    y_i <- w, then `steps` times  y_i <- y_i - lr (g_i(y_i) - c_i + c)
    d_i = (w - y_i) / (lr steps)                 the mean of these corrected gradients
    w <- w + global_lr sum_i p_i (y_i - w)
    c_i <- c_i - c + d_i                         only for clients of the round
    c <- c + P sum_i p_i (d_i - c)               P is the share of these clients

Sums are over the clients of the round. Their weights p_i sum to 1, in proportion to
sample sizes or uniform. P is the share of these clients in the total weight of all
clients. At the start c and all c_i are 0, so c is always the weighted mean of all c_i.
With a schedule, `lr steps` is the sum of the step sizes of the round.

Another optimiser takes steps with the corrected gradient g_i(y_i) - c_i + c. The server
then cannot compute d_i from models, so clients also send the change of c_i:

    c_i <- the mean of g_i over the steps of the round,    c <- c + P sum_i p_i change_i

If steps are plain and equally long, both rules give the same c_i and c.

References:
    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled
    averaging for federated learning", ICML 2020, arXiv 1910.06378.

Differences: c_i follows the paper's option II, which needs no additional gradients. A
client sends only y_i, because the server can compute the mean of d_i - c from all y_i.
The paper also sends the change of c_i. Weights of clients may follow sample sizes; the
paper's weights are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import InputError
from ..collaboration.rows import (
    compute_once,
    mean_of_all,
    row_for_each,
    share_of_present,
    without_personal,
)
from ..collaboration.weights import shares_of
from ..optim.steps import (
    Descent,
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    StepNumber,
    descend,
    rule_in_numbers,
    step_numbers,
    step_size,
    velocity,
)
from ..options import BelowOne, Count, Positive, Sizes, method
from ..types import (
    Algorithm,
    Clients,
    Info,
    Options,
    Oracle,
    OwnRows,
    Releases,
    SameRow,
    StepNumbers,
)


class State(NamedTuple):
    """The global model, control variates, momentum, and the number of steps."""

    w: SameRow  # (n, D)
    c: SameRow  # (n, D)
    c_i: OwnRows  # (n, D)
    v: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


def corrected_sgd(
    clients: Clients,
    y: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    correction: Float[Tensor, "n d"],
    *,
    rule: LocalDescent,
    steps: int,
    t: int,
    together: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """A client program: gradient steps from number t, each with the correction.

    The third result is the mean of the gradients without the correction. If steps are
    plain, this mean follows from models, and the third result has no meaning.
    """
    own = rule_in_numbers(rule, clients, y, together)
    if plain(rule) is not None:
        for t_local in step_numbers(clients, t, steps):
            _refuse_unequal_steps(t_local, rule)
            y, v = descend(own, y, clients.grad(y).add_(correction), v, t_local)
        return y, v, correction
    total, taken = torch.zeros_like(y), torch.zeros_like(y[:, :1])
    for t_local in step_numbers(clients, t, steps):
        g = clients.grad(y)  # zero for clients that have finished
        total += g
        moving = t_local.moving if isinstance(t_local, StepNumbers) else None
        taken += 1 if moving is None else moving.to(taken)
        y, v = descend(own, y, g.add_(correction), v, t_local)
    return y, v, total.div_(taken)


def _refuse_unequal_steps(t: StepNumber, rule: LocalDescent) -> None:
    """Refuses epochs where control variates are computed from models alone."""
    if isinstance(t, StepNumbers):
        raise InputError(
            '`epochs` of scaffold need an `lr` as a text, such as "sgd(0.1)", because '
            f"clients then send their control variates, got {rule.lr}."
        )


def plain(rule: LocalDescent) -> Descent | None:
    """The rule, if models tell the mean of the gradients with which they were made."""
    lr, momentum, weight_decay, schedule = rule
    if isinstance(lr, str) or isinstance(weight_decay, str) or momentum:
        return None
    return Descent(lr, 0.0, weight_decay, schedule)


@method()
def scaffold(
    sizes: Sizes,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    global_lr: Positive = 1.0,
    weighting: str = "samples",
) -> Algorithm:
    """SCAFFOLD: one global model, whose local steps are corrected for drift.

    A newcomer gets the global model.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of corrected gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        global_lr: how far the global model moves towards the average; with 1, it
            becomes the average.
        weighting: `samples` or `uniform` weights of clients.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares, numbers = shares_of(sizes, weighting), plain(rule)
    options: Options = {"rule": rule, "steps": steps, "together": float(len(sizes))}

    def init(x: Tensor, oracle: Oracle) -> State:
        nothing = torch.zeros_like(x)
        c = nothing[:1].expand_as(x)
        return State(mean_of_all(oracle, x), c, nothing, velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, c, c_i, v, t = state
        correction = without_personal(oracle, c - c_i)
        rows = w, v, correction
        y, v, seen = oracle.each(corrected_sgd, *rows, t=t, **options)
        here, present = oracle.active[:, None], share_of_present(oracle, shares)
        mean = oracle.average(shares[oracle.mine], y)
        if numbers is not None:
            length = sum(step_size(numbers, k) for k in range(t, t + steps))
            own = torch.where(here, (w - y).div_(length) - c, 0)
            told = compute_once(lambda w, mean: (w - mean) / length, w, mean)
            told = compute_once(torch.sub, told, c)
        else:
            own = torch.where(here, without_personal(oracle, seen - c_i), 0)
            told = oracle.average(shares[oracle.mine], own)
        c = compute_once(lambda c, told: c + present * told, c, told)
        w = compute_once(lambda w, mean: w + global_lr * (mean - w), w, mean)
        return State(w, c, c_i + own, v, t + steps), {}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        return row_for_each(oracle, state.w)

    return Algorithm(
        init,
        step,
        lambda state, oracle: state.w,
        welcome,
        releases=Releases(average=2 if numbers is None else 1),
        shared=lambda state: state.w,
    )
