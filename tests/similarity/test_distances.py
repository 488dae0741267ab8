"""Claims about distances between clients' data, against closed forms and loops."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch

from coterie import seeds
from coterie.checks import InputError
from coterie.similarity import distances
from coterie.similarity.distances import (
    median_distance,
    mmd_distances,
    moment_distances,
)
from coterie.similarity.projected import fourier_distances, sliced_distances
from coterie.similarity.samples import Samples
from coterie_theory.distances import exact_wasserstein
from support.refusals import refuses

REAL = torch.float64
SIZES = (7, 4, 9, 5, 8, 6)


def normal(*shape: int, name: str = "x", number: int = 0) -> torch.Tensor:
    rng = seeds.generator("tests", "distances", name, number)
    return torch.randn(*shape, generator=rng, dtype=REAL)


def pad_samples(samples: list[torch.Tensor]) -> Samples:
    """The samples of clients, each given as rows (size, d), in one table."""
    size = torch.tensor([len(rows) for rows in samples])
    return Samples(torch.nn.utils.rnn.pad_sequence(samples, batch_first=True), size)


def uneven(d: int = 3, least: int = 0) -> Samples:
    """Six clients with different numbers of samples, around different means."""
    rows = [normal(least + size, d, number=i) + i % 2 for i, size in enumerate(SIZES)]
    return pad_samples(rows)


def shifted_normals(shift: float, size: int, d: int, number: int) -> Samples:
    """Six standard normal clients, the second one shifted along the first axis."""
    values = normal(6, size, d, name="shifted", number=number)
    values[1, :, 0] += shift
    return Samples(values, torch.full((6,), size))


def mmd_of_shift(shift: float, d: int, h: float) -> float:
    """The squared discrepancy of N(0, I) and N(shift e_1, I)."""
    height = (h**2 / (h**2 + 2)) ** (d / 2)
    return 2 * height * (1 - math.exp(-(shift**2) / (2 * (h**2 + 2))))


def u_statistic(first, second, kernel) -> float:
    """The unbiased estimate as a loop over pairs of samples."""

    def mean_product(rows) -> float:
        pairs = list(permutations(range(len(rows)), 2))
        return sum(kernel(rows[s], rows[t]) for s, t in pairs) / len(pairs)

    cross = [kernel(z, other) for z in first for other in second]
    return mean_product(first) + mean_product(second) - 2 * sum(cross) / len(cross)


def gauss(h: float):
    return lambda z, other: math.exp(-float((z - other).square().sum()) / (2 * h**2))


ALL = {
    "means": moment_distances,
    "moments": lambda samples: moment_distances(samples, order=2),
    "mmd": lambda samples: mmd_distances(samples, bandwidth=1.5),
    "fourier": lambda samples: fourier_distances(samples, bandwidth=1.5),
    "sliced": sliced_distances,
}


@pytest.mark.parametrize(
    ("name", "kernel"),
    [
        ("means", lambda z, other: float(z @ other)),
        ("moments", lambda z, other: float((z[:, None] * z * other).sum(1) @ other)),
        ("mmd", gauss(1.5)),
    ],
)
def test_squared_distances_equal_a_loop_over_pairs_of_samples(name, kernel):
    samples = uneven()
    rows = [samples.values[i, :size] for i, size in enumerate(SIZES)]
    found = ALL[name](samples).squared
    for i in range(6):
        for j in range(6):
            expected = 0.0 if i == j else u_statistic(rows[i], rows[j], kernel)
            assert float(found[i, j]) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_second_moments_by_products_of_samples_equal_those_by_features(monkeypatch):
    samples = uneven()
    by_features = moment_distances(samples, order=2)
    monkeypatch.setattr(distances, "_BLOCK", 0.0)  # one client at a time, and products
    by_products = moment_distances(samples, order=2)
    torch.testing.assert_close(by_products, by_features)


@pytest.mark.parametrize("name", ALL)
def test_blocks_do_not_change_the_result(name, monkeypatch):
    samples = uneven(least=10)
    whole = ALL[name](samples)
    monkeypatch.setattr(distances, "_BLOCK", 400.0)
    torch.testing.assert_close(ALL[name](samples), whole)


@pytest.mark.parametrize("name", ALL)
def test_relabelling_clients_relabels_the_distances(name):
    samples = uneven(least=10)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    moved = ALL[name](Samples(samples.values[order], samples.size[order]))
    found = ALL[name](samples)
    torch.testing.assert_close(moved.squared, found.squared[order][:, order])
    torch.testing.assert_close(moved.error, found.error[order][:, order])


@pytest.mark.parametrize("name", ALL)
def test_distances_are_symmetric_and_zero_for_oneself(name):
    found = ALL[name](uneven(least=10))
    for matrix in found:
        torch.testing.assert_close(matrix, matrix.T)
        assert (matrix.diagonal() == 0).all()
    assert (found.error[~torch.eye(6, dtype=torch.bool)] > 0).all()


CASES = {
    "means": (moment_distances, lambda shift: shift**2),
    "moments": (lambda s: moment_distances(s, order=2), lambda shift: shift**4),
    "mmd": (ALL["mmd"], lambda shift: mmd_of_shift(shift, 3, 1.5)),
}


@pytest.mark.parametrize("shift", [0.0, 2.0])
@pytest.mark.parametrize("name", CASES)
def test_estimates_are_right_on_average_and_errors_cover(name, shift):
    estimate, exact = CASES[name]
    found = [estimate(shifted_normals(shift, 20, 3, number)) for number in range(120)]
    squared = torch.stack([f.squared[1, 0] for f in found])
    error = torch.stack([f.error[1, 0] for f in found])
    true = exact(shift)
    # Four standard errors of the mean of 120 estimates.
    assert float((squared.mean() - true).abs()) < 4 * float(squared.std()) / 120**0.5
    ratio = float(error.square().mean().sqrt() / squared.std())
    assert 0.85 < ratio < 1.3  # conservative where nothing differs
    # Below 95 percent, since squares are skewed, and fourth powers even more.
    assert ((squared - true).abs() < 1.96 * error).double().mean() > 0.85


def test_plain_distances_of_means_are_mostly_noise():
    found = [shifted_normals(0.0, 20, 3, number) for number in range(100)]
    plain = [s.values[0].mean(0) - s.values[2].mean(0) for s in found]
    mean = float(torch.stack(plain).square().sum(1).mean())
    assert mean == pytest.approx(2 * 3 / 20, rel=0.25)  # tr C_i / S + tr C_j / S


def test_frequencies_estimate_the_exact_discrepancy_within_their_error():
    found, exact = [], mmd_of_shift(2.0, 3, 1.5)
    for number in range(120):
        samples = shifted_normals(2.0, 20, 3, number)
        some = fourier_distances(samples, bandwidth=1.5, frequencies=50, seed=number)
        found.append(torch.stack([some.squared[1, 0], some.error[1, 0]]))
    squared, error = torch.stack(found).T
    assert float((squared.mean() - exact).abs()) < 4 * float(squared.std()) / 120**0.5
    assert 0.9 < float(error.square().mean().sqrt() / squared.std()) < 1.2
    # Without the part of the frequencies the error would be too small.
    alone = mmd_distances(shifted_normals(2.0, 20, 3, 0), bandwidth=1.5).error[1, 0]
    assert float(alone) < 0.9 * float(squared.std())


def test_many_frequencies_give_the_exact_estimate():
    samples = uneven()
    some = fourier_distances(samples, bandwidth=1.5, frequencies=20_000)
    exact = mmd_distances(samples, bandwidth=1.5)
    # Each frequency adds a number from 0 to 4; 20,000 of them an error below 0.014.
    torch.testing.assert_close(some.squared, exact.squared, rtol=0, atol=0.02)
    torch.testing.assert_close(some.error, exact.error, rtol=0.1, atol=0.02)


def test_the_variance_over_frequencies_is_that_of_a_loop():
    from coterie.similarity.projected import _variance_over_frequencies

    cosine, sine = normal(2, 4, 9)
    waves = torch.complex(cosine, sine)
    apart = (waves[:, None] - waves[None]).abs().square()
    expected = apart.var(2, unbiased=False)
    found = _variance_over_frequencies(torch.stack([cosine, sine]))
    torch.testing.assert_close(found, expected)


def test_in_one_dimension_slices_are_the_quantiles_of_folds():
    samples = Samples(normal(4, 20, 1), torch.full((4,), 20))
    ordered = samples.values[..., 0].view(4, 5, 4).sort(2).values / 2
    expected = moment_distances(Samples(ordered, torch.full((4,), 5)))
    torch.testing.assert_close(sliced_distances(samples), expected)


def test_slices_of_a_shift_are_its_mean_square_over_directions():
    values, shift = normal(2, 500, 3), torch.tensor([3.0, 0, 0], dtype=REAL)
    values[1] = values[0] + shift  # the same samples, so that quantiles move alike
    samples = Samples(values, torch.full((2,), 500))
    found = sliced_distances(samples, projections=2000)
    # On the sphere in three dimensions the mean of cos^2 is 1/3. The noise that is
    # taken off is that of independent samples; 2000 directions leave 2 percent.
    assert float(found.squared[0, 1]) == pytest.approx(9 / 3, abs=0.15)


@pytest.mark.parametrize("sizes", [(40, 40), (40, 120)])
def test_slices_of_equal_clients_are_zero_within_their_error(sizes):
    found = []
    for number in range(60):
        rows = [
            normal(size, 2, name=f"{j}", number=number) for j, size in enumerate(sizes)
        ]
        found.append(sliced_distances(pad_samples(rows), projections=10).squared[0, 1])
    squared = torch.stack(found)
    bias = float(squared.mean()) / float(squared.std())
    # With equal sizes nothing is left; with others folds of 8 and 24 differ a little.
    assert abs(bias) < (4 / 60**0.5 if sizes[0] == sizes[1] else 1.0)


def test_slices_see_a_spread_that_means_do_not():
    values = normal(4, 200, 2)
    values[2:] *= 2
    samples = Samples(values, torch.full((4,), 200))
    found = sliced_distances(samples)
    assert float(found.squared[0, 2]) > 5 * float(found.error[0, 2])
    assert float(found.squared[0, 1]) < 3 * float(found.error[0, 1])
    means = moment_distances(samples)
    assert float(means.squared[0, 2]) < 3 * float(means.error[0, 2])


def test_exact_wasserstein_of_a_shift_is_its_length():
    values = normal(1, 30, 2).repeat(3, 1, 1)
    values[1] += torch.tensor([3.0, 4.0])
    values[2, :, 0] -= 1
    found = exact_wasserstein(Samples(values, torch.full((3,), 30)))
    assert float(found[0, 1]) == pytest.approx(5)
    assert float(found[0, 2]) == pytest.approx(1)
    torch.testing.assert_close(found, found.T)


def test_exact_wasserstein_in_one_dimension_is_that_of_sorted_samples():
    values = normal(3, 25, 1)
    rising = values[..., 0].sort(1).values
    expected = (rising[:, None] - rising[None]).abs().mean(2)
    found = exact_wasserstein(Samples(values, torch.full((3,), 25)))
    torch.testing.assert_close(found, expected)


def test_the_median_distance_is_that_of_all_pairs():
    samples = uneven()
    rows = torch.cat([samples.values[i, :size] for i, size in enumerate(SIZES)])
    expected = torch.nn.functional.pdist(rows).median()
    assert median_distance(samples) == pytest.approx(float(expected))
    same = Samples(torch.ones(2, 5, 3), torch.tensor([5, 5]))
    assert median_distance(same) == 1.0


def test_single_precision_is_good_enough():
    samples = uneven(least=10)
    single = samples._replace(values=(samples.values + 100).float())
    for name in ("means", "mmd", "sliced"):  # second moments are about the origin
        found, exact = ALL[name](single), ALL[name](samples)
        assert found.squared.dtype == torch.float32
        torch.testing.assert_close(
            found.squared.double(), exact.squared, rtol=1e-3, atol=1e-4
        )


@pytest.mark.parametrize("name", ["means", "moments", "mmd", "fourier"])
def test_too_few_samples_are_refused(name):
    few = pad_samples([normal(5, 2), normal(3, 2)])
    refuses("4 of every client, but client 1 has 3", ALL[name], few)


def test_bad_input_is_refused():
    samples = uneven()
    refuses(r"10 of every client .* client 1 has 4", sliced_distances, samples)
    refuses("`order` must be at most 2, got 3", moment_distances, samples, order=3)
    refuses("`bandwidth` must be greater than 0", mmd_distances, samples, bandwidth=0.0)
    with pytest.raises(InputError, match="`frequencies` must be at least 2"):
        fourier_distances(samples, frequencies=1)
    refuses("`folds` must be at least 4", sliced_distances, samples, folds=2)
    with pytest.raises(InputError, match="`clients` must be at most 64, got 65"):
        exact_wasserstein(Samples(torch.zeros(65, 4, 1), torch.full((65,), 4)))
    bad = samples._replace(values=samples.values.clone())
    bad.values[2, 0, 0] = torch.nan
    refuses("`samples` must be finite, but row 2", moment_distances, bad)
