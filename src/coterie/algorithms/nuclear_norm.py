"""A matrix of models with a small nuclear norm, by Frank-Wolfe with averages only.

    min (1/N) sum_i f_i(c + w_i)   over   |W|_* <= R = cap sqrt(N rank)           (9.7)

where c is the mean of the starting models, and W has the rows w_i. The matrix G has as
rows the clients' gradients g_i on all training data. A round has three parts:

1. Find the main directions of G by Lanczos' method, with `exchanges` averages q <-
   mean_i g_i <g_i, q>.
2. Add the first `atoms` of these to the directions of W. Move W in the span of all
   these directions by `corrections` accelerated steps, each projected onto the ball.
3. Keep the first `width` main directions of W.

With one atom and one correction this is Frank-Wolfe with a better step. With more of
both, it is faster. Clients send only vectors that are averaged. In part 1 a vector has
D numbers. In part 2, clients send the second moments of their coordinates, column by
column. So there, a vector has one number per direction. So nobody sees the models of
others. (A server that computed the projection would see them.) The gap

    mean <g_i, w_i> + cap sqrt(rank lambda),   lambda >= |mean g_i g_i'|_op,

bounds the distance to the optimal loss. lambda is computed from Lanczos' matrix T, the
rest of the trace, and their coupling. With `exchanges` = D it is exact.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 9, (9.7), tel-04877971.
    Jaggi, "Revisiting Frank-Wolfe: projection-free sparse convex optimization", ICML
    2013.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..collaboration.directions import by_lanczos, gradients_and_losses, second_moment
from ..collaboration.rows import mean_of_all, refuse_personal, row_for_each
from ..optim.heads import heads_by_descent, model
from ..optim.projections import onto_simplex_ball
from ..options import Count, Positive, method
from ..types import Algorithm, Info, Numbers, Options, Oracle, Releases, Rows


class State(NamedTuple):
    """The starting model c, the rows of W with a basis, and the number of rounds."""

    centre: Rows  # (n, D), the same row for everybody
    w: Rows  # (n, D)
    basis: Tensor  # (width, D), orthonormal rows, then zeros
    t: int


@method()
def nuclear_norm(
    *,
    rank: Count = 1,
    cap: Positive = 10.0,
    lr: Positive = 0.1,
    exchanges: Count = 20,
    atoms: Count = 1,
    corrections: Count = 10,
    width: Count = 50,
) -> Algorithm:
    """A matrix of models with a small nuclear norm, and a bound on the error.

    A newcomer learns coordinates in the directions of the trained models, with as many
    steps as the other clients took.

    Args:
        rank: sets, with `cap`, the radius of the ball, `cap sqrt(N rank)`.
        cap: sets, with `rank`, the radius of the ball.
        lr: step size of the corrections, at most 1 over the largest curvature.
        exchanges: averages in one round to find directions.
        atoms: directions that are added in one round.
        corrections: accelerated steps in one round.
        width: directions that are kept.
    """
    radius = cap * math.sqrt(rank)  # of singular values of W / sqrt(N)

    def init(x: Tensor, oracle: Oracle) -> State:
        refuse_personal(oracle)
        basis = x.new_zeros(width, x.shape[1])
        return State(mean_of_all(oracle, x), torch.zeros_like(x), basis, 0)

    def correct(oracle: Oracle, centre: Tensor, c: Tensor, q: Tensor) -> Tensor:
        """The coordinates (n, k) in columns of q, after projected steps."""
        ahead, momentum = c, 1.0
        for _ in range(corrections):
            g, _ = gradients_and_losses(oracle, centre + ahead @ q.T)
            new = _onto_ball(oracle, ahead - lr * (g @ q), radius)
            uphill = ((ahead - new) * (new - c)).sum(1, keepdim=True)
            if float(mean_of_all(oracle, Numbers(uphill))[0]) > 0:
                momentum = 1.0  # the steps went too far: restart
            after = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
            ahead = new + (momentum - 1) / after * (new - c)
            c, momentum = new, after
        return c

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        centre, w, basis, t = state
        g, losses = gradients_and_losses(oracle, centre + w)
        found, bound = by_lanczos(oracle, g, exchanges, rng)
        kept = basis[basis.norm(dim=1) > 0]
        q = torch.linalg.qr(torch.cat([kept, found[:atoms]]).T)[0]  # (D, k)
        numbers = torch.cat([losses, (g * w).sum(1, keepdim=True)], 1)
        told = mean_of_all(oracle, Numbers(numbers))[0]
        gap = float(told[1]) + radius * math.sqrt(bound)
        c = correct(oracle, centre, w @ q, q)
        values, turn = torch.linalg.eigh(second_moment(oracle, c))
        turn = turn[:, values > 0].flip(1)[:, :width].to(q)
        moved, new = (c @ turn) @ (q @ turn).T, torch.zeros_like(basis)
        new[: turn.shape[1]] = (q @ turn).T
        w = torch.where(oracle.active[:, None], moved, w)
        info: Info = {"loss": float(told[0]), "gap": max(gap, 0.0)}
        info["relative_gap"] = info["gap"] / max(info["loss"], 1e-30)
        return State(centre, w, new, t + 1), info

    def personal(state: State, oracle: Oracle) -> Tensor:
        return state.centre + state.w

    def welcome(state: State, oracle: Oracle) -> Tensor:
        centre = row_for_each(oracle, state.centre)
        u = state.basis.expand(len(centre), -1, -1)
        rows = centre.new_zeros(len(centre), width), centre, u
        work: Options = {"lr": lr, "cap": cap, "steps": state.t * corrections}
        (v,) = oracle.each(heads_by_descent, *rows, **work)
        return model(centre, v, u)

    return Algorithm(init, step, personal, welcome, releases=Releases(unbounded=True))


def _onto_ball(oracle: Oracle, c: Tensor, radius: float) -> Tensor:
    """The nearest coordinates whose matrix lies in the ball."""
    values, turn = torch.linalg.eigh(second_moment(oracle, c))
    s = values.clamp(min=0).sqrt()
    factor = onto_simplex_ball(s, radius) / s.clamp(min=1e-30)
    return c @ ((turn * factor) @ turn.T).to(c)
