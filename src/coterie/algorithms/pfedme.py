"""A global model that minimises the mean of the clients' Moreau envelopes.

In a round, client i starts with w_i = w. Then `steps` times, with one minibatch each,

    theta_i ~ argmin f_i(theta) + lam/2 |theta - w_i|^2,  by `inner_steps` times
        theta_i <- theta_i - inner_lr (g_i(theta_i) + lam (theta_i - w_i)) from w_i;
    w_i <- w_i - lr lam (w_i - theta_i),

because lam (w_i - theta_i) is the gradient of the envelope at w_i. Then w <- (1 - beta)
w + beta sum_i p_i w_i over the clients of the round. Personal models are theta.

References:
    Dinh, Tran, Nguyen, "Personalized federated learning with Moreau envelopes",
    NeurIPS 2020, arXiv 2006.08848.

Differences: only the clients of a round train. In the paper all clients train, and only
the models of some clients are averaged. The authors' code adds a weight decay of 0.001
to the inner steps; ours is 0 by default.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.rows import compute_once, mean_of_all, row_for_each
from ..collaboration.weights import shares_of
from ..optim.steps import (
    Descent,
    LocalDecay,
    LocalDescent,
    LocalLr,
    Schedule,
    descend,
    proximal_point,
    refuse_idle_options,
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
    StepNumbers,
)


class State(NamedTuple):
    """The global model, the personal models, and the number of local rounds."""

    w: SameRow  # (n, D)
    theta: OwnRows  # (n, D)
    v: OwnRows  # (n, D), or (n, 0) without momentum
    t: int


def pfedme_round(
    clients: Clients,
    theta: Float[Tensor, "n d"],
    w: Float[Tensor, "n d"],
    v: Float[Tensor, "n v"],
    *,
    outer: Descent,
    inner: LocalDescent,
    inner_steps: int,
    lam: float,
    steps: int,
    t: int,
) -> tuple[Tensor, Tensor, Tensor]:
    """A client program: w and theta after local rounds, each with one step of w."""
    for t_local in step_numbers(clients, t, steps):
        batch, before = clients.same_batch(), theta
        theta = proximal_point(batch, w, inner, lam=lam, steps=inner_steps)
        if isinstance(t_local, StepNumbers) and t_local.moving is not None:
            theta = torch.where(t_local.moving, theta, before)
        w, v = descend(outer, w, (w - theta).mul_(lam), v, t_local)
    return theta, w, v


@method()
def pfedme(
    sizes: Sizes,
    *,
    lr: Positive = 1.0,
    momentum: BelowOne = 0.0,
    weight_decay: LocalDecay = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    inner_steps: Count = 5,
    inner_lr: LocalLr = 0.1,
    lam: Positive = 1.0,
    beta: Positive = 1.0,
    weighting: str = "uniform",
) -> Algorithm:
    """pFedMe: personal models that minimise the client's loss plus a pull to w.

    A newcomer takes part in one round from the global model and keeps its theta.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of w_i; if lr lam = 1, the step ends at theta_i.
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to the gradient of inner steps;
            also `samples(k)`.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`, in local
            rounds; see `Descent`.
        steps: local rounds in one round.
        inner_steps: gradient steps towards theta in one local round.
        inner_lr: step size of inner steps; also `curvature(c)` or `adam(c)`. The
            optimiser begins anew with every inner problem.
        lam: strength of the pull of theta to w_i.
        beta: how far the global model moves towards the average; with 1, it becomes the
            average.
        weighting: `samples` or `uniform` weights of the average.
    """
    outer = Descent(lr, momentum, 0.0, schedule)
    shares = shares_of(sizes, weighting)
    # Weight decay is a part of the loss; momentum is only for the steps of w.
    inner = LocalDescent(inner_lr, weight_decay=weight_decay)
    refuse_idle_options(inner)
    options: Options = {"inner": inner, "inner_steps": inner_steps, "lam": lam}
    options |= {"outer": outer, "steps": steps}

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(mean_of_all(oracle, x), x, velocity(outer, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, theta, v, t = state
        theta, w_i, v = oracle.each(pfedme_round, theta, w, v, t=t, **options)
        mean = oracle.average(shares[oracle.mine], w_i)
        w = compute_once(lambda w, mean: (1 - beta) * w + beta * mean, w, mean)
        return State(w, theta, v, t + steps), {}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        w = row_for_each(oracle, state.w)
        v = velocity(outer, w)
        return oracle.each(pfedme_round, w, w, v, t=state.t, **options)[0]

    made = Algorithm(init, step, lambda state, oracle: state.theta, welcome)
    return made._replace(releases=Releases(average=1), shared=lambda state: state.w)
