"""Claims about what held-out samples say: t values, and who uses what."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from coterie.collaboration.evidence import (
    TEMPERATURES,
    bound_losses,
    calibrate_losses,
    choices,
    surely_above_zero,
    temper_losses,
)
from support.calibrations import calibrated_mean

REAL = torch.float64
EXACT = {"rtol": 1e-10, "atol": 1e-12}
SIZES = [5, 1, 3, 0, 7]


def drawn(sizes, models=3, seed=0) -> list[np.ndarray]:
    """Losses (models, samples) of each client, in which samples are hard for all."""
    rng = np.random.default_rng(seed)
    return [rng.normal(size=(models, n)) + 3 * rng.normal(size=n) for n in sizes]


def padded(losses) -> torch.Tensor:
    """In one tensor, NaN behind the samples of each client."""
    longest = max(some.shape[1] for some in losses)
    out = torch.full((len(losses), len(losses[0]), longest), math.nan, dtype=REAL)
    for row, some in zip(out, losses, strict=True):
        row[:, : some.shape[1]] = torch.from_numpy(some)
    return out


def chosen_by_loops(losses) -> list[int]:
    """The formula of `choices` for one client after the other."""
    clients, models = range(len(losses)), range(len(losses[0]))
    mean = [np.mean([losses[i][k].mean() for i in clients]) for k in models]
    return [
        min(models, key=lambda k: losses[i][k].sum() + 30 * mean[k]) for i in clients
    ]


def means(losses) -> torch.Tensor:
    return torch.tensor(
        [[k.mean() if k.size else 0.0 for k in some] for some in losses], dtype=REAL
    )


def chosen(losses) -> torch.Tensor:
    """What everybody chooses where all tell their mean losses, who have any."""
    found, samples = means(losses), (~padded(losses)[:, 0].isnan()).sum(1).to(REAL)
    everybody = found[samples > 0].mean(0).expand_as(found)
    return choices(found, samples, everybody)


def test_choices_are_those_of_plain_loops():
    everything = set()
    for seed in range(12):
        rng = np.random.default_rng(100 + seed)
        losses = drawn(rng.integers(1, 15, 8), 3, seed)
        # Clients whose models differ, by more and less than their noise.
        losses = [s + seed * rng.normal(size=(3, 1)) for s in losses]
        assert chosen(losses).tolist() == chosen_by_loops(losses)
        everything |= set(chosen_by_loops(losses))
    assert everything == {0, 1, 2}


def test_everybody_chooses_by_what_it_was_told_itself():
    """Who was away has older means of all; with no samples they alone decide."""
    losses = torch.tensor([[1.0, 2.0], [1.0, 2.0], [0.0, 0.0]])
    samples = torch.tensor([10.0, 10.0, 0.0])
    everybody = torch.tensor([[5.0, 5.0], [5.0, 4.6], [5.0, 4.6]])
    assert choices(losses, samples, everybody).tolist() == [0, 1, 1]
    # Its own 10 * 1 are less than 30 * 0.4; three samples more, or 30 * 0.3, turn it.
    assert choices(losses, samples + 3, everybody).tolist()[:2] == [0, 0]
    closer = everybody + torch.tensor([0.0, 0.1])
    assert choices(losses, samples, closer).tolist() == [0, 0, 1]


def test_ties_go_to_the_first_and_losses_without_samples_do_not_count():
    alike = torch.ones(2, 3)
    assert choices(alike, torch.tensor([4.0, 0.0]), alike).tolist() == [0, 0]
    lost = torch.tensor([[torch.nan, torch.inf, 1.0]])
    told = torch.tensor([[2.0, 1.0, 3.0]])
    assert choices(lost, torch.zeros(1), told).tolist() == [1]


def made(gaps, samples, noise=1.0, seed=0) -> list[np.ndarray]:
    """Two models; the first, alone, is worse by gaps[i], and as its samples say."""
    rng = np.random.default_rng(seed)
    found = []
    for gap, n in zip(gaps, samples, strict=True):
        d = rng.normal(size=n)
        d = gap + noise * (d - d.mean()) if n > 1 else np.full(n, gap)
        found.append(np.stack([2 + d, np.full(n, 2.0)]))
    return found


@pytest.mark.parametrize("gap", [-1.0, 1.0])
def test_where_clients_do_not_differ_all_do_what_is_best_on_the_whole(gap):
    """By less than their noise: also who has few samples that say the contrary."""
    gaps = gap + np.array([0.3, -0.3, 0.1, -0.1, -1.2 * gap])
    best = 0 if gap < 0 else 1
    assert chosen(made(gaps, [10, 10, 10, 10, 2], noise=3.0)).tolist() == [best] * 5
    # Who has no samples follows the others.
    some = made([gap, gap, gap, -gap], [9, 9, 9, 0], noise=0.5)
    assert chosen(some).tolist() == [best] * 4


@pytest.mark.parametrize(
    ("gaps", "samples"),
    [([-1.0, 1.0, -0.1, 0.1, 0.5, -0.5], 10_000), ([-0.2], 9), ([0.2], 9)],
    ids=["many samples", "alone", "alone and worse"],
)
def test_with_many_samples_or_alone_clients_have_what_is_best_for_them(gaps, samples):
    found = chosen(made(gaps, [samples] * len(gaps)))
    assert found.tolist() == [int(gap > 0) for gap in gaps]


@pytest.mark.parametrize(("gap", "best"), [(-3.2, 0), (-3.1, 1)])
def test_a_client_leaves_others_where_its_samples_outweigh_what_they_gain(gap, best):
    """Nine that gain 1 and one of n = 9: 9 gap + 30 (9 + gap) / 10 = 0 at -27 / 12."""
    gaps = [1.0] * 9 + [gap + 3.15 - 2.25]
    assert chosen(made(gaps, [9] * 10)).tolist() == [1] * 9 + [best]


def test_bounded_losses_scale_with_their_bound_and_none_is_above_it():
    most = torch.tensor([[0.5], [2.0], [3e6]], dtype=REAL)
    parts = torch.tensor([0.0, 5e-7, 1e-4, 0.5, 1.0, 1.5, 1e9, torch.inf], dtype=REAL)
    found = bound_losses(parts * most, most)
    assert_close(found, -most * torch.expm1(-parts), rtol=1e-12, atol=0)
    assert (found <= most).all() and (found[:, :7].diff() > 0).all()
    # Where nothing is known of a usual loss, no loss counts.
    assert (bound_losses(parts[None, :7], 0 * most) <= torch.finfo(REAL).tiny).all()


def simulated(truth, samples, rng):
    """What clients choose, where each has so many samples of noise 1."""
    losses = [np.zeros((2, samples)) for _ in truth]
    for some, gap in zip(losses, truth, strict=True):
        some[0] = gap + rng.normal(size=samples)
    return chosen(losses).numpy()


@pytest.mark.parametrize("mean", [-0.5, -0.2, 0.2, 0.5])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.0])
def test_choices_lose_little_against_the_best_single_one(mean, spread):
    """At most a standard error of what twenty clients of eight samples say together.

    Differences of models have a standard deviation of 1; so this is 1 / sqrt(160).
    """
    rng = np.random.default_rng(0)
    regrets = []
    for _ in range(30):
        truth = mean + spread * rng.normal(size=20)
        choice = simulated(truth, 8, rng)
        loss = np.where(choice == 0, truth, 0.0).mean()
        regrets.append(loss - min(truth.mean(), 0.0))
    assert np.mean(regrets) < 1 / math.sqrt(160)
    # Where clients differ, by more than they agree, it is better than any single one.
    if spread > 2 * abs(mean):
        assert np.mean(regrets) < (-0.1 if spread == 1.0 else 0.01)


@pytest.mark.parametrize("sign", [-1, 1])
def test_a_client_that_differs_strongly_is_let_go(sign):
    rng = np.random.default_rng(1)
    truth = sign * np.array([1.0] * 9 + [-3.0])
    choice = np.stack([simulated(truth, 12, rng) for _ in range(40)])
    best = np.where(truth < 0, 0, 1)
    assert (choice[:, -1] == best[-1]).mean() > 0.95
    assert (choice[:, :-1] == best[:-1]).mean() > 0.9


def test_few_samples_are_as_sure_as_students_distribution_says():
    """Wallace's formula is within 3 per cent from three samples on."""
    rng = torch.Generator().manual_seed(0)
    for m in (3, 5, 10, 40):
        d = torch.randn(50, m, generator=rng, dtype=torch.float64) + 0.5
        samples = torch.full((50,), float(m), dtype=torch.float64)
        found = surely_above_zero(samples, d.sum(1), d.square().sum(1))
        t = d.mean(1) / (d.std(1) / m**0.5)
        exact = stats.norm.isf(stats.t.sf(t.numpy(), m - 1))
        assert_close(found, torch.from_numpy(exact), rtol=0.03, atol=1e-6)


