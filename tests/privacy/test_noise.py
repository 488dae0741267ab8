"""Noise is Gaussian, and a function of its names."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import kstest

from coterie.privacy.noise import normals


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_are_gaussian(dtype: torch.dtype) -> None:
    drawn = normals(3, torch.arange(4), 5001, dtype)
    assert drawn.shape == (4, 5001) and drawn.dtype == dtype
    # The seed is fixed; a right generator fails one seed in a thousand.
    assert kstest(drawn.double().flatten().numpy(), "norm").pvalue > 1e-3
    products = drawn.double() @ drawn.double().T / 5001
    torch.testing.assert_close(
        products, torch.eye(4, dtype=torch.float64), rtol=0, atol=4 / math.sqrt(5001)
    )


def test_a_client_alone_draws_its_own_row() -> None:
    names = torch.tensor([5, 2, 9])
    together = normals(7, names, 11)
    for j, name in enumerate(names):
        assert torch.equal(normals(7, name[None], 11)[0], together[j])
    streams = torch.tensor([7, 8, 7])
    apart = normals(streams, names, 11)
    assert torch.equal(apart[[0, 2]], together[[0, 2]])
    assert not torch.equal(apart[1], together[1])


def test_the_two_halves_of_a_row_are_not_the_same_noise() -> None:
    row = normals(1, torch.tensor([0]), 8)[0]
    assert len(row.abs().unique()) == 8
