"""Claims about what a choice by held-out data costs at most."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from coterie.collaboration.evidence import PRIOR, choices, most_above_own
from support.refusals import refuses


@pytest.mark.parametrize("others", [-2.0, -0.5, 0.0, 0.5, 1.0, 2.0])
def test_the_worst_case_is_that_of_a_fine_grid(others):
    z = np.linspace(0, 30, 300_001)
    e = 3 / 7
    wanted = (z * norm.cdf(30 * others / 49 / e - z)).max() * e
    # A grid of 1e-4 misses a smooth maximum by less than its square.
    found = most_above_own(3.0, 49, others=others)
    assert found == pytest.approx(wanted, abs=1e-6)
    assert found <= 0.17 * e + max(0.0, 30 * others / 49) + 1e-4
    assert found >= 0.5 * max(0.0, 30 * others / 49)  # and the bound is not loose


def above_own(delta: float, n: int, gain: float, trials: int = 40_000):
    """The expected loss above that of training alone, and its standard error.

    So often a client compares a shared model, which is worse by delta, with its own on
    n samples whose differences have standard deviation 1; the others gain so much.
    """
    rng = torch.Generator().manual_seed(1)
    noise = torch.randn(trials, generator=rng, dtype=torch.float64) / n**0.5
    losses = torch.stack([torch.zeros_like(noise), delta + noise], 1)
    everybody = torch.tensor([[gain, 0.0]], dtype=torch.float64).expand(trials, 2)
    held = torch.full((trials,), float(n), dtype=torch.float64)
    used = float((choices(losses, held, everybody) == 1).double().mean())
    return delta * used, abs(delta) * (0.25 / trials) ** 0.5


@pytest.mark.parametrize("gain", [-0.1, 0.0, 0.05, 0.3])
def test_no_client_loses_more_than_the_bound_and_some_lose_as_much(gain):
    n = 16
    bound = most_above_own(1.0, n, others=gain)
    found = [above_own(delta, n, gain) for delta in np.linspace(0.02, 1.4, 24)]
    assert all(above <= bound + 4 * error for above, error in found)
    # A looser bound would be noticed: the worst of these clients is near it.
    worst, error = max(found)
    assert worst >= 0.97 * bound - 4 * error


def test_where_its_own_model_is_worse_a_client_loses_nothing_by_sharing():
    above, _ = above_own(-0.5, 16, 0.0)
    assert above < 0


@pytest.mark.parametrize("others", [-1.0, 0.0, 2.0])
def test_without_noise_a_client_loses_what_the_others_means_make_it_give_up(others):
    assert most_above_own(0.0, 60, others=others) == max(0.0, PRIOR * others / 60)


def test_the_bound_falls_with_samples_and_grows_with_noise():
    few, many = (most_above_own(1.0, n, others=0.2) for n in (10, 1000))
    assert many < few / 10
    # Where the others gain nothing, it is a number of standard errors.
    assert most_above_own(2.0, 16) == pytest.approx(2 * most_above_own(1.0, 16))
    assert most_above_own(1.0, 64) == pytest.approx(most_above_own(1.0, 16) / 2)


def test_bad_numbers_are_refused_by_name():
    refuses("`samples` must be greater than 0", most_above_own, 1.0, 0)
    refuses("`deviation` must be at least 0", most_above_own, -1.0, 5)
