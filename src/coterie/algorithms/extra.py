"""EXTRA: decentralised gradient descent with a correction that everybody learns.

    x' = W x - lr (g(x) + h),    h <- h + (x - W x) / (2 lr),    x <- x'

from h = 0. That is x'' = (I + W) x' - (I + W)/2 x - lr (g(x') - g(x)), as printed. The
sum of all h stays 0; where models agree and stand still, h_v is minus the gradient
of node v: the optimum of the mean of all losses is a fixed point, with a constant step
and for any data. A message holds no more than one of decentralised SGD.

References:
    Shi, Ling, Wu, Yin, "EXTRA: an exact first-order algorithm for decentralized
    consensus optimization", SIAM Journal on Optimization 2015, arXiv 1404.6264.

Differences: written with h in place of the model and the gradient before. A node that
takes no part keeps model and h, and its neighbours keep for themselves what was for it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..graphs.families import refuse_apart
from ..graphs.matrices import Gossip, among_present, joined
from ..optim.steps import Descent, decayed
from ..options import NotNegative, Positive, method
from ..types import Algorithm, Info, Oracle, Rows


class State(NamedTuple):
    """Models and corrections."""

    x: Rows  # (n, D)
    h: Rows  # (n, D)


@method()
def extra(
    mixing: Gossip, *, lr: Positive = 0.1, weight_decay: NotNegative = 0.0
) -> Algorithm:
    """EXTRA: exact for data that differ, with the messages of decentralised SGD.

    Args:
        mixing: (N, N) doubly stochastic and symmetric, sparse or dense.
        lr: step size.
        weight_decay: factor of the model that is added to its gradient.
    """
    refuse_apart("mixing", joined(mixing), len(mixing))
    rule = Descent(lr, weight_decay=weight_decay)

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(x, torch.zeros_like(x))

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, h = state
        w = among_present(mixing, oracle.present)
        g, near = decayed(rule, x, oracle.grads(x)), oracle.mix(w, x)
        moved = torch.where(oracle.active[:, None], near - lr * (g + h), x)
        return State(moved, h + (x - near) / (2 * lr)), {"weights": w}

    return Algorithm(init, step)
