"""Every client steps along a weighted sum of all clients' gradients at its own model.

    x_i <- x_i - lr sum_k alpha_ik g_k(x_i)

with weights that are known in advance: true clusters, thresholds on known biases, or
any matrix. Weights need not sum to 1, but lr sum_k alpha_ik must stay below 1 / beta,
where beta is the largest curvature of the losses. With `one_at_a_time`, only one client
k, drawn at random from the n active clients, computes in a step. Then every client i
steps along n alpha_ik g_k(x_i), which is the weighted sum on average.

References:
    Even, Massoulié, Scaman, "On sample optimality in personalized collaborative and
    federated learning", NeurIPS 2022.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..collaboration.best_fit import mean_of_partners
from ..collaboration.weights import restrict_to_active
from ..optim.steps import Descent, Schedule, follow, velocity
from ..options import BelowOne, Count, NotNegative, Positive, Weights, method
from ..types import Algorithm, Info, Oracle, Releases
from .local import State


@method()
def all_for_one(
    weights: Weights,
    *,
    lr: Positive = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: NotNegative = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    one_at_a_time: bool = False,
) -> Algorithm:
    """All-for-one with given weights of all clients' gradients.

    For a newcomer, the method finds the client whose model has the lowest loss on the
    newcomer's training data. The newcomer gets the mean of all models with that
    client's weights.

    Args:
        weights: (N, N) row i has the weights of all clients for client i.
        lr: step size.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: gradient steps in one round.
        one_at_a_time: only one client, drawn at random, computes in a step.
    """
    rule = Descent(lr, momentum, weight_decay, schedule)

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(x, velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, t = state
        alpha = restrict_to_active(weights.to(x), oracle.present)
        if one_at_a_time:
            for t_now in range(t, t + steps):
                now = _one_column(alpha, oracle.present, rng)
                x, v = follow(oracle, now, rule, x, v, steps=1, t=t_now)
        else:
            x, v = follow(oracle, alpha, rule, x, v, steps=steps, t=t)
        return State(x, v, t + steps), {"weights": alpha}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        n = len(state.x)
        trained = torch.arange(len(weights), device=state.x.device) < n
        alpha = restrict_to_active(weights.to(state.x), trained)[:n, :n]
        return mean_of_partners(oracle, state.x, alpha)

    return Algorithm(init, step, welcome=welcome, releases=Releases(blended=steps))


def _one_column(
    alpha: Float[Tensor, "n n"], active: Bool[Tensor, " n"], rng: torch.Generator
) -> Float[Tensor, "n n"]:
    """Weights of one random active client, times the number of active clients."""
    there = active.nonzero()[:, 0]
    place = int(torch.randint(len(there), (1,), generator=rng))
    k = there[place]
    return torch.zeros_like(alpha).index_copy(
        1, k[None], len(there) * alpha[:, k, None]
    )
