"""DANE: every client takes a step with its own Hessian, and the server averages.

    x_i <- argmin_z f_i(z) - <grad f_i(x) - lr G(x), z> + (mu / 2) |z - x|^2
    x <- sum_i p_i x_i,    G = sum_k p_k grad f_k + weight_decay x

A round has two exchanges of messages, and needs no reference sample. f_i includes the
term (weight_decay / 2) |z|^2.

References:
    Shamir, Srebro, Zhang, "Communication-efficient distributed optimization using an
    approximate Newton-type method", ICML 2014, arXiv 1312.7853.

Differences: gradients use the study's minibatches, or all data if the batch size is 0.
A round solves the minimisation by a fixed number of Newton steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..collaboration.rows import mean_of_all, one_model
from ..collaboration.weights import shares_of
from ..optim.mirrors import Newton, preconditioned_step
from ..options import Count, NotNegative, Positive, Sizes, method
from ..types import Algorithm, Info, Oracle, Releases
from .preconditioned_gradient import State


@method()
def dane(
    sizes: Sizes,
    *,
    lr: Positive = 1.0,
    mu: NotNegative = 1.0,
    weight_decay: NotNegative = 0.0,
    newton: Count = 3,
    inner: Count = 20,
    weighting: str = "samples",
) -> Algorithm:
    """DANE: one model for all clients, the average after a Newton-like step of each.

    A newcomer gets the global model.

    Args:
        sizes: (N,) training samples of each client.
        lr: factor of the mean gradient.
        mu: how much the Hessians of clients may differ.
        weight_decay: adds this number times the model to each gradient.
        newton: steps of Newton's method in a round.
        inner: products with a Hessian in each of these steps; D products are enough.
        weighting: `samples` or `uniform` weights of gradients and steps.
    """
    solver = Newton(newton, inner)
    shares = shares_of(sizes, weighting)

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(mean_of_all(oracle, x))

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        (x,), mine = state, shares[oracle.mine]
        g = oracle.average(mine, oracle.grads(x)) + weight_decay * x
        (y,) = oracle.each(
            preconditioned_step, x, g, lr=lr, ridge=mu + weight_decay, solver=solver
        )
        return State(oracle.average(mine, y)), {}

    sent = Releases(average=2)  # a gradient and a model
    return Algorithm(
        init, step, welcome=one_model, releases=sent, shared=lambda state: state.x
    )
