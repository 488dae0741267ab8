"""Hessians of clients' losses times vectors, and how sharp losses are.

exact   H_i(w_i) u_i
hf      (g_i(w_i + h u_i) - g_i(w_i - h u_i)) / (2 h),   h = delta / |u_i|
fo      0
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..types import Clients


def hessian_times(
    clients: Clients,
    w: Float[Tensor, "n d"],
    u: Float[Tensor, "n d"],
    *,
    variant: str,
    delta: float,
) -> Float[Tensor, "n k"]:
    """Row j is the Hessian of client j at w[j], times u[j], as `variant` says.

    Args:
        clients: who are asked, with one minibatch where they are asked twice.
        w: where.
        u: times what.
        variant: `exact`, `hf`, or `fo`, which leaves it out.
        delta: how far from w the two gradients of `hf` are taken.
    """
    if variant == "fo":
        return u.new_zeros(len(u), 1)  # for every column
    if variant == "exact":
        return clients.hvp(w, u)
    length = u.norm(dim=1, keepdim=True)
    h = delta / torch.where(length > 0, length, 1)
    ahead = clients.grad(torch.addcmul(w, h, u))
    behind = clients.grad(torch.addcmul(w, h, u, value=-1))
    return ahead.sub_(behind).div_(2 * h)


def sharpness(
    clients: Clients,
    found: Float[Tensor, "n 1"],
    x: Float[Tensor, "n d"],
    *,
    iterations: int,
) -> Float[Tensor, "n 1"]:
    """A client program: the eigenvalue of largest size of each client's Hessian at x.

    By power iteration on all training data, whose Rayleigh quotient is not above it;
    so many products with the Hessian, each of which costs two gradients of all data.
    Gradient descent with steps above 2 over it does not stay near.

    Args:
        clients: who are asked.
        found: replaced by the result, of any value.
        x: where.
        iterations: how many products.
    """
    own, rng = clients.whole(), torch.Generator().manual_seed(0)
    u = torch.randn(x.shape[1], generator=rng, dtype=torch.float64).to(x)
    u = (u / u.norm()).expand_as(x)  # the same for all, whoever is asked along
    for _ in range(iterations):
        hu = own.hvp(x, u)
        found = (u * hu).sum(1, keepdim=True)
        length = hu.norm(dim=1, keepdim=True)
        u = torch.where(length > 0, hu / torch.where(length > 0, length, 1), u)
    return found
