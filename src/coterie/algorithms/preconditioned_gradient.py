"""Statistical preconditioning: the Hessian of a reference sample saves rounds.

    x <- argmin_z <lr G(x), z> + D_phi(z, x),  G = sum_k p_k grad f_k + weight_decay x
    phi(z) = f_ref(z) + (weight_decay / 2) |z|^2 + (mu / 2) |z|^2        (10.28, 10.30)

The client that holds the reference sample computes the argmin on its own data, without
messages. For quadratic losses, the update is x <- x - lr (H_ref + (weight_decay + mu)
I)^-1 G(x). Suppose that the Hessians of the reference and of all data differ by at most
mu, and that lr = 1. Then for any condition number, every round multiplies the gap (the
loss minus its minimum) by at most 1 - 1/kappa, with kappa = 1 + 2 mu / weight_decay.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, section 10.4, hal tel-04877971.
    Hendrikx, Xiao, Bubeck, Bach, Massoulié, "Statistically preconditioned accelerated
    gradient method for distributed optimization", ICML 2020, arXiv 2002.10726.

Differences: a round solves its problem by a fixed number of Newton steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from ..collaboration.references import Reference, at_reference, from_reference
from ..collaboration.rows import mean_of_all, one_model
from ..optim.mirrors import Newton, preconditioned_step
from ..options import Count, NotNegative, Positive, Sizes, method
from ..types import Algorithm, Info, Oracle, Releases, Rows


class State(NamedTuple):
    """The model."""

    x: Rows  # (n, D), the same row for everybody


@method()
def preconditioned_gradient(
    sizes: Sizes,
    reference: Reference,
    *,
    lr: Positive = 1.0,
    mu: NotNegative = 1.0,
    weight_decay: NotNegative = 0.0,
    newton: Count = 3,
    inner: Count = 20,
) -> Algorithm:
    """One model for all clients in few rounds, with the Hessian of a reference sample.

    A newcomer gets the global model.

    Args:
        sizes: (N,) training samples of each client, the weights of its gradient.
        reference: (N,) which clients hold a reference sample. Their results are
            averaged.
        lr: step size, 1 if mu is large enough.
        mu: how much the Hessians of the reference and of all data may differ.
        weight_decay: adds this number times the model to each gradient.
        newton: steps of Newton's method in a round.
        inner: products with a Hessian in each of these steps; D products are enough.
    """
    solver = Newton(newton, inner)
    ridge = mu + weight_decay

    def init(x: Tensor, oracle: Oracle) -> State:
        return State(mean_of_all(oracle, x))

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        (x,) = state
        g = at_reference(oracle, reference, sizes, oracle.grads(x)) + weight_decay * x
        (y,) = oracle.each(
            preconditioned_step,
            x,
            g,
            who=reference.to(x.device)[oracle.mine],
            lr=lr,
            ridge=ridge,
            solver=solver,
        )
        return State(from_reference(oracle, reference, sizes, y)), {}

    return Algorithm(
        init,
        step,
        welcome=one_model,
        releases=Releases(mix=2),
        shared=lambda state: state.x,
    )
