"""Models in a common subspace, which clients find together; each has own coordinates.

    x_i = c + v_i U,    U (r, D) with orthonormal rows,  |v_i| <= cap
    v_i <- cap_norms(v_i - lr U g_i(x_i))                       `head_steps` times
    U   <- U - lr (mean v_i' v_i)^-1 mean v_i' g_i,   then R U = U,  v_i <- v_i R

Here g_i is the gradient on all training data, and c the mean of the starting models. U
begins with the main directions of the gradients at c; for squared errors this is the
method of moments. This is the low-rank estimator (9.4). Clients send only U and its
gradients. If models are not linear, the method assumes that whole models lie in a
subspace, not only heads.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 9, tel-04877971.
    Collins, Hassani, Mokhtari, Shakkottai, arXiv 2102.07078, for the linear analysis.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..collaboration.directions import by_power, gradients_and_losses
from ..collaboration.rows import mean_of_all, refuse_personal, row_for_each
from ..optim.heads import (
    heads_and_slope,
    heads_by_descent,
    model,
    orthonormal,
    refuse_rank,
)
from ..options import Count, Positive, method
from ..types import Algorithm, Info, Numbers, Options, Oracle, Releases, Rows


class State(NamedTuple):
    """The starting model c, directions, coordinates, and the number of rounds."""

    centre: Rows  # (n, D), the same row for everybody
    u: Rows  # (n, r, D), the same for everybody and in memory only once
    v: Rows  # (n, r)
    t: int


@method()
def shared_subspace(
    *,
    rank: Count = 1,
    cap: Positive = 10.0,
    lr: Positive = 0.1,
    head_steps: Count = 10,
) -> Algorithm:
    """Models in a common subspace of few dimensions, by gradient steps.

    A newcomer learns coordinates in the fixed subspace, with as many steps as the other
    clients took.

    Args:
        rank: dimensions of the subspace.
        cap: largest distance of a model from the start.
        lr: step size of the coordinates and the subspace.
        head_steps: steps of the coordinates in one round.
    """
    options: Options = {"lr": lr, "cap": cap}

    def init(x: Tensor, oracle: Oracle) -> State:
        refuse_rank(rank, len(oracle.present), x.shape[1])
        refuse_personal(oracle)
        u = x.new_zeros(1, rank, x.shape[1]).expand(len(x), -1, -1)
        return State(mean_of_all(oracle, x), u, x.new_zeros(len(x), rank), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        centre, u, v, t = state
        if t == 0:
            u = by_power(oracle, gradients_and_losses(oracle, centre)[0], rank, rng)
        rows = v, torch.zeros_like(centre), centre, u
        v, g = oracle.each(heads_and_slope, *rows, steps=head_steps, **options)
        sums = torch.cat([v[:, :, None] * g[:, None], v[:, :, None] * v[:, None]], 2)
        mean = mean_of_all(oracle, Numbers(sums.flatten(1)))[0].view(rank, -1)
        slope, second = mean[:, : g.shape[1]], mean[:, g.shape[1] :]
        held = second + 1e-6 * (second.trace() + 1e-12) * torch.eye(rank).to(second)
        new, turned = orthonormal(u[0] - lr * torch.linalg.solve(held, slope))
        return State(centre, new.expand(len(v), -1, -1), v @ turned, t + 1), {}

    def personal(state: State, oracle: Oracle) -> Tensor:
        return model(state.centre, state.v, state.u)

    def welcome(state: State, oracle: Oracle) -> Tensor:
        centre, u = row_for_each(oracle, state.centre), row_for_each(oracle, state.u)
        rows = centre.new_zeros(len(centre), rank), centre, u
        work = state.t * head_steps
        (v,) = oracle.each(heads_by_descent, *rows, steps=work, **options)
        return model(centre, v, u)

    return Algorithm(init, step, personal, welcome, releases=Releases(unbounded=True))
