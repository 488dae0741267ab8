"""Bounds at numbers for which the formula of the paper is worked out by hand.

A bound that is too large by a factor passes every test in which something is below it.
Here, numbers are such that powers, roots and logarithms are short.
"""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.graphs import edges_of, gossip_matrix
from coterie_theory import (
    agraf,
    all_for_one,
    asynchrony,
    clusters,
    collaboration,
    delays,
    infinite,
    karula,
    meta,
    mixing,
    rates,
)
from coterie_theory.curvature import concentration, implicit_bias, preconditioning
from coterie_theory.decentralised import (
    colluders,
    continuized,
    descent,
    gossip,
    muffliato,
    tokens,
)
from coterie_theory.gossip import mean_paths
from coterie_theory.rates import BoundedLosses, ConvexLosses, LossClass
from coterie_theory.structure import rates as structure

REAL = torch.float64
E = math.e


def rows(*values):
    return torch.tensor(values, dtype=REAL)


MIXED, ALIKE = rows([0.5, 0.5], [0.0, 1.0]), torch.full((2, 2), 0.5, dtype=REAL)
GAP = rows([0.0, 0.4], [0.2, 0.0])


# Philippenko et al.


def test_bounds_of_theorem_2_by_hand():
    """2 T mu^2 start = e beta sigma^2, so that the logarithm is 1 and lr 1/(mu T)."""
    beta, variance, mu, rounds = 2.0, 3.0, 1.0, 10
    start = E * beta * variance / (2 * rounds)
    problem = all_for_one.Problem(start, variance, beta, mu, cap=0.5)
    assert all_for_one.horizon_steps(problem, rounds)(1) == pytest.approx(0.1)
    assert all_for_one.horizon_bound(problem, rounds) == pytest.approx(0.6)
    # (1/2)^2 * 8 + 1/2 * 2 * 3 / 2.
    problem = all_for_one.Problem(8.0, 3.0, 2.0, 1.0, cap=0.5)
    assert all_for_one.constant_bound(problem, 2, 0.5) == pytest.approx(2 + 1.5)
    # gamma + 1 = C / (mu cap) = 4: the start over 4 + T, or 2 * 3 * 4 / 2 over it.
    assert all_for_one.decreasing_bound(problem, 4) == pytest.approx(32 / 8)
    loud = all_for_one.Problem(1.0, 30.0, 2.0, 1.0, cap=0.5)
    assert all_for_one.decreasing_bound(loud, 4) == pytest.approx(120 / 8)


# Chapter 8 and the report.


def test_gaps_by_hand_are_those_of_losses_with_equal_curvatures():
    """f_i = mu |x - a_i|^2 / 2 has b = mu |a_i - a_j|, so b^2/(2 mu) is its gap."""
    best, mu = rows([0.0, 0.0], [3.0, 4.0], [0.0, 1.0]), 2.0
    apart = torch.cdist(best, best)
    assert_close(collaboration.gap_of_distance(mu * apart, mu), mu / 2 * apart**2)
    assert clusters.linear_diameter(best) == pytest.approx(math.sqrt(26))


def test_bounds_of_all_for_one_by_hand():
    bounded = BoundedLosses(radius=1.0, bound=2.0)
    # 2 sqrt(2 (1/4 + 1/4) / 8) + 0.5 * 0.4, and 2 sqrt(2 / 8) without bias.
    found = collaboration.all_for_one_bounded_bound(MIXED, GAP, 8, bounded)
    assert found.tolist() == pytest.approx([math.sqrt(0.5) + 0.2, 1.0])
    # At a distance of 1, b^2 = mu eps / 2 for mu = 2 and eps = 1.
    b = rows([0.0, 0.99, 1.01], [0.99, 0.0, 0.5], [1.01, 0.5, 0.0])
    expected = rows([0.5, 0.5, 0.0], [1 / 3] * 3, [0.0, 0.5, 0.5])
    assert_close(collaboration.all_for_one_weights(b, 1.0, 2.0), expected)
    # With noise alone, 1 / (2 mu eps N): two of two clients are alike.
    losses = LossClass(0.5, 2.0, 3.0)
    start = rows(0.1 * math.exp(1.999) / 2, 0.1 * math.exp(0.999) / 2)
    found = collaboration.all_for_one_calls(0 * GAP, 0.1, start, losses)
    assert found.tolist() == [math.ceil(8 * 30 * 1.999), math.ceil(8 * 30 * 0.999)]


