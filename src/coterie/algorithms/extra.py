"""EXTRA: decentralised gradient descent with a correction that each node learns.

    x' = W x - lr (g(x) + h),    h <- h + (x - W x) / (2 lr),    x <- x'

At the start h = 0. The paper writes this without h:
x'' = (I + W) x' - (I + W)/2 x - lr (g(x') - g(x)). The sum of all h stays 0. If all
models are equal and do not move, h_v is minus the gradient of node v. So the optimum of
the mean of all losses is a fixed point, with a constant step size and for any data.
Messages are as long as in decentralised SGD.

D^2, `form = "d2"`, takes the step first and then mixes:

    m = x - lr (g(x) + h),    x <- V m,    h <- h + (m - V m) / lr,    V = (I + W) / 2

or x'' = V (2 x' - x - lr (g(x') - g(x))). It has the fixed points of EXTRA. On any
graph, it is stable for every step size that is stable on a single node.

References:
    Shi, Ling, Wu, Yin, "EXTRA: an exact first-order algorithm for decentralized
    consensus optimization", SIAM Journal on Optimization 2015, arXiv 1404.6264.
    Tang, Lian, Yan, Zhang, Liu, "D^2: decentralized training over decentralized data",
    ICML 2018, arXiv 1803.07068.
    Li, Shi, Yan, "A decentralized proximal-gradient method with network independent
    step-sizes and separated convergence rates", IEEE Transactions on Signal Processing
    2019, arXiv 1704.07807, for V and steps.

Differences: we store h in place of the previous model and gradient. An inactive node
keeps its model and h. Each of its neighbours adds the missing weight to the weight of
its own model. D^2 uses V instead of W, because its matrix must have eigenvalues above
-1/3, and on a ring some eigenvalues of W are lower.
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
    """EXTRA or D^2, which reach the exact optimum even if data differ.

    Args:
        mixing: (N, N) doubly stochastic and symmetric, sparse or dense.
        lr: step size.
        weight_decay: adds this number times the model to each gradient.
        form: `extra`, or `d2`, which takes the step before it mixes.
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
