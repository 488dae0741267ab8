"""Every client is pulled to a mixture of models, in which similar models weigh more.

For P clients in the round,

    xi_ij = share / (P - 1) exp(-|x_i - x_j|^2 / (sigma s))    for j != i
    xi_ii = 1 - sum_{j != i} xi_ij
    u_i = sum_j xi_ij x_j
    `steps` times  x_i <- x_i - lr (g_i(x_i) + lam (x_i - u_i))

where s is the mean of |x_i - x_j|^2 over pairs, or 1 with `relative=False`. With s = 1,
the server takes a step on the sum over pairs of A(|x_i - x_j|^2), with
A(z) = 1 - exp(-z / sigma) and the step size alpha = share sigma / (P - 1). Each client
then takes gradient steps on f_i(x_i) + lam/2 |x_i - u_i|^2.

References:
    Huang, Chu, Zhou, Wang, Liu, Pei, Zhang, "Personalized cross-silo federated learning
    on non-IID data", AAAI 2021, arXiv 2007.03797.

Differences: by default, `sigma` is relative to the distances in the round. The paper's
sigma must be chosen anew for every architecture, because distances grow with the number
of parameters. `share` replaces the paper's alpha. So for any number of clients, xi_ii
is at least 1 - share, and u_i is a weighted mean. `lam` is the paper's lambda / alpha.
A client takes a fixed number of steps and does not solve its problem exactly. Here,
only some clients may take part in a round; in the paper all do. We left out the paper's
second method, for deep networks, which uses cosine distances.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    proximal_sgd,
    velocity,
)
from ..options import BelowOne, Count, NotNegative, Positive, Share, method
from ..types import Algorithm, Info, Options, Oracle, Releases
from .local import State


def attend(
    server: None,
    who: Int[Tensor, " p"],
    x: Float[Tensor, "p d"],
    *,
    clients: int,
    share: float,
    sigma: float,
    relative: bool,
) -> tuple[None, Tensor, Tensor]:
    """A coordinator's program: the mixture u_i of every client, and its weights xi_i.

    Rows of inactive clients are 0.
    """
    centred = x - x.mean(0)  # so that rounding is that of differences
    gram = centred @ centred.T
    squares = (gram.diagonal()[:, None] + gram.diagonal() - 2 * gram).clamp(min=0)
    squares.fill_diagonal_(0)
    others = max(1, len(who) - 1)
    if relative:
        exact, mean = torch.finfo(x.dtype), squares.sum() / (len(who) * others)
        # Equal models differ by rounding, which must not count as a distance.
        rounding = (16 * exact.eps) ** 2 * x.square().sum(1).mean()
        squares /= torch.maximum(mean, rounding).clamp(min=exact.tiny)
    xi = share / others * (-squares / sigma).exp()
    xi.fill_diagonal_(0)
    xi.diagonal().copy_(1 - xi.sum(1))
    u, weights = x.new_zeros(clients, x.shape[1]), x.new_zeros(clients, clients)
    u[who] = xi @ x
    weights[who[:, None], who] = xi
    return None, u, weights


@method()
def fedamp(
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    lam: NotNegative = 0.1,
    share: Share = 0.5,
    sigma: Positive = 1.0,
    relative: bool = True,
) -> Algorithm:
    """FedAMP: personal models that are pulled to a mixture of similar models.

    A newcomer gets the model that fits its training data best.

    Args:
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        lam: strength of the pull to the mixture.
        share: weight of all other models in a mixture, if all models are equal.
        sigma: two models at this squared distance have 1/e times the weight of equal
            models.
        relative: whether `sigma` is in units of the mean squared distance of models.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    how: Options = {"share": share, "sigma": sigma, "relative": relative}

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(x, velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, t = state
        n = len(oracle.present)
        _, u, weights = oracle.central(attend, None, x, clients=n, **how)
        rows = x, v, u
        x, v = oracle.each(proximal_sgd, *rows, rule=rule, lam=lam, steps=steps, t=t)
        return State(x, v, t + steps), {"weights": weights}

    return Algorithm(init, step, releases=Releases(central=1))
