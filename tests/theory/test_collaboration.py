"""Claims of chapter 8 about who is near whom, by gaps and by gradients."""

from __future__ import annotations

import pytest
import torch

from coterie.checks import InputError
from coterie_theory import collaboration as theory
from coterie_theory.clusters import linear_diameter
from support import noisy_quadratics
from support.noisy_quadratics import REAL


def test_everybody_counts_itself_and_nobody_is_gained_by_a_finer_precision():
    rng = noisy_quadratics.generator(0)
    cost = torch.rand(7, 7, generator=rng, dtype=REAL)
    before = None
    for eps in (0.9, 0.5, 0.2, 0.01, 0.0):
        counts = theory.count_near(cost, eps)
        for i in range(7):
            others = sum(float(cost[i, j]) <= eps for j in range(7) if j != i)
            assert int(counts[i]) == 1 + others
        assert before is None or (counts <= before).all()
        before = counts
    assert (before == 1).all()


def test_gaps_and_distances_of_quadratics_are_those_of_the_losses():
    matrices, best = noisy_quadratics.quadratics()
    gap = noisy_quadratics.quadratic_gaps(matrices, best)
    distance = noisy_quadratics.quadratic_distances(matrices, best)
    for i in range(6):
        for j in range(6):
            x = best[j].clone().requires_grad_()
            value = (x - best[i]) @ matrices[i] @ (x - best[i]) / 2
            (slope,) = torch.autograd.grad(value, x)  # that of f_j is 0 there
            assert float(gap[i, j]) == pytest.approx(value.item(), abs=1e-12)
            assert float(distance[i, j]) == pytest.approx(float(slope.norm()))


def test_lemma_8_5_1_and_proposition_1_bound_every_gap():
    for seed in range(20):
        matrices, best = noisy_quadratics.quadratics(seed)
        gap = noisy_quadratics.quadratic_gaps(matrices, best)
        b = noisy_quadratics.quadratic_distances(matrices, best)
        mu = noisy_quadratics.losses_of(matrices, 0.0).mu
        assert (gap <= theory.gap_of_distance(b, mu) + 1e-12).all()
        diameter = float(torch.cdist(best, best).max())
        assert (gap <= diameter * b + 1e-12).all()


def moments(seed, n=4, d=3, scale=1.0):
    """E z z' of linear regressions with z = (a, b), and their optima."""
    rng = noisy_quadratics.generator(seed)
    root = torch.randn(n, d + 1, d + 1, generator=rng, dtype=REAL)
    root[:, :, :d] *= scale
    moment = root.mT @ root
    best = torch.linalg.solve(moment[:, :d, :d], moment[:, :d, d])
    return moment, best


def test_moments_of_linear_regression_bound_the_distance_of_gradients():
    for seed in range(10):
        moment, best = moments(seed)
        d = best.shape[1]
        diameter = linear_diameter(best)
        for i in range(4):
            for j in range(4):
                change = moment[i] - moment[j]
                at = torch.cat([best[j], -torch.ones(1, dtype=REAL)])
                gradients = (change @ at)[:d].norm()
                assert gradients <= diameter * change.norm() + 1e-12


def test_the_printed_diameter_of_linear_regression_forgets_the_response():
    # Large features make small optima, but responses differ as before.
    moment = torch.diag(torch.tensor([100.0, 1.0])).expand(2, 2, 2).clone()
    moment[1, 0, 1] = moment[1, 1, 0] = 1.0
    best = torch.tensor([[0.0], [0.01]])
    change = moment[0] - moment[1]
    gradients = float((change @ torch.tensor([0.0, -1.0]))[0].abs())
    printed = float(best.abs().max()) * float(change.norm())
    assert gradients > 50 * printed
    assert gradients <= linear_diameter(best) * float(change.norm())


def test_the_collaboration_radius_leaves_that_share_of_the_precision_to_the_bias():
    for eps, mu, share in ((0.1, 2.0, 0.5), (3.0, 0.01, 0.25), (1e-4, 1.0, 2.0)):
        b = theory.collaboration_radius(eps, mu, share=share)
        assert b**2 / (2 * mu) == pytest.approx(share * eps)
    # Corollary 8.5.1, Theorem 8.2 and Theorem 8.1.
    assert theory.collaboration_radius(0.1, 3.0) ** 2 == pytest.approx(0.3)
    assert theory.collaboration_radius(0.1, 3.0, share=0.25) ** 2 == pytest.approx(0.15)
    assert theory.collaboration_radius(0.1, 3.0, share=2) ** 2 == pytest.approx(1.2)
    with pytest.raises(InputError, match=r"`mu` must be greater than 0, got 0\.0"):
        theory.collaboration_radius(0.1, 0.0)
