"""Runs of the methods of chapter 8 on noisy quadratics, and their excess."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.collaboration import weights
from support.noisy_quadratics import REAL, excess_of, generator, noise_like


def mean_and_error(samples):
    """The mean over runs and four standard errors: one false alarm in 30,000."""
    return float(samples.mean()), 4 * float(samples.std()) / math.sqrt(len(samples))


def exact_excess(losses, start, lr, calls):
    """The largest expected excess over noise and start along curvature mu or beta."""
    values = []
    for noisy in (losses.mu, losses.beta):
        for far in (losses.mu, losses.beta):
            a, b = 0.0, 2 * start / far  # second moments
            for _ in range(calls):
                a = (1 - lr * noisy) ** 2 * a + lr**2 * losses.variance
                b = (1 - lr * far) ** 2 * b
            values.append(noisy * a / 2 + far * b / 2)
    return max(values)


def all_for_all_runs(lam, matrices, best, x, sigma, lr, calls, *, runs=400, seed=0):
    """Mean excess F^k of each run, shape (calls + 1, runs)."""
    rng = generator(seed)
    product = lam @ lam.T
    x = x.expand(runs, *best.shape)
    models = [x]
    for _ in range(calls):
        g = torch.einsum("ide,rie->rid", matrices, x - best) + noise_like(x, sigma, rng)
        x = x - lr * product @ g
        models.append(x)
    return excess_of(matrices, best, torch.stack(models)).mean(2)


def all_for_one_runs(lam, matrices, best, x, sigma, lr, calls, *, runs=400, seed=0):
    """Excess of every client in each run, shape (calls + 1, runs, n)."""
    rng = generator(seed)
    x = x.expand(runs, *best.shape)
    # sum_k lam_ik A_k (x_i - x_k^*) = slope_i x_i - pull_i
    slope = torch.einsum("ik,kde->ide", lam, matrices)
    pull = torch.einsum("ik,kde,ke->id", lam, matrices, best)
    models = [x]
    for _ in range(calls):
        shared = noise_like(x, sigma, rng)  # of contributor k, the same for all readers
        g = torch.einsum("ide,rie->rid", slope, x) - pull + lam @ shared
        x = x - lr[:, None] * g
        models.append(x)
    return excess_of(matrices, best, torch.stack(models))


WEIGHTS = {
    "clusters": lambda b: weights.same_cluster(
        torch.arange(len(b)) % 2, torch.ones(len(b), dtype=REAL)
    ),
    "threshold": lambda b: weights.threshold_weights(b, float(b.median())),
    "mixture": lambda b: weights.interpolation(0.5, len(b)).to(REAL),
    "random": lambda b: weights.normalised(
        torch.rand(b.shape, generator=generator(5), dtype=REAL)
    ),
    "alone": lambda b: torch.eye(len(b), dtype=REAL),
}
every_weights = pytest.mark.parametrize("build", WEIGHTS.values(), ids=WEIGHTS)


def first_call_below(curve, eps):
    """The first call from which on the mean over runs is below eps."""
    above = (curve.mean(1) > eps).nonzero()
    return int(above[-1]) + 1 if len(above) else 0
