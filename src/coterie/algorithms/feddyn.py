"""FedAvg with a changing term in each client's loss, so that local optima agree.

    theta_i <- w, then `steps` times
        theta_i <- theta_i - lr (g_i(theta_i) - h_i + alpha (theta_i - w))
    h_i <- h_i - alpha (theta_i - w)             only for clients of the round
    h <- h - alpha P sum_i p_i (theta_i - w)     P is the share of these clients
    w <- sum_i p_i theta_i - h / alpha

Sums are over the clients of the round. Their weights p_i sum to 1, in proportion to
sample sizes or uniform. P is the share of these clients in the total weight of all
clients. At the start h and all h_i are 0, so h is always the weighted mean of all h_i.
A client takes gradient steps on

    f_i(theta) - <h_i, theta> + alpha/2 |theta - w|^2,

and if it solves this problem exactly, the new h_i is the gradient of f_i at the
solution. At a fixed point, all theta_i are w and h is 0, so w is the optimum of the
mean loss.

References:
    Acar, Zhao, Matas, Mattina, Whatmough, Saligrama, "Federated learning based on
    dynamic regularization", ICLR 2021, arXiv 2111.04263.

Differences: a client takes a fixed number of steps and does not solve its problem
exactly. Weights of clients may follow sample sizes; the paper's weights are equal. With
momentum, every client keeps its buffer between rounds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.rows import (
    compute_once,
    mean_of_all,
    row_for_each,
    share_of_present,
    without_personal,
)
from ..collaboration.weights import shares_of
from ..optim.steps import (
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    descend,
    rule_in_numbers,
    step_numbers,
    velocity,
)
from ..options import BelowOne, Count, Positive, Sizes, method
from ..types import (
    Algorithm,
    Clients,
    Info,
    Options,
    Oracle,
    OwnRows,
    Releases,
    SameRow,
    without_statistics,
)


class State(NamedTuple):
    """The global model, dynamic terms, momentum, and the number of gradient steps."""

    w: SameRow  # (n, D)
    h: SameRow  # (n, D)
    h_i: OwnRows  # (n, D)
    v: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


def dynamic_sgd(
    clients: Clients,
    theta: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    w: Float[Tensor, "n d"],
    h_i: Float[Tensor, "n d"],
    *,
    rule: LocalDescent,
    alpha: float,
    steps: int,
    t: int,
    together: float,
) -> tuple[Tensor, Tensor]:
    """A client program: steps on f_i(theta) - <h_i, theta> + alpha/2 |theta - w|^2."""
    own = rule_in_numbers(rule, clients, theta, together, pull=alpha)
    for t_local in step_numbers(clients, t, steps):
        pull = without_statistics(clients, (theta - w).mul_(alpha).sub_(h_i))
        theta, v = descend(own, theta, clients.grad(theta).add_(pull), v, t_local)
    return theta, v


@method()
def feddyn(
    sizes: Sizes,
    *,
    lr: LocalLr = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    alpha: Positive = 0.1,
    weighting: str = "samples",
) -> Algorithm:
    """FedDyn: one global model; each client's loss changes so that all optima agree.

    A newcomer gets the global model.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of the local steps; also `curvature(c)` or `adam(c)`.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient; also
            `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        alpha: strength of the dynamic term.
        weighting: `samples` or `uniform` weights of clients.
    """
    rule = LocalDescent(lr, momentum, weight_decay, schedule)
    shares = shares_of(sizes, weighting)
    options: Options = {"rule": rule, "alpha": alpha, "together": float(len(sizes))}

    def init(x: Tensor, oracle: Oracle) -> State:
        h_i, v = torch.zeros_like(x), velocity(rule, x)
        return State(mean_of_all(oracle, x), h_i[:1].expand_as(x), h_i, v, 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, h, h_i, v, t = state
        rows = w, v, w, h_i
        theta, v = oracle.each(dynamic_sgd, *rows, steps=steps, t=t, **options)
        # An inactive client still has theta_i = w, so its h_i does not change.
        h_i = h_i - without_personal(oracle, alpha * (theta - w))
        mean = oracle.average(shares[oracle.mine], theta)
        present = share_of_present(oracle, shares)
        moved = compute_once(lambda mean, w: alpha * present * (mean - w), mean, w)
        h = compute_once(torch.sub, h, without_personal(oracle, moved))
        w = compute_once(lambda mean, h: mean - h / alpha, mean, h)
        return State(w, h, h_i, v, t + steps), {}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        return row_for_each(oracle, state.w)

    return Algorithm(
        init,
        step,
        lambda state, oracle: state.w,
        welcome,
        releases=Releases(average=1),
        shared=lambda state: state.w,
    )
