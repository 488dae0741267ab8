"""Claims about mean features that clients tell with noise, to choose partners by."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.data import divide, load
from coterie.privacy.accounting.accounts import by_pairs, totals
from coterie.privacy.mechanisms.partners import (
    FEATURES,
    PARTNERS,
    PartnerMechanism,
    private_distances,
    private_weights,
)
from coterie.seeds import generator
from coterie.similarity.samples import samples_of


@pytest.fixture(scope="module")
def digits():
    """Which odd clients name differently."""
    return divide(load("digits"), "label_swap", seed=0, clients=4)


def told(federation, most=100, noise=0.0, *, seed=0, name="mmd", unit="sample"):
    """Mean features of at most so many samples, with so much noise."""
    return PartnerMechanism(unit, noise, seed).private_means(name, federation, most)


def test_what_is_told_without_noise_are_means_of_two_halves(digits):
    means = told(digits, 101)
    known = samples_of(digits, scale=8.0)  # the root of 64 pixels
    for i in range(len(digits)):
        for half in (0, 1):
            part = known.values[i, 50 * half : 50 * half + 50] / 8
            mean = sum(FEATURES["mmd"](z[None])[0] for z in part) / 50
            assert_close(means[i, half], mean.double(), rtol=0, atol=1e-6)  # float32


@pytest.mark.parametrize("name", FEATURES)
def test_no_sample_counts_for_more_than_one(name):
    rng = generator("norms")
    lengths = 10.0 ** torch.linspace(-6, 6, 200)
    z = torch.randn(200, 5, generator=rng) * lengths[:, None]
    norms = FEATURES[name](z).norm(dim=1)
    assert float(norms.max()) <= 1 + 1e-6  # float32


@pytest.mark.parametrize("name", ["means", "moments", "mmd", "unlabelled_mmd"])
def test_one_sample_and_one_client_move_what_is_told_as_far_as_is_said(digits, name):
    before = told(digits, 20, name=name)
    changed = digits.features.clone()
    mine = digits.train.rows(torch.tensor([2]))[0][0]
    changed[mine] = 1e4 * torch.randn(changed[mine].shape, generator=generator("away"))
    moved = told(replace(digits, features=changed), 20, name=name) - before
    assert float(moved[[0, 1, 3]].abs().max()) == 0.0
    assert 0.1 < float(moved[2].norm()) <= 2 * math.sqrt(2)
    # A half is a mean of 10 vectors of norm 1 at most, so that one without a sample
    # moves by a tenth.
    for j in mine.tolist():
        one = digits.features.clone()
        one[j] = 1e4
        moved = told(replace(digits, features=one), 20, name=name) - before
        assert float(moved[2].norm()) <= 2 / 10 + 1e-6  # from one to another: twice it


@pytest.mark.parametrize(("unit", "move"), [("sample", 1 / 50), ("client", 8**0.5)])
def test_noise_has_the_promised_scale_in_every_coordinate(digits, unit, move):
    plain = told(digits, unit=unit)
    noises = [told(digits, 100, 3.0, seed=k, unit=unit) - plain for k in range(20)]
    drawn = torch.stack(noises).double() / (3.0 * move)
    # A variance of k draws has the standard error sqrt(2 / k).
    assert float(drawn.var()) == pytest.approx(1, abs=5 * (2 / drawn.numel()) ** 0.5)
    halves = drawn.unbind(2)
    common = float((halves[0] * halves[1]).mean())
    assert abs(common) < 5 / halves[0].numel() ** 0.5
    one, again = (told(digits, 100, 3.0, seed=7, unit=unit) for _ in range(2))
    assert torch.equal(one, again)


def test_distances_are_right_on_average_whatever_the_noise(digits):
    plain = private_distances(told(digits))
    found, errors = [], []
    for seed in range(300):
        noisy = private_distances(told(digits, 100, 4.0, seed=seed))
        found.append(noisy.squared)
        errors.append(noisy.error)
    squared = torch.stack(found)
    spread = squared.std(0)
    apart = ~torch.eye(len(digits), dtype=torch.bool)
    off = (squared.mean(0) - plain.squared)[apart] / (spread[apart] / 300**0.5)
    assert float(off.abs().max()) < 4  # twelve pairs, in standard errors
    # What is said of the error is what noise makes of it, for most of them.
    said = torch.stack(errors).square().mean(0).sqrt()[apart]
    assert 0.8 < float((said / spread[apart]).mean()) < 1.6


def test_errors_are_right_where_clients_have_very_different_noise(digits):
    """For pairs with a client of few samples, and for pairs without one."""
    part = digits.train
    few = part._replace(size=torch.cat([part.size[:3], torch.tensor([6])]))
    uneven = replace(digits, train=few)
    found = [private_distances(told(uneven, 300, 2.0, seed=k)) for k in range(200)]
    spread = torch.stack([d.squared for d in found]).std(0)
    said = torch.stack([d.error for d in found]).square().mean(0).sqrt()
    apart = ~torch.eye(4, dtype=torch.bool)
    ratio = (said / spread)[apart]
    # Never too small; 2 d'S d is bounded, and drawing samples adds to what noise does.
    assert float(spread[0, 3] / spread[0, 1]) > 100
    assert 0.9 < float(ratio.min()) and float(ratio.max()) < 4
    assert torch.equal(found[0].error, found[0].error.T)


def test_samples_that_are_too_large_count_as_nothing(digits):
    huge = digits.features.clone()
    index, _ = digits.train.rows(torch.tensor([1]))
    huge[index[0]] = torch.inf
    means = told(replace(digits, features=huge), 40)
    assert torch.equal(means[1], torch.zeros_like(means[1]))
    assert bool(means.isfinite().all())


def test_a_client_of_one_sample_has_no_halves(digits):
    one = digits.train._replace(size=torch.tensor([9, 9, 1, 9]))
    with pytest.raises(InputError, match=r"two training samples .* client 2 has 1"):
        told(replace(digits, train=one), 40, 1.0, name="means")


def test_pairs_of_many_clients_are_not_listed():
    (event,) = PartnerMechanism("client", 2.0, 0).releases(201)
    assert event.links.shape == (402, 2)
    assert totals([event], 201).tolist() == [0.25] * 201
    assert bool((event.links[:, 0] != event.links[:, 1]).all())


def test_distances_are_products_of_differences(digits):
    means = told(digits, 60, 0.1, seed=3, name="means", unit="client").double()
    found = private_distances(means).squared
    for i in range(4):
        for j in range(4):
            first, second = means[i] - means[j]
            assert_close(found[i, j], first @ second)


def test_those_who_name_alike_are_found_with_little_noise(digits):
    found = private_weights("mmd", digits, 400, PartnerMechanism("sample", 0.5, 1))
    assert (found > 0).tolist() == [
        [(i + j) % 2 == 0 for j in range(4)] for i in range(4)
    ]
    assert_close(found.sum(1), torch.ones(4, dtype=found.dtype))


def test_much_noise_leaves_no_gap_and_says_so(digits):
    noisy = PartnerMechanism("client", 3.0, 1)
    with pytest.raises(InputError, match=r"no gap.*`privacy\.partners` is the share"):
        private_weights("mmd", digits, 400, noisy)
    alone = private_weights("mmd", digits, 400, noisy, 1e-9)
    assert torch.equal(alone, torch.eye(4, dtype=alone.dtype))


def test_it_is_one_release_that_everybody_may_know():
    (event,) = PartnerMechanism("client", 2.0, 0).releases(3)
    assert event.verb == PARTNERS and event.round == 0
    assert totals([event], 3).tolist() == [0.25] * 3  # (1 / 2)^2
    expected = [[0.0 if i == j else 0.25 for j in range(4)] for i in range(3)]
    assert by_pairs([event], 3).tolist() == expected


def test_quantiles_are_no_features(digits):
    with pytest.raises(InputError, match="must be one of means, mmd, moments"):
        told(digits, 40, 1.0, name="sliced")
