"""The distances of clients' models are bounded by the distances of their data.

    minimise (1/n) sum_i a_i f_i(x_i)   subject to |x_i - x_j|^2 <= t D_ij for all pairs

where D is the dissimilarity of data (`similarity.transport`), and a_i is in proportion
to sample sizes and 1 on average. With t = 0 there is one model for all; a large t gives
local training. In every round, the active clients S return new gradients G_i(x_i) of
a_i f_i, and

    g' = G_i(x_i) for i in S, g_i otherwise
    nu = g / n + (g' - g) / |S|
    x <- Proj(x - eta nu),   g <- g'

where Proj is the projection of `optim.projections` onto all constraints. If S is drawn
uniformly, nu is an unbiased estimate of the gradient of the objective. The old
gradients of absent clients keep the variance of nu low.

References:
    Erickson, Johansson, "Personalized federated learning under model dissimilarity
    constraints", 2025, arXiv 2505.07575, Algorithm 1.

Differences: if all clients take part, our nu is the gradient; the printed one is not
(docs/errata.md). We write eta = n lr, so that `lr` is the step size of a client without
bounds, as in other methods. The paper's eta = 3 / (8 L) is lr = 3 / (8 L n). The paper
starts with the gradients of all clients. We start with g = 0, because only the clients
of a round compute. We divide D by its mean, so t is the mean bound.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..collaboration.rows import mean_of_all
from ..optim.projections import onto_balls, project, squared_radii
from ..optim.steps import Descent, Schedule, add_weight_decay, step_size
from ..options import Dissimilarities, NotNegative, Positive, Sizes, method
from ..types import Algorithm, Info, Oracle, Releases, Rows, Server


class Memory(NamedTuple):
    """What the coordinator remembers of all N clients."""

    x: Tensor  # (N, D) models
    g: Tensor  # (N, D) the last gradient of each client
    multipliers: Tensor  # (N, N) of the projection


class Coordinator(NamedTuple):
    """The bounds, and what the coordinator remembers."""

    bounds: Tensor  # (N, N)
    memory: Memory


class State(NamedTuple):
    """Models, the coordinator's memory, and the number of rounds."""

    x: Rows  # (n, D)
    server: Server
    t: int


@method()
def karula(
    radius: Dissimilarities,
    sizes: Sizes,
    *,
    t: NotNegative = 1.0,
    lr: Positive = 0.1,
    weight_decay: NotNegative = 0.0,
    schedule: Schedule = "constant",
    tolerance: Positive = 1e-9,
) -> Algorithm:
    """Karula: personal models whose distances are bounded by the distances of the data.

    A newcomer trains alone for as many steps as there were rounds. Its model must stay
    within its bounds to all trained models.

    Args:
        radius: (N, N) dissimilarities D of clients; only their ratios matter.
        sizes: (N,) training samples of each client.
        t: the mean of the bounds on squared distances of models.
        lr: step size of a client without bounds.
        weight_decay: adds this number times the model to each gradient.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        tolerance: relative duality gap of the projection.
    """
    rule = Descent(lr, 0.0, weight_decay, schedule)
    bounds = squared_radii(radius, t)

    def init(x: Tensor, oracle: Oracle) -> State:
        x = mean_of_all(oracle, x)
        server, x = oracle.central(_begin, None, x)
        return State(x, server, 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, server, k = state
        a = (sizes / sizes.to(torch.float64).mean()).to(x)[oracle.mine]
        fresh = add_weight_decay(rule, x, oracle.grads(x)).mul_(a[:, None])
        lr = step_size(rule, k)
        server, new, mixing, gap, pairs = oracle.central(
            _project_step,
            Coordinator(bounds, server),
            fresh,
            lr=lr,
            tolerance=tolerance,
        )
        if oracle.home is not None:  # these columns have no bounds
            alone = torch.where(oracle.active[:, None], x - lr * fresh, x)
            new = torch.where(oracle.home, alone, new)
        info: Info = {"weights": mixing, "gap": gap, "active_pairs": pairs}
        return State(new, server, k + 1), info

    def welcome(state: State, oracle: Oracle) -> Tensor:
        n, m = len(state.x), len(oracle.active)
        near = squared_radii(radius, t, among=n)[n:, :n]
        nearest = onto_balls(state.x, near, tolerance=tolerance)
        x, multipliers, _ = nearest(state.x.mean(0).repeat(m, 1))
        for k in range(state.t):
            g = add_weight_decay(rule, x, oracle.grads(x))
            x, multipliers, _ = nearest(x - step_size(rule, k) * g, multipliers)
        return x

    return Algorithm(init, step, welcome=welcome, releases=Releases(central=1))


def _begin(server: None, who: Tensor, x: Tensor) -> tuple[Memory, Tensor]:
    """A coordinator's program: the first models, when all clients take part."""
    return Memory(x, torch.zeros_like(x), x.new_zeros(len(x), len(x))), x


def _project_step(
    server: Coordinator,
    who: Int[Tensor, " p"],
    fresh: Float[Tensor, "p d"],
    *,
    lr: float,
    tolerance: float,
) -> tuple[Memory, Tensor, Tensor, Tensor, Tensor]:
    """A coordinator's program: a step of all models, projected onto the bounds.

    Answers are models, mixing, the gap, and active pairs. The mean of the last answer
    over clients is the number of active pairs.
    """
    (x, g, multipliers), n, s = server.memory, len(server.bounds), len(who)
    eta, new = n * lr, g.index_copy(0, who, fresh)
    # x - eta nu, in two passes; if all take part, nu = g' / n.
    moved = x.sub(new, alpha=eta / s)
    if s < n:
        moved.add_(g, alpha=eta / s - eta / n)
    found = project(moved, server.bounds, tolerance=tolerance, start=multipliers)
    pairs = found.multipliers.count_nonzero(1) * (n / 2)
    gap = moved.new_full((n,), found.gap)
    return Memory(found.x, new, found.multipliers), found.x, found.mixing, gap, pairs
