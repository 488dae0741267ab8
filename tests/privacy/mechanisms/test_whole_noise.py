"""Whole-number noise is exactly discrete Gaussian, and its sums keep what we charge."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
import torch
from scipy.stats import chi2

from coterie.checks import InputError
from coterie.privacy.accounting import delta_of
from coterie.privacy.mechanisms.noise import MARGIN, SecretStream, whole
from coterie.privacy.mechanisms.noise.whole import (
    deviation_for,
    discrete_gaussian,
    refuse_coarse,
)


def stream(key: int = 0) -> SecretStream:
    """A stream that is the same in every run of the tests."""
    return SecretStream(key.to_bytes(32, "big"))


def chances(s: float, reach: int):
    """P(x) for x from -reach to reach."""
    x = np.arange(-reach, reach + 1)
    weights = np.exp(-(x**2) / (2 * s * s))
    return x, weights / weights.sum()


def refuse_other_law(drawn, s: float) -> None:
    """Raises if draws do not look like those of N_Z(s^2), by chi-squared."""
    width = max(1, round(s / 4))
    x, p = chances(s, math.ceil(12 * s))
    groups = np.clip(np.floor_divide(x + width // 2, width), -14, 14) + 14
    expected = np.bincount(groups, p) * len(drawn)
    seen = np.bincount(
        np.clip(np.floor_divide(drawn + width // 2, width), -14, 14) + 14,
        minlength=len(expected),
    )
    some = expected > 5
    found = ((seen - expected)[some] ** 2 / expected[some]).sum()
    assert chi2.sf(found, some.sum() - 1) > 1e-6


@pytest.mark.parametrize("s", [4, 5, 7, 11, 100, 4096])
def test_draws_have_the_law_of_the_discrete_gaussian(s):
    drawn = discrete_gaussian(stream(s), s, 200_000)
    assert drawn.dtype == np.int64 and len(drawn) == 200_000
    refuse_other_law(drawn, s)


@pytest.mark.parametrize("s", [2**20 + 3, 2**40 + 12345, 2**54])
def test_large_draws_have_the_right_moments(s):
    drawn = discrete_gaussian(stream(1), s, 200_000) / s
    assert abs(drawn.mean()) < 5 / math.sqrt(200_000)
    assert abs(drawn.var() - 1) < 5 * math.sqrt(2 / 200_000)
    assert abs((drawn**4).mean() - 3) < 5 * math.sqrt(96 / 200_000)
    # Low bits are uniform.
    odd = (discrete_gaussian(stream(2), s, 50_000) & 1).mean()
    assert abs(odd - 0.5) < 2.5 / math.sqrt(50_000)


def test_draws_that_need_more_digits_have_the_same_law(monkeypatch):
    """Every comparison is decided by whole numbers."""
    monkeypatch.setattr(whole, "_SLACK", 1.0)
    drawn = discrete_gaussian(stream(2), 5, 3_000)
    refuse_other_law(drawn, 5)


def test_no_comparison_is_undecided_by_the_first_bits_without_need(monkeypatch):
    def fail(*_):
        raise AssertionError("this happens once in 2^36 draws")

    monkeypatch.setattr(whole, "_exactly", fail)
    discrete_gaussian(stream(3), 2**20, 10_000)


@pytest.mark.parametrize("g", [Fraction(1), Fraction(1, 3), Fraction(355, 113)])
def test_a_comparison_is_right_next_to_the_chance_itself(g):
    with mpmath.workdps(60):
        place = int(
            mpmath.floor(mpmath.exp(-mpmath.mpf(g.numerator) / g.denominator) * 2**64)
        )
    for first, happens in ((place - 1, True), (place + 1, False)):
        found = whole._exactly(stream(), first, g.numerator, g.denominator)
        assert found is happens
    # The word of the chance itself needs more bits, and then both answers occur.
    many = {
        whole._exactly(stream(key), place, g.numerator, g.denominator)
        for key in range(40)
    }
    assert many == {True, False}


@pytest.mark.parametrize(
    "g", [Fraction(0), Fraction(1, 7), Fraction(50), Fraction(900)]
)
def test_bounds_of_an_exponential_hold(g):
    low, high = whole._exp_bounds(g.numerator, g.denominator, 60)
    with mpmath.workdps(90):
        true = mpmath.exp(-mpmath.mpf(g.numerator) / g.denominator)
        assert mpmath.mpf(str(low)) <= true <= mpmath.mpf(str(high))
        assert (
            mpmath.mpf(str(high)) - mpmath.mpf(str(low)) <= true * mpmath.mpf(10) ** -52
        )


def test_events_that_are_certain_happen_and_hopeless_ones_do_not():
    g = np.array([0.0] * 500 + [800.0] * 500)
    found = whole._chances(stream(), g, lambda j: (0 if j < 500 else 800, 1))
    assert found.tolist() == [True] * 500 + [False] * 500


@pytest.mark.parametrize("s", [0, 3, 2**54 + 1])
def test_deviations_that_cannot_be_drawn_are_refused(s):
    with pytest.raises(InputError, match="deviation"):
        discrete_gaussian(stream(), s, 1)
    assert deviation_for(1e-9, 1.0) == 4


def test_no_bit_is_used_twice():
    secret, words = stream(), []
    true = secret.fill

    def fill(drawn: torch.Tensor) -> None:
        true(drawn)
        words.extend(drawn.tolist())

    secret.fill = fill
    discrete_gaussian(secret, 1000, 2_000)
    discrete_gaussian(secret, 1000, 2_000)
    assert len(set(words)) == len(words) > 8_000


# What is proved.


@pytest.mark.parametrize(("a", "b"), [(4, 4), (4, 7)])
def test_a_sum_of_two_is_a_discrete_gaussian_within_the_bound(a, b):
    with mpmath.workdps(220):

        def weight(x: int, square: int):
            return mpmath.exp(-mpmath.mpf(x * x) / (2 * square))

        def total(square: int):
            most = math.ceil(34 * math.sqrt(square))
            return mpmath.fsum(weight(x, square) for x in range(-most, most + 1))

        both, most = a * a + b * b, 34 * (a + b)
        norms = total(a * a) * total(b * b), total(both)
        bound = 5 * mpmath.exp(-(mpmath.pi**2) * min(a, b) ** 2)
        for z in (0, 1, 5, 30):
            joint = mpmath.fsum(
                weight(x, a * a) * weight(z - x, b * b) for x in range(-most, most + 1)
            )
            ratio = (joint / norms[0]) / (weight(z, both) / norms[1])
            assert abs(mpmath.log(ratio)) <= bound


@pytest.mark.parametrize("s", [4, 20, 300])
def test_a_discrete_gaussian_is_a_rounded_one_within_the_bound(s):
    with mpmath.workdps(60):
        norm = mpmath.fsum(
            mpmath.exp(-mpmath.mpf(x * x) / (2 * s * s)) for x in range(-20 * s, 20 * s)
        )
        for x in (0, 1, s, 5 * s, 14 * s):
            upper = mpmath.erfc((x - 0.5) / (s * mpmath.sqrt(2))) / 2
            rounded = upper - mpmath.erfc((x + 0.5) / (s * mpmath.sqrt(2))) / 2
            found = mpmath.exp(-mpmath.mpf(x * x) / (2 * s * s)) / norm
            assert abs(mpmath.log(rounded / found)) <= mpmath.mpf(9) / s**2


def largest_excess(moved: int, s: float, charged: float) -> float:
    """How far delta of noise N_Z(s^2) exceeds that of the charge, over epsilons."""
    _, p = chances(s, math.ceil(15 * s) + moved)
    q = np.zeros_like(p)
    q[moved:] = p[:-moved]
    epsilons = np.linspace(0, 6, 61)
    return max(
        float(np.maximum(p - math.exp(e) * q, 0).sum()) - delta_of(charged, e)
        for e in epsilons
    )


@pytest.mark.parametrize("mu", [0.5, 1.0, 3.0])
def test_the_charge_covers_the_noise_of_honest_members(mu):
    """The exact delta of one coordinate, at the coarsest grid that is not refused."""
    members, sensitivity = 3, 26_000.0
    charged = sensitivity / mu / math.sqrt(members)
    each = deviation_for(charged, 1.0)
    refuse_coarse(1, sensitivity, [each] * members, reach=1e6)
    together = each * math.sqrt(members)
    assert largest_excess(math.ceil(sensitivity) + 1, together, mu) < 0
    # With all others' noise known, the member's own still keeps its charge.
    alone = sensitivity / charged
    assert largest_excess(math.ceil(sensitivity) + 1, each, alone) < 0


def test_without_the_margin_the_charge_would_not_cover_it():
    assert largest_excess(2001, 2000.0, 1.0) > 0
    assert largest_excess(2001, 2000.0 * (1 + MARGIN), 1.0) < 0


def test_a_coarse_grid_is_refused_with_the_scale_that_it_needs():
    refuse_coarse(68_000, 2.0**20, [2**18] * 8, reach=2.0**30)
    with pytest.raises(InputError, match="set a scale 5 times as large"):
        refuse_coarse(68_000, 2.0**16, [2**18] * 8, reach=2.0**30)
    with pytest.raises(InputError, match="set a scale"):
        refuse_coarse(68_000, 2.0**20, [2**18] * 8, reach=2.0**60)
    with pytest.raises(InputError, match="set a scale"):
        refuse_coarse(1, 0.0, [2**18] * 8, reach=1.0)


def test_doubles_are_as_near_to_chances_as_comparisons_assume():
    """At the largest draws of every size, against many digits."""
    for s in (5, 2**28 + 1, 2**54 - 1):
        t = 1 << round(math.log2(s))
        y = np.array([0, 1, s // 3, s, 5 * s, 20 * s, 38 * s], np.int64)
        away = np.abs(y) / s - s / t
        found = np.exp(-(away * away) / 2)
        with mpmath.workdps(60):
            for one, near in zip(y.tolist(), found.tolist(), strict=True):
                g = mpmath.mpf((one * t - s * s) ** 2) / (2 * s * s * t * t)
                true = mpmath.exp(-g)
                assert abs(near - true) <= whole._SLACK / 4 * true
