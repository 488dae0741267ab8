"""Steps in the geometry of a client's own loss: statistical preconditioning.

    phi(x) = f(x) + (ridge / 2) |x|^2,    f the loss of all training data of a client
    x <- argmin_z <lr g, z> + D_phi(z, x),  that is  grad phi(z) = grad phi(x) - lr g

where D_phi(z, x) = phi(z) - phi(x) - <grad phi(x), z - x>. Newton's method solves the
last equation. It uses conjugate gradients, which need only products with Hessians.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..options import Count
from ..types import Clients

_LEFT = 1e-4
"""Conjugate gradients stop when the residual is this share of the right side."""


class Newton(NamedTuple):
    """Newton's method, as options of methods that use it in their rounds.

    Args:
        newton: steps of Newton's method in a round.
        inner: products with a Hessian in each step; as many as the model has parameters
            are enough.
    """

    newton: Count = 3
    inner: Count = 20


def conjugate_gradients(
    times: Callable[[Tensor], Tensor], b: Float[Tensor, "n d"], *, steps: int
) -> Float[Tensor, "n d"]:
    """Row j is nearly the solution u of H_j u = b_j, independent of other rows.

    A row stops when its residual is small, or when its curvature is not positive. If
    the curvature is not positive in the first step, the result is b_j.

    Args:
        times: a function that computes the products H_j u_j of all rows.
        b: the right sides.
        steps: the largest number of steps; D are enough, except for rounding.
    """
    u, r, p = torch.zeros_like(b), b, b
    rr = start = (r * r).sum(1, keepdim=True)
    going = rr > 0
    for step in range(steps):
        if not going.any():
            break
        hp = times(p)
        curve = (p * hp).sum(1, keepdim=True)
        if step == 0:
            u = torch.where(going & (curve <= 0), b, u)
        going = going & (curve > 0)
        length = torch.where(going, rr / torch.where(going, curve, 1), 0)
        u, r = u + length * p, r - length * hp
        fresh = (r * r).sum(1, keepdim=True)
        going = going & (fresh > _LEFT**2 * start)
        p = torch.where(going, r + fresh / torch.where(going, rr, 1) * p, p)
        rr = fresh
    return u


def inverse_mirror(
    clients: Clients,
    x: Float[Tensor, "n d"],
    target: Float[Tensor, "n d"],
    *,
    ridge: float,
    solver: Newton,
) -> Float[Tensor, "n d"]:
    """Row j is nearly the point at which the gradient of phi_j is target_j.

    A Newton step is undone if it does not bring the gradient nearer to its target. Then
    the next step is half as long.

    Args:
        clients: the clients that compute gradients and products; they must use the same
            samples in every call.
        x: the starting points.
        target: the gradients to reach.
        ridge: the curvature that phi has in addition to the curvature of the loss.
        solver: the largest number of steps.
    """
    left = target - clients.grad(x) - ridge * x
    length = torch.ones_like(x[:, :1])

    def times(u: Tensor) -> Tensor:
        return clients.hvp(x, u) + ridge * u

    rounding = torch.finfo(x.dtype).eps * target.norm(dim=1, keepdim=True)
    for _ in range(solver.newton):
        if not (left.norm(dim=1, keepdim=True) > rounding).any():
            break
        moved = x + length * conjugate_gradients(times, left, steps=solver.inner)
        after = target - clients.grad(moved) - ridge * moved
        better = after.norm(dim=1, keepdim=True) < left.norm(dim=1, keepdim=True)
        x, left = torch.where(better, moved, x), torch.where(better, after, left)
        length = torch.where(better, (2 * length).clamp(max=1), length / 2)
    return x


def preconditioned_step(
    clients: Clients,
    x: Float[Tensor, "n d"],
    g: Float[Tensor, "n d"],
    *,
    lr: float,
    ridge: float,
    solver: Newton,
) -> Float[Tensor, "n d"]:
    """A client program: the step from x along g in the geometry of phi.

    phi uses all training data of a client. g may be any gradient, such as the mean over
    all clients.
    """
    own = clients.whole()
    target = own.grad(x) + ridge * x - lr * g
    return inverse_mirror(own, x, target, ridge=ridge, solver=solver)