def test_nothing_is_sure_of_one_sample_or_of_none_that_differs():
    one = torch.ones(1, dtype=torch.float64)
    assert float(surely_above_zero(one, one, one)) == 0
    assert float(surely_above_zero(0 * one, 0 * one, 0 * one)) == 0
    assert float(surely_above_zero(9 * one, 0 * one, 0 * one)) == 0
    # Samples that all say the same are sure beyond any limit in use, and finite.
    assert 10 < float(surely_above_zero(9 * one, 9 * one, 9 * one)) < torch.inf


def test_losses_with_noise_below_0_stay_as_they_are_for_their_client_alone():
    losses = torch.tensor([[[0.5, 3.0], [1.0, 2.0]], [[0.5, 3.0], [-1.0, 2.0]]])
    found = bound_losses(losses, torch.ones(2, 1, 1))
    assert torch.equal(found[1], losses[1])
    torch.testing.assert_close(found[0], 1 - torch.exp(-losses[0]))
    unknown = torch.tensor([[[torch.nan, 1.0]]])
    assert bound_losses(unknown, torch.ones(1, 1, 1)).isnan().tolist() == [
        [[True, False]]
    ]


# Calibrated losses.


def surer(losses, times):
    """Losses of a model whose odds for the right answer are taken to this power."""
    return np.log1p(np.expm1(losses) ** times)


