"""Models of clients are kept as near to each other as their data are.

    minimise (1/n) sum_i a_i f_i(x_i)   subject to |x_i - x_j|^2 <= t D_ij for all pairs

where D is the dissimilarity of data (`similarity.transport`) and a_i is in proportion
to sample sizes, 1 on average. t = 0 is one model for all, a large t local training. In
every round the clients S of the round return fresh gradients G_i(x_i) of a_i f_i, and

    g' = G_i(x_i) for i in S, g_i else
    nu = g / n + (g' - g) / |S|
    x <- Proj(x - eta nu),   g <- g'

with the projection of `optim.projections` onto all constraints. nu is an unbiased
estimate of the gradient of the objective if S is drawn uniformly, and what it knows of
the absent keeps its variance low.

References:
    Erickson, Johansson, "Personalized federated learning under model dissimilarity
    constraints", 2025, arXiv 2505.07575, Algorithm 1.

Differences: nu has the scaling that makes it the gradient if all take part; the printed
one has not (docs/errata.md). eta = n lr, so that `lr` is the step size of a client that
is tied to nobody, as in other methods; the paper's eta = 3 / (8 L) is lr = 3 / (8 L n).
The paper starts from gradients of all clients, we from g = 0, since only clients of a
round can be asked. D is divided by its mean, which gives t a unit.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..collaboration.rows import common
from ..optim.projections import onto_balls, project, squared_radii
from ..optim.steps import PlainDescent, decayed, step_size
from ..options import Dissimilarities, NotNegative, Positive, Sizes, method
from ..types import Algorithm, Info, Oracle, Rows


class State(NamedTuple):
    """Models, stored gradients, multipliers of the projection, rounds so far."""

    x: Rows  # (n, D)
    g: Rows  # (n, D)
    multipliers: Rows  # (n, N)
    t: int


@method()
def karula(
    radius: Dissimilarities,
    sizes: Sizes,
    *,
    t: NotNegative = 1.0,
    rule: PlainDescent = PlainDescent(),
    tolerance: Positive = 1e-9,
) -> Algorithm:
    """Karula: personal models whose distances are bounded by those of the data.

    A newcomer is trained alone for as many steps, with its model held to the bounds to
    all models that are there.

    Args:
        radius: (N, N) dissimilarities D of clients; only proportions matter.
        sizes: (N,) training samples of each client.
        t: the mean of the bounds on squared distances of models.
        rule: of the steps of a client that nobody holds back.
        tolerance: relative duality gap of the projection.
    """
    bounds = squared_radii(radius, t)

    def init(x: Tensor, oracle: Oracle) -> State:
        x = common(oracle, x)
        multipliers = x.new_zeros(len(x), len(oracle.present))
        return State(x, torch.zeros_like(x), multipliers, 0)

    def held(moved: Tensor, multipliers: Tensor) -> tuple[Tensor, ...]:
        """What the coordinator gives back: models, multipliers, mixing, and the gap."""
        found = project(moved, bounds, tolerance=tolerance, start=multipliers)
        gap = moved.new_full((len(moved), 1), found.gap)
        return found.x, found.multipliers, found.mixing, gap

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, g, multipliers, k = state
        n, s = len(oracle.present), int(oracle.present.sum())
        a = (sizes / sizes.to(torch.float64).mean()).to(x)[oracle.mine]
        fresh = decayed(rule, x, oracle.grads(x)).mul_(a[:, None])
        eta = n * step_size(rule, k)
        if s < n:
            fresh = torch.where(oracle.active[:, None], fresh, g)
        # x - eta nu, in two passes; where all take part, nu = g' / n.
        moved = x.sub(fresh, alpha=eta / s)
        if s < n:
            moved.add_(g, alpha=eta / s - eta / n)
        x, multipliers, mixing, gap = oracle.central(held, moved, multipliers)
        # Of each client, so that the mean over clients is their number.
        pairs = multipliers.count_nonzero(1) * (n / 2)
        info: Info = {"weights": mixing, "gap": gap[:, 0], "active_pairs": pairs}
        return State(x, fresh, multipliers, k + 1), info

    def welcome(state: State, oracle: Oracle) -> Tensor:
        n, m = len(state.x), len(oracle.active)
        near = squared_radii(radius, t, among=n)[n:, :n]
        nearest = onto_balls(state.x, near, tolerance=tolerance)
        x, multipliers, _ = nearest(state.x.mean(0).repeat(m, 1))
        for k in range(state.t):
            g = decayed(rule, x, oracle.grads(x))
            x, multipliers, _ = nearest(x - step_size(rule, k) * g, multipliers)
        return x

    return Algorithm(init, step, welcome=welcome)
