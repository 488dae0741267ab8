"""Claims about the subspace that one sample of every client tells."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie_theory.structure import (
    FewSamplesWarning,
    admissibility,
    one_sample_subspace,
    squared_distance,
)
from support.shared_models import shared

REAL = torch.float64


def rng(seed=99):
    return torch.Generator().manual_seed(seed)


def test_admissible_subspaces_are_those_in_which_samples_are_long_enough():
    """Lemma 9.4.1, with the head that it constructs."""
    truth = shared(200, 6, 2, 1)
    basis = torch.linalg.qr(torch.randn(6, 2, generator=rng(), dtype=REAL))[0]
    x, y = truth.data.features[:, 0], truth.data.targets[:, 0]
    inside = x @ basis
    shortest = inside * (y / inside.square().sum(1))[:, None]
    assert_close((shortest @ basis.T * x).sum(1), y)
    assert_close(admissibility(basis, truth.data), shortest.norm(dim=1))
    assert_close(admissibility(basis, truth.data), y.abs() / inside.norm(dim=1))
    # The true subspace is admissible, and this one is not.
    assert admissibility(truth.basis, truth.data).max() <= 1 + 1e-12
    assert admissibility(basis, truth.data).max() > 1


def test_of_several_samples_the_shortest_head_that_fits_all_counts():
    truth = shared(20, 6, 3, 2)
    found = admissibility(truth.basis, truth.data)
    z = truth.data.features @ truth.basis
    exact = torch.linalg.lstsq(z, truth.data.targets[:, :, None], driver="gelsd")
    assert_close(found, exact.solution[:, :, 0].norm(dim=1))
    many = shared(4, 6, 2, 5)
    wrong = torch.eye(6, dtype=REAL)[:, :2]
    assert admissibility(wrong, many.data).isinf().all()


@pytest.mark.parametrize(("d", "r", "n"), [(6, 1, 60), (6, 2, 500)])
def test_with_enough_clients_one_sample_each_gives_the_subspace(d, r, n):
    truth = shared(n, d, r, 1)
    found = one_sample_subspace(truth.data, rank=r, cap=1.0, rng=rng())
    assert squared_distance(found.basis, truth.basis) / r < 0.01
    torch.testing.assert_close(
        found.basis.T @ found.basis, torch.eye(r).to(found.basis)
    )
    assert found.loss < 1e-6


def test_with_few_clients_a_wrong_subspace_is_admissible_too():
    """Below the threshold of Theorem 9.3; no method can know better."""
    far = []
    for seed in range(3):
        truth = shared(20, 6, 2, 1, seed=seed)
        found = one_sample_subspace(truth.data, rank=2, cap=1.0, rng=rng(100 + seed))
        assert admissibility(found.basis, truth.data).max() < 1.01
        far.append(squared_distance(found.basis, truth.basis) / 2)
    assert max(far) > 0.1


def test_bad_input_is_refused_or_warned_of(unchecked):
    with pytest.raises(InputError, match="one sample per client"):
        one_sample_subspace(shared(9, 4, 2, 2).data, rank=2, cap=1.0, rng=rng())
    with pytest.raises(InputError, match="`rank` must be at most"):
        one_sample_subspace(shared(9, 4, 2, 1).data, rank=5, cap=1.0, rng=rng())
    with pytest.warns(FewSamplesWarning, match="Theorem 9.3"):
        one_sample_subspace(
            shared(5, 4, 2, 1).data, rank=2, cap=1.0, rng=rng(), starts=1
        )