def test_calibrated_losses_are_those_of_plain_loops():
    losses = [np.abs(some) for some in drawn(SIZES)]
    usual = torch.tensor([0.5, 1.0, 2.0, 1.0, 0.1], dtype=REAL)
    found = calibrate_losses(padded(losses), usual[:, None, None]).nanmean(2)
    for i, some in enumerate(losses):
        if some.size:
            wanted = [calibrated_mean(one, usual[i]) for one in some]
            assert_close(found[i], torch.tensor(wanted, dtype=REAL), **EXACT)
    assert found[3].isnan().all()  # a client without samples


@pytest.mark.parametrize("times", [0.5, 2.0])
def test_a_model_that_is_right_as_often_is_as_good_however_sure_it_is(times):
    """With many samples, bounds that hardly matter, and a model rightly sure."""
    rng = np.random.default_rng(3)
    chance = rng.uniform(0.5, 1, 20_000)
    right = rng.uniform(size=chance.shape) < chance
    honest = -np.log(np.where(right, chance, 1 - chance))
    both = torch.from_numpy(np.stack([honest, surer(honest, times)]))[None]
    usual = torch.full((1, 1, 1), 20.0)
    plain = bound_losses(both, usual / 2).mean(2)[0]
    found = calibrate_losses(both, usual).mean(2)[0]
    assert_close(found[1], found[0], rtol=1e-6, atol=0)
    assert float(plain[1] - plain[0]) > 0.02


def test_a_temperature_of_1_changes_no_loss():
    losses = torch.tensor([0.0, 1e-3, 0.7, 30.0, 800.0, math.inf], dtype=REAL)
    assert_close(temper_losses(losses, 1.0), losses, **EXACT)


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_tempered_losses_keep_their_order_and_what_is_right_or_lost(temperature):
    losses = torch.tensor([0.0, 0.1, math.log(2), 3.0, math.inf], dtype=REAL)
    found = temper_losses(losses, temperature)
    assert (found.diff() > 0).all()
    # Right, as likely as not, and lost.
    assert_close(found[[0, 2, 4]], losses[[0, 2, 4]], **EXACT)


def test_a_loss_that_counts_for_more_than_half_of_a_usual_one_is_never_found():
    losses = torch.tensor([[[0.1, 50.0, math.inf]]], dtype=REAL)
    assert float(calibrate_losses(losses, 2 * torch.ones(1, 1, 1)).max()) <= 1


def test_losses_with_noise_stay_as_they_are():
    losses = torch.tensor([[[-0.2, 0.9, 0.1]], [[0.2, 0.9, 0.1]]], dtype=REAL)
    found = calibrate_losses(losses, torch.ones(2, 1, 1))
    assert torch.equal(found[0], losses[0])
    assert not torch.equal(found[1], losses[1])