def test_bounds_of_all_for_all_by_hand():
    assert collaboration.mean_bias(ALIKE, 2 * GAP) == pytest.approx(0.3)
    assert collaboration.mean_bias(ALIKE, GAP) == pytest.approx(0.15)
    # (1 - 1/2)^2 + 1/2 * 1 / 2 + 0.15, as sigma^2 / n sum l^2 = 2 / 2.
    losses = LossClass(1.0, 1.0, 2.0)
    found = collaboration.all_for_all_bound(ALIKE, GAP, 1.0, 0.5, 2, losses)
    assert found == pytest.approx(0.65)
    # 2 / 4 + 2 sqrt(2 / (2 * 4)) + 2 * 0.15; the step is 1 / sqrt(16).
    convex = ConvexLosses(radius=1.0, beta=1.0, variance=2.0)
    found = collaboration.all_for_all_convex_bound(ALIKE, GAP, 4, convex)
    assert found == pytest.approx(1.8)
    assert collaboration.all_for_all_convex_step(ALIKE, 16, convex) == 0.25
    assert collaboration.all_for_all_convex_step(ALIKE, 1, convex) == 0.5
    # 2 sqrt(1.5 / 6) + 0.1, with the step 2 / (2 sqrt(9)).
    bounded = BoundedLosses(radius=1.0, bound=2.0)
    found = collaboration.all_for_all_bounded_bound(MIXED, GAP, 6, bounded)
    assert found == pytest.approx(1.1)
    assert collaboration.all_for_all_bounded_step(MIXED, 6, bounded) == 1 / 3
    none = torch.zeros(4, 4, dtype=REAL)
    known = BoundedLosses(radius=1.0, bound=3.0)
    assert collaboration.anytime_samples(none, 0.5, known) == 64 / 3 * 36


def test_calls_of_all_for_all_by_hand():
    """At a distance of 1, b^2 = mu eps for mu = 2 and eps = 1/2."""
    b = rows([0.0, 0.99, 1.01], [0.99, 0.0, 0.5], [1.01, 0.5, 0.0])
    expected = rows([0.5, 0.5, 0.0], [1 / 3] * 3, [0.0, 0.5, 0.5])
    assert_close(collaboration.all_for_all_weights(b, 0.5, 2.0), expected)
    losses = LossClass(0.5, 2.0, 3.0)  # kappa = 4, sigma^2 / (mu eps) / 2 = 30
    start = 0.1 * math.exp(1.999) / 4
    found = collaboration.all_for_all_calls(ALIKE, 0.1, start, losses)
    assert found == math.ceil(2 * 4 * 30 * 1.999)


def test_bounds_of_gradient_descent_by_hand():
    one = LossClass(1.0, 1.0, 3.0)
    assert rates.sgd_bound(4.0, 0.5, 2, one) == 1 + 0.75
    assert rates.precision_step(0.8, LossClass(0.5, 2.0, 4.0)) == pytest.approx(0.025)
    convex = ConvexLosses(radius=2.0, beta=3.0, variance=4.0)
    assert rates.convex_sgd_bound(16, convex) == 2.0 + 1.5
    assert rates.convex_sgd_step(36, convex) == pytest.approx(1 / 6)


def test_the_bound_for_found_clusters_by_hand():
    """With so many samples nobody is missed: a fourth of the noise, and 4 u."""
    known = {"clusters": 3, "size": 4, "samples": 10**5, "separation": 2.0}
    start = E**2 / 10  # 2 K start / (sigma^2 / 4) = e^2
    losses = LossClass(1.0, 1.0, 8.0)
    for u, bias in ((0.5, 0.0), (1.0, 3.0**2 / 2 * 4.0)):
        found = clusters.Clusters(**known, noise=0.01, dimension=1.0, threshold=u)
        bound = clusters.estimated_bound(
            found, start, 10, losses, diameter=3.0, farthest=5.0
        )
        assert bound == pytest.approx(E**-3 / 10 + 0.3 + bias)


