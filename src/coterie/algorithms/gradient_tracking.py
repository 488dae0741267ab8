"""Gradient tracking: every node follows an estimate of the mean of all gradients.

    y <- W y + g(x) - g(x before),    x <- W (x - lr y)

Row v of g(x) is the gradient of node v at its model. At the start y = 0 and g(x before)
= 0, so the first y of a node is its own gradient. The mean of all y is always the mean
of all latest gradients. If all models are equal and do not move, every y is this mean.
So the optimum of the mean of all losses is a fixed point, for any data and a constant
step size. In decentralised SGD, this optimum is not a fixed point.

References:
    Di Lorenzo, Scutari, "NEXT: in-network nonconvex optimization", IEEE Transactions on
    Signal and Information Processing over Networks 2016, arXiv 1602.00591.
    Nedić, Olshevsky, Shi, "Achieving geometric convergence for distributed optimization
    over time-varying graphs", SIAM Journal on Optimization 2017, arXiv 1607.03218.

Differences: with minibatches, y tracks the mean of the latest sampled gradients. An
inactive node keeps its model, gradient and y. Each of its neighbours adds the missing
weight to the weight of its own model. So the mean of all y is still the mean of all
latest gradients.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..graphs.matrices import Gossip, among_present
from ..optim.steps import Descent, Schedule, add_weight_decay, step_size
from ..options import NotNegative, Positive, method
from ..types import Algorithm, Info, Oracle, Releases, Rows


class State(NamedTuple):
    """Models, W y, the latest gradients, and the number of rounds so far."""

    x: Rows  # (n, D)
    y: Rows  # (n, D)
    g: Rows  # (n, D)
    t: int


@method()
def gradient_tracking(
    mixing: Gossip,
    *,
    lr: Positive = 0.1,
    weight_decay: NotNegative = 0.0,
    schedule: Schedule = "constant",
) -> Algorithm:
    """Gradient tracking, which needs no server and is exact even if data differ.

    Args:
        mixing: (N, N) doubly stochastic and symmetric, sparse or dense.
        lr: step size.
        weight_decay: adds this number times the model to each gradient.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
    """
    rule = Descent(lr, 0.0, weight_decay, schedule)

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(x, torch.zeros_like(x), torch.zeros_like(x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, y, g, t = state
        w, here = among_present(mixing, oracle.present), oracle.active[:, None]
        fresh = torch.where(here, add_weight_decay(rule, x, oracle.grads(x)), g)
        y = y + (fresh - g)  # inactive nodes add exactly 0
        moved = torch.where(here, x - step_size(rule, t) * y, x)
        x, y = oracle.mix(w, moved), oracle.mix(w, y)
        return State(x, y, fresh, t + 1), {"weights": w}

    return Algorithm(init, step, releases=Releases(mix=2))  # x and y
