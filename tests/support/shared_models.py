"""Clients whose linear models lie in a subspace, or are those of a few groups."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coterie_theory.structure import Tasks, tasks

REAL = torch.float64


class Shared(NamedTuple):
    """Samples, and the models behind them."""

    data: Tasks
    x: Tensor  # (N, D)
    basis: Tensor  # (D, r)


def shared(n, d, r, m, *, noise=0.0, loss="squared", seed=0) -> Shared:
    """Models of norm 1 in a random subspace, Gaussian features."""
    rng = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(d, r, generator=rng, dtype=REAL))[0]
    heads = torch.randn(n, r, generator=rng, dtype=REAL)
    x = heads / heads.norm(dim=1, keepdim=True) @ basis.T
    return Shared(_sampled(x, m, noise, loss, rng), x, basis)


def grouped(n, d, r, m, *, noise=0.0, loss="squared", seed=0):
    """The same, where models are r orthonormal centres in turn; groups come last."""
    rng = torch.Generator().manual_seed(seed)
    basis = torch.linalg.qr(torch.randn(d, r, generator=rng, dtype=REAL))[0]
    groups = torch.arange(n) % r
    x = basis.T[groups]
    return Shared(_sampled(x, m, noise, loss, rng), x, basis), groups


def _sampled(x, m, noise, loss, rng) -> Tasks:
    features = torch.randn(len(x), m, x.shape[1], generator=rng, dtype=REAL)
    z = (features @ x[:, :, None])[:, :, 0]
    if loss == "logistic":
        chance = torch.rand(z.shape, generator=rng, dtype=REAL)
        return tasks(features, (chance < (4 * z).sigmoid()).to(REAL), loss=loss)
    targets = z + noise * torch.randn(z.shape, generator=rng, dtype=REAL)
    return tasks(features, targets)


def error(found: Tensor, x: Tensor) -> float:
    """The mean squared distance of models."""
    return float((found - x).square().sum(1).mean())
