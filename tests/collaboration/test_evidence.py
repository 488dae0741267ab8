"""Claims about what held-out samples say: moments, t values, and who uses what."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.testing import assert_close

from coterie.collaboration.evidence import (
    Moments,
    best_on_the_whole,
    bounded,
    cautious_choices,
    choices,
    differences,
    moments,
    surely_above_zero,
    surely_better,
    unflat,
)

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


def test_moments_are_sums_over_the_samples_there_are():
    losses = drawn(SIZES)
    found = moments(padded(losses))
    assert found.samples.tolist() == SIZES
    for i, some in enumerate(losses):
        assert_close(found.sums[i], torch.from_numpy(some.sum(1)), **EXACT)
        for k in range(3):
            for m in range(3):
                square = float(((some[k] - some[m]) ** 2).sum())
                assert float(found.squares[i, k, m]) == pytest.approx(square)


def test_single_precision_is_summed_in_double():
    losses = padded(drawn([400])).float()
    found = moments(losses)
    assert found.sums.dtype == REAL
    assert_close(found.sums, losses.double().sum(2), **EXACT)


def test_a_row_of_numbers_gives_the_moments_back():
    there = moments(padded(drawn(SIZES)))
    back = unflat(there.flat(), 3)
    assert there.flat().shape == (5, 1 + 3 + 9)
    for one, other in zip(there, back, strict=True):
        assert torch.equal(one, other)


def test_pooled_moments_are_those_of_all_samples_together():
    losses = drawn(SIZES)
    members = torch.tensor([True, False, True, True, True])
    together = np.concatenate([losses[i] for i in (0, 2, 3, 4)], axis=1)
    found = moments(padded(losses)).pooled(members)
    for one, other in zip(found, moments(padded([together])), strict=True):
        assert_close(one, other, **EXACT)


def test_squares_are_those_of_differences_around_their_mean():
    losses = drawn(SIZES)
    total, around = differences(moments(padded(losses)), 0, 2)
    for i, some in enumerate(losses):
        d = some[0] - some[2]
        spread = ((d - d.mean()) ** 2).sum() if len(d) else 0.0
        assert float(total[i]) == pytest.approx(d.sum())
        assert float(around[i]) == pytest.approx(spread, abs=1e-10)


def test_how_surely_a_model_is_better_is_a_paired_t_value():
    losses = drawn(SIZES)
    together = np.concatenate(losses, axis=1)
    found = moments(padded(losses))
    for model, than in [(0, 1), (1, 0), (2, 0)]:
        expected = stats.ttest_rel(together[than], together[model]).statistic
        assert surely_better(found, model, than) == pytest.approx(expected)


def test_moments_in_single_precision_tell_small_differences():
    """As they travel where models are in single precision."""
    rng = np.random.default_rng(3)
    losses = [2 + rng.normal(size=(2, 40))]
    losses[0][1] = losses[0][0] + 1e-4 * rng.normal(size=40)
    row = moments(padded(losses)).flat().float().double()
    expected = stats.ttest_rel(losses[0][1], losses[0][0]).statistic
    assert surely_better(unflat(row, 2), 0, 1) == pytest.approx(expected, abs=0.05)


@pytest.mark.parametrize("sizes", [[0], [1], [1, 0]])
def test_without_two_samples_nothing_is_sure(sizes):
    assert surely_better(moments(padded(drawn(sizes))), 0, 1) == 0.0


def test_without_differences_nothing_is_sure():
    alike = padded(drawn([4, 3]))[:, :1].repeat(1, 2, 1)
    assert surely_better(moments(alike), 0, 1) == 0.0


def test_the_best_on_the_whole_has_the_least_sum_and_ties_go_to_the_first():
    losses = drawn(SIZES)
    means = np.concatenate(losses, axis=1).mean(1)
    found = moments(padded(losses))
    assert best_on_the_whole(found, [0, 1, 2]) == means.argmin()
    assert best_on_the_whole(found, [2, 0]) == (2 if means[2] < means[0] else 0)
    assert best_on_the_whole(found, [1, 1]) == 1
    alike = Moments(*(torch.zeros_like(part) for part in found))
    assert best_on_the_whole(alike, [2, 1]) == 2


def chosen_by_loops(losses) -> list[int]:
    """The formula of `choices` for one client after the other."""
    clients, models = range(len(losses)), range(len(losses[0]))
    mean = [np.mean([losses[i][k].mean() for i in clients]) for k in models]
    return [
        min(models, key=lambda k: losses[i][k].sum() + 30 * mean[k]) for i in clients
    ]


def means(losses) -> torch.Tensor:
    return torch.tensor(
        [[k.mean() if k.size else 0.0 for k in some] for some in losses]
    )


def chosen(losses) -> torch.Tensor:
    return choices(means(losses), moments(padded(losses)).samples)


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
    losses = made(gaps, [10, 10, 10, 10, 2], noise=3.0)
    found = chosen(losses)
    assert found.tolist() == [0 if gap < 0 else 1] * 5


def test_with_many_samples_everybody_has_what_is_best_for_itself():
    gaps = np.array([-1.0, 1.0, -0.1, 0.1, 0.5, -0.5])
    losses = made(gaps, [10_000] * 6)
    found = chosen(losses)
    assert found.tolist() == [0, 1, 0, 1, 1, 0]


@pytest.mark.parametrize("gap", [-1.0, 1.0])
def test_who_has_no_samples_follows_the_others(gap):
    losses = made([gap, gap, gap, -gap], [9, 9, 9, 0], noise=0.5)
    found = chosen(losses)
    assert found.tolist() == [0 if gap < 0 else 1] * 4


@pytest.mark.parametrize(("gap", "best"), [(-0.2, 0), (0.2, 1)])
def test_one_client_by_itself_uses_the_better_model(gap, best):
    assert chosen(made([gap], [9])).tolist() == [best]


@pytest.mark.parametrize(("gap", "best"), [(-3.2, 0), (-3.1, 1)])
def test_a_client_leaves_others_where_its_samples_outweigh_what_they_gain(gap, best):
    """Nine that gain 1 and one of n = 9: 9 gap + 30 (9 + gap) / 10 = 0 at -27 / 12."""
    gaps = [1.0] * 9 + [gap + 3.15 - 2.25]
    assert chosen(made(gaps, [9] * 10)).tolist() == [1] * 9 + [best]


def test_losses_count_in_units_of_ones_own_bound_and_none_above_it():
    unit = torch.tensor([[0.5], [3e6]])
    losses = torch.tensor([0.0, 1e-4, 1.0, 1e9]) * unit
    wanted = 1 - torch.exp(-torch.tensor([0.0, 1e-4, 1.0, 1e9]))
    assert_close(bounded(losses, unit), wanted.expand(2, 4))


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


def test_a_cautious_client_leaves_the_better_shared_model_only_where_it_is_sure():
    spread = torch.tensor([-1.0, 1.0] * 50, dtype=torch.float64)
    base = torch.full((100,), 5.0, dtype=torch.float64)

    def chosen(gain):
        own = base - gain + spread  # 0.1 is one standard error
        return int(cautious_choices(moments(torch.stack([own, base + 9, base])[None])))

    assert [chosen(gain) for gain in (-0.3, 0.0, 0.08, 0.12)] == [2, 2, 2, 0]


def test_bounded_losses_keep_their_order_small_ones_and_a_bound():
    most = torch.tensor([[2.0]], dtype=torch.float64)
    losses = torch.tensor([[0.0, 1e-6, 1.0, 3.0, 1e9]], dtype=torch.float64)
    found = bounded(losses, most)[0]
    assert (found.diff() > 0).all()
    # 1 - e^(-l / c) = l / c - (l / c)^2 / 2 + ..., and 1 where the loss is far above.
    ends = torch.tensor([0.0, 0.5e-6 - 0.125e-12, 1.0], dtype=torch.float64)
    torch.testing.assert_close(found[[0, 1, 4]], ends, rtol=1e-12, atol=0)
    # Where nothing is known of a usual loss, no loss counts.
    assert not bounded(losses, 0 * most).any()


def test_losses_with_noise_below_0_stay_as_they_are_for_their_client_alone():
    losses = torch.tensor([[[0.5, 3.0], [1.0, 2.0]], [[0.5, 3.0], [-1.0, 2.0]]])
    found = bounded(losses, torch.ones(2, 1, 1))
    assert torch.equal(found[1], losses[1])
    torch.testing.assert_close(found[0], 1 - torch.exp(-losses[0]))
    unknown = torch.tensor([[[torch.nan, 1.0]]])
    assert bounded(unknown, torch.ones(1, 1, 1)).isnan().tolist() == [[[True, False]]]
