"""The main directions of all clients' gradients, from averages of single vectors.

These are the eigenvectors of M = mean_i g_i g_i' with the largest eigenvalues. A
product M q is the mean of g_i <g_i, q>. So no client sees the gradients of other
clients, and all clients find the same directions.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..optim.heads import coordinates, orthonormal, whole_gradient
from ..types import Numbers, Oracle
from .rows import mean_of_all

_POWER = 10
"""Multiplications by M in the power iteration."""


def gradients_and_losses(
    oracle: Oracle, x: Float[Tensor, "n d"]
) -> tuple[Tensor, Tensor]:
    """Gradients and losses of all training data; zeros for inactive clients."""
    places = torch.zeros_like(x), x.new_zeros(len(x), 1)
    g, losses = oracle.each(whole_gradient, *places, x)
    return g, losses


def second_moment(oracle: Oracle, c: Float[Tensor, "n k"]) -> Float64[Tensor, "k k"]:
    """`mean c_i c_i'`, averaged column by column."""
    c = c.double()
    columns = [
        mean_of_all(oracle, Numbers(c * c[:, j, None]))[0] for j in range(c.shape[1])
    ]
    moment = torch.stack(columns, 1)
    return (moment + moment.T) / 2


def by_power(
    oracle: Oracle, g: Float[Tensor, "n d"], rank: int, rng: torch.Generator
) -> Float[Tensor, "n r d"]:
    """Nearly the main directions, orthonormal and the same for all clients."""
    u = orthonormal(_random_directions((rank, g.shape[1]), rng, g))[0]
    for _ in range(_POWER):
        here = coordinates(u.expand(len(g), -1, -1), g)  # (n, r)
        products = (here[:, :, None] * g[:, None]).flatten(1)
        mean = mean_of_all(oracle, Numbers(products))
        u = orthonormal(mean[0].view_as(u))[0]
    return u.expand(len(g), -1, -1)


def by_lanczos(
    oracle: Oracle, g: Float[Tensor, "n d"], exchanges: int, rng: torch.Generator
) -> tuple[Float[Tensor, "k d"], float]:
    """Orthonormal directions, the main one first, and an upper bound of |M|_2."""
    precise, d = g.double(), g.shape[1]
    rows: list[Tensor] = []
    images: list[Tensor] = []
    squares = precise.square().sum(1, keepdim=True)
    trace = float(mean_of_all(oracle, Numbers(squares))[0])
    q = _random_directions((d,), rng, precise)
    for _ in range(min(exchanges, d)):
        rest = _orthogonal_part(q, rows)
        # Near the solution many eigenvalues are equal, and Lanczos soon finds no more
        # directions from one starting vector. Then it takes another one.
        if float(rest.norm()) <= 1e-9 * trace:
            rest = _orthogonal_part(_random_directions((d,), rng, precise), rows)
        rows.append(rest / rest.norm())
        q = mean_of_all(oracle, precise * (precise @ rows[-1])[:, None])[0]
        images.append(q)
    basis, image = torch.stack(rows), torch.stack(images)
    inside = basis @ image.T
    values, vectors = torch.linalg.eigh((inside + inside.T) / 2)
    coupling = float(torch.linalg.matrix_norm(image - inside.T @ basis, 2))
    unseen = max(trace - float(values.sum()), 0.0) if len(rows) < d else 0.0
    top = float(values[-1])
    bound = (top + unseen) / 2 + math.hypot((top - unseen) / 2, coupling)
    return (vectors.T.flip(0) @ basis).to(g), max(bound, 0.0)


def _random_directions(
    shape: tuple[int, ...], rng: torch.Generator, g: Tensor
) -> Tensor:
    """Random directions, the same for all clients."""
    noise = torch.randn(shape, generator=rng, dtype=g.dtype, device=rng.device)
    return noise.to(g.device)


def _orthogonal_part(q: Tensor, rows: list[Tensor]) -> Tensor:
    """The part of q that is orthogonal to these orthonormal rows."""
    if rows:
        basis = torch.stack(rows)
        for _ in range(2):  # the second pass removes what rounding left
            q = q - basis.T @ (basis @ q)
    return q
