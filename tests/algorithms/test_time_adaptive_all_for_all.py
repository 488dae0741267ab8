"""Claims about time-adaptive All-for-all: its phases, steps and trust."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie import seeds
from coterie.algorithms.all_for_all import all_for_all
from coterie.algorithms.time_adaptive_all_for_all import time_adaptive_all_for_all
from coterie_theory.collaboration import all_for_all_bounded_step
from coterie_theory.rates import BoundedLosses
from support.gradient_oracles import EXACT, REAL, Answers, N, Quadratics, start
from support.oracles import begun, told


def line(n=N):
    """Optima on a line and the gaps between them, for curvature 1."""
    place = torch.linspace(0, 1, n, dtype=REAL)
    return place[:, None], (place[:, None] - place).square() / 2


@pytest.mark.parametrize("phase_init", ["continue", "mix", "restart"])
@pytest.mark.parametrize("some", [False, True], ids=["all", "some"])
def test_phases_are_those_of_algorithm_2(phase_init, some):
    best, gap = line()
    lr, mu, noise, first = 0.4, 0.7, 0.2, 0.25
    matrices = torch.ones(N, 1, 1, dtype=REAL)
    algorithm = time_adaptive_all_for_all(
        gap, lr=lr, mu=mu, noise=noise, start=first, phase_init=phase_init
    )
    rounds = 300 if some else 150
    rng = torch.Generator().manual_seed(3)
    activity = torch.rand(rounds, N, generator=rng) < (0.5 if some else 2.0)
    activity[:, 0] |= ~activity.any(1)
    state = begun(algorithm, start(d=1))
    x, p, seen = None, 0, 0
    for t in range(rounds):
        oracle = Quadratics(matrices, best, active=activity[t])
        state, info = algorithm.step(state, oracle, seeds.generator(t))
        sent = 0
        while True:
            eps = first / 2**p
            near = 2 * gap <= eps
            lam = near.to(REAL) / near.sum(1, keepdim=True)
            product = lam @ lam.T
            rho = float(torch.linalg.eigvalsh(product).max())
            variance = noise * float((1 / near.sum(1).to(REAL)).mean())
            eta = lr / rho * min(1.0, mu * eps / variance)
            ratio = first / eps if phase_init == "restart" else min(8.0, first / eps)
            calls = math.ceil(math.log(ratio) / (eta * mu))
            if x is None and calls:
                x = lam @ start(d=1)
            if seen < calls * N:
                break
            p, seen = p + 1, 0
            if x is not None and phase_init != "continue":
                eps = first / 2**p
                near = 2 * gap <= eps
                lam = near.to(REAL) / near.sum(1, keepdim=True)
                # What was for the absent is for oneself, and these keep what they have.
                here = activity[t]
                used = torch.where(here & here[:, None], lam, 0).fill_diagonal_(0)
                used = used + torch.diag(1 - used.sum(1))
                x = used @ (x if phase_init == "mix" else start(d=1))
                sent += int(near[here][:, here].sum() - here.sum())
        x = x - eta * product @ (activity[t][:, None] * (x - best))
        seen += int(activity[t].sum())
        assert info["eps"] == pytest.approx(eps)
        sent += int((product > 0)[:, activity[t]].sum() - activity[t].sum())
        assert told(info, oracle)["sent"] == sent
        assert_close(state.x, x, **EXACT)
    assert p >= 4  # so that there was something to see
    assert (lam > 0).sum() < N * N


def test_ever_fewer_clients_are_trusted_until_everybody_is_alone():
    _, gap = line()
    # The first steps are for half the precision of the start: 1, the largest 2 b.
    algorithm = time_adaptive_all_for_all(gap, noise=0.0, lr=0.5, start=2.0)
    state = begun(algorithm, start(d=1))
    counts = []
    for t in range(300):
        oracle = Quadratics(torch.ones(N, 1, 1, dtype=REAL), line()[0])
        state, info = algorithm.step(state, oracle, seeds.generator(t))
        counts.append(int((info["weights"] > 0).sum()))
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == N * N
    assert counts[-1] == N
    assert_close(state.x, line()[0], rtol=0, atol=1e-6)


def test_convex_phases_have_the_length_and_step_of_proposition_3():
    _, gap = line()
    noise, diameter = 2.0, 1.5
    algorithm = time_adaptive_all_for_all(
        gap, lr=10.0, noise=noise, diameter=diameter, regularity="convex"
    )
    zero = torch.zeros(N, 1, dtype=REAL)
    pull = Quadratics(torch.zeros(N, 1, 1, dtype=REAL), zero)
    pull.grads = lambda x: torch.ones_like(x)
    state = begun(algorithm, zero)
    length = {}
    for t in range(600):
        before = state.x
        state, info = algorithm.step(state, pull, seeds.generator(t))
        eps = info["eps"]
        length[eps] = length.get(eps, 0) + 1
        lam = info["weights"]
        eta = eps / (2 * noise * float(lam.square().sum()) / N)
        assert_close(before - state.x, eta * (lam @ lam.T).sum(1, keepdim=True))
    for eps in list(length)[:-1]:
        inverse = float((1 / (2 * gap <= eps).sum(1).to(REAL)).mean())
        assert length[eps] == math.ceil(4 * diameter**2 * noise * inverse / eps**2)


def test_the_printed_step_of_proposition_3_depends_on_the_unit_of_the_loss():
    # Times 2 for all losses: eps and B double, D stays; a step must halve.
    def steps(unit, n=4, d=1.0, b=1.0, eps=0.1, inverse=2.0):
        calls = 4 * (d * b * unit / (eps * unit)) ** 2 * inverse
        printed = 2 * n * d**2 / (calls * (b * unit) ** 2 * inverse)
        # Weights of clusters: the sum of their squares is that of 1 / N_i.
        weights = torch.block_diag(*[torch.full((2, 2), 0.5, dtype=REAL)] * 2)
        assert float(weights.square().sum()) == inverse
        known = BoundedLosses(d, b * unit)
        found = all_for_all_bounded_step(weights, round(calls), known)
        assert found == pytest.approx(math.sqrt(printed * n / 2))
        return printed, found

    printed, right = (steps(2.0)[k] / steps(1.0)[k] for k in (0, 1))
    assert right == pytest.approx(1 / 2)
    assert printed == pytest.approx(1 / 4)


def bernoulli(n=60, seed=0):
    """Section 6.4 of the report: coins of different chances."""
    rng = torch.Generator().manual_seed(seed)
    chance = torch.rand(n, 1, generator=rng, dtype=REAL)
    return chance, (chance - chance.T).square() / 2


class Coins(Answers):
    """Gradients of (x - coin)^2 / 2."""

    def __init__(self, chance, rng):
        self.active = torch.ones(len(chance), dtype=torch.bool)
        self.chance, self.rng = chance, rng

    def grads(self, x):
        return x - torch.bernoulli(self.chance, generator=self.rng)


def test_time_adaptive_all_for_all_beats_training_alone_and_one_model_throughout():
    chance, gap = bernoulli()
    # The mean variance of a coin, and the mean excess of x = 0.
    adaptive = time_adaptive_all_for_all(gap, lr=0.5, noise=1 / 6, start=1 / 6)
    inverse = {"lr": 1.0, "schedule": "inverse(1)"}  # steps 1 / (t + 1): plain means
    methods = {
        "ours": adaptive,
        "alone": all_for_all(torch.eye(60), **inverse),
        "one": all_for_all(torch.full((60, 60), 1 / 60), **inverse),
    }
    error = {}
    for name, algorithm in methods.items():
        rng = torch.Generator().manual_seed(1)
        state = begun(algorithm, torch.zeros(60, 1, dtype=REAL))
        for t in range(1, 501):
            state, _ = algorithm.step(state, Coins(chance, rng), seeds.generator(t))
            if t in (5, 20, 100, 500):
                excess = (state.x - chance).square().mean() / 2
                error[name, t] = float(excess)
    for t in (5, 20, 100, 500):
        assert error["ours", t] < 0.8 * error["alone", t]
        assert error["ours", t] < 0.5 * error["one", t]
    # One model stops at half the variance of the chances, about 1/24.
    assert error["one", 500] == pytest.approx(float(chance.var()) / 2, rel=0.1)
    assert error["ours", 500] < error["ours", 100] < error["ours", 20]