def test_calls_of_one_agent_of_many_by_hand():
    found = infinite.one_agents_calls(0.5, mass=0.1, diameter=2.0, bound=3.0)
    assert found == pytest.approx(4 * 12**2 / 0.1)


# Fallah et al. and Karula.


def test_biases_and_variances_of_meta_gradients_by_hand():
    problem = meta.MetaProblem(0.1, 5.0, 2.0, 3.0, 4.0, 10.0, (16, 4, 1))
    # s^2 = 16 (1/4 + 1/4/16) = 4.25; alpha L = 1/2; sigma_H alpha = 1.
    assert meta.exact_bias(problem) == pytest.approx(1.0)
    assert meta.exact_variance(problem) == pytest.approx(12 * (8.25 * 1.25 - 4))
    assert meta.first_order_bias(problem) == pytest.approx(0.5 * (1 + 2))
    assert meta.first_order_variance(problem) == pytest.approx(8.5 + 2)
    found = meta.hessian_free_bias(problem, delta=0.5)
    assert found == pytest.approx(0.1 * (10 + 10 + 6))
    found = meta.hessian_free_variance(problem, delta=0.5)
    drawn = 6 * 16 * (0.5 / 16 + 0.5 + 0.01 / 0.5)
    assert found == pytest.approx(drawn + 2 * 0.15**2 * 16)
    assert meta.meta_dissimilarity(problem, 0.5, 25.0) == pytest.approx(3 + 96)


def test_bounds_of_karula_by_hand():
    assert karula.optima_bound(0.5, lipschitz=3.0, growth=1.5) == 2.0
    # eta = 1, and the noise is that of Lemma A.1, 4 sigma^2 (s + 1) / s.
    known = {"smoothness": 3 / 8, "clients": 2, "active": 2}
    for variance, inexactness, expected in (
        (0.0, 0.0, 8 / 2),
        (3.0, 0.0, 8 / 2 + 8 * 4 * 3 * 3 / 2),
        (0.0, 1.0, 8 / 2 + 8 * 2),
    ):
        found = karula.gradient_mapping_bound(
            2.0, 4, **known, variance=variance, inexactness=inexactness
        )
        assert found == pytest.approx(expected)


# Chapters 2 to 4.


def test_the_bound_for_single_samples_by_hand():
    """kappa = R^2 / mu = 4 and kappa_stat = 1: the exponent is -t / 2."""
    moments = continuized.FeatureMoments(2.0, 1.0, 0.5)
    found = continuized.samples_bound(6.0, 3.0, 4.0, moments)
    assert found == pytest.approx((3 + 0.5 * 4) / 2 * E**-3)


def test_bounds_of_gossip_by_hand():
    # A complete graph has mu = 2 / (n - 1) and resistances n - 1.
    edges = edges_of("complete", 6)
    uniform = torch.full((15,), 1 / 15, dtype=REAL)
    assert gossip.randomised_rate(edges, uniform) == pytest.approx(1 / 5)
    assert gossip.accelerated_rate(edges, uniform) == pytest.approx(1 / 5)
    assert gossip.synchronous_bound(0.5, 3) == 1 / 64
    assert gossip.accelerated_bound(0.5, 2.0) == pytest.approx(2 / E)
    pair, gain = torch.tensor([[0, 1]]), rows(0.4)  # lambda_2 is 0.8
    assert gossip.delayed_rate(pair, gain, rows(1.0)) == pytest.approx(0.4)
    assert gossip.delayed_rate(pair, gain, rows(1.0), kept=0.5) == pytest.approx(0.2)
    assert gossip.delayed_rate(pair, gain, rows(10.0)) == pytest.approx(0.1)
    found = gossip.delayed_bound(0.2, 10.0, 2.5)
    assert found == pytest.approx(1.25 / 0.5 / E)
    sizes = {"smoothness": 4.0, "curvature": 1.0}
    assert descent.ddo_bound(0.2, 10.0, 2.5, **sizes) == pytest.approx(20 / E)
    line = edges_of("line", 3)
    found = mean_paths.local_margin(line, rows(1.0, 1.0), rows(0.1, 0.2))
    assert found == pytest.approx(0.5 - 0.3)


