"""Hessians of clients' losses times vectors, for methods that look a step ahead.

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
