"""FedAvg that learns a step size for every coordinate from how far clients travel.

In round t = 1, 2, ... every client of the round starts at w_i <- w and takes `steps`
steps `w_i <- w_i - eta g_i(w_i)`, coordinate by coordinate, with eta = sqrt(b / g):

    b <- b + eps^2 / (t + 1)^p + mean_i (w_i - w)^2 / 2
    g <- g + zeta^2 / (t + 1)^p + mean_i sum_steps g_i(w_i)^2
    w <- the weighted mean of the w_i

from b = eps^2 and g = zeta^2, where eps = lr zeta. Where local runs lead far on small
gradients steps become long, and where gradients only shake they become short. Before
use, x_i <- w, then `tune_steps` times x_i <- x_i - eta g_i(x_i).

References:
    Khodak, Balcan, Talwalkar, "Adaptive gradient-based meta-learning methods", NeurIPS
    2019, arXiv 1906.02717: Algorithm 2 (ARUBA) applied to FedAvg.

Differences: there each client of a round is a task of its own, which adds its terms to
b and g; we add their mean over the clients once a round, so that the step sizes do not
depend on how many take part. The refinement ARUBA++, where g grows while tuning, is
left out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..collaboration.rows import compute_once, mean_of_all, row_for_each
from ..collaboration.weights import shares_of
from ..options import Count, Positive, Scale, Sizes, Whole, method
from ..types import Algorithm, Clients, Info, Oracle, Releases, Rows


class State(NamedTuple):
    """The global model, what the step sizes are made of, and finished rounds."""

    w: Rows  # (n, D), the same row for everybody, as all of these
    b: Rows  # (n, D), distances travelled, squared and summed
    g: Rows  # (n, D), gradients, squared and summed
    t: int


def scaled_sgd(
    clients: Clients, w: Tensor, squares: Tensor, eta: Tensor, *, steps: int
) -> tuple[Tensor, Tensor]:
    """A client program: steps of its own size for each coordinate, and sum of g^2."""
    squares = squares.clone()
    for _ in range(steps):
        g = clients.grad(w)
        squares.addcmul_(g, g)
        # w - eta g, in the memory of g, which nobody needs after.
        w = torch.addcmul(w, eta, g, value=-1, out=g)
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
    """ARUBA: FedAvg with learnt step sizes, and a few such steps before use.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of every coordinate in the first round, eps / zeta in the paper.
        steps: local gradient steps in one round.
        zeta: how slowly step sizes leave `lr`: what a coordinate's gradients must
            measure up to.
        p: how fast that resistance to change fades.
        weighting: `samples` or `uniform` weights of the average.
        tune_steps: steps before use.
    """
    shares = shares_of(sizes, weighting)
    eps = lr * zeta

    def run(state: State, oracle: Oracle, count: int) -> tuple[Tensor, ...]:
        """Every client's copy of w after so many steps, and its squared gradients."""
        eta = compute_once(lambda b, g: (b / g).sqrt(), state.b, state.g)
        none = torch.zeros_like(state.w)
        return oracle.each(scaled_sgd, state.w, none, eta, steps=count)

    def init(x: Tensor, oracle: Oracle) -> State:
        w = mean_of_all(oracle, x)
        one = torch.ones_like(w[:1])
        return State(w, (eps**2 * one).expand_as(w), (zeta**2 * one).expand_as(w), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, b, g, t = state
        w_i, squares = run(state, oracle, steps)
        fade = (t + 2) ** -p  # round t + 1
        far, much = (
            mean_of_all(oracle, (w_i - w).square_()),
            mean_of_all(oracle, squares),
        )
        # A mean of squares is not negative, unless it was released with noise.
        b = compute_once(
            lambda b, far: b + eps**2 * fade + far.clamp(min=0) / 2, b, far
        )
        g = compute_once(
            lambda g, much: g + zeta**2 * fade + much.clamp(min=0), g, much
        )
        info: Info = {"step_size": float((b[0] / g[0]).sqrt().mean())}
        return State(oracle.average(shares[oracle.mine], w_i), b, g, t + 1), info

    def personal(state: State, oracle: Oracle) -> Tensor:
        return run(state, oracle, tune_steps)[0]

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w, b, g = (row_for_each(oracle, part) for part in state[:3])
        return personal(State(w, b, g, state.t), oracle)

    sent = Releases(average=3)  # a model, how far it went, and squared gradients
    return Algorithm(init, step, personal, welcome, releases=sent)
