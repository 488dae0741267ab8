"""A shared model, and for every client a low-rank correction of its matrices.

    x_i = w + A_i B_i                          in every matrix of the model
    (A_i, B_i) <- (A_i, B_i) - lr grad f_i     `own_steps` times, with w fixed
    w_i <- w_i - lr g_i(w_i + A_i B_i)         `steps` times from w_i = w
    w   <- sum_i p_i w_i

The sum runs over the clients of the round. Corrections never leave their clients. A
begins at 0, and B with random numbers that are the same for all clients. The rank is at
most `rank`, so a correction has few numbers, and few samples are enough to find them.
Only matrices are corrected; all other parameters are shared.

References:
    Hu, Shen, Wallis, Allen-Zhu, Li, Wang, Wang, Chen, "LoRA: low-rank adaptation of
    large language models", ICLR 2022, arXiv 2106.09685, for the corrections. The shared
    model is trained in turn with them, as in FedRep, arXiv 2102.07078, and chapter 9 of
    Even's thesis, 2024, tel-04877971.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.rows import mean_of_all, row_for_each
from ..collaboration.weights import shares_of
from ..optim.factors import (
    expand,
    factor_columns,
    factor_gradient,
    first_factors,
    refuse_layers,
)
from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    descend,
    rule_in_numbers,
    step_numbers,
    velocity,
)
from ..options import BelowOne, Count, Sizes, method
from ..types import Algorithm, Clients, Info, Options, Oracle, Releases, Rows


class State(NamedTuple):
    """The shared model, the factors of corrections, their momentum, and rounds."""

    w: Rows  # (n, D), the same row for everybody
    factors: Rows  # (n, F)
    start: Tensor  # (F,) the first factors of every client
    w_velocity: Rows  # (n, D), or (n, 0) without momentum
    velocity: Rows  # (n, F), or (n, 0) without momentum
    t: int


def correct(
    clients: Clients,
    factors: Float[Tensor, "n f"],
    v: Float[Tensor, "n v"],
    w: Float[Tensor, "n d"],
    *,
    rule: LocalDescent,
    shape: tuple[int, ...],
    steps: int,
    t: int,
) -> tuple[Tensor, Tensor]:
    """A client program: corrections after steps with fixed w, from step number t."""
    own = rule_in_numbers(rule, clients, factors, of_models=False)
    for t_local in step_numbers(clients, t, steps):
        g = clients.grad(w + expand(factors, shape, w.shape[1]))
        slope = factor_gradient(g, factors, shape)
        factors, v = descend(own, factors, slope, v, t_local)
    return factors, v


def correction_round(
    clients: Clients,
    w: Float[Tensor, "n d"],
    factors: Float[Tensor, "n f"],
    w_velocity: Float[Tensor, "n u"],
    v: Float[Tensor, "n v"],
    *,
    rule: LocalDescent,
    shape: tuple[int, ...],
    steps: int,
    own_steps: int,
    t: int,
    together: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A client program: in round t, steps of the correction and then of the model."""
    work: Options = {"rule": rule, "shape": shape, "steps": own_steps}
    factors, v = correct(clients, factors, v, w, t=t * own_steps, **work)
    change = expand(factors, shape, w.shape[1])
    shared = rule_in_numbers(rule, clients, w, together)
    for t_local in step_numbers(clients, t * steps, steps):
        g = clients.grad(w + change)
        w, w_velocity = descend(shared, w, g, w_velocity, t_local)
    return w, factors, w_velocity, v


@method()
def low_rank_corrections(
    sizes: Sizes,
    layers: Tensor,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    rank: Count = 2,
    steps: Count = 1,
    own_steps: Count = 5,
    weighting: str = "samples",
) -> Algorithm:
    """A shared model with a personal low-rank correction for every client.

    A newcomer learns a correction of the fixed shared model, with as many steps as the
    other clients took for their corrections.

    Args:
        sizes: (N,) training samples of each client.
        layers: (L, 3) begin, rows and columns of the matrices.
        lr: step size of the shared model and the corrections; also `curvature(c)` or
            `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        rank: rank of corrections; lower if a matrix has fewer rows or columns.
        steps: steps of the shared model in one round.
        own_steps: steps of the correction in one round, before the steps of the model.
        weighting: `samples` or `uniform` weights of the average.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)
    shape = rank, *(int(number) for number in layers.flatten())
    options: Options = {"rule": rule, "shape": shape}

    def init(x: Tensor, oracle: Oracle) -> State:
        refuse_layers(layers, x.shape[1])
        none = x.new_zeros(factor_columns(shape))
        factors = none.expand(len(x), -1)
        start = mean_of_all(oracle, x), factors, none
        return State(*start, velocity(rule, x), velocity(rule, factors), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, factors, start, w_velocity, v, t = state
        if t == 0:
            start = first_factors(shape, rng, w)
            factors = start.expand(len(w), -1)
        work: Options = {"steps": steps, "own_steps": own_steps, "t": t, **options}
        work["together"] = float(len(sizes))
        rows = w, factors, w_velocity, v
        w, factors, w_velocity, v = oracle.each(correction_round, *rows, **work)
        w = oracle.average(shares[oracle.mine], w)
        return State(w, factors, start, w_velocity, v, t + 1), {}

    def personal(state: State, oracle: Oracle) -> Tensor:
        return state.w + expand(state.factors, shape, state.w.shape[1])

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = row_for_each(oracle, state.w)
        factors = state.start.expand(len(w), -1)
        rows = factors, velocity(rule, factors), w
        work = {"steps": state.t * own_steps, "t": 0, **options}
        factors = oracle.each(correct, *rows, **work)[0]
        return w + expand(factors, shape, w.shape[1])

    return Algorithm(
        init,
        step,
        personal,
        welcome,
        releases=Releases(average=1),
        shared=lambda state: state.w,
    )
