"""Intervals count seeds and test samples, and cover what they should."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import ndtr
from scipy.stats import t as student

from coterie.scores.intervals import (
    Observations,
    client_estimates,
    mean_estimate,
    mean_estimates,
    newcomer_estimate,
    seeds_alone,
)


def trials_of(d: np.ndarray, *, shared: bool, proportion: bool = False) -> Observations:
    """The observations d (seeds, clients, samples). Seeds may share test samples."""
    seed, client, sample = np.indices(d.shape)
    sample = sample + d.shape[2] * client
    if not shared:
        sample = sample + d.shape[1] * d.shape[2] * seed
    flat = (part.ravel() for part in (d, seed, client, sample))
    return Observations(*flat, proportion=proportion)


def test_one_seed_gives_the_paired_interval_of_student() -> None:
    d = np.random.default_rng(0).normal(size=(1, 3, 7))
    _, found = client_estimates(trials_of(d, shared=True))
    error = d[0].std(1, ddof=1) / 7**0.5
    np.testing.assert_allclose(found.error, error)
    np.testing.assert_allclose(found.high - found.mean, student.ppf(0.975, 6) * error)
    # The mean of three clients, each with its own variance.
    variances = error**2 / 9
    freedom = variances.sum() ** 2 / (variances**2 / 6).sum()
    whole = mean_estimate(trials_of(d, shared=True))
    assert whole.error == pytest.approx(variances.sum() ** 0.5)
    half = student.ppf(0.975, freedom) * whole.error
    assert whole.high - whole.mean == pytest.approx(half)
    assert whole.mean == pytest.approx(d.mean())


def test_shared_samples_give_the_two_way_analysis_of_variance() -> None:
    rng = np.random.default_rng(1)
    s, n = 4, 9
    d = rng.normal(size=(s, 1, 1)) + rng.normal(size=(1, 1, n))
    d = d + 0.5 * rng.normal(size=(s, 1, n))
    # Mean squares of seeds, samples and rest, written with loops.
    whole = d.mean()
    of_seed = [d[k].mean() for k in range(s)]
    of_sample = [d[:, 0, j].mean() for j in range(n)]
    rest = sum(
        (d[k, 0, j] - of_seed[k] - of_sample[j] + whole) ** 2
        for k in range(s)
        for j in range(n)
    ) / ((s - 1) * (n - 1))
    seeds = n * sum((m - whole) ** 2 for m in of_seed) / (s - 1)
    samples = s * sum((m - whole) ** 2 for m in of_sample) / (n - 1)
    variance = (seeds + samples - rest) / (s * n)
    assert seeds > rest  # so that nothing is cut off
    for found in (
        client_estimates(trials_of(d, shared=True))[1],
        mean_estimate(trials_of(d, shared=True)),
    ):
        np.testing.assert_allclose(found.error**2, variance)


def test_seeds_with_samples_of_their_own_are_independent_repetitions() -> None:
    d = np.random.default_rng(2).normal(size=(3, 5, 6))
    d = d + np.array([-2.0, 0.0, 2.0])[:, None, None]
    found = mean_estimate(trials_of(d, shared=False))
    by_seed = d.mean((1, 2))
    assert found.error == pytest.approx(by_seed.std(ddof=1) / 3**0.5)
    assert found.mean == pytest.approx(by_seed.mean())


def test_one_patient_of_seventeen_is_no_gain_and_six_are() -> None:
    for right, gains in ((1, False), (3, False), (6, True), (17, True)):
        d = np.zeros((3, 1, 17))
        d[..., :right] = 1.0
        trials = trials_of(d, shared=True, proportion=True)
        _, found = client_estimates(trials)
        assert bool(found.low[0] > 0) is gains
        assert found.high[0] > found.low[0]


def test_the_order_of_trials_and_the_names_of_seeds_do_not_matter() -> None:
    rng = np.random.default_rng(3)
    trials = trials_of(rng.normal(size=(3, 4, 5)), shared=True)
    order = rng.permutation(len(trials.values))
    values, seed, client, sample = (part[order] for part in trials[:4])
    other = Observations(values, 7 - 2 * seed, client, sample + 1000)
    for one, two in zip(mean_estimate(trials), mean_estimate(other), strict=True):
        assert one == pytest.approx(two)
    one, two = client_estimates(trials)[1], client_estimates(other)[1]
    np.testing.assert_allclose(np.stack(one), np.stack(two))


def test_means_of_groups_are_those_of_each_group_alone() -> None:
    rng = np.random.default_rng(7)
    d = rng.normal(size=(3, 6, 5)) + rng.normal(size=(3, 1, 1))
    for proportion in (False, True):
        trials = trials_of(d, shared=True, proportion=proportion)
        group = np.array([0, 1, 1, 0, 2, 1])[trials.client]
        found = mean_estimates(trials, group)
        for k in range(3):
            mine = Observations(*(part[group == k] for part in trials[:4]), proportion)
            alone = np.stack(mean_estimate(mine))
            np.testing.assert_allclose([value[k] for value in found], alone)


def test_seeds_that_agree_by_chance_leave_what_samples_leave() -> None:
    d = np.random.default_rng(8).normal(size=(3, 2, 6))
    d -= d.mean((1, 2), keepdims=True)  # the same mean with every seed
    found = mean_estimate(trials_of(d, shared=False))
    # All samples are others, of equal weight: the variance of a mean over clients.
    variances = d.var(2, ddof=1) / 6
    assert found.error == pytest.approx((variances.sum() / 36) ** 0.5)
    assert found.high - found.mean == pytest.approx(found.error)


def test_a_client_with_one_test_sample_is_not_judged_but_counts() -> None:
    rng = np.random.default_rng(4)
    trials = trials_of(rng.normal(size=(2, 3, 4)), shared=True)
    kept = (trials.client != 1) | (trials.sample == 4)
    few = Observations(*(part[kept] for part in trials[:4]))
    _, found = client_estimates(few)
    assert np.isnan(found.error[1]) and np.isinf(found.high[1])
    assert np.isfinite(found.high[[0, 2]]).all()
    whole = mean_estimate(few)
    assert whole.mean == pytest.approx(found.mean.mean())
    assert np.isfinite(whole.high)


def test_seeds_alone_are_those_of_student() -> None:
    table = np.array([[1.0, 0.0], [2.0, 0.0], [4.0, 0.0]])
    found = seeds_alone(table)
    error = np.std([1, 2, 4], ddof=1) / 3**0.5
    assert found.error == pytest.approx([error, 0])
    half = student.ppf(0.975, 2) * error
    assert found.high[0] == pytest.approx(7 / 3 + half)
    assert np.isinf(seeds_alone(table[:1]).high).all()


REPETITIONS, CLIENTS = 200, 8
GAIN = np.linspace(-0.3, 0.7, CLIENTS)


def draw(
    rng: np.random.Generator, seeds: int, samples: int, *, shared: bool, spread: float
) -> tuple[np.ndarray, np.ndarray]:
    """Two margins (seeds, repetitions, clients, samples); seeds move the second.

    Samples are hard or easy for both, and for the one more than for the other; a seed
    has an effect on everybody and one on each client.
    """
    whole = (seeds, REPETITIONS, CLIENTS, samples)
    shape = (1, *whole[1:]) if shared else whole
    hard, liked = rng.normal(size=shape), rng.normal(size=shape)
    moved = rng.normal(size=(seeds, REPETITIONS, 1, 1))
    moved = moved + rng.normal(size=(seeds, REPETITIONS, CLIENTS, 1))
    first = 0.3 + hard + 0.5 * rng.normal(size=whole)
    second = 0.3 + hard + GAIN[:, None] + liked + spread * moved
    return first, second + 0.5 * rng.normal(size=whole)


def coverage(
    seeds: int, samples: int, *, shared: bool, spread: float, proportion: bool
) -> tuple[float, float]:
    """How often intervals hold the truth: of clients, and of their mean."""
    rng = np.random.default_rng([seeds, samples, shared, proportion, int(9 * spread)])
    first, second = draw(rng, seeds, samples, shared=shared, spread=spread)
    truth, d = GAIN, second - first
    if proportion:
        d = (second > 0).astype(float) - (first > 0)
        around = (2.25 + 2 * spread**2) ** 0.5
        truth = ndtr((0.3 + GAIN) / around) - ndtr(0.3 / 1.25**0.5)
    options = {"shared": shared, "proportion": proportion}
    trials = trials_of(d.reshape(seeds, -1, samples), **options)
    one = client_estimates(trials)[1]
    truths = np.tile(truth, REPETITIONS)
    single = (one.low <= truths) & (truths <= one.high)
    means = mean_estimates(trials, trials.client // CLIENTS)
    whole = (means.low <= truth.mean()) & (truth.mean() <= means.high)
    return float(single.mean()), float(whole.mean())


KINDS = pytest.mark.parametrize("proportion", [False, True], ids=["real", "right"])


@KINDS
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "redrawn"])
@pytest.mark.parametrize("spread", [0.0, 0.2, 0.8])
def test_intervals_cover_the_truth(
    spread: float, shared: bool, proportion: bool
) -> None:
    options = {"shared": shared, "spread": spread, "proportion": proportion}
    sizes = [(3, 12), (3, 20), (5, 16)]
    found = np.array([coverage(*size, **options) for size in sizes])
    assert (found > 0.88).all()  # a share of 200 is known to 0.02
    assert (0.9 <= found.mean(0)).all() and (found.mean(0) <= 0.98).all(), found


@KINDS
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "redrawn"])
@pytest.mark.parametrize("spread", [0.0, 0.2, 0.8])
def test_two_seeds_are_few_but_not_misleading(
    spread: float, shared: bool, proportion: bool
) -> None:
    options = {"shared": shared, "spread": spread, "proportion": proportion}
    found = np.mean([coverage(2, samples, **options) for samples in (12, 20)], axis=0)
    assert (0.9 <= found).all() and (found <= 0.98).all(), found


@KINDS
def test_intervals_of_a_seed_cover_what_its_models_are_worth(proportion: bool) -> None:
    options = {"shared": True, "spread": 0.0, "proportion": proportion}
    found = np.mean([coverage(1, samples, **options) for samples in (16, 20)], axis=0)
    assert (0.9 <= found).all() and (found <= 0.98).all(), found


def test_seeds_alone_would_not_cover_where_they_share_samples() -> None:
    rng = np.random.default_rng(5)
    first, second = draw(rng, 5, 16, shared=True, spread=0.0)
    means = seeds_alone((second - first).mean((2, 3)))
    inside = (means.low <= GAIN.mean()) & (GAIN.mean() <= means.high)
    assert inside.mean() < 0.8


def test_seeds_that_share_some_samples_are_covered_too() -> None:
    """Every seed draws half of a client's forty samples for its test."""
    rng = np.random.default_rng(6)
    inside = 0
    for _ in range(REPETITIONS):
        liked = rng.normal(size=(CLIENTS, 40))
        parts = []
        for seed in range(3):
            for client in range(CLIENTS):
                sample = rng.permutation(40)[:20]
                values = 0.5 + liked[client, sample] + 0.5 * rng.normal(size=20)
                names = np.full(20, seed), np.full(20, client), 40 * client + sample
                parts.append((values, *names))
        trials = Observations(
            *(np.concatenate(part) for part in zip(*parts, strict=True))
        )
        found = mean_estimate(trials)
        inside += bool(found.low <= 0.5 <= found.high)
    assert 0.9 <= inside / REPETITIONS <= 0.98


def test_intervals_of_newcomers_cover_what_a_newcomer_is_to_expect() -> None:
    """Every seed draws two of the clients there are, each worth something else."""
    rng = np.random.default_rng(0)
    inside, alone = [], []
    for _ in range(400):
        worth = (
            0.3 + 0.5 * rng.normal(size=(4, 2, 1)) + 0.2 * rng.normal(size=(4, 1, 1))
        )
        values = worth + rng.normal(size=(4, 2, 10))
        seed, place, _ = np.indices(values.shape)
        client, sample = place + 2 * seed, np.arange(values.size)
        parts = (values.ravel(), seed.ravel(), client.ravel(), sample)
        found = newcomer_estimate(Observations(*parts))
        inside.append(found.low <= 0.3 <= found.high)
        only = newcomer_estimate(Observations(*(part[:20] for part in parts)))
        mean = worth[0].mean()  # with one seed, of its newcomers
        alone.append(only.low <= mean <= only.high)
    assert 0.9 <= np.mean(inside) <= 0.98
    assert 0.9 <= np.mean(alone) <= 0.98
