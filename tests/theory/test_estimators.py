"""Claims about models that share a subspace or a few centres."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie_theory.structure import (
    FewSamplesWarning,
    burer_monteiro,
    cut_to_rank,
    duality_gap,
    few_shot_head,
    fista,
    fit_alone,
    fit_clusters,
    fit_single,
    gradients,
    hard_thresholding,
    loss,
    nuclear_radius,
    onto_nuclear_ball,
    squared_distance,
    tasks,
    top_subspace,
)
from support.draws import rng
from support.refusals import refuses
from support.shared_models import error, grouped, shared

REAL = torch.float64


@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_gradients_are_those_of_the_loss(kind):
    truth = shared(3, 4, 2, 5, loss=kind)
    x = torch.randn(3, 4, generator=rng(), dtype=REAL).requires_grad_()
    features, targets, weights, _ = truth.data
    z = (features * x[:, None]).sum(2)
    each = (z - targets) ** 2 / 2
    if kind == "logistic":
        each = torch.nn.functional.binary_cross_entropy_with_logits(
            z, targets, reduction="none"
        )
    total = each.mean()
    total.backward()
    assert loss(truth.data, x.detach()) == pytest.approx(float(total.detach()))
    assert_close(gradients(truth.data, x.detach()), x.grad)
    assert float(weights.sum()) == pytest.approx(1)


def test_clients_count_alike_or_by_their_samples():
    features = torch.randn(2, 3, 2, generator=rng(), dtype=REAL)
    targets, sizes = torch.ones(2, 3, dtype=REAL), torch.tensor([3, 1])
    alike = tasks(features, targets, sizes).weights
    by_size = tasks(features, targets, sizes, weighting="samples").weights
    assert_close(alike, torch.tensor([[1 / 6] * 3, [1 / 2, 0, 0]], dtype=REAL))
    assert_close(by_size, torch.tensor([[1 / 4] * 3, [1 / 4, 0, 0]], dtype=REAL))


@pytest.mark.parametrize("solver", [burer_monteiro, hard_thresholding])
def test_without_noise_models_of_low_rank_are_recovered_exactly(solver):
    """With fewer samples of each than dimensions: alone nobody could."""
    truth = shared(40, 8, 2, 5)
    found = solver(truth.data, rank=2, cap=1.0, steps=800, tolerance=1e-14)
    assert error(found.x, truth.x) < 1e-10
    assert squared_distance(found.basis, truth.basis) < 1e-10
    assert_close(found.heads @ found.basis.T, found.x)
    assert error(fit_alone(truth.data, cap=1.0), truth.x) > 0.1


def test_the_loss_of_models_is_at_most_that_of_the_truth():
    """Lemma 9.3.1's certificate that a heuristic reached the statistical optimum."""
    truth = shared(60, 10, 2, 8, noise=0.5)
    found = burer_monteiro(truth.data, rank=2, cap=1.0)
    assert found.loss <= loss(truth.data, truth.x)
    g = gradients(truth.data, truth.x)
    bregman = found.loss - loss(truth.data, truth.x) - (g * (found.x - truth.x)).sum()
    assert bregman <= (g * (truth.x - found.x)).sum() + 1e-12


def test_errors_fall_as_one_over_samples():
    """Theorem 9.1: r(d + n)/(m n), where alone it is d/m."""
    truth = {m: shared(100, 12, 2, m, noise=0.5) for m in (8, 16, 32, 64)}
    errors = [
        error(burer_monteiro(t.data, rank=2, cap=1.0).x, t.x) for t in truth.values()
    ]
    slope = math.log(errors[-1] / errors[0]) / math.log(8)
    assert -1.3 < slope < -0.8
    t = truth[64]
    ratio = errors[-1] / error(fit_alone(t.data, cap=10.0), t.x)
    # r(d + n)/(n d) = .187; constants of both are those of least squares.
    assert 0.5 < ratio / (2 * (12 + 100) / (100 * 12)) < 2


def test_without_the_cap_some_models_explode_while_the_subspace_is_good():
    truth = shared(200, 30, 3, 4, noise=0.5)
    free = burer_monteiro(truth.data, rank=3, cap=1e9)
    held = burer_monteiro(truth.data, rank=3, cap=1.0)
    assert error(free.x, truth.x) > 10 * error(held.x, truth.x)
    assert error(held.x, truth.x) < error(fit_alone(truth.data, cap=1.0), truth.x)
    assert float(held.x.norm(dim=1).max()) <= 1 + 1e-9
    assert squared_distance(free.basis, truth.basis) / 3 < 0.4


