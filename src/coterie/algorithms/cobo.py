"""Clients pull each other's models, and each pair learns how strongly.

In every gradient step some pairs of clients meet at the midpoint of their models,

    z = (x_i + x_j) / 2,    w_ij <- clip(w_ij + gamma <g_i(z), g_j(z)>, 0, 1),

and then all clients take a step from their own models,

    x_i <- x_i - lr (g_i(x_i) + rho sum_j w_ij (x_i - x_j)).

The weights are symmetric and start at 1. `rho=0` is local training. For beta-smooth
losses, steps are stable if `lr (beta + rho N) < 2`, for N clients.

References:
    Hashemi, He, Jaggi, "CoBo: collaborative learning via bilevel optimization",
    NeurIPS 2024, arXiv 2409.05539.

Differences: pairs come from `meetings` random matchings. In a matching, each client
meets one other client. The authors' code draws each pair with probability 2/N, about
two meetings for each client. Only g_i has momentum, as in the authors' code. Inactive
clients do not meet, do not move and pull nobody.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..collaboration.links import row_sums
from ..collaboration.weights import normalised
from ..graphs.families import matchings
from ..optim.steps import Descent, Schedule, descend, step_size, velocity
from ..options import BelowOne, Count, NotNegative, Positive, Whole, method
from ..types import Algorithm, Info, Oracle, Releases, Rows


class State(NamedTuple):
    """Models, momentum, weights of pairs, and the number of gradient steps."""

    x: Rows  # (n, D)
    v: Rows  # (n, D), or (n, 0) without momentum
    w: Rows  # (n, N), symmetric as a whole, from 0 to 1
    t: int


@method()
def cobo(
    *,
    lr: Positive = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: NotNegative = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    rho: NotNegative = 0.05,
    gamma: NotNegative = 0.01,
    meetings: Whole = 2,
) -> Algorithm:
    """CoBo: clients pull each other's models, and learn in meetings how strongly.

    Args:
        lr: step size.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: gradient steps in one round, each with its own meetings.
        rho: strength of the pull.
        gamma: step size of the weights.
        meetings: the number of other clients that each client meets in a step. If it is
            N - 1 or more, all pairs meet.
    """
    rule = Descent(lr, momentum, weight_decay, schedule)

    def init(x: Tensor, oracle: Oracle) -> State:
        w = x.new_ones(len(x), len(oracle.present))
        return State(x, velocity(rule, x), w, 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, w, t = state
        active, everybody = oracle.active, bool(oracle.active.all())
        present = active[:, None] & oracle.present  # w_ii pulls nobody anywhere
        for t_now in range(t, t + steps):
            g = oracle.grads(x)
            pairs = matchings(oracle.present, meetings, rng)
            w = (w + gamma * _gradient_products(oracle, x, pairs)).clamp(0, 1)
            near = w * present
            moved, v_new = descend(rule, x, g, v, t_now)
            pull = near.sum(1, keepdim=True) * x - oracle.mix(near, x)
            moved.sub_(pull, alpha=step_size(rule, t_now) * rho)
            if not everybody:
                moved = torch.where(active[:, None], moved, x)
                v_new = torch.where(active[:, None], v_new, v)
            x, v = moved, v_new
        return State(x, v, w, t + steps), {"weights": normalised(w)}

    # A model and a gradient at every meeting, and a model for the step. With an odd
    # number of clients there may be one more meeting.
    sent = Releases(mix=steps * (2 * (meetings + 1) + 1))
    return Algorithm(init, step, releases=sent)


def _gradient_products(
    oracle: Oracle, x: Float[Tensor, "n d"], pairs: Int[Tensor, "m k"]
) -> Float[Tensor, "n k"]:
    """Products of the gradients of pairs at their midpoints, 0 if they did not meet."""
    n = len(oracle.present)
    own = torch.eye(n, dtype=x.dtype, device=x.device)
    here = torch.arange(len(x), device=x.device)
    products = x.new_zeros(len(x), n)
    for partner in pairs:
        swap = own[partner]  # swap @ x is x[partner], several times faster
        g = oracle.grads(oracle.mix((own + swap) / 2, x))
        products[here, partner[oracle.mine]] = row_sums(g * oracle.mix(swap, g))
    # A client without a partner was paired with itself.
    products[here, here + oracle.mine.start] = 0
    return products
