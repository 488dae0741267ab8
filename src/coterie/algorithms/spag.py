"""SPAG: statistical preconditioning with acceleration, in about sqrt(kappa) rounds.

    y = ((1 - alpha) x + alpha (1 - beta) v) / (1 - alpha beta)
    v+ = argmin_z e <G(y), z> + (1 - beta) D_phi(z, v) + beta D_phi(z, y)
    x+ = (1 - alpha) x + alpha v+

with phi and G of `preconditioned_gradient`. Here sigma = weight_decay / (weight_decay +
2 mu), r = A/B, s is the gain, a is the root of a^2 s = (r + a)(1 + a sigma), and

    alpha = a / (r + a),  beta = a sigma / (1 + a sigma),  e = a / (1 + a sigma).

The reference accepts the round if

    D_phi(x+, y) <= alpha^2 s ((1 - beta) D_phi(v+, v) + beta D_phi(v+, y)).

Then r <- (r + a) / (1 + a sigma) and s <- max(1, s / 2). Otherwise s <- 2 s, and the
next round tries again. The reference is the client that holds the reference sample. It
can test this inequality on its own data.

References:
    Hendrikx, Xiao, Bubeck, Bach, Massoulié, "Statistically preconditioned accelerated
    gradient method for distributed optimization", ICML 2020, arXiv 2002.10726.

Differences: every trial of a gain is a round, since it takes messages. The paper's A
and B grow without bound, so we keep only their ratio. A round solves its minimisation
by a fixed number of Newton steps.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.references import Reference, at_reference, from_reference
from ..collaboration.rows import mean_of_all, one_model
from ..optim.mirrors import Newton, inverse_mirror
from ..options import Count, NotNegative, Positive, Sizes, method
from ..types import Algorithm, Clients, Info, Numbers, Oracle, Releases, Rows

_ROUNDING = 16
"""Differences of phi below this number of rounding units are not reliable."""


class State(NamedTuple):
    """Models, the points of the mirror steps, the ratio and the gain."""

    x: Rows  # (n, D), the same row for everybody, as all of these
    v: Rows  # (n, D)
    ratio: Rows  # (n, 1) A / B
    gain: Rows  # (n, 1)


def accelerated_step(
    clients: Clients,
    v: Float[Tensor, "n d"],
    counts: Float[Tensor, "n 1"],
    x: Float[Tensor, "n d"],
    y: Float[Tensor, "n d"],
    g: Float[Tensor, "n d"],
    factors: Float[Tensor, "n 4"],
    *,
    ridge: float,
    solver: Newton,
) -> tuple[Tensor, Tensor]:
    """A client program: v+, and 1 if the round is accepted, otherwise 0."""
    own = clients.whole()
    alpha, beta, e, gain = factors[:, :, None].unbind(1)  # (n, 1) each
    at_v, at_y = own.grad(v) + ridge * v, own.grad(y) + ridge * y
    target = (1 - beta) * at_v + beta * at_y - e * g
    z = inverse_mirror(own, v, target, ridge=ridge, solver=solver)

    def phi(x: Tensor) -> Tensor:
        return (own.loss(x) + ridge / 2 * x.square().sum(1))[:, None]

    def bregman(x: Tensor, there: Tensor, value: Tensor, slope: Tensor) -> Tensor:
        return phi(x) - value - (slope * (x - there)).sum(1, keepdim=True)

    phi_v, phi_y = phi(v), phi(y)
    near = (1 - beta) * bregman(z, v, phi_v, at_v) + beta * bregman(z, y, phi_y, at_y)
    moved = bregman((1 - alpha) * x + alpha * z, y, phi_y, at_y)
    slack = _ROUNDING * torch.finfo(x.dtype).eps * phi_y.abs()
    return z, (moved <= alpha**2 * gain * near + slack).to(x.dtype)


@method()
def spag(
    sizes: Sizes,
    reference: Reference,
    *,
    mu: Positive = 1.0,
    weight_decay: NotNegative = 0.0,
    newton: Count = 3,
    inner: Count = 20,
) -> Algorithm:
    """SPAG: one model for all in few rounds, by acceleration and a reference sample.

    A newcomer gets the global model.

    Args:
        sizes: (N,) training samples of each client, the weights of its gradient.
        reference: (N,) which clients hold a reference sample; their steps are averaged.
        mu: how much the Hessians of the reference and of all data may differ.
        weight_decay: adds this number times the model to each gradient.
        newton: steps of Newton's method in a round.
        inner: products with a Hessian in each of these steps; D products are enough.
    """
    solver = Newton(newton, inner)
    sigma, ridge = weight_decay / (weight_decay + 2 * mu), mu + weight_decay

    def init(x: Tensor, oracle: Oracle) -> State:
        start, zero = mean_of_all(oracle, x), torch.zeros_like(x[:, :1])
        return State(start, start, zero, zero + 1)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, ratio, gain = state
        half = (1 + ratio * sigma) / 2
        rest = gain - sigma
        a = (half + (half.square() + rest * ratio).sqrt()) / rest
        alpha, b = a / (ratio + a), 1 + a * sigma
        beta, e = a * sigma / b, a / b
        y = ((1 - alpha) * x + alpha * (1 - beta) * v) / (1 - alpha * beta)
        g = at_reference(oracle, reference, sizes, oracle.grads(y)) + weight_decay * y
        z, counts = oracle.each(
            accelerated_step,
            *(v, torch.zeros_like(gain), x, y, g),
            torch.cat([alpha, beta, e, gain], 1),
            who=reference.to(x.device)[oracle.mine],
            ridge=ridge,
            solver=solver,
        )
        z = from_reference(oracle, reference, sizes, z)
        # If one of several references rejects the round, the mean is clearly below 1.
        agreed = from_reference(oracle, reference, sizes, Numbers(counts))
        counts = agreed > 1 - 1e-6
        after = State(
            torch.where(counts, (1 - alpha) * x + alpha * z, x),
            torch.where(counts, z, v),
            torch.where(counts, (ratio + a) / b, ratio),
            torch.where(counts, (gain / 2).clamp(min=1), 2 * gain),
        )
        return after, {"gain": float(gain[:1].mean())}

    return Algorithm(
        init,
        step,
        welcome=one_model,
        releases=Releases(unbounded=True),
        shared=lambda state: state.x,
    )
