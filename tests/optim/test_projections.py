"""Claims about projections: a general solver, closed forms, and what defines them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from coterie.optim import dual_problems as duals
from coterie.optim import newton as ascents
from coterie.optim import projections
from coterie.optim.projections import Projection, onto_balls, project
from support.projected import excess, excess_of, general_solver, least

REAL = torch.float64
# What rounding leaves of a duality gap of 0, as a distance.
EXACT = {"rtol": 0, "atol": 1e-7}


def draw(seed: int, n: int = 6, d: int = 5, scale: float = 1.0):
    """Models (n, d) and squared radii (n, n) that some pairs violate."""
    rng = np.random.default_rng(seed)
    v = rng.normal(size=(n, d)) * scale
    radius = rng.uniform(0.05, 3, size=(n, n))
    if seed % 3 == 0:  # those of a metric
        points = rng.normal(size=(n, 2))
        radius = np.abs(points[:, None] - points).sum(2)
    radius = (radius + radius.T) / 2
    np.fill_diagonal(radius, 0)
    return torch.from_numpy(v), torch.from_numpy(radius)


@pytest.mark.parametrize("seed", range(50))
def test_a_general_convex_solver_finds_the_same_point(seed):
    rng = np.random.default_rng(1000 + seed)
    n, d = int(rng.integers(2, 7)), int(rng.integers(1, 6))
    v, radius = draw(seed, n, d, float(rng.choice([0.5, 1.0, 3.0])))
    found = project(v, radius, tolerance=1e-13)
    # The accuracy of the general solver.
    assert_close(found.x, general_solver(v, radius), rtol=1e-6, atol=1e-6)
    assert excess(found.x, radius) <= 1e-12  # rounding of a distance


def test_two_models_move_towards_each_other():
    v = torch.tensor([[0.0, 0.0], [6.0, 8.0]], dtype=REAL)
    found = project(v, torch.full((2, 2), 25.0), tolerance=1e-13)
    along = torch.tensor([0.6, 0.8], dtype=REAL)
    assert_close(found.x, torch.stack([2.5 * along, 7.5 * along]), **EXACT)
    # |x_1 - x_2| = |v_1 - v_2| / (1 + 2 lam)
    assert found.multipliers[0, 1] == pytest.approx(0.5)
    assert found.distance == pytest.approx(math.sqrt(2) * 2.5)


def test_radii_in_proportion_to_distances_shrink_all_with_equal_multipliers():
    # L(c) = c (n I - 1 1^T) maps centred rows to c n times themselves, so that all
    # distances are 1 / (1 + c n) of what they were: 9/10 for c = 1 / (9 n).
    n = 12
    v = torch.randn(n, 30, dtype=REAL, generator=torch.Generator().manual_seed(0))
    radius = 0.81 * (v[:, None] - v).square().sum(2)
    found = project(v, radius, tolerance=1e-13)
    assert_close(found.x, v.mean(0) + 0.9 * (v - v.mean(0)), **EXACT)
    equal = (1 - torch.eye(n, dtype=REAL)) / (9 * n)
    assert_close(found.multipliers, equal, rtol=1e-6, atol=0)


def test_what_is_feasible_comes_back_itself():
    v = draw(0)[0]
    for x in (v[:1], v, v.float()):
        wide = torch.full((len(x), len(x)), 1e3)
        found = project(x, wide)
        assert found.x is x
        assert torch.equal(found.mixing, torch.eye(len(x), dtype=x.dtype))
        assert (found.gap, found.distance, found.steps) == (0.0, 0.0, 0)
        assert not found.multipliers.any()


def test_radii_of_zero_give_the_mean_of_all_exactly():
    for n in (2, 5, 40):
        v = draw(1, n)[0]
        found = project(v, torch.zeros(n, n))
        assert len(found.x.unique(dim=0)) == 1
        # Rounding of a sum of n terms.
        assert_close(found.x[0], v.mean(0), rtol=1e-13, atol=1e-14)
        assert_close(found.mixing, torch.full((n, n), 1 / n, dtype=REAL))


def test_a_radius_of_zero_merges_what_was_almost_equal():
    v = torch.tensor([[0.0, 1.0], [1e-9, 1.0], [1e9, 0.0]], dtype=REAL)
    radius = torch.tensor([[0.0, 0.0, 1e30], [0.0, 0.0, 1e30], [1e30, 1e30, 0.0]])
    found = project(v, radius)
    assert torch.equal(found.x[0], found.x[1])


def test_a_radius_of_zero_merges_two_models_and_whom_they_are_merged_with():
    for seed in range(6):
        v, radius = draw(seed)
        radius[0, 3] = radius[3, 0] = radius[3, 4] = radius[4, 3] = 0.0
        found = project(v, radius, tolerance=1e-13)
        assert torch.equal(found.x[0], found.x[3])
        assert torch.equal(found.x[0], found.x[4])
        # One model with the mass of three, as near as the nearest of them must be.
        merged = torch.stack([v[[0, 3, 4]].mean(0), v[1], v[2], v[5]])
        members = [[0, 3, 4], [1], [2], [5]]
        limits = torch.tensor(
            [[float(radius[a][:, b].min()) for b in members] for a in members]
        )
        expected = general_solver(merged, limits.double(), [3, 1, 1, 1])
        assert_close(found.x[[0, 1, 2, 5]], expected, rtol=1e-6, atol=1e-6)
        again = project(v, radius, start=found.multipliers)
        assert again.steps <= 1
        assert_close(again.x, found.x, **EXACT)


def test_models_that_are_not_tied_are_projected_apart():
    v, radius = draw(2, 9)
    apart = torch.arange(9) % 2
    radius = torch.where(apart[:, None] == apart, radius, torch.inf)
    found = project(v, radius, tolerance=1e-13)
    for group in (apart == 0, apart == 1):
        alone = project(v[group], radius[group][:, group], tolerance=1e-13)
        assert_close(found.x[group], alone.x, **EXACT)
    nobody = torch.full((9, 9), torch.inf).fill_diagonal_(0)
    assert project(v, nobody).x is v


def test_the_conditions_of_a_minimum_hold():
    v, radius = draw(3, 40, 60, 0.7)
    found = project(v, radius, tolerance=1e-13)
    lam = found.multipliers
    laplacian = lam.sum(1).diag() - lam
    # x + L x = v: the gradient of the Lagrangian vanishes.
    assert_close(found.x + laplacian @ found.x, v, **EXACT)
    assert torch.equal(lam, lam.T)
    assert (lam >= 0).all()
    slack = radius - (found.x[:, None] - found.x).square().sum(2)
    assert float(slack.min()) >= -1e-12
    assert float((lam * slack).abs().max()) <= 1e-7
    assert 10 < int((lam > 0).sum()) // 2 < 40 * 39 // 2  # some, not all
    # Mixing is the inverse of 1 + L.
    assert_close(found.mixing, torch.linalg.inv(torch.eye(40) + laplacian), **EXACT)
    assert_close(found.mixing @ v, found.x, **EXACT)
    assert_close(found.mixing.sum(1), torch.ones(40, dtype=REAL))
    assert (found.mixing >= 0).all()
    assert found.distance == pytest.approx(float((found.x - v).norm()))


@pytest.mark.parametrize("seed", range(8))
def test_projecting_twice_is_projecting_once(seed):
    v, radius = draw(seed, 7, 1 + seed % 4)
    once = project(v, radius, tolerance=1e-13).x
    assert_close(project(once, radius, tolerance=1e-13).x, once, **EXACT)


@pytest.mark.parametrize("seed", range(8))
def test_projections_are_no_further_apart_than_what_was_projected(seed):
    v, radius = draw(seed, 7, 1 + seed % 4)
    for scale in (1e-3, 1.0):
        w = v + scale * draw(seed + 100, 7, 1 + seed % 4)[0]
        here, there = (project(x, radius, tolerance=1e-13).x for x in (v, w))
        assert (here - there).norm() <= (v - w).norm() + 1e-7


@pytest.mark.parametrize("seed", range(4))
def test_relabelling_and_moving_the_models_does_the_same_to_the_result(seed):
    v, radius = draw(seed)
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    far = torch.tensor([100.0, -3.0, 0.0, 7.0, 20.0], dtype=REAL)
    plain = project(v, radius, tolerance=1e-13)
    other = project(v[order] + far, radius[order][:, order], tolerance=1e-13)
    assert_close(other.x, plain.x[order] + far, **EXACT)
    assert_close(other.mixing, plain.mixing[order][:, order], **EXACT)


@pytest.mark.parametrize("tolerance", [0.5, 1e-2, 1e-4])
def test_the_gap_bounds_the_error_and_the_result_is_feasible_anyway(tolerance):
    errors = []
    for seed in range(3):
        v, radius = draw(seed, 12, 8, 2.0)
        best = project(v, radius, tolerance=1e-14)
        rough = project(v, radius, tolerance=tolerance)
        assert rough.gap >= -1e-12
        assert rough.gap <= tolerance * rough.distance**2 / 2 * (1 + 1e-9)
        error = float((rough.x - best.x).norm())
        assert error <= math.sqrt(2 * rough.gap) + 1e-7
        assert excess(rough.x, radius) <= 1e-12
        assert rough.distance >= best.distance - 1e-7
        errors.append(error)
    assert max(errors) > 1e-7 or tolerance < 1e-2  # the bound is put to the test


def test_a_start_from_earlier_multipliers_is_quicker_and_leads_to_the_same():
    v, radius = draw(5, 30, 20)
    before = project(v, radius)
    again = project(v, radius, start=before.multipliers)
    assert again.steps == 0
    assert_close(again.x, before.x, **EXACT)
    near = v + 0.01 * draw(6, 30, 20)[0]
    cold = project(near, radius, tolerance=1e-13)
    warm = project(near, radius, tolerance=1e-13, start=before.multipliers)
    assert warm.steps < cold.steps
    assert_close(warm.x, cold.x, **EXACT)
    # Multipliers of another problem do no harm.
    strange = project(v, radius, tolerance=1e-13, start=1e3 * torch.rand(30, 30).T)
    assert_close(strange.x, project(v, radius, tolerance=1e-13).x, **EXACT)


@pytest.mark.parametrize("ratio", [1e-2, 1e-4, 1e-8, 1e-16, 1e-30])
def test_the_smaller_the_radii_the_nearer_to_the_mean(ratio):
    for d in (2, 9):
        v, radius = draw(6, 9, d)
        found = project(v, ratio * radius, tolerance=1e-10)
        assert excess(found.x, ratio * radius) <= 1e-14
        assert found.gap <= 1e-10 * found.distance**2
        away = (found.x - v.mean(0)).norm()
        assert float(away) <= 9 * math.sqrt(ratio * float(radius.max()))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_few_dimensions_and_repeated_models_are_no_obstacle(d):
    v, radius = draw(7, 24, d)
    v[5] = v[6] = v[7]
    v[8:12] = v[12:16]
    found = project(v, 0.1 * radius, tolerance=1e-12)
    assert excess(found.x, 0.1 * radius) <= 1e-13
    assert found.gap <= 1e-11 * found.distance**2
    flat = torch.cat([v, torch.zeros(24, 50, dtype=REAL)], 1)
    assert_close(
        project(flat, 0.1 * radius, tolerance=1e-12).x[:, :d], found.x, **EXACT
    )
    same = v[:1].expand(5, d)
    assert project(same, radius[:5, :5]).x is same


def test_conjugate_gradients_find_the_same(monkeypatch):
    v, radius = draw(8, 15, 30, 2.0)
    direct = project(v, radius, tolerance=1e-13)
    monkeypatch.setattr(duals, "_DIRECT", 0)
    implicit = project(v, radius, tolerance=1e-13)
    assert_close(implicit.x, direct.x, **EXACT)
    assert int((direct.multipliers > 0).sum()) > 60


def test_large_matrices_give_the_same_as_small_ones(monkeypatch):
    v, radius = draw(9, 20, 30, 2.0)
    small = project(v, radius, tolerance=1e-13)
    monkeypatch.setattr(ascents, "_LARGE", 2)
    assert_close(project(v, radius, tolerance=1e-13).x, small.x, **EXACT)


def test_single_precision_is_as_good_as_its_digits(monkeypatch):
    v, radius = draw(10, 20, 40_000)
    v = v / 200  # squared distances of 2
    best = project(v, radius)
    for exact in (2**20, 0):  # products in double precision, or not
        monkeypatch.setattr(projections, "_EXACT", exact)
        found = project(v.float() + 1.0, radius.float())
        assert found.x.dtype == torch.float32
        assert found.multipliers.dtype == torch.float32
        # Rounding of entries of size 1, in 40,000 columns, against rows of norm 1.
        assert float((found.x.double() - 1 - best.x).norm()) < 1e-4
        assert excess(found.x.double(), radius) < 1e-4


def test_models_that_are_not_finite_come_back_and_say_so():
    v, radius = draw(0)
    for value in (math.nan, math.inf, 1e200):
        v[2, 1] = value
        found = project(v, radius)
        assert found.x is v
        assert math.isnan(found.gap)


def test_a_projection_is_a_pure_function():
    v, radius = draw(0)
    before = v.clone(), radius.clone()
    first = project(v, radius)
    start = first.multipliers.clone()
    second = project(v, radius, start=first.multipliers)
    assert isinstance(second, Projection)
    assert torch.equal(v, before[0])
    assert torch.equal(radius, before[1])
    assert torch.equal(first.multipliers, start)
    assert torch.equal(project(v, radius).x, first.x)


# Balls.


def ball(seed: int, n: int = 6, d: int = 4):
    """A point far off, centres, and radii of balls that have an inner point."""
    rng = np.random.default_rng(seed)
    centres, inner = rng.normal(size=(n, d)), 0.3 * rng.normal(size=d)
    radius = ((centres - inner) ** 2).sum(1) * rng.uniform(1, 1.5, size=n) + 0.01
    point = 4 * rng.normal(size=(1, d))
    return (torch.from_numpy(a) for a in (point, centres, radius[None]))


@pytest.mark.parametrize("seed", range(12))
def test_a_general_convex_solver_finds_the_same_point_in_the_balls(seed):
    point, centres, radius = ball(seed, 1 + seed % 7, 1 + seed % 5)
    p, c, r = point[0].numpy(), centres.numpy(), radius[0].numpy()
    expected = least(
        lambda x: 0.5 * ((x - p) ** 2).sum(),
        lambda x: x - p,
        c.mean(0),
        lambda x: r - ((x - c) ** 2).sum(1),
        lambda x: -2 * (x - c),
    )
    found = onto_balls(centres, radius, tolerance=1e-13)(point)
    assert_close(found.x[0], torch.from_numpy(expected.x), rtol=1e-6, atol=1e-6)
    # The stiffness leaves 1e-12 of the largest squared distance, times multipliers.
    assert float(excess_of(found.x, centres, radius)) < 1e-8


@pytest.mark.parametrize("seed", range(6))
def test_where_balls_do_not_meet_the_largest_excess_is_as_small_as_possible(seed):
    point, centres, radius = ball(seed)
    radius = 0.02 * radius
    d, c, r = centres.shape[1], centres.numpy(), radius[0].numpy()
    wanted = least(
        lambda w: w[-1],
        lambda w: np.append(np.zeros(d), 1.0),
        np.append(c.mean(0), 10.0),
        lambda w: w[-1] + r - ((w[:-1] - c) ** 2).sum(1),
        lambda w: np.c_[-2 * (w[:-1] - c), np.ones(len(c))],
    )
    assert wanted.fun > 0.1  # they do not meet
    found = onto_balls(centres, radius)(point)
    assert float(excess_of(found.x, centres, radius)) == pytest.approx(wanted.fun, 1e-6)
    assert_close(found.x[0], torch.from_numpy(wanted.x[:-1]), rtol=1e-4, atol=1e-4)


def test_one_ball_is_left_along_the_line_to_its_centre():
    point, centre = torch.tensor([[6.0, 8.0]]), torch.zeros(1, 2)
    found = onto_balls(centre, torch.tensor([[25.0]]))(point)
    assert_close(found.x, torch.tensor([[3.0, 4.0]]))
    # x = p / (1 + lam)
    assert float(found.multipliers) == pytest.approx(1.0, rel=1e-6)


def test_rows_of_points_are_projected_each_by_itself():
    points, centres, radii = [], list(ball(0))[1], []
    for seed in range(5):
        point, _, radius = ball(seed)
        points.append(point)
        radii.append(2 * radius if seed else torch.full_like(radius, torch.inf))
    points, radii = torch.cat(points), torch.cat(radii)
    together = onto_balls(centres, radii)(points)
    for j in range(5):
        alone = onto_balls(centres, radii[j, None])(points[j, None])
        assert_close(together.x[j, None], alone.x, **EXACT)
    assert torch.equal(together.x[0], points[0])  # no ball, no change
    warm = onto_balls(centres, radii)(points, together.multipliers)
    assert_close(warm.x, together.x, **EXACT)


def test_a_point_in_all_balls_stays_and_a_ball_of_radius_zero_is_its_centre():
    point, centres, radius = ball(1)
    inside = centres.mean(0, keepdim=True)
    wide = torch.full_like(radius, 100.0)
    assert torch.equal(onto_balls(centres, wide)(inside).x, inside)
    wide[0, 2] = 0.0
    assert_close(onto_balls(centres, wide)(point).x, centres[2, None])


@pytest.mark.parametrize("seed", range(6))
def test_there_is_room_for_a_newcomer_if_dissimilarities_are_absolute_differences(seed):
    # Square roots of such distances are those of points in a Hilbert space, and a map
    # that expands no distance can be extended to a new point (Kirszbraun).
    rng = torch.Generator().manual_seed(seed)
    phi = torch.randn(9, 3, generator=rng, dtype=REAL)
    radius = torch.cdist(phi, phi, p=1.0)
    v = 3 * torch.randn(8, 6, generator=rng, dtype=REAL)
    trained = project(v, radius[:8, :8]).x
    anywhere = 10 * torch.randn(1, 6, generator=rng, dtype=REAL)
    found = onto_balls(trained, radius[8:, :8])(anywhere)
    # The stiffness, where two of the balls only just meet.
    assert float(excess_of(found.x, trained, radius[8:, :8])) < 1e-6
