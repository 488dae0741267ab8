"""Least squares of workers or nodes who share their data.

Losses are |a'x - b|^2 / 2, and a gap is F(x) - min F of the training objective.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

import coterie as co
from coterie.data import Federation, Part
from coterie.models import build, linear
from coterie.seeds import generator

REAL = torch.float64
LAW = "lognormal(1, 0.3)"


class Problem(NamedTuple):
    """Least squares of M workers, and what is known of it."""

    simulation: co.Simulation
    optimum: Tensor  # (D,)
    hessian: Tensor  # (D, D)
    beta: float  # L, its largest eigenvalue

    def gaps(self, x: Tensor) -> Tensor:
        """F(x) - min F for each row x; infinite where a run has diverged."""
        off = x - self.optimum
        gap = ((off @ self.hessian) * off).sum(1) / 2
        return gap.nan_to_num(nan=math.inf, posinf=math.inf, neginf=math.inf)

    def gap(self, x: Tensor) -> float:
        """The mean of F - min F over the rows of x."""
        return float(self.gaps(x).mean())


def shared(features: Tensor, targets: Tensor, workers: int) -> Federation:
    """Workers who all draw from the same samples, each with draws of its own."""
    samples = len(features)
    everything = Part(
        torch.arange(samples),
        torch.zeros(workers, dtype=torch.long),
        torch.full((workers,), samples),
    )
    return Federation(
        "shared",
        features,
        targets,
        "regression",
        outputs=1,
        train=everything,
        validation=everything,  # nobody is asked about these two
        test=everything,
        clients=torch.arange(workers),
    )


def least_squares(
    features: Tensor, targets: Tensor, workers: int, *, batch: int, seed: int = 0
) -> Problem:
    """The mean of |a'x - b|^2 / 2; batch 0 takes all samples for a gradient."""
    half = math.sqrt(0.5)  # the library's squared error has no factor 1/2
    simulation = co.Simulation(
        shared(half * features, half * targets, workers),
        build(lambda: linear(features.shape[1:], 1, bias=False), seed),
        batch_size=batch,
        seed=seed,
        dtype=REAL,
    )
    hessian = features.T @ features / len(features)
    optimum = torch.linalg.solve(hessian, features.T @ targets / len(features))
    beta = float(torch.linalg.eigvalsh(hessian)[-1])
    return Problem(simulation, optimum, hessian, beta)


def random_data(condition: float, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """2000 samples in 50 dimensions; eigenvalues from 1 down to 1 / condition, about.

    Minimiser and features are Gaussian, and `noise` is the deviation of the labels.
    """
    rng = generator(seed, "even2024")
    eigenvalues = torch.logspace(-math.log10(condition), 0, 50, dtype=REAL)
    features = torch.randn(2000, 50, generator=rng, dtype=REAL) * eigenvalues.sqrt()
    targets = features @ torch.randn(50, generator=rng, dtype=REAL)
    return features, targets + noise * torch.randn(2000, generator=rng, dtype=REAL)


def same_data(nodes: int, seed: int, *, batch: int = 8) -> Problem:
    """300 samples in 20 dimensions, eigenvalues from 0.1 to 1, label noise 0.5."""
    rng = generator(seed, "chapter5")
    scale = torch.logspace(-1, 0, 20, dtype=REAL).sqrt()
    features = torch.randn(300, 20, generator=rng, dtype=REAL) * scale
    targets = features @ torch.randn(20, generator=rng, dtype=REAL)
    targets = targets + 0.5 * torch.randn(300, generator=rng, dtype=REAL)
    return least_squares(features, targets, nodes, batch=batch, seed=seed)


def quadratic(eigenvalues: Tensor, workers: int) -> Problem:
    """F(x) = sum_j lambda_j (x_j - 1)^2 / 2 without noise: a sample for each j."""
    features = (len(eigenvalues) * eigenvalues).sqrt().diag()
    return least_squares(features, features.sum(1), workers, batch=0)
