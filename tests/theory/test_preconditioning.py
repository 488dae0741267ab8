"""Claims about the rates of statistical preconditioning."""

from __future__ import annotations

import pytest
import torch

from coterie.checks import InputError
from coterie_theory.curvature.preconditioning import (
    descent_rounds,
    isotropic_gain,
    preconditioned_bound,
    preconditioned_rounds,
    prescribed_mu,
    relative_condition,
)

REAL = torch.float64
D, LAM = 8, 1e-2


def quadratic(seed: int = 0):
    """Hessians of all and of a reference, mu that covers their distance, and x*."""
    rng = torch.Generator().manual_seed(seed)
    scale = torch.arange(1, D + 1, dtype=REAL) ** -1.0
    a = torch.randn(400, D, generator=rng, dtype=REAL) * scale
    whole = a.T @ a / 400 + LAM * torch.eye(D, dtype=REAL)
    part = a[:40].T @ a[:40] / 40 + LAM * torch.eye(D, dtype=REAL)
    mu = float(torch.linalg.matrix_norm(whole - part, 2))
    return whole, part, mu, torch.randn(D, generator=rng, dtype=REAL)


def course(whole, part, mu, best, rounds: int):
    """Gaps F(x_t) - F* of x <- x - (H_ref + mu)^-1 grad F(x) from 0, and D_phi."""
    phi = part + mu * torch.eye(D, dtype=REAL)
    x, gaps = torch.zeros(D, dtype=REAL), []
    for _ in range(rounds):
        gaps.append(float((x - best) @ whole @ (x - best)) / 2)
        x = x - torch.linalg.solve(phi, whole @ (x - best))
    return gaps, float(best @ phi @ best) / 2


def test_the_relative_condition_is_at_most_1_plus_2_mu_over_lam():
    whole, part, mu, _ = quadratic()
    phi = part + mu * torch.eye(D, dtype=REAL)
    values = torch.linalg.eigvals(torch.linalg.solve(phi, whole)).real
    kappa = relative_condition(mu, LAM)
    assert float(values.max()) <= 1 + 1e-12
    assert float(values.min()) >= 1 / kappa - 1e-12
    condition = float(torch.linalg.cond(whole))
    assert kappa < condition  # or there were nothing to gain


def test_the_gap_obeys_the_rate_at_every_round():
    for seed in range(3):
        problem = quadratic(seed)
        kappa = relative_condition(problem[2], LAM)
        gaps, distance = course(*problem, rounds=60)
        for t, gap in enumerate(gaps):
            assert gap <= preconditioned_bound(t, kappa, distance) + 1e-12


def test_10_29_as_printed_forgets_where_it_begins():
    whole, part, mu, best = quadratic()
    gaps, distance = course(whole, part, mu, 100 * best, rounds=30)
    kappa = relative_condition(mu, LAM)
    printed = [(1 - 1 / kappa) ** t for t in range(30)]
    assert any(gap > bound for gap, bound in zip(gaps, printed, strict=True))
    ours = [preconditioned_bound(t, kappa, distance) for t in range(30)]
    assert all(gap <= bound for gap, bound in zip(gaps, ours, strict=True))


def test_the_printed_rate_without_an_inverse_does_not_fall():
    whole, part, mu, best = quadratic()
    kappa = relative_condition(mu, LAM)
    assert kappa > 2
    assert abs(1 - kappa) > 1  # so that (1 - kappa)^t, as printed, grows
    gaps, _ = course(whole, part, mu, best, rounds=2)
    assert gaps[1] < gaps[0]


def test_mu_depends_on_the_samples_of_the_reference_and_not_of_all_as_printed():
    values = torch.arange(1, 11, dtype=REAL) ** -1.0
    setting = {"radius": 1.0, "lipschitz": 0.1, "delta": 0.1}
    mus = [prescribed_mu(values, size, **setting) for size in (100, 10_000)]
    assert mus[0] > 5 * mus[1]
    # What the Hessian of the reference misses does not shrink as others join.
    rng = torch.Generator().manual_seed(0)
    a = torch.randn(40_000, 10, generator=rng, dtype=REAL) * values.sqrt()
    part = a[:100].T @ a[:100] / 100
    off = [
        float(torch.linalg.matrix_norm(part - a[:n].T @ a[:n] / n, 2))
        for n in (1000, 40_000)
    ]
    assert off[1] > 0.8 * off[0]


def test_rounds_are_those_after_which_the_bound_is_small_enough():
    for kappa in (1.0, 1.5, 40.0):
        t = preconditioned_rounds(1e-6, kappa, 3.0)
        assert preconditioned_bound(t, kappa, 3.0) <= 1e-6
        assert preconditioned_bound(t - 1, kappa, 3.0) > 1e-6
    assert preconditioned_rounds(1.0, 5.0, 0.5) == 0
    assert descent_rounds(1e-6, 40.0, 3.0) == preconditioned_rounds(1e-6, 40.0, 3.0)


def test_low_effective_dimensions_save_where_spectra_fall():
    steep = torch.arange(1, 51, dtype=REAL) ** -2.0
    assert isotropic_gain(torch.ones(50, dtype=REAL), 1000) == pytest.approx(1)
    assert isotropic_gain(steep, 1000) > 3


def test_bad_numbers_are_refused():
    for wrong in ((-1.0, 1.0), (1.0, 0.0)):
        with pytest.raises(InputError):
            relative_condition(*wrong)