def test_rates_of_delayed_descent_by_hand():
    p, tau, ratio = rows(1.0, 2.0), rows(1.0, 0.0), rows([1.0, 0.5], [0.0, 1.0])
    found = descent.coordinate_gains(p, tau, ratio)
    assert_close(found, rows(1 / (1 + 2 + E), 2 / (1 + E / 2)))
    known = {"curvature": 0.5, "accepted": 0.5}
    gains, smoothness = rows(1.0, 2.0), rows(2.0, 8.0)
    found = descent.coordinate_rate(gains, smoothness, rows(0.1, 0.2), **known)
    assert found == 0.25 * 0.25
    found = descent.coordinate_rate(gains, smoothness, rows(0.1, 100.0), **known)
    assert found == 0.01
    # The augmented graph of an edge is a path of four, with lambda_2 = 2 - sqrt(2).
    pair = descent.Network(torch.tensor([[1, 0]]), rows(3.0), rows(0.1), p, 0.1 * p)
    whole = descent.augmented_graph(pair)
    assert whole.edges.tolist() == [[1, 0], [0, 2], [1, 3]]
    assert whole.rates.tolist() == [3, 1, 2]
    assert whole.delays.tolist() == [0.1, 0.1, 0.2]
    gains = descent.Gains(torch.ones(1, dtype=REAL), torch.ones(2, dtype=REAL))
    sizes = {"smoothness": 2.0, "curvature": 0.5}
    found = descent.ddo_rate(pair, gains, **sizes, accepted=0.5)
    assert found == pytest.approx((2 - math.sqrt(2)) / 32)
    far = pair._replace(lengths=rows(0.1, 50.0))
    assert descent.ddo_rate(far, gains, **sizes) == pytest.approx(0.02)


def test_rates_without_waiting_by_hand():
    problem = asynchrony.AsyncProblem(4, 100, beta=2.0, variance=9.0, mu=0.5)
    assert asynchrony.lipschitz_steps(2.0, 0.5, problem)(7, 30) == 0.2
    assert asynchrony.lipschitz_bound(2.0, 0.5, problem) == pytest.approx(0.6)
    # 4 * 2 * 9 / 100 + 3 * 3 / 10.
    assert asynchrony.convex_rate(3.0, problem) == pytest.approx(0.72 + 0.9)
    # With a start of which nothing is left, 9 / (0.5 * 100) ln(e + 1 / 4 * 400).
    late = asynchrony.AsyncProblem(1, 10**4, beta=2.0, variance=9.0, mu=0.5)
    found = asynchrony.strongly_convex_rate(3 / 50, late)
    assert found == pytest.approx(9 / 5000 * math.log(E + 10**4))
    quiet = asynchrony.AsyncProblem(4, 32, beta=2.0, mu=0.5)
    found = asynchrony.strongly_convex_rate(3.0, quiet)
    assert found == pytest.approx(8 * 9 * E**-2)
    # 4 * 2 * 2 / 100 + sqrt(0.04 * 9) + 0.25.
    found = asynchrony.nonconvex_rate(2.0, problem, zeta=0.5)
    assert found == pytest.approx(0.16 + 0.6 + 0.25)
    # gamma_max = 1 / (2 M L) without noise: 162 Delta 2 M L / K.
    quiet = asynchrony.AsyncProblem(4, 100, beta=2.0)
    assert asynchrony.nonconvex_bound(3.0, quiet) == pytest.approx(162 * 3 * 16 / 100)


