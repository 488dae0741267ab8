"""Noise that is too small and rows that are not clipped are found; others are not."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import binom, chi2

from coterie.privacy.attacks import Residuals, probe_residuals
from coterie.privacy.mechanisms import Mechanism
from coterie.privacy.mechanisms.dry_run import Call
from support.broken_mechanisms import stop_clipping

REAL = torch.float64


def seen(seed: int, *, factor: float = 1.0, clips: bool = True, far: float = 4.0):
    """Residuals of 50 rows of 6 numbers that left with so much of the noise."""
    rng = torch.Generator().manual_seed(seed)
    x, ref, noise = torch.randn(3, 50, 6, generator=rng, dtype=REAL)
    x = ref + far * x
    away = x - ref
    cut = away * (0.5 / away.norm(dim=1, keepdim=True)).clamp(max=1)
    z = (ref + cut if clips else x) + 2.0 * factor * noise
    found = Residuals()
    found.expect(0.5, 2.0)
    found.add(x, ref, z)
    return found


def test_what_is_right_is_accused_as_seldom_as_is_said():
    level, tries = 0.05, 400
    alarms = sum(seen(seed).check(level).broken for seed in range(tries))
    # Two tests at half the level each: between these with a chance of 1 - 2e-4.
    assert binom.ppf(1e-4, tries, 0.04) <= alarms <= binom.isf(1e-4, tries, level)


def test_nothing_that_is_right_is_accused_at_the_level_of_audits():
    assert not any(seen(seed).check(1e-3).broken for seed in range(30))


@pytest.mark.parametrize("seed", range(5))
def test_half_the_noise_and_missing_clipping_are_found(seed):
    quiet = seen(seed, factor=0.5).check(1e-3)
    assert quiet.quiet and not quiet.unclipped
    assert quiet.measured == pytest.approx(0.5, rel=0.15)
    loose = seen(seed, clips=False).check(1e-3)
    assert loose.unclipped and loose.clips_tested and not loose.quiet


def test_what_would_have_been_noticed_is_the_power_of_the_test():
    """By the chi-square law itself, and by trying: 95 of 100, less two deviations."""
    check = seen(0).check(1e-3)
    limit = chi2.ppf(5e-4, 300)
    assert chi2.cdf(limit / check.noticed**2, 300) == pytest.approx(0.95)
    found = [seen(s, factor=check.noticed).check(1e-3).quiet for s in range(200)]
    assert sum(found) >= 190 - 2 * math.sqrt(200 * 0.95 * 0.05)
    # More numbers notice less: the limit goes to 1.
    assert 0.7 < check.noticed < 0.85


def test_short_rows_do_not_show_whether_they_are_clipped():
    check = seen(0, far=0.01).check(1e-3)
    assert not check.clips_tested and not check.broken


def test_a_mechanism_is_probed_with_rows_that_show_it(monkeypatch):
    sound = probe_residuals(Mechanism(0.5, 40.0), 6).check(1e-3)
    assert sound.clips_tested and not sound.broken
    stop_clipping(monkeypatch)
    assert probe_residuals(Mechanism(0.5, 40.0), 6).check(1e-3).unclipped


def test_a_row_that_leaves_twice_counts_once():
    call, found, x = Call("mix", (True,), (-1,)), Residuals(), torch.ones(2, 3).double()
    found.expect(0.5, 2.0)
    for _ in range(2):
        found.see_rows(call, [x], torch.zeros(2, 1, 3, dtype=REAL))
        found.see_releases([x + 1], torch.tensor([True, False]))
    assert found.numbers == 3


def test_where_nothing_left_with_noise_nothing_is_said():
    assert Residuals().check(1e-3) is None
