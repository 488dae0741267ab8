"""Claims about effective dimensions and how far empirical means are off."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.data import load
from coterie_theory.curvature.concentration import (
    covering_directions,
    effective_dimension,
    norm_bound,
    product_deviation,
    tensor_deviation,
)
from support.refusals import refuses

REAL = torch.float64


def spectrum(d: int, decay: float) -> torch.Tensor:
    return torch.arange(1, d + 1, dtype=REAL) ** -decay


def test_one_direction_counts_one_and_equal_ones_count_all():
    one = torch.outer(torch.arange(1.0, 4.0), torch.arange(1.0, 4.0))
    for r in (1, 2, 3):
        assert effective_dimension(torch.eye(5), r) == pytest.approx(5)
    assert effective_dimension(one.double()) == pytest.approx(1)


def test_the_dimension_is_a_trace_over_a_norm_and_has_no_unit():
    rng = torch.Generator().manual_seed(0)
    root = torch.randn(6, 6, generator=rng, dtype=REAL)
    sigma = root @ root.T
    values, vectors = torch.linalg.eigh(sigma)
    for r in (1, 3):
        power = vectors @ values.pow(1 / r).diag() @ vectors.T
        expected = float(power.trace() / torch.linalg.matrix_norm(power, 2))
        assert effective_dimension(sigma, r) == pytest.approx(expected)
        assert effective_dimension(9 * sigma, r) == pytest.approx(expected)


def test_dimensions_grow_with_r_up_to_the_number_of_columns():
    found = [effective_dimension(spectrum(50, 1.0), r) for r in (1, 2, 3, 100)]
    assert found == sorted(found) and found[0] > 1 and found[-1] < 50
    # The dimensions of the reference's experiment: 4.5 and 19.5, and 1.6 and 8.6.
    assert found[0] == pytest.approx(4.5, abs=0.05)
    assert found[2] == pytest.approx(19.5, abs=0.05)
    assert effective_dimension(spectrum(50, 2.0)) == pytest.approx(1.6, abs=0.05)
    assert effective_dimension(spectrum(50, 2.0), 3) == pytest.approx(8.6, abs=0.05)


def test_handwritten_digits_have_few_dimensions():
    """The thesis quotes less than 3 for MNIST; these are digits of 8 x 8 pixels."""
    features = load("digits").features.flatten(1).double()
    moments = features.T @ features / len(features)
    assert effective_dimension(moments) < 3 < 64


def test_what_is_no_covariance_is_refused():
    for wrong in (torch.zeros(3), -torch.eye(2), torch.tensor([1.0, -1.0])):
        refuses("`covariance` must be positive", effective_dimension, wrong)
    refuses("`r`", effective_dimension, torch.eye(2), 0)


def test_squared_norms_stay_below_remark_10_2_1():
    rng = np.random.default_rng(0)
    values = spectrum(30, 1.0)
    a = rng.standard_normal((200, 100, 30)) * values.sqrt().numpy()
    worst = (a**2).sum(2).max(1)
    assert (worst > norm_bound(values, 100, 0.1)).mean() <= 0.1


def test_directions_above_a_share_are_at_most_those_of_corollary_10_3_1():
    for decay in (0.5, 1.0, 2.0):
        sigma = spectrum(40, decay).sqrt()
        for epsilon in (0.05, 0.2, 0.7):
            many = int((sigma > epsilon * sigma[0]).sum())
            for r in (1, 2, 3):
                assert many <= covering_directions(sigma.square(), epsilon, r) + 1e-12


def hessian_deviation(rng, d: int, decay: float, n: int) -> float:
    """sup |H_x - E H_x| over some x of the unit ball, for l'' = tanh.

    With a standard normal times sigma, E[tanh(a'x) a a'] is 0: the law is symmetric.
    """
    a = rng.standard_normal((n, d)) * np.arange(1, d + 1) ** (-decay / 2)
    points = rng.standard_normal((6, d))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    points[0] = np.eye(d)[0]
    bent = np.tanh(a @ points.T)
    return max(np.linalg.norm((a * w[:, None]).T @ a / n, 2) for w in bent.T)


def test_hessians_deviate_as_one_over_the_root_of_samples():
    rng = np.random.default_rng(1)
    few, many = (
        np.mean([hessian_deviation(rng, 20, 1.0, n) for _ in range(20)])
        for n in (400, 6400)
    )
    assert math.log(few / many) / math.log(16) == pytest.approx(0.5, abs=0.1)
    values = spectrum(20, 1.0)
    bounds = [product_deviation(values, n, r=3, delta=0.1) for n in (10**6, 16 * 10**6)]
    assert math.log(bounds[0] / bounds[1]) / math.log(16) == pytest.approx(0.5, abs=0.1)


def test_more_dimensions_of_a_steep_spectrum_hardly_matter():
    rng = np.random.default_rng(2)
    small, large = (
        np.mean([hessian_deviation(rng, d, 2.0, 1000) for _ in range(20)])
        for d in (10, 100)
    )
    assert large < 1.15 * small
    values = [spectrum(d, 2.0) for d in (10, 100)]
    bounds = [product_deviation(v, 1000, r=3, delta=0.1) for v in values]
    flat = [
        product_deviation(spectrum(d, 0.0), 1000, r=3, delta=0.1) for d in (10, 100)
    ]
    assert bounds[1] / bounds[0] < flat[1] / flat[0] / 5


def test_all_factors_bound_a_product_and_not_the_last_one_as_printed():
    """B = B_1 ... B_r; with the printed B = B_1 ... B_k there is no k in Theorem 10.1.

    Twice as long vectors make a product of three eight times as large, and so the
    bound; with one factor's bound in place of all it would not scale.
    """
    values = spectrum(8, 1.0)
    for r in (2, 3):
        one = product_deviation(values, 100, r=r, delta=0.1)
        twice = product_deviation(4 * values, 100, r=r, delta=0.1)
        assert twice == pytest.approx(2**r * one)
        with_last_alone = 2 ** (1 - 2 / r) * one
        assert with_last_alone != pytest.approx(twice)


def test_tensors_of_two_factors_are_covariances_and_obey_theorem_10_3():
    rng = np.random.default_rng(3)
    values = spectrum(10, 1.0)
    a = rng.standard_normal((50, 200, 10)) * values.sqrt().numpy()
    off = np.einsum("knd,kne->kde", a, a) / 200 - values.diag().numpy()
    worst = np.linalg.norm(off, 2, axis=(1, 2))
    assert (worst > tensor_deviation(values, 200, order=2, delta=0.1)).mean() <= 0.1
