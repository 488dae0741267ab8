"""From a trial to scores, worth and intervals: closed forms and coverage."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.models import OBJECTIVES
from coterie.planning.expectations import Outlook, errors_of, outlook_of, pool_values
from coterie.planning.plans import measure_of, verdict
from coterie.planning.prospects import Prospect, Prospects
from coterie.planning.trials import Trial


def test_values_that_differ_by_chance_get_the_mean_of_all():
    found = pool_values(np.array([1.0, 1.1, 0.9, 1.0]), np.full(4, 1.0))
    np.testing.assert_allclose(found.value, 1.0, rtol=1e-12)
    np.testing.assert_allclose(found.error, 0.5, rtol=1e-12)  # 1 / sqrt(4)
    assert found.mean_error == pytest.approx(0.5)


def test_values_that_differ_by_more_are_left_alone():
    values = np.array([0.0, 10.0, 20.0, 30.0])
    found = pool_values(values, np.full(4, 0.01))
    np.testing.assert_allclose(found.value, values, atol=1e-3)
    np.testing.assert_allclose(found.error, 0.01, rtol=1e-3)


@pytest.mark.parametrize("between", [0.0, 1.0, 3.0])
def test_intervals_of_clients_hold_the_truth_nine_times_in_ten(between):
    """90 per cent intervals of eight clients whose errors are 1, 200 times."""
    rng = np.random.default_rng(0)
    held = []
    for _ in range(200):
        truth = between * rng.normal(size=8)
        found = pool_values(truth + rng.normal(size=8), np.ones(8))
        held.append(np.abs(found.value - truth) < 1.645 * found.error)
    # Eight clients share a mean: some 400 independent of 1,600, an error of 1.5.
    assert 0.84 < np.mean(held) < 0.97


def test_errors_are_those_of_a_mean_of_four():
    """Equal clients of variance 1 a quarter: 1 / 2, from 3,000 differences."""
    values = np.random.default_rng(0).normal(size=(4, 1000))
    found = errors_of(values, np.full(1000, 50.0))
    assert np.sqrt((found**2).mean()) == pytest.approx(0.5, rel=0.05)


def even(gain: float, n: int) -> Prospects:
    """Gradients that promise everybody the same, and know nothing of its size."""
    made = Prospect(np.full(n, gain), np.full((n, n), 1 / n))
    return Prospects(made, np.full(n, 0.1), np.full(n, 100.0), (0.1, gain, 100.0))


def outlook_of_trial(gain: float, noise: float, seed: int = 0, n: int = 8) -> Outlook:
    """A trial with costs 1 + c / m and c = 12, m = 24, 6 and 18; together m gain."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=(4, n))  # of the same samples that are judged
    few, alone, together = (
        1 + 12 / m + noise * (common + rng.normal(size=(4, n)) / 3)
        for m in (6.0, 18.0, 18.0 * gain)
    )
    cost, sizes = Trial(few, alone, together), np.full(n, 24.0)
    return outlook_of(cost, cost, sizes, sizes, even(gain, n), even(gain, n))


@pytest.mark.parametrize("gain", [1.2, 2.0, 4.0])
def test_worth_and_scores_without_noise_are_those_of_the_curve(gain):
    found = outlook_of_trial(gain, 1e-9)
    np.testing.assert_allclose(found.worth[1], gain, rtol=1e-6)
    np.testing.assert_allclose(found.worth[[0, 2]], gain, rtol=1e-4)
    np.testing.assert_allclose(found.alone[1], 1 + 12 / 24, rtol=1e-6)
    np.testing.assert_allclose(found.together[1], 1 + 12 / (24 * gain), rtol=1e-6)
    assert found.helped.all()


def test_who_is_worse_together_is_told_so_and_stays_alone():
    found = outlook_of_trial(0.5, 1e-3)
    assert not found.helped.any()
    np.testing.assert_array_equal(found.together[1], found.alone[1])
    assert verdict(*found.worth[::2, -1]) == "do not join"


@pytest.mark.parametrize("gain", [1.0, 2.0])
def test_intervals_of_worth_hold_the_truth(gain):
    """90 per cent intervals, 50 times, of clients and of the mean."""
    runs = [outlook_of_trial(gain, 0.3, seed, n=6).worth for seed in range(50)]
    held = [(w[0] <= gain * 1.001) & (w[2] * 1.001 >= gain) for w in runs]
    # With 90 per cent, fewer than 40 of 50 has a chance of 1 per cent.
    assert np.mean([h[-1] for h in held]) >= 0.8
    assert np.mean([h[:-1] for h in held]) >= 0.8


def test_an_interval_above_what_is_worthwhile_says_join():
    assert verdict(1.8, 4.0) == "join"
    assert verdict(0.9, 1.1) == "do not join"
    assert verdict(1.2, 4.0) == "collect first"


def test_accuracy_is_shown_upwards_and_squares_as_roots():
    quarter = np.full((4, 2), 0.25)
    trial = {"loss": Trial(*[quarter] * 3), "accuracy": Trial(*[quarter] * 3)}
    measure, cost = measure_of(OBJECTIVES["classification"], trial)
    assert cost.alone[0, 0] == -0.25
    assert measure.to_display(np.array([-0.3, -0.25, -0.2])) == (0.2, 0.25, 0.3)
    measure, cost = measure_of(OBJECTIVES["regression"], {"loss": trial["loss"]})
    assert measure.name == "RMSE" and cost.alone[0, 0] == 0.25
    assert measure.to_display(np.array([-0.1, 0.25, 1.0])) == (0.0, 0.5, 1.0)
    unknown = {**trial, "accuracy": Trial(quarter, quarter, quarter * np.nan)}
    assert measure_of(OBJECTIVES["classification"], unknown)[0].name == "loss"