def test_steps_that_are_applied_later_by_hand():
    """The gradient at x_1 is used by update 3, at x_2 by 4, and two are on their way.

    Those have waited for 4 - 3 updates, and for one at least.
    """
    found = delays.delays_of(torch.tensor([0, 1, 0, 1]), workers=2)
    steps = delays.applied_steps(found, lambda k, tau: 1.0 * k + 100 * tau)
    assert steps.tolist() == [203.0, 204.0, 104.0, 104.0]


# Chapter 5.


def test_constants_of_mixing_by_hand():
    one = mixing.likely_mixing(1.0, 3)
    assert one.rho == pytest.approx(1 - math.sqrt(0.75)) and one.window == 9
    # (1/4)^2 / 4 + 3/4 = 49 / 64.
    two = mixing.likely_mixing(0.75, 6)
    assert two.rho == pytest.approx(1 / 8) and two.window == 18
    assert mixing.Mixing(0.5).rho_bar == pytest.approx((1 - 1 / E) / 2)
    assert mixing.Mixing(0.1, window=4).rho_bar == pytest.approx((1 - 1 / E) / 40)
    line = edges_of("line", 3)
    found = mixing.waiting_times(line, rows(1.0, 2.0), rows(3.0, 5.0), chance=1 / E)
    assert found.tolist() == pytest.approx([3.7782 * 6, 3.7782 * 5.5], rel=1e-5)


def test_distances_to_the_mean_by_hand():
    network = agraf.EqualNodes(4, 0.5, 100, variance=3.0)
    assert agraf.virtual_radius(2.0, 3.0, 0.1) == pytest.approx(2.3)
    found = agraf.virtual_spread(rows(1.0, 2.0, 4.0, 2.0), 3.0, 0.1)
    assert found == pytest.approx(2 * 0.01 * 12 / 4)
    assert agraf.consensus_bound(3.0, 0.1, network) == pytest.approx(72.0)
    # 2 * 0.01 * 3 * 100 / 0.5 + 4 * 0.04 * 50.
    found = agraf.smooth_consensus_bound(50.0, 0.1, network)
    assert found == pytest.approx(12.0 + 8.0)
    p = rows(0.25, 0.25, 0.25, 0.25)
    known = {"variance": 3.0, "zeta": 2.0, "first": 5.0}
    sampled = agraf.SampledNodes(p, 0.5, 10, **known)
    # n p_bar = 1: 4 * 0.01 * 3 * 10 / 0.5 + 8 * 0.04 * 5 + 16 * 0.04 * (7 + 40).
    found = agraf.sampled_consensus_bound(7.0, 0.1, sampled)
    assert found == pytest.approx(2.4 + 1.6 + 30.08)


# Chapter 6.


def test_muffliato_by_hand():
    # ln(4) / 0.5 = 2.77, and ln(8 / 4 * 4) / 0.5 = 4.16.
    assert muffliato.stopping_time(0.5, 4, 1.0) == 3
    assert muffliato.stopping_time(0.5, 8, 2.0, spread=4.0) == 5
    found = muffliato.error_bound(0.5, 4, 10, 2.0, spread=1.0)
    assert found == pytest.approx(5 * E**-2 + 0.4)
    # W^t = J / 2 for all t: 2 * T / 4 * 4.
    found = muffliato.walk_bound(ALIKE, 3)
    assert_close(found, torch.full((2, 2), 6.0, dtype=REAL))
    problem = muffliato.PrivateDescent(10, 40, 3.0, 2.0, mu=0.5, smoothness=4.0)
    # 3 / (10 * 0.5 * 40) + 4 * 2 * e^(-40 / 16).
    found = muffliato.sgd_rate(problem)
    assert found == pytest.approx(0.015 + 8 * math.exp(-2.5))
    # mu^2 |.|^2 n T / variance = e, so the step is 1 / (mu T).
    problem = problem._replace(variance=0.25 * 2 * 400 / E)
    assert muffliato.sgd_step(problem) == pytest.approx(1 / 20)
    assert muffliato.sgd_step(problem._replace(steps=1)) == 1 / 16
    assert muffliato.mean_loss(3, 4, 6) == 2.0
    # 2 * 3 / (20 - 2 + 1 - 3).
    assert colluders.secret_colluders_loss(20, 2, 3, 1) == 0.375
    assert colluders.linked_chance(0.5, 3) == 0.875
    # Nodes 1 and 3 of a ring of six have three neighbours: 0, 2 and 4.
    ring = gossip_matrix(edges_of("ring", 6), 6)
    assert colluders.joint_degree(ring, [1, 3]) == 3


