"""Claims about angles between subspaces, cutting ranks, and norms that are capped."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.optim.projections import cap_norms
from coterie_theory.structure import (
    cut_to_rank,
    principal_sines,
    squared_distance,
    top_subspace,
)
from coterie_theory.structure.subspaces import eigen_of, least_in_ball
from support.refusals import refuses

REAL = torch.float64


def bases(seed=0, d=7, r=3):
    rng = torch.Generator().manual_seed(seed)
    both = torch.randn(2, d, r, generator=rng, dtype=REAL)
    return torch.linalg.qr(both)[0]


def test_distances_are_those_of_the_definition_and_of_its_short_form():
    one, other = bases()
    p, q = one @ one.T, other @ other.T
    gap = (torch.eye(7, dtype=REAL) - p) @ q
    assert squared_distance(one, other) == pytest.approx(float(gap.square().sum()))
    assert squared_distance(one, other) == pytest.approx(
        3 - float((one.T @ other).square().sum())
    )
    largest = float(torch.linalg.matrix_norm(gap, 2)) ** 2
    assert squared_distance(one, other, norm="spectral") == pytest.approx(largest)
    assert squared_distance(one, other) <= 3 * largest


def test_distances_do_not_depend_on_the_bases():
    one, other = bases()
    turned = other @ bases(1, 3, 3)[0]
    assert_close(principal_sines(one, turned), principal_sines(one, other))
    assert squared_distance(one, 2 * turned) == pytest.approx(
        squared_distance(one, other)
    )


def test_distances_are_zero_for_the_same_span_and_r_for_orthogonal_ones():
    whole = torch.linalg.qr(bases(2, 6, 6)[0])[0]
    one, other = whole[:, :3], whole[:, 3:]
    assert squared_distance(one, one @ bases(1, 3, 3)[0]) == pytest.approx(0, abs=1e-12)
    assert squared_distance(one, other) == pytest.approx(3)
    assert squared_distance(one, other, norm="spectral") == pytest.approx(1)


@pytest.mark.parametrize("shape", [(9, 4), (4, 9)])
def test_a_matrix_is_cut_to_its_largest_singular_values(shape):
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=rng, dtype=REAL)
    left, s, right = torch.linalg.svd(x, full_matrices=False)
    assert_close(cut_to_rank(x, 2), (left[:, :2] * s[:2]) @ right[:2])
    assert squared_distance(top_subspace(x, 2), right[:2].T) < 1e-12


def test_only_rows_that_are_too_long_are_scaled_down():
    x = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]])
    assert_close(cap_norms(x, 1.0), torch.tensor([[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]))


def test_the_least_in_a_ball_has_no_better_point_in_it():
    """Inside it is the unconstrained minimum, outside the gradient points outwards."""
    rng = torch.Generator().manual_seed(0)
    roots = torch.randn(20, 3, 3, generator=rng, dtype=REAL)
    h, b = roots @ roots.mT, torch.randn(20, 3, generator=rng, dtype=REAL)
    v = least_in_ball(eigen_of(h), b, 0.5)
    slope = (h @ v[:, :, None])[:, :, 0] - b
    inside = v.norm(dim=1) < 0.5 - 1e-9
    assert 0 < int(inside.sum()) < 20
    assert slope[inside].abs().max() < 1e-9
    on = ~inside
    assert_close(v[on].norm(dim=1), torch.full_like(v[on, 0], 0.5))
    cosine = (slope * v).sum(1) / (slope.norm(dim=1) * v.norm(dim=1))
    assert_close(cosine[on], -torch.ones_like(cosine[on]))


def test_of_several_least_points_the_shortest_is_taken():
    h = torch.zeros(1, 2, 2, dtype=REAL)
    h[0, 0, 0] = 2.0
    b = torch.tensor([[1.0, 0.0]], dtype=REAL)
    assert_close(
        least_in_ball(eigen_of(h), b, 3.0), torch.tensor([[0.5, 0.0]], dtype=REAL)
    )


def test_what_cannot_be_a_subspace_is_refused(unchecked):
    one, other = bases()
    refuses("same shape", principal_sines, one, other[:, :2])
    refuses("`norm` must be", squared_distance, one, other, norm="nuclear")
    message = r"`rank` must be at most .*\(7\).*\(3\), got 4"
    refuses(message, cut_to_rank, one, 4)
