"""FedAvg that learns a step size for every coordinate of the model.

In round t = 1, 2, ... every client of the round starts at w_i <- w and takes `steps`
steps `w_i <- w_i - eta g_i(w_i)`, where eta = sqrt(b / g) has one entry for each
coordinate. Then

    b <- b + eps^2 / (t + 1)^p + mean_i (w_i - w)^2 / 2
    g <- g + zeta^2 / (t + 1)^p + mean_i sum_steps g_i(w_i)^2
    w <- the weighted mean of the w_i

At the start, b = eps^2 and g = zeta^2, where eps = lr zeta. The step size of a
coordinate grows if small gradients move clients far, and shrinks if gradients only
change their sign. Before use, x_i <- w, then `tune_steps` times x_i <- x_i - eta
g_i(x_i).

References:
    Khodak, Balcan, Talwalkar, "Adaptive gradient-based meta-learning methods", NeurIPS
    2019, arXiv 1906.02717: Algorithm 2 (ARUBA) applied to FedAvg.

Differences: in the paper each client adds its terms to b and g. We add the mean over
the clients of a round, so that step sizes do not depend on how many take part. We left
out ARUBA++, where g also grows during tuning.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..collaboration.rows import compute_once, mean_of_all, row_for_each
from ..collaboration.weights import shares_of
from ..optim.steps import with_rates
from ..options import Count, Positive, Scale, Sizes, Whole, method
from ..types import Algorithm, Clients, Info, Oracle, Releases, SameRow


class State(NamedTuple):
    """The global model, b and g of the step sizes, and the number of rounds."""

    w: SameRow  # (n, D)
    b: SameRow  # (n, D), sums of squared distances
    g: SameRow  # (n, D), sums of squared gradients
    t: int


def scaled_sgd(
    clients: Clients, w: Tensor, squares: Tensor, eta: Tensor, *, steps: int
) -> tuple[Tensor, Tensor]:
    """A client program: w after steps of size eta, and the sum of g^2."""
    squares, rate = squares.clone(), with_rates(clients, eta)
    for _ in range(steps):
        g = clients.grad(w)
        squares.addcmul_(g, g)
        # w - eta g, in the memory of g
        w = torch.addcmul(w, rate, g, value=-1, out=g)
    return w, squares


@method()
def aruba(
    sizes: Sizes,
    *,
    lr: Scale = 0.1,
    steps: Count = 1,
    zeta: Scale = 1.0,
    p: Positive = 1.0,
    weighting: str = "samples",
    tune_steps: Whole = 1,
) -> Algorithm:
    """ARUBA: FedAvg with learned step sizes, which clients also use to tune at the end.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of every coordinate in the first round, eps / zeta in the paper.
        steps: local gradient steps in one round.
        zeta: the step size of a coordinate stays near `lr` until its gradients become
            larger than `zeta`.
        p: how fast the effect of `zeta` decreases with rounds.
        weighting: `samples` or `uniform` weights of the average.
        tune_steps: steps before use.
    """
    shares = shares_of(sizes, weighting)
    eps = lr * zeta

    def take_steps(state: State, oracle: Oracle, count: int) -> tuple[Tensor, ...]:
        """Every client's copy of w after `count` steps, and its squared gradients."""
        eta = compute_once(lambda b, g: (b / g).sqrt(), state.b, state.g)
        none = torch.zeros_like(state.w)
        return oracle.each(scaled_sgd, state.w, none, eta, steps=count)

    def init(x: Tensor, oracle: Oracle) -> State:
        w = mean_of_all(oracle, x)
        one = torch.ones_like(w[:1])
        return State(w, (eps**2 * one).expand_as(w), (zeta**2 * one).expand_as(w), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, b, g, t = state
        w_i, squares = take_steps(state, oracle, steps)
        fade = (t + 2) ** -p  # round t + 1
        far, much = (
            mean_of_all(oracle, (w_i - w).square_()),
            mean_of_all(oracle, squares),
        )
        # A mean of squares is negative only if noise was added to it.
        b = compute_once(
            lambda b, far: b + eps**2 * fade + far.clamp(min=0) / 2, b, far
        )
        g = compute_once(
            lambda g, much: g + zeta**2 * fade + much.clamp(min=0), g, much
        )
        info: Info = {"step_size": float((b[0] / g[0]).sqrt().mean())}
        return State(oracle.average(shares[oracle.mine], w_i), b, g, t + 1), info

    def personal(state: State, oracle: Oracle) -> Tensor:
        return take_steps(state, oracle, tune_steps)[0]

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w, b, g = (row_for_each(oracle, part) for part in state[:3])
        return personal(State(w, b, g, state.t), oracle)

    sent = Releases(average=3)  # a model, how far it went, and squared gradients
    return Algorithm(
        init, step, personal, welcome, releases=sent, shared=lambda state: state.w
    )
