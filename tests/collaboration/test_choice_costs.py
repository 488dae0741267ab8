"""Claims about what a choice by held-out data costs at most."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import norm

from coterie.checks import InputError
from coterie.collaboration.evidence import choices, moments, most_above_own


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


@pytest.mark.parametrize("delta", [-0.6, -0.2, 0.1, 0.3, 0.6, 1.2])
def test_one_client_that_chooses_is_never_worse_than_the_bound(delta):
    n, trials = 16, 400
    rng = torch.Generator().manual_seed(1)
    noise = torch.randn(trials, n, generator=rng, dtype=torch.float64)
    held = torch.full((1,), n, dtype=torch.float64)
    differences = delta + noise.mean(1)
    shares = sum(
        int(choices(torch.stack([0 * d, d])[None], held)[0]) for d in differences
    )
    used = shares / trials
    error = 2.6 * (0.25 / trials) ** 0.5  # 99 per cent of such frequencies
    assert delta * used <= most_above_own(1.0, n) + abs(delta) * error
    assert -delta * (1 - used) <= most_above_own(1.0, n) + abs(delta) * error


def test_many_clients_that_are_alike_choose_as_one_with_all_samples():
    n, clients, trials, delta = 4, 50, 60, 0.15
    rng = torch.Generator().manual_seed(2)
    above = []
    for _ in range(trials):
        shape = (clients, n)
        noise = torch.randn(shape, generator=rng, dtype=torch.float64)
        own = torch.zeros(shape, dtype=torch.float64)
        of = moments(torch.stack([own, own + delta + noise, own + delta + noise], 1))
        above.append(
            delta * float((choices(of.sums / n, of.samples) != 0).double().mean())
        )
    # Alone, a client must expect as much as this:
    assert np.mean(above) < most_above_own(1.0, n) / 4


def test_bad_numbers_are_refused_by_name():
    with pytest.raises(InputError, match="`samples` must be greater than 0"):
        most_above_own(1.0, 0)
    with pytest.raises(InputError, match="`deviation` must be at least 0"):
        most_above_own(-1.0, 5)
