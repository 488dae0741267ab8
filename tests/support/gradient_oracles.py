"""Oracles that can be asked for gradients alone, and training with them."""

from __future__ import annotations

import torch

from coterie import seeds
from coterie.collaboration import weights
from support.noisy_quadratics import quadratics
from support.oracles import begun, told, with_verbs

REAL = torch.float64
# Some dozen steps in double precision, with the operations in another order.
EXACT = {"rtol": 1e-10, "atol": 1e-12}
N, D = 6, 3
ALL = torch.ones(N, dtype=torch.bool)


@with_verbs
class Answers:
    """An oracle that can be asked for gradients alone."""

    active: torch.Tensor


class Quadratics(Answers):
    """An oracle of f_i(x) = (x - best_i)' A_i (x - best_i) / 2, with noise if asked."""

    def __init__(self, matrices, best, *, active=None, noise=0.0, rng=None):
        self.matrices, self.best = matrices, best
        everybody = torch.ones(len(best), dtype=torch.bool)
        self.active = everybody if active is None else active
        self.noise, self.rng = noise, rng

    def grads(self, x):
        g = torch.einsum("ide,ie->id", self.matrices, x - self.best)
        if self.noise:
            g = g + self.noise * torch.randn(x.shape, generator=self.rng, dtype=x.dtype)
        return g * self.active[:, None]


def problem(seed=0, n=N, d=D):
    """Random curvatures from 1 to 3 and random optima."""
    return quadratics(seed, n, d)


def random_weights(seed=0, n=N):
    rng = torch.Generator().manual_seed(seed)
    return weights.normalised(torch.rand(n, n, generator=rng, dtype=REAL))


def start(seed=0, n=N, d=D):
    rng = torch.Generator().manual_seed(100 + seed)
    return torch.randn(n, d, generator=rng, dtype=REAL)


def equal_start():
    return start()[:1].expand(N, D).clone()


def trained(algorithm, x, rounds=10, seed=0, noise=0.3, activity=None, data=None):
    """Personal models after some rounds, and the last info."""
    matrices, best = problem() if data is None else data
    rng = torch.Generator().manual_seed(seed)
    state, info = begun(algorithm, x), {}
    for t in range(rounds):
        active = None if activity is None else activity[t]
        oracle = Quadratics(matrices, best, active=active, noise=noise, rng=rng)
        state, info = algorithm.step(state, oracle, seeds.generator(0, t))
        info = told(info, oracle)
    return algorithm.personal(state, Quadratics(matrices, best)), info


def some_activity(rounds=10):
    rng = torch.Generator().manual_seed(7)
    active = torch.rand(rounds, N, generator=rng) < 0.5
    active[:, 0] |= ~active.any(1)
    return active
