"""EXTRA: decentralised gradient descent with a correction that everybody learns.

    x' = W x - lr (g(x) + h),    h <- h + (x - W x) / (2 lr),    x <- x'

from h = 0. That is x'' = (I + W) x' - (I + W)/2 x - lr (g(x') - g(x)), as printed. The
sum of all h stays 0; where models agree and stand still, h_v is minus the gradient
of node v: the optimum of the mean of all losses is a fixed point, with a constant step
and for any data. A message holds no more than one of decentralised SGD.

D^2, `form = "d2"`, steps first and mixes then:

    m = x - lr (g(x) + h),    x <- V m,    h <- h + (m - V m) / lr,    V = (I + W) / 2

or x'' = V (2 x' - x - lr (g(x') - g(x))). Its fixed points are the same, and any step
goes that a node alone could take, whatever the graph.

References:
    Shi, Ling, Wu, Yin, "EXTRA: an exact first-order algorithm for decentralized
    consensus optimization", SIAM Journal on Optimization 2015, arXiv 1404.6264.
    Tang, Lian, Yan, Zhang, Liu, "D^2: decentralized training over decentralized data",
    ICML 2018, arXiv 1803.07068.
    Li, Shi, Yan, "A decentralized proximal-gradient method with network independent
    step-sizes and separated convergence rates", IEEE Transactions on Signal Processing
    2019, arXiv 1704.07807, for V and steps.

Differences: written with h in place of the model and the gradient before. A node that
takes no part keeps model and h, and its neighbours keep for themselves what was for it.
D^2 has V in place of W, whose eigenvalues it needs above -1/3; on a ring they are not.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..graphs.matrices import Gossip, among_present
from ..optim.steps import Descent, add_weight_decay
from ..options import NotNegative, Positive, method
from ..types import Algorithm, Info, Oracle, Releases, Rows


class State(NamedTuple):
    """Models and corrections."""

    x: Rows  # (n, D)
    h: Rows  # (n, D)


@method()
def extra(
    mixing: Gossip,
    *,
    lr: Positive = 0.1,
    weight_decay: NotNegative = 0.0,
    form: Literal["extra", "d2"] = "extra",
) -> Algorithm:
    """EXTRA or D^2: exact for data that differ, with messages of decentralised SGD.

    Args:
        mixing: (N, N) doubly stochastic and symmetric, sparse or dense.
        lr: step size.
        weight_decay: factor of the model that is added to its gradient.
        form: `extra` mixes and steps; `d2` steps, and mixes then.
    """
    rule = Descent(lr, weight_decay=weight_decay)

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(x, torch.zeros_like(x))

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, h = state
        w, here = among_present(mixing, oracle.present), oracle.active[:, None]
        move = lr * (add_weight_decay(rule, x, oracle.grads(x)) + h)
        if form == "d2":
            m = torch.where(here, x - move, x)
            near = oracle.mix(w, m)
            return State((m + near) / 2, h + (m - near) / (2 * lr)), {"weights": w}
        near = oracle.mix(w, x)
        moved = torch.where(here, near - move, x)
        return State(moved, h + (x - near) / (2 * lr)), {"weights": w}

    return Algorithm(init, step, releases=Releases(mix=1))