def test_full_rank_without_a_cap_is_training_alone():
    truth = shared(8, 4, 2, 9, noise=0.3)
    ours = burer_monteiro(truth.data, rank=4, cap=1e9)
    assert_close(ours.x, fit_alone(truth.data, cap=1e9), rtol=1e-6, atol=1e-6)
    features, targets = truth.data[:2]
    exact = torch.linalg.lstsq(features, targets[:, :, None]).solution[:, :, 0]
    assert_close(ours.x, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_nuclear_norm_and_factors_agree(kind):
    """In a ball that holds the same models, and with a rank that is large enough."""
    truth = shared(40, 8, 2, 20, noise=0.2, loss=kind)
    low = burer_monteiro(truth.data, rank=2, cap=2.0, steps=200, tolerance=1e-12)
    radius = float(torch.linalg.svdvals(low.x).sum())
    convex = fista(truth.data, radius=radius, tolerance=1e-6, steps=5000)
    # A wider set, so that its least loss is no higher: L(NUC) <= L(LR).
    assert convex.loss <= low.loss + 1e-9
    assert convex.gap <= 1e-6 * convex.loss
    assert convex.loss - convex.gap <= low.loss
    close = squared_distance(top_subspace(convex.x, 2), low.basis)
    assert close < 0.05
    assert error(cut_to_rank(convex.x, 2), low.x) < 0.1 * float(
        low.x.square().sum(1).mean()
    )


def test_nuclear_norm_without_noise_finds_the_models():
    truth = shared(40, 8, 2, 8)
    radius = float(torch.linalg.svdvals(truth.x).sum())
    found = fista(truth.data, radius=radius, tolerance=0.0, steps=400)
    assert error(found.x, truth.x) < 1e-6


def test_kappa_of_one_holds_the_truth_and_larger_ones_are_not_needed():
    """The text asks for kappa of at least the ratio of singular values of W*."""
    truth = shared(50, 9, 3, 1)
    basis = truth.basis * torch.tensor([1.0, 0.3, 0.05], dtype=REAL)
    x = truth.x @ truth.basis @ basis.T
    x = x / x.norm(dim=1, keepdim=True).clamp(min=1)
    s = torch.linalg.svdvals(x)[:3]
    assert s[0] / s[2] > 10
    assert s.sum() <= nuclear_radius(1.0, 50, 3)


def test_the_projection_onto_the_nuclear_ball_is_the_nearest_point():
    x = torch.randn(6, 4, generator=rng(), dtype=REAL)
    p = onto_nuclear_ball(x, 2.0)
    assert float(torch.linalg.svdvals(p).sum()) == pytest.approx(2.0)
    for seed in range(20):
        other = torch.randn(6, 4, generator=rng(seed), dtype=REAL)
        other *= 2.0 / torch.linalg.svdvals(other).sum()
        assert float(((x - p) * (other - p)).sum()) <= 1e-12  # an obtuse angle
    assert torch.equal(onto_nuclear_ball(p / 2, 2.0), onto_nuclear_ball(p / 2, 2.0))


def test_the_gap_is_above_the_distance_from_the_least_loss():
    truth = shared(20, 6, 2, 10, noise=0.3)
    radius = nuclear_radius(0.5, 20, 2)
    best = fista(truth.data, radius=radius, tolerance=1e-9, steps=5000)
    for scale in (0.0, 0.5, 1.0):
        x = onto_nuclear_ball(scale * truth.x, radius)
        gap = duality_gap(x, gradients(truth.data, x), radius)
        assert loss(truth.data, x) - best.loss <= gap + 1e-9
    with pytest.raises(InputError, match="nuclear norm of at most"):
        duality_gap(9 * truth.x, gradients(truth.data, truth.x), radius)


@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_groups_are_found_with_fewer_samples_than_dimensions(kind):
    m = 8 if kind == "squared" else 14
    truth, groups = grouped(120, 16, 3, m, noise=0.1, loss=kind)
    cap = 1.0 if kind == "squared" else 4.0
    found = fit_clusters(truth.data, groups=3, cap=cap, rng=rng())
    pairs = found.groups[:, None] == found.groups
    right = (pairs == (groups[:, None] == groups)).double().mean()
    assert right == 1 if kind == "squared" else right > 0.9
    assert all(
        b <= a + 1e-12 for a, b in zip(found.losses, found.losses[1:], strict=False)
    )
    if kind == "squared":
        assert error(found.x, truth.x) < 0.01


def test_groups_need_fewer_samples_than_a_subspace_of_as_many_dimensions():
    truth, _ = grouped(300, 12, 5, 4, noise=0.1)
    ours = fit_clusters(truth.data, groups=5, cap=1.0, rng=rng(), starts=6)
    with pytest.warns(FewSamplesWarning, match="one client has 4"):
        low = burer_monteiro(truth.data, rank=5, cap=1.0)
    assert error(ours.x, truth.x) < 0.01 < 0.1 < error(low.x, truth.x)
    # Models of groups have rank r at most, so that theirs is no smaller loss.
    assert low.loss <= ours.loss + 1e-9


def test_one_group_is_one_model_and_as_many_groups_as_clients_are_alone():
    truth = shared(6, 4, 2, 8, noise=0.3)
    one = fit_clusters(truth.data, groups=1, cap=9.0, rng=rng())
    assert_close(one.x, fit_single(truth.data, cap=9.0))
    everyone = fit_clusters(truth.data, groups=6, cap=9.0, rng=rng(), starts=20)
    assert everyone.loss >= loss(truth.data, fit_alone(truth.data, cap=9.0)) - 1e-12


@pytest.mark.parametrize("kind", ["squared", "logistic"])
def test_a_newcomer_needs_samples_for_its_head_alone(kind):
    truth = shared(100, 10, 2, 40, noise=0.3, loss=kind)
    cap = 1.0 if kind == "squared" else 6.0
    found = burer_monteiro(truth.data, rank=2, cap=cap)
    later = shared(100, 10, 2, 8, noise=0.3, loss=kind)  # the same start of the draws
    assert squared_distance(later.basis, truth.basis) < 1e-12
    ours = few_shot_head(found.basis, later.data, cap=cap)
    told = few_shot_head(truth.basis, later.data, cap=cap)
    own = fit_alone(later.data, cap=cap)
    scale = 1.0 if kind == "squared" else 4.0  # of the logits
    gaps = [error(x, scale * later.x) for x in (told, ours, own)]
    assert gaps[1] < 1.3 * gaps[0] + 0.02 * scale**2
    assert gaps[1] < 0.5 * gaps[2]


def test_in_the_true_subspace_a_head_is_least_squares_in_few_dimensions():
    truth = shared(5, 9, 2, 6, noise=0.2)
    found = few_shot_head(truth.basis, truth.data, cap=1e9)
    z = truth.data.features @ truth.basis
    heads = torch.linalg.lstsq(z, truth.data.targets[:, :, None]).solution[:, :, 0]
    assert_close(found, heads @ truth.basis.T)


def test_bad_input_is_refused_or_warned_of(unchecked):
    truth = shared(6, 4, 2, 5)
    for rank in (0, 5):
        refuses("`rank`", burer_monteiro, truth.data, rank=rank, cap=1.0)
    message = r"`rank` must be at most .*\(3\).*\(4\), got 4"
    refuses(message, hard_thresholding, shared(3, 4, 2, 5).data, rank=4, cap=1.0)
    with pytest.raises(InputError, match="`groups` must be at most the 6 clients"):
        fit_clusters(truth.data, groups=7, cap=1.0, rng=rng())
    refuses("`cap`", burer_monteiro, truth.data, rank=1, cap=0.0)
    refuses("`radius`", fista, truth.data, radius=-1.0)
    with pytest.raises(InputError, match="`basis` must have 4 rows"):
        few_shot_head(torch.eye(3, dtype=REAL), truth.data, cap=1.0)
    refuses("0 or 1", tasks, truth.data.features, truth.data.targets, loss="logistic")
    with pytest.raises(InputError, match="numbers from 1 to 5"):
        tasks(*truth.data[:2], torch.tensor([0, 1, 2, 3, 4, 5]))
    refuses("shape", tasks, truth.data.features, truth.data.targets[:, :2])
    with pytest.warns(
        FewSamplesWarning, match="needs 8 samples in all and 2 per client"
    ):
        burer_monteiro(shared(6, 4, 2, 1).data, rank=2, cap=1.0)
    with pytest.warns(FewSamplesWarning, match="3 centres"):
        fit_clusters(shared(6, 4, 2, 1).data, groups=3, cap=1.0, rng=rng())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        burer_monteiro(truth.data, rank=2, cap=1.0)
