"""Claims of chapter 8 about what nobody can beat."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.data.datasets import load
from coterie.data.hard_instance import hard_samples, tilts_of
from coterie.data.splits import divide
from coterie_theory import collaboration as theory
from coterie_theory import lower_bounds
from coterie_theory.rates import BoundedLosses, LossClass
from support.noisy_quadratics import REAL, generator, line, quadratic_gaps


def test_who_can_help_does_not_depend_on_the_unit_of_the_loss_as_the_text_would():
    b, mu, eps = line(), 0.5, 0.05
    here = lower_bounds.lower_bound(b, eps, LossClass(mu, mu, 1.0))
    unit = 7.0  # all losses times 7: b, mu, eps and sigma too
    losses = LossClass(unit * mu, unit * mu, unit**2)
    there = lower_bounds.lower_bound(unit * b, unit * eps, losses)
    assert_close(here, there)
    printed = [theory.count_near((u * b) ** 2, u * eps) for u in (1.0, unit)]
    assert (printed[0] != printed[1]).any()


def test_lower_bounds_follow_their_formulas():
    b, n = line(), 8
    eps, mu, variance, radius, bound = 0.01, 2.0, 3.0, 1.5, 0.7
    losses, bounded = LossClass(mu, mu, variance), BoundedLosses(radius, bound)
    near = [
        sum(float(b[i, j]) ** 2 <= 4 * mu * eps for j in range(n)) for i in range(n)
    ]
    expected = [variance / (mu * eps * count) for count in near]
    found = lower_bounds.lower_bound(b, eps, losses)
    assert found.tolist() == pytest.approx(expected)

    gap = b**2
    near = [sum(float(gap[i, j]) <= 4 * eps for j in range(n)) for i in range(n)]
    expected = [radius**2 * bound**2 * n / (eps**2 * count) for count in near]
    found = lower_bounds.lower_bound_convex(gap, eps, bounded)
    assert found.tolist() == pytest.approx(expected)

    near = [sum(float(gap[i, j]) <= 4 * n * eps for j in range(n)) for i in range(n)]
    inverse = sum(1 / count for count in near)
    found = lower_bounds.all_for_all_lower_bound(gap, eps, losses)
    assert found == pytest.approx(variance / (mu * n * eps) * inverse)
    found = lower_bounds.all_for_all_lower_bound_convex(gap, eps, bounded)
    assert found == pytest.approx(radius**2 * bound**2 / (n**2 * eps**2) * inverse)


def hard(distance, *, samples, delta=0.25, d=8, variance=1.0, seed=0):
    known = {"delta": delta, "dimension": d, "samples": samples, "variance": variance}
    return hard_samples(torch.tensor(distance, dtype=REAL), generator(seed), **known)


def test_the_hard_instance_has_the_gaps_of_its_proof():
    b = [0.0, 0.0, 0.1, 0.2, 0.5]
    made = hard(b, samples=40_000)
    assert_close(made.tilts, torch.tensor([0.25, 0.25, 0.15, 0.05, 0.0]).double())
    assert ((made.optima[0] - 0.5).abs() == 0.25).all()
    assert (made.features.sum(2) == 1).all()
    d = 8
    second = torch.einsum("ijk,ijl->ikl", made.features, made.features) / 40_000
    # Four standard errors of a frequency of 1/8 among 40,000.
    even = torch.eye(d).expand(5, d, d).double() / d
    assert_close(second, even, rtol=0, atol=0.007)
    means = torch.einsum("ijk,ij->ik", made.features, made.targets) / 40_000
    assert_close(d * means, made.optima, rtol=0, atol=8 * 4 * 0.3 / 200)
    # The loss (x_k - coin)^2 has Hessian 2 / d.
    gap = quadratic_gaps(2 / d * torch.eye(d).expand(5, d, d).double(), made.optima)
    tilt = made.tilts
    assert_close(gap, (tilt[:, None] - tilt).square())
    distance = torch.tensor(b, dtype=REAL)
    assert (gap <= (distance[:, None] - distance).square() + 1e-12).all()


def test_the_printed_loss_of_the_hard_instance_has_other_optima_than_its_proof():
    made = hard([0.0], samples=40_000)
    xi = made.features * made.targets[:, :, None]
    minimiser = xi.mean(1)[0]  # of the mean of |x - xi|^2 / 2
    assert_close(8 * minimiser, made.optima[0], rtol=0, atol=0.05)
    assert (minimiser - made.optima[0]).abs().min() > 0.15


def test_rarer_and_larger_targets_have_more_variance_and_the_same_mean():
    plain, noisy = (hard([0.0], samples=100_000, variance=v) for v in (1.0, 9.0))
    assert set(noisy.targets.unique().tolist()) == {0.0, 9.0}
    for made in (plain, noisy):
        assert float(made.targets.mean()) == pytest.approx(
            float(made.optima.mean()), abs=0.04
        )
    expected = 9 * float(noisy.optima.mean()) - float(noisy.optima.mean()) ** 2
    assert float(noisy.targets.var()) == pytest.approx(expected, rel=0.05)


def test_the_hard_instance_is_a_data_set():
    table = load("hard_instance", clients=5, twins=2, dimension=4, samples=30, seed=3)
    federation = divide(table, "natural", seed=0)
    assert len(federation) == 5
    assert federation.clusters.tolist() == [0, 0, 1, 1, 1]
    assert_close(federation.optima[0], federation.optima[1])
    assert (federation.optima[2:] == 0.5).all()
    again = load("hard_instance", clients=5, twins=2, dimension=4, samples=30, seed=3)
    assert torch.equal(table.targets, again.targets)
    with pytest.raises(InputError, match="`twins` must be at most 5, got 6"):
        load("hard_instance", clients=5, twins=6)
    with pytest.raises(InputError, match="`dimension` must be at most 2,000,000,000"):
        load("hard_instance", dimension=10**9)


def mean_error(twins, calls, d=40, delta=0.25, runs=100):
    """Mean excess of client 1 when it averages the coins of its twins, 1/2 at first."""
    rng = generator(twins)
    sign = 2.0 * torch.randint(2, (runs, d), generator=rng).to(REAL) - 1
    best = 0.5 + delta * sign
    total, heads = torch.zeros(2, runs, d, dtype=REAL)
    errors = []
    for _ in range(calls):
        k = torch.randint(d, (runs, twins), generator=rng)
        coin = torch.bernoulli(best.gather(1, k), generator=rng)
        total.scatter_add_(1, k, torch.ones_like(coin))
        heads.scatter_add_(1, k, coin)
        x = (heads + 0.5) / (total + 1)
        errors.append(float((x - best).square().mean()))
    return torch.tensor(errors)


def first_below(errors, eps):
    return int((errors <= eps).nonzero()[0]) + 1


def test_calls_on_the_hard_instance_fall_with_the_twins_and_never_below_the_bound():
    delta, d = 0.25, 40
    eps = delta**2 / 36
    needed = {}
    for twins in (8, 16, 32):
        calls = first_below(mean_error(twins, 16_000 // twins), eps)
        tilts = torch.full((twins,), delta)
        assert calls >= lower_bounds.fano_calls(tilts, d)
        needed[twins] = calls
    slope = math.log(needed[32] / needed[8]) / math.log(4)
    assert slope == pytest.approx(-1, abs=0.1)


def test_the_bound_of_fano_follows_its_formula():
    # Coins of chance 3/4 tell ln 2 - h(3/4) of their sign.
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    signs = 100 / 2 * math.log(2 / math.sqrt(math.e))
    expected = (2 / 3 * signs - math.log(2)) / (3 * (math.log(2) - entropy))
    found = lower_bounds.fano_calls(torch.full((3,), 0.25), 100)
    assert found == pytest.approx(expected)
    assert found > 14


def test_who_knows_nothing_of_the_signs_lowers_no_bound():
    tilts = tilts_of(torch.tensor([0.0, 0.1, 0.25, 0.9]).double(), 0.25)
    assert tilts.tolist() == pytest.approx([0.25, 0.15, 0, 0])
    all_of_them = lower_bounds.fano_calls(tilts, 50)
    assert all_of_them == pytest.approx(lower_bounds.fano_calls(tilts[:2], 50))
    assert all_of_them < lower_bounds.fano_calls(tilts[:1], 50)
    scarce = lower_bounds.fano_calls(tilts, 50, variance=4.0)
    assert scarce == pytest.approx(4 * all_of_them)
    with pytest.raises(InputError, match=r"`delta` must be at most 0\.5"):
        tilts_of(tilts, 0.7)


def test_the_number_of_signs_in_place_of_its_logarithm_would_forbid_what_is_possible():
    delta, d = 0.25, 120
    alone = torch.tensor([delta])
    told = 2 / 3 * d / 2 * (math.log(2) - 0.5) - math.log(2)
    told /= lower_bounds.fano_calls(alone, d)
    count = (2 / math.sqrt(math.e)) ** (d / 2)
    printed = (2 / 3 * count - math.log(2)) / told
    # Means of K / d coins per coordinate have an error of a quarter of d / K at most.
    enough = d / 4 / (delta**2 / 36)
    assert lower_bounds.fano_calls(alone, d) < enough < printed
