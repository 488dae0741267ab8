"""How far models are from their bounds, and a general solver to compare with."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.optimize import minimize


def excess(x, radius) -> float:
    """By how much the worst pair is too far apart, squared."""
    worst = (x[:, None] - x).square().sum(2) - radius
    return float(worst.fill_diagonal_(-math.inf).max()) if len(x) > 1 else -math.inf


def general_solver(v: torch.Tensor, radius: torch.Tensor, mass=None) -> torch.Tensor:
    """The projection as sequential quadratic programming finds it."""
    n, d = v.shape
    mass = np.ones((n, 1)) if mass is None else np.asarray(mass, dtype=float)[:, None]
    given, limits = v.numpy(), radius.numpy()
    i, j = np.nonzero(np.triu(np.isfinite(limits), 1))
    pair = np.arange(len(i))

    def slack(flat):
        x = flat.reshape(n, d)
        return limits[i, j] - ((x[i] - x[j]) ** 2).sum(1)

    def slope(flat):
        x = flat.reshape(n, d)
        rows = np.zeros((len(i), n, d))
        rows[pair, i] = -2 * (x[i] - x[j])
        rows[pair, j] = 2 * (x[i] - x[j])
        return rows.reshape(len(i), n * d)

    found = least(
        lambda x: 0.5 * (mass * (x.reshape(n, d) - given) ** 2).sum(),
        lambda x: (mass * (x.reshape(n, d) - given)).ravel(),
        np.tile(given.mean(0), (n, 1)).ravel(),
        slack,
        slope,
    )
    return torch.from_numpy(found.x.reshape(n, d))


def least(objective, gradient, start, slack, slope):
    """The minimum where no slack is negative, by sequential quadratic programming."""
    return minimize(
        objective,
        start,
        jac=gradient,
        constraints=[{"type": "ineq", "fun": slack, "jac": slope}],
        method="SLSQP",
        options={"ftol": 1e-15, "maxiter": 2000},
    )


def excess_of(x, centres, radius) -> torch.Tensor:
    return ((x[:, None] - centres).square().sum(2) - radius).amax(1)