# Chapter 7.


def test_bounds_of_walks_by_hand():
    assert tokens.hitting_bound(3.0, 0.25) == 24.0
    problem = tokens.TokenProblem(10, 2.0, variance=3.0)
    assert tokens.summed_noise_bound(problem) == 3 * (8 + 10 * 17)
    assert tokens.interpolation_bound(4.0, 3, lr=0.5, mu=1.0) == 1.0
    assert tokens.delay_bound(10, 7.0) == 70.0
    found = tokens.sag_bound(2.0, 2.0, 40, hitting=3.0, cover=7.0, beta=0.5)
    assert found == pytest.approx(8 * 0.5 * 2 * 10 / 40 + 2 * 7 * 2 / 40)
    assert tokens.sag_step(3.0, 5.0, 0.5) == 1 / 16
    # tau = ln T: the exponent is -T mu / (384 L ln T), and noise is 3 / (mu T).
    problem = tokens.TokenProblem(1000, 1.0, beta=0.5, mu=0.2, variance=3.0)
    expected = math.exp(-200 / (192 * math.log(1000))) * 2 + 3 / 200
    assert tokens.pl_rate(2.0, problem) == pytest.approx(expected)


def test_a_path_of_three_gradients_has_its_bound_by_hand():
    """q = 1/2: G_0 = (4), G_1 = (3), G_2 = (1), and sums from 0, 1 and 2 on."""
    noise = rows([1.0], [2.0], [1.0])
    found = tokens.pathwise_bound(noise, 8.0, lr=0.5, beta=1.0, mu=1.0)
    late = (16 / 4 + 9 / 2 + 1) / 8
    assert found == pytest.approx(2 / 8 * (8 + 16 / 4) + late)


def test_the_hard_instance_is_that_of_its_polynomials():
    matrices, vectors = tokens.hard_instance(6, alpha=0.7, b=1.3)
    x = torch.linspace(-1, 2, 6, dtype=REAL).requires_grad_()
    own = sum(x[k] ** 2 - x[k - 1] * x[k] for k in (2, 4))
    own = own + 0.7 * x[0] ** 2 / 2 - 1.3 * x[0]
    other = sum(x[k] ** 2 - x[k] * x[k - 1] for k in (1, 3, 5))
    for loss, a, c in zip((own, other), matrices, vectors, strict=True):
        (g,) = torch.autograd.grad(loss, x, retain_graph=True)
        assert_close(a @ x.detach() - c, g)


# Chapters 9 to 11.


