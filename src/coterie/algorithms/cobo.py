"""Models are pulled to each other by weights that pairs learn where they meet.

In every gradient step some pairs of clients meet at the midpoint of their models,

    z = (x_i + x_j) / 2,    w_ij <- clip(w_ij + gamma <g_i(z), g_j(z)>, 0, 1),

and then all clients move from where they are,

    x_i <- x_i - lr (g_i(x_i) + rho sum_j w_ij (x_i - x_j)).

The weights are symmetric, start at 1 and are kept. `rho=0` is local training. Steps are
stable when `lr (beta + rho N) < 2` for beta-smooth losses.

References:
    Hashemi, He, Jaggi, "CoBo: collaborative learning via bilevel optimization",
    NeurIPS 2024, arXiv 2409.05539.

Differences: pairs are not drawn one by one but as `meetings` random matchings, in each
of which a client meets one other; the authors' code draws each pair with probability
2/N, about two meetings for each client. Momentum is of g_i alone, as in their code.
Clients that take no part do not meet, do not move and pull nobody.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..checks import integer, number
from ..collaboration.weights import links, normalised
from ..graphs.families import matchings
from ..optim.steps import descend, descent, step_size, velocity
from ..types import Algorithm, Info, Oracle


class State(NamedTuple):
    """Models, momentum, weights of pairs, and how many gradient steps were taken."""

    x: Tensor  # (N, D)
    v: Tensor  # (N, D), or (N, 0) without momentum
    w: Tensor  # (N, N), symmetric, from 0 to 1
    t: int


def cobo(
    *,
    lr: float = 0.1,
    steps: int = 1,
    rho: float = 0.05,
    gamma: float = 0.01,
    meetings: int = 2,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: str = "constant",
) -> Algorithm:
    """CoBo: clients pull each other's models, and learn by meetings how strongly.

    Args:
        lr: step size.
        steps: gradient steps in one round, each with its own meetings.
        rho: strength of the pull.
        gamma: step size of the weights.
        meetings: how many others each client meets in a step; one less than there are
            clients, or more, lets all pairs meet.
        momentum: of the gradient steps.
        weight_decay: of the gradient steps.
        schedule: of the step size, see `coterie.optim.steps`.
    """
    rule = descent(
        lr=lr, momentum=momentum, weight_decay=weight_decay, schedule=schedule
    )
    integer("steps", steps, at_least=1)
    number("rho", rho, at_least=0)
    number("gamma", gamma, at_least=0)
    integer("meetings", meetings, at_least=0)

    def init(x: Tensor) -> State:
        return State(x, velocity(rule, x), x.new_ones(len(x), len(x)), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, w, t = state
        active, everybody = oracle.active, bool(oracle.active.all())
        present = active[:, None] & active  # w_ii pulls nobody anywhere
        floats = 0.0
        for t_now in range(t, t + steps):
            g = oracle.grads(x)
            pairs = matchings(active, meetings, rng)
            products, met = _meet(oracle, x, pairs)
            w = (w + gamma * products).clamp(0, 1)
            near = w * present
            pull = torch.diag(near.sum(1)) - near  # row i of pull @ x: pull of client i
            moved, v_new = descend(rule, x, g, v, t_now)
            moved.addmm_(pull, x, alpha=-step_size(rule, t_now) * rho)
            # Models over links and to partners, whose gradients come back.
            floats += (links(near + met) + float(met.sum())) * x.shape[1]
            if not everybody:
                moved = torch.where(active[:, None], moved, x)
                v_new = torch.where(active[:, None], v_new, v)
            x, v = moved, v_new
        return State(x, v, w, t + steps), {"floats": floats, "weights": normalised(w)}

    return Algorithm(init, step)


def _meet(
    oracle: Oracle, x: Float[Tensor, "n d"], pairs: Int[Tensor, "m n"]
) -> tuple[Float[Tensor, "n n"], Bool[Tensor, "n n"]]:
    """Products of the gradients of pairs at their midpoints, and which pairs met."""
    everyone = torch.arange(len(x), device=x.device)
    own = torch.eye(len(x), dtype=x.dtype, device=x.device)
    products = x.new_zeros(len(x), len(x))
    met = torch.zeros_like(products, dtype=torch.bool)
    for partner in pairs:
        swap = own[partner]  # swap @ x is x[partner], several times faster
        g = oracle.grads((own + swap) / 2 @ x)
        products[everyone, partner] = (g @ g.T)[everyone, partner]
        met[everyone, partner] = True
    # Who had no partner met oneself.
    return products.fill_diagonal_(0), met.fill_diagonal_(False)
