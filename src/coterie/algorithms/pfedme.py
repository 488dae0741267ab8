"""A global model that minimises the mean of the clients' Moreau envelopes.

`steps` times in a round, with w_i = w at its start and one minibatch in each,

    theta_i ~ argmin f_i(theta) + lam/2 |theta - w_i|^2,  by `inner_steps` times
        theta_i <- theta_i - inner_lr (g_i(theta_i) + lam (theta_i - w_i)) from w_i;
    w_i <- w_i - lr lam (w_i - theta_i),

since lam (w_i - theta_i) is the gradient of the envelope at w_i; then
w <- (1 - beta) w + beta sum_i p_i w_i over the clients of the round. Personal models
are theta.

References:
    Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes",
    NeurIPS 2020, arXiv 2006.08848.

Differences: only the clients of a round train; in the paper all do and some are
averaged. Their code adds a weight decay of 0.001 to the inner steps; ours is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import integer, number, positive
from ..collaboration.rows import alike
from ..collaboration.weights import shares_of
from ..optim.steps import Descent, descend, descent, proximal_sgd, velocity
from ..types import Algorithm, Clients, Info, Oracle, Rows


class State(NamedTuple):
    """The global model, the personal ones, and how many local rounds there were."""

    w: Rows  # (n, D), the same row for everybody
    theta: Rows  # (n, D)
    w_velocity: Rows  # (n, D), or (n, 0) without momentum
    t: int


def pfedme_round(
    clients: Clients,
    theta: Float[Tensor, "n d"],
    w: Float[Tensor, "n d"],
    w_velocity: Float[Tensor, "n v"],
    *,
    steps: int,
    t: int,
    lam: float,
    inner_steps: int,
    inner_lr: float,
    **rule: float | str,
) -> tuple[Tensor, Tensor, Tensor]:
    """A client program: local rounds of an inner problem and a step of w each."""
    outer = Descent(**rule)  # type: ignore[arg-type]
    # Weight decay is a part of the loss, and momentum none of the inner problem.
    inner = Descent(inner_lr, 0.0, outer.weight_decay, "constant")
    outer = outer._replace(weight_decay=0.0)
    problem = {"steps": inner_steps, "t": 0, "lam": lam, **inner._asdict()}
    at_rest = velocity(inner, w)
    for t_local in range(t, t + steps):
        theta, _ = proximal_sgd(clients.held(), w, at_rest, w, **problem)
        w, w_velocity = descend(outer, w, (w - theta).mul_(lam), w_velocity, t_local)
    return theta, w, w_velocity


def pfedme(
    sizes: Tensor,
    *,
    lr: float = 1.0,
    steps: int = 1,
    inner_steps: int = 5,
    inner_lr: float = 0.1,
    lam: float = 1.0,
    beta: float = 1.0,
    weighting: str = "uniform",
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    schedule: str = "constant",
) -> Algorithm:
    """pFedMe: personal models are proximal points of the clients' losses at w.

    A newcomer takes part in one round from the global model and keeps its theta.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of w_i; lr lam = 1 puts w_i at theta_i, more goes beyond.
        steps: local rounds in one round.
        inner_steps: gradient steps towards theta in one local round.
        inner_lr: their step size.
        lam: strength of the pull of theta to w_i.
        beta: how far the global model moves to the average; 1 puts it there.
        weighting: `samples` or `uniform` weights of the average.
        momentum: of the steps of w_i.
        weight_decay: of the inner steps, where the loss is.
        schedule: of `lr`, counted in local rounds, see `coterie.optim.steps`.
    """
    rule = descent(
        lr=lr, momentum=momentum, weight_decay=weight_decay, schedule=schedule
    )
    integer("steps", steps, at_least=1)
    integer("inner_steps", inner_steps, at_least=1)
    number("inner_lr", inner_lr, above=0)
    number("lam", lam, above=0)
    number("beta", beta, above=0)
    shares = shares_of(sizes, weighting)
    inner = {"inner_steps": inner_steps, "inner_lr": inner_lr, "lam": lam}
    options = {"steps": steps, **inner, **rule._asdict()}

    def init(x: Tensor, oracle: Oracle) -> State:
        positive("sizes", sizes, len(oracle.present))
        w = oracle.average(x.new_ones(len(x)), x)
        return State(w, x, velocity(rule, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        del rng
        w, theta, w_velocity, t = state
        rows = theta, w, w_velocity
        theta, w_i, w_velocity = oracle.each(pfedme_round, *rows, t=t, **options)
        mean = oracle.average(shares[oracle.mine], w_i)
        w = alike(lambda w, mean: (1 - beta) * w + beta * mean, w, mean)
        return State(w, theta, w_velocity, t + steps), {}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = state.w[:1].expand(len(oracle.active), -1)
        rows = w, w, velocity(rule, w)
        return oracle.each(pfedme_round, *rows, t=state.t, **options)[0]

    return Algorithm(init, step, lambda state, oracle: state.theta, welcome)
