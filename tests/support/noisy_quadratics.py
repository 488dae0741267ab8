"""Quadratics with Gaussian noise, on which the methods of chapter 8 run.

Losses are f_i(x) = (x - x_i^*)' A_i (x - x_i^*) / 2, for which much has a closed form;
the rest is sampled, with four standard errors of room.
"""

from __future__ import annotations

import math

import torch

from coterie_theory.rates import LossClass

REAL = torch.float64
ONE = LossClass(mu=1.0, beta=1.0, variance=1.0)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def quadratics(seed=0, n=6, d=2, spread=1.0, alike=False):
    """Random curvatures from 1 to 3, or the same for all, and random optima."""
    rng = generator(seed)
    q = torch.linalg.qr(torch.randn(n, d, d, generator=rng, dtype=REAL))[0]
    curvature = 1 + 2 * torch.rand(n, d, generator=rng, dtype=REAL)
    matrices = q @ torch.diag_embed(curvature) @ q.mT
    if alike:
        matrices = matrices[:1].expand(n, d, d)
    return matrices, spread * torch.randn(n, d, generator=rng, dtype=REAL)


def losses_of(matrices, variance):
    curvature = torch.linalg.eigvalsh(matrices)
    return LossClass(float(curvature.min()), float(curvature.max()), variance)


def quadratic_gaps(matrices, best):
    """Entry ij is f_i(x_j^*) - f_i(x_i^*)."""
    between = best[None, :] - best[:, None]  # (N, N, D) x_j^* - x_i^*
    return torch.einsum("ijd,ide,ije->ij", between, matrices, between) / 2


def quadratic_distances(matrices, best):
    """Entry ij is |grad f_i - grad f_j| at x_j^*, that is |A_i (x_j^* - x_i^*)|."""
    between = best[None, :] - best[:, None]
    return torch.einsum("ide,ije->ijd", matrices, between).norm(dim=2)


def excess_of(matrices, best, x):
    moved = x - best
    return torch.einsum("...id,ide,...ie->...i", moved, matrices, moved) / 2


def line(n=8, d=1):
    """Distances of points on a line."""
    place = torch.linspace(0, 1, n, dtype=REAL)
    return (place[:, None] - place).abs()


def noise_like(x, sigma, rng):
    """Noise of total variance sigma^2 for every client."""
    d = x.shape[-1]
    return sigma / math.sqrt(d) * torch.randn(x.shape, generator=rng, dtype=x.dtype)