def test_shared_structure_by_hand():
    tiny = structure.ProblemSizes(1, 1, 1, 2)
    assert structure.failure(tiny) == pytest.approx(min(1.0, 8 / E**2))
    wide = structure.ProblemSizes(6, 2, 2, 1)
    assert structure.failure(wide) == pytest.approx(4 * E**-16 + 4 * E**-12)
    assert structure.failure(wide, clustered=True) == pytest.approx(
        4 * E**-6 + 4 * E**-12
    )
    sizes = structure.ProblemSizes(14, 2, 1, 10, 3.0, 0.5, 2.0, 1.5, 2.5)
    # B^2 (sigma^4 + sigma_*^4) / mu^2 = 306, times 16 / 140 and 2 / 140.
    assert structure.low_rank_rate(sizes) == pytest.approx(306 * 16 / 140)
    assert structure.clustered_rate(sizes) == pytest.approx(306 * 2 / 140)
    # sqrt(16) = 4, but at most D = 2; with more dimensions it is 4.
    assert structure.truncation(sizes) == 2
    assert structure.truncation(sizes._replace(clients=8, dimension=8)) == 4
    # 9 * 4 / 4 and 9 / 0.5 * (2 * 1.5 + 2 * 2.5) * 4 / 10.
    assert structure.nuclear_rate(sizes) == pytest.approx(9.0 + 57.6)
    # With kappa = 2: 4 times the first, and 5 * 1.5 + 3 * 2.5 = 15.
    assert structure.nuclear_rate(sizes, kappa=2.0) == pytest.approx(36 + 108.0)
    # 9 * (2.25 + 6.25) / (0.25 * 10).
    assert structure.few_shot_rate(sizes) == pytest.approx(9 * 8.5 / 2.5)
    # At an angle of 30 degrees the squared distance is 1/4: 2 / 0.5 * 9 / 4.
    true, found = rows([1.0], [0.0]), rows([math.sqrt(0.75)], [0.5])
    assert structure.few_shot_bias(found, true, sizes) == pytest.approx(9.0)
    flat = sizes._replace(mu=0.0)
    assert structure.few_shot_bias(found, true, flat) == pytest.approx(9 / 4)
    # Models (2, 0) and (0, 1): lambda_min = 1, nu^2 = 2 / 2.
    models = rows([2.0, 0.0], [0.0, 1.0])
    assert structure.subspace_bound(models, 0.3, 2) == pytest.approx(0.3)
    # With rank 1 it is lambda = 4 and nu^2 = 4 / 2.
    assert structure.subspace_bound(models, 0.3, 1) == pytest.approx(0.15)


def test_deviations_by_hand():
    """sigma_1 = 4, d_eff = 1 and ln d = 0; delta = 1 / e."""
    one = rows(4.0)
    found = concentration.product_deviation(one, 4, r=2, delta=1 / E)
    assert found == pytest.approx(4 * (1 / 4 + 1 / 2))
    found = concentration.product_deviation(one, 1, r=3, delta=1 / E, scale=2.0)
    assert found == pytest.approx(16 * (math.sqrt(2) + 1))
    found = preconditioning.prescribed_mu(
        one, 1, radius=3.0, lipschitz=0.5, delta=1 / E, scale=2.0
    )
    assert found == pytest.approx(24 * (math.sqrt(2) + 1))
    found = concentration.tensor_deviation(one, 8, order=1, delta=1 / E)
    assert found == pytest.approx(2 * math.sqrt(4 * math.log(8) / 8))
    # Two equal ones: d_eff(1) = d_eff(2) = 2, and ln d = ln 2.
    found = concentration.product_deviation(rows(1.0, 1.0), 9, r=2, delta=1.0)
    few, plenty = 2 * math.log(2) / 9, math.sqrt(2 * math.log(2)) / 3
    assert found == pytest.approx(few + plenty)
    values = rows(1.0, 0.25, 0.25, 0.5)
    assert concentration.covering_directions(values, 0.5) == 1 + 1 * 4
    # All equal: 1 + (d - 1) for epsilon = 1, which is attained.
    assert concentration.covering_directions(torch.ones(7), 1.0) == 7
    # d_eff(1) = 2 of 4, where N is so large that roots are what counts.
    found = preconditioning.isotropic_gain(values, 10**6)
    assert found == pytest.approx(math.sqrt(2))
    # With one sample, d^1.5 = 8 over sqrt(2) d_eff(3).
    many = 1 + 2 * 0.25 ** (1 / 3) + 0.5 ** (1 / 3)
    found = preconditioning.isotropic_gain(values, 1)
    assert found == pytest.approx(8 / (math.sqrt(2) * many))


def test_the_fall_of_losses_by_hand():
    assert implicit_bias.loss_bound(2, 3.0, 0.5, 2.0, 0.5) == 3 / 4
    # Without samples that disagree, lambda_b is the curvature: one sample of length 2.
    assert implicit_bias.batch_curvatures(rows([2.0, 0.0]), 1) == pytest.approx((4, 4))
