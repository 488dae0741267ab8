"""Client programs for models c + v_i U in a common subspace, on all training data.

The orthonormal rows of U (r, D) are the same for all clients. The coordinates v_i are
personal.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import InputError, integer
from ..types import Clients
from .projections import cap_norms


def model(
    centre: Float[Tensor, "n d"], v: Float[Tensor, "n r"], u: Float[Tensor, "n r d"]
) -> Float[Tensor, "n d"]:
    """Rows c + v_i U."""
    return centre + (v[:, None] @ u)[:, 0]


def coordinates(
    u: Float[Tensor, "n r d"], g: Float[Tensor, "n d"]
) -> Float[Tensor, "n r"]:
    """The coordinates U g_i of rows g_i in the subspace."""
    return (u @ g[:, :, None])[:, :, 0]


def heads_by_descent(
    clients: Clients,
    v: Float[Tensor, "n r"],
    centre: Float[Tensor, "n d"],
    u: Float[Tensor, "n r d"],
    *,
    lr: float,
    cap: float,
    steps: int,
) -> Float[Tensor, "n r"]:
    """A client program: v after steps `v <- cap_norms(v - lr U g_i(c + v U))`."""
    data = clients.whole()
    for _ in range(steps):
        v = cap_norms(v - lr * coordinates(u, data.grad(model(centre, v, u))), cap)
    return v


def whole_gradient(
    clients: Clients,
    g: Float[Tensor, "n d"],
    losses: Float[Tensor, "n 1"],
    x: Float[Tensor, "n d"],
) -> tuple[Tensor, Tensor]:
    """A client program: the gradient and the loss on all training data at x."""
    del g, losses  # the places for the results
    data = clients.whole()
    return data.grad(x), data.loss(x)[:, None]


def heads_and_slope(
    clients: Clients,
    v: Float[Tensor, "n r"],
    g: Float[Tensor, "n d"],
    centre: Float[Tensor, "n d"],
    u: Float[Tensor, "n r d"],
    *,
    lr: float,
    cap: float,
    steps: int,
) -> tuple[Tensor, Tensor]:
    """A client program: v after its steps, and the gradient at the new model."""
    del g  # the place for the result
    v = heads_by_descent(clients, v, centre, u, lr=lr, cap=cap, steps=steps)
    return v, clients.whole().grad(model(centre, v, u))


def orthonormal(u: Float[Tensor, "r d"]) -> tuple[Tensor, Tensor]:
    """Orthonormal rows Q and R (r, r) with `U = R Q`."""
    q, r = torch.linalg.qr(u.T)
    return q.T, r.T


def refuse_rank(rank: int, clients: int, dimension: int) -> int:
    """Returns `rank`; refuses a rank that a matrix of these models cannot have."""
    integer("rank", rank, at_least=1)
    if rank > min(clients, dimension):
        raise InputError(
            f"`rank` must be at most the number of clients ({clients}) and the number "
            f"of parameters ({dimension}), got {rank}."
        )
    return rank
