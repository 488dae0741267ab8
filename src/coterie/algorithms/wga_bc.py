"""Every client mixes its gradient with others' gradients, and corrects their bias.

    g_0 = g_i(x_i),    g_avg = sum_{k != i} p_k g_k(x_i)
    c_i <- (1 - beta) c_i + beta (g_avg - g_0)
    x_i <- x_i - lr ((1 - alpha) g_0 + alpha (g_avg - c_i))

c_i is a running mean of the bias of the others' average; it starts at 0. With
`alpha=0`, this is local training; with `beta=1` too, because then g_avg - c_i = g_0.
`beta=0` is weighted gradient averaging without a correction.

References:
    Chayti, Karimireddy, Stich, Flammarion, Jaggi, "Linear speedup in personalized
    collaborative learning", 2021, arXiv 2111.05968.

Differences: the paper has one reader; here every client is a reader. By default, the
gradients of the others are weighted by sample sizes. Momentum and partial participation
are ours. Averages are over active clients. If no other client is active, a client takes
local steps and keeps c_i.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..collaboration.weights import normalised, restrict_to_active, shares_of
from ..optim.steps import Descent, Schedule, descend, velocity
from ..options import BelowOne, Count, NotNegative, Positive, Share, Sizes, method
from ..types import Algorithm, Info, Oracle, Releases, Rows


class State(NamedTuple):
    """Models, momentum, estimates of the bias, and the number of gradient steps."""

    x: Rows  # (n, D)
    v: Rows  # (n, D), or (n, 0) without momentum
    c: Rows  # (n, D)
    t: int


@method()
def wga_bc(
    sizes: Sizes,
    *,
    lr: Positive = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: NotNegative = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    alpha: Share = 0.5,
    beta: Share = 0.1,
    weighting: str = "samples",
) -> Algorithm:
    """WGA-BC: weighted gradient averaging with a running correction of the bias.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: gradient steps in one round.
        alpha: share of the other clients in the mix.
        beta: weight of the newest bias in the estimate, which remembers about 1 / beta
            steps.
        weighting: `samples` or `uniform` weights of the other clients.
    """
    rule = Descent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(x, velocity(rule, x), torch.zeros_like(x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, c, t = state
        own = torch.eye(len(oracle.present), dtype=x.dtype, device=x.device)
        moving = oracle.active[:, None]
        # Without others there is no estimate of the bias.
        alone = int(oracle.present.sum()) == 1
        others = restrict_to_active(
            normalised((1 - own) * shares.to(x)), oracle.present
        )
        for t_now in range(t, t + steps):
            g = g_0 = oracle.grads(x)
            if not alone:
                g_avg = oracle.blended(x, others)
                c = torch.where(moving, (1 - beta) * c + beta * (g_avg - g_0), c)
                g = (1 - alpha) * g_0 + alpha * (g_avg - c)
            x_new, v_new = descend(rule, x, g, v, t_now)
            x, v = torch.where(moving, x_new, x), torch.where(moving, v_new, v)
        mix = (1 - alpha) * own + alpha * others
        mix = (own if alone else mix) * oracle.present[:, None]
        return State(x, v, c, t + steps), {"weights": mix}

    sent = Releases(blended=2 * steps)  # a gradient, and the model where it is taken
    return Algorithm(init, step, releases=sent)
