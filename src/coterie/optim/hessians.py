"""Products of clients' Hessians with vectors, and the Hessians' largest eigenvalues.

exact   H_i(w_i) u_i
hf      (g_i(w_i + h u_i) - g_i(w_i - h u_i)) / (2 h),   h = delta / |u_i|
fo      0
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..types import Clients, without_statistics


def hessian_times(
    clients: Clients,
    w: Float[Tensor, "n d"],
    u: Float[Tensor, "n d"],
    *,
    variant: str,
    delta: float,
) -> Float[Tensor, "n k"]:
    """Row j is the Hessian of client j at w[j], times u[j]; 0 for running statistics.

    Args:
        clients: the clients; for `hf`, both gradients must use the same minibatch.
        w: the models.
        u: the vectors.
        variant: `exact`; `hf`, differences of gradients; or `fo`, zeros.
        delta: distance from w at which `hf` takes its two gradients.
    """
    if variant == "fo":
        return u.new_zeros(len(u), 1)  # broadcasts over columns
    if variant == "exact":
        return clients.hvp(w, u)
    u = without_statistics(clients, u)
    length = u.norm(dim=1, keepdim=True)
    h = delta / torch.where(length > 0, length, 1)
    ahead = clients.grad(torch.addcmul(w, h, u))
    behind = clients.grad(torch.addcmul(w, h, u, value=-1))
    return without_statistics(clients, ahead.sub_(behind).div_(2 * h))


def sharpness(
    clients: Clients,
    found: Float[Tensor, "n 1"],
    x: Float[Tensor, "n d"],
    *,
    iterations: int,
) -> Float[Tensor, "n 1"]:
    """A client program: the eigenvalue of each Hessian with the largest absolute value.

    Power iteration on all training data gives a Rayleigh quotient. Its absolute value
    is never too large. With step sizes above 2 / result, gradient descent moves away
    from x.

    Args:
        clients: the clients to ask.
        found: memory for the result; its values are not used.
        x: the models.
        iterations: products with the Hessian; each costs two gradients of all data.
    """
    own, rng = clients.whole(), torch.Generator().manual_seed(0)
    u = torch.randn(x.shape[1], generator=rng, dtype=torch.float64).to(x)
    u = (u / u.norm()).expand_as(x)  # the same start whichever clients are asked
    for _ in range(iterations):
        hu = own.hvp(x, u)
        found = (u * hu).sum(1, keepdim=True)
        length = hu.norm(dim=1, keepdim=True)
        u = torch.where(length > 0, hu / torch.where(length > 0, length, 1), u)
    return found
