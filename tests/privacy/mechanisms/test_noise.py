"""Noise is Gaussian, and a function of its names."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.stats import kstest

from coterie.privacy import PrivateSimulation
from coterie.privacy.mechanisms.noise import normals
from support.simulated import rows, simulate, simulated


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


def test_runs_of_another_name_have_noise_of_their_own(classification) -> None:
    plain, x = simulated(classification, batch_size=0)

    def answers(name: str) -> torch.Tensor:
        clients = PrivateSimulation(plain, clip=0.5, noise=2.0, name=name)
        answer = clients.at(4).grads(x)
        everybody = torch.arange(len(x))
        alone = clients.task_clients(everybody, [4] * len(x)).grad(x)
        torch.testing.assert_close(alone, answer)
        return answer

    same, again, other = (answers(name) for name in ("a", "a", "b"))
    assert torch.equal(same, again)
    # All that is not noise is the same, and cancels.
    away = (same - other) * plain.sizes[:, None] / (2.0 * 0.5 * math.sqrt(2))
    assert kstest(away.flatten().numpy(), "norm").pvalue > 1e-3


def test_runs_of_another_name_have_minibatches_of_their_own(classification) -> None:
    plain = simulate(classification, batch_size=3)
    a, b = (
        PrivateSimulation(plain, clip=0.5, noise=0.0, name=name)
        .at(4)
        .grads(rows(plain))
        for name in ("a", "b")
    )
    largest = int(plain.sizes.argmax())
    assert bool((a != b)[largest].all())
