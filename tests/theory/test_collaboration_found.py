"""Claims of chapter 8 about clusters that are found from a few samples."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coterie.checks import InputError
from coterie.collaboration import weights
from coterie_theory import clusters as theory
from coterie_theory import rates
from coterie_theory.clusters import Clusters
from coterie_theory.rates import LossClass
from support.collaboration_runs import mean_and_error
from support.noisy_quadratics import REAL, generator


def found_weights(means, threshold):
    return weights.threshold_weights(torch.cdist(means, means).square(), threshold)


def sample_means(centres, size, samples, deviation, rng):
    """Means of samples of M clusters of `size` clients each."""
    true = centres.repeat_interleave(size, 0)
    noise = torch.randn(true.shape, generator=rng, dtype=REAL)
    return true, true + noise * deviation / math.sqrt(samples)


SPREADS = {
    "even": torch.ones(6, dtype=REAL),
    "uneven": torch.tensor([1.0, 0.3, 0.1, 0, 0, 0], dtype=REAL),
}


@pytest.mark.parametrize("deviation", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize("separation", [3.0, 1.2])
def test_shares_and_biases_of_found_clusters_obey_their_bounds(deviation, separation):
    nu, dimension = theory.noise_of(torch.diag(deviation.square()))
    assert nu == pytest.approx(1.0)
    assert dimension == pytest.approx(float(deviation.square().sum()))
    clusters, size, samples = 3, 4, 40
    least = 8 * nu * dimension / samples
    centres = torch.zeros(clusters, 6, dtype=REAL)
    centres[1, 0], centres[2, 0] = separation, -separation
    farthest = 2 * separation
    for threshold in (least, max(least, separation**2 / 4)):
        found = Clusters(clusters, size, samples, separation, nu, dimension, threshold)
        rng = generator(0)
        inverse, bias, missed = [], [], []
        for _ in range(200):
            true, means = sample_means(centres, size, samples, deviation, rng)
            lam = found_weights(means, threshold)
            inverse.append(lam.square().sum(1).mean())
            bias.append((lam * torch.cdist(true, true).square()).sum(1).mean())
            same = torch.cdist(true, true) == 0
            missed.append((same & (lam == 0)).sum() / (same.sum() - len(true)))
        for values, bound in (
            (inverse, found.inverse_size),
            (bias, found.bias(farthest)),
            (missed, found.miss_chance),
        ):
            mean, error = mean_and_error(torch.stack(values).to(REAL))
            assert mean <= bound + error


@pytest.mark.parametrize("threshold", [2.0, 4.0])
def test_strangers_are_confused_less_often_than_the_bound_says(threshold):
    samples, nu = 4, 1.0
    rng = generator(0)
    first, second = torch.randn(2, 200_000, generator=rng) / math.sqrt(samples)
    for separation in (2 * math.sqrt(threshold), 3 * math.sqrt(threshold)):
        found = Clusters(2, 1, samples, separation, nu, 1.0, threshold)
        joined = (separation + first - second).square() <= threshold
        mean, error = mean_and_error(joined.double())
        assert mean <= found.confusion_chance + error


def test_the_exponent_of_theorem_8_4_is_for_one_mean_and_not_for_two():
    # Twenty even directions, S = 1: the squared distance of two means is 2 chi^2_20.
    d, rng = 20, generator(0)
    distance = 2 * torch.randn(200_000, d, generator=rng).square().sum(1)
    threshold = 4.0 * d  # the least that the theorem allows
    mean, error = mean_and_error((distance > threshold).double())
    share = 1 / 2 + mean / 2  # E[1 / N_i] in clusters of two
    for factor in (1, 2):  # printed, and what its proof counts
        assert share - error > 1 / 2 + factor * 2 * math.exp(-threshold / 8)
    with pytest.raises(InputError, match="`threshold` must be at least 160"):
        Clusters(2, 2, 1, 1.0, 1.0, float(d), threshold)


@pytest.mark.parametrize("d", [1, 5, 20, 100])
def test_the_chance_to_miss_one_s_like_is_below_its_bound_exactly(d):
    samples, nu = 3, 2.0
    for factor in (1.0, 2.0):
        threshold = factor * 8 * nu * d / samples
        found = Clusters(2, 5, samples, 1.0, nu, float(d), threshold)
        # The squared distance is 2 nu^2 / S times chi^2 of d degrees of freedom.
        half = torch.tensor([d / 2, threshold * samples / (2 * nu) / 2], dtype=REAL)
        missed = float(torch.special.gammaincc(half[0], half[1]))
        assert missed <= found.miss_chance
        assert found.miss_chance == pytest.approx(math.exp(-factor * d / 2))
        assert found.inverse_size == pytest.approx(min(1, 0.2 + 4 * found.miss_chance))
    # With the printed exponent and many directions not even this threshold is enough.
    if d == 100:
        half[1] /= 2
        exact = float(torch.special.gammaincc(half[0], half[1]))
        assert exact > 1e3 * math.exp(-8 * d / 8)


def test_the_bias_of_theorem_8_4_as_printed_misses_clusters_that_are_merged():
    # Two near clusters, infinitely many samples, and a threshold above their distance.
    separation, threshold = 0.1, 0.02
    found = Clusters(2, 1, 10**9, separation, 1.0, 1.0, threshold)
    centres = torch.tensor([[0.0], [separation]], dtype=REAL)
    lam = found_weights(centres, threshold)
    bias = float((lam * torch.cdist(centres, centres).square()).sum(1).mean())
    printed = 4 * threshold**2 if 2 * threshold >= separation else 0.0
    assert bias > printed == 0
    assert bias <= found.bias(separation)


def test_the_farthest_clusters_count_with_their_square_and_not_as_printed():
    # Far clusters that few samples confuse: their bias is a squared distance.
    farthest, threshold = 100.0, 2400.0
    found = Clusters(2, 1, 4, farthest, 625.0, 1.0, threshold)
    rng = generator(0)
    noise = torch.randn(2, 100_000, generator=rng, dtype=REAL) * 25 / 2
    joined = (farthest + noise[0] - noise[1]).square() <= threshold
    bias = joined.to(REAL) / 2 * farthest**2
    mean, error = mean_and_error(bias)
    # Its 2 u^2 would make the printed one smaller still.
    printed = 4 * farthest * math.exp(-4 * (farthest**2 - 2 * threshold) / (8 * 625))
    assert mean - error > printed
    assert mean <= found.bias(farthest) + error
    assert found.bias(farthest) == pytest.approx(farthest**2 * printed / 400)


def test_the_printed_effective_dimension_is_below_the_noise():
    d, samples = 50, 10
    covariance = torch.eye(d, dtype=REAL)
    nu, dimension = theory.noise_of(covariance)
    assert (nu, dimension) == pytest.approx((1.0, d))
    printed = float(torch.linalg.matrix_norm(covariance, 2)) / nu
    assert printed == pytest.approx(1.0)
    rng = generator(0)
    ones = torch.ones(d, dtype=REAL)
    _, means = sample_means(torch.zeros(1, d, dtype=REAL), 12, samples, ones, rng)
    alone = found_weights(means, 4 * nu * printed / samples)
    assert torch.equal(alone, torch.eye(12).double())
    together = found_weights(means, 8 * nu * dimension / samples)
    assert (together > 0).all()


def test_the_printed_threshold_merges_near_clusters():
    separation = 0.1
    centres = torch.tensor([[0.0], [separation]], dtype=REAL)
    assert (found_weights(centres, separation / 4) == 0.5).all()
    ours = found_weights(centres, theory.cluster_threshold(separation))
    assert torch.equal(ours, torch.eye(2).double())


@pytest.mark.parametrize("separation", [0.3, 2.0])
def test_the_samples_that_are_asked_for_put_the_threshold_above_the_noise(separation):
    known = {"noise": 1.5, "dimension": 4.0}
    samples = theory.cluster_samples(separation, **known)
    threshold = theory.cluster_threshold(separation)
    Clusters(3, 5, samples, separation, 1.5, 4.0, threshold)
    with pytest.raises(InputError, match="`threshold` must be at least"):
        Clusters(3, 5, samples - 1, separation, 1.5, 4.0, threshold)


def estimated_run(size, samples, calls, *, clusters=3, d=4, runs=40, separation=5.0):
    """Mean excess of All-for-all for means, in clusters that are found before."""
    rng = generator(size)
    centres = separation / math.sqrt(2) * torch.eye(clusters, d, dtype=REAL)
    ones = torch.ones(d, dtype=REAL)
    least = theory.cluster_threshold(separation)
    found = Clusters(clusters, size, samples, separation, 1.0, float(d), least)
    losses = LossClass(1.0, 1.0, float(d))
    start = separation**2 / 4  # of x = 0
    own = replace(losses, variance=d * found.inverse_size)
    lr = rates.sgd_step(start, calls, own)
    ends = []
    for _ in range(runs):
        true, means = sample_means(centres, size, samples, ones, rng)
        lam = found_weights(means, found.threshold)
        x = torch.zeros_like(true)
        step = lr / weights.spectral_radius(lam) * lam @ lam.T
        for _ in range(calls):
            g = x - true + torch.randn(x.shape, generator=rng, dtype=REAL)
            x = x - step @ g
        ends.append((x - true).square().sum(1).mean() / 2)
    bound = theory.estimated_bound(
        found, start, calls, losses, diameter=1.0, farthest=separation
    )
    return torch.stack(ends), bound


def test_all_for_all_in_found_clusters_obeys_theorem_8_4():
    for size in (2, 8):
        ends, bound = estimated_run(size, samples=20, calls=30)
        mean, error = mean_and_error(ends)
        assert mean <= bound + error


def test_with_few_samples_of_each_more_clients_are_worth_more_samples():
    # S and K stay, C grows fourfold twice: the error falls in proportion.
    small, middle, large = (
        float(estimated_run(size, samples=20, calls=30)[0].mean())
        for size in (2, 8, 32)
    )
    # Steps get longer with C, and their logarithm costs up to a quarter.
    assert small / middle == pytest.approx(4, rel=0.35)
    assert middle / large == pytest.approx(4, rel=0.35)
