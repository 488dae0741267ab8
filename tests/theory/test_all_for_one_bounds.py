"""Claims of the theory: bounds hold where ours do, and fail where the printed ones do.

On a quadratic loss with additive noise the expected excess loss of gradient descent
has a closed form, so that most claims need no sampling at all.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from coterie.collaboration import weights
from coterie_theory import all_for_one as theory
from coterie_theory.all_for_one import Problem
from support.refusals import refuses

LAM = 0.25
PHI = weights.binary(LAM)


def expected_excess(curvatures, offsets, variance, steps, rounds):
    """E[R - R*] after 0..rounds steps on R = sum_j h_j x_j^2 / 2, noise along x_1.

    Coordinate j keeps its second moment, m <- (1 - eta h)^2 m + eta^2 variance 1{j=1}.
    """
    moments = [x**2 for x in offsets]
    curve = [sum(h * m / 2 for h, m in zip(curvatures, moments, strict=True))]
    for t in range(1, rounds + 1):
        eta = steps(t)
        shrink = [(1 - eta * h) ** 2 for h in curvatures]
        moments = [a * m for a, m in zip(shrink, moments, strict=True)]
        moments[0] += eta**2 * variance
        curve.append(sum(h * m / 2 for h, m in zip(curvatures, moments, strict=True)))
    return curve


def quadratics(seed=0, n=5, d=3, spread=0.3):
    """Random A_i near the identity and shifts xi_i, in double precision."""
    rng = torch.Generator().manual_seed(seed)
    root = torch.randn(n, d, d, generator=rng, dtype=torch.float64)
    matrices = torch.eye(d, dtype=torch.float64) + 0.05 * (root + root.mT)
    shifts = spread * torch.randn(n, d, generator=rng, dtype=torch.float64)
    return matrices, shifts


def gradients(matrices, shifts, x):
    """Entry (i, k) is grad R_k(x_i), computed by automatic differentiation."""
    rows = []
    for point in x:
        leaf = point.expand(len(shifts), -1).clone().requires_grad_()
        moved = leaf + shifts
        loss = torch.einsum("kd,kde,ke->", moved, matrices, moved)
        rows.append(torch.autograd.grad(loss, leaf)[0])
    return torch.stack(rows)


def ratio_at(g):
    """The similarity ratio of true gradients g (N, N, D)."""
    own = torch.diagonal(g).T  # (N, D)
    distance = (g - own[:, None]).square().sum(2)
    return weights.similarity_ratio(distance, own.square().sum(1)), distance


# Property 1.


def test_quadratic_gradients_differ_by_at_most_property_1():
    for seed in range(20):
        matrices, shifts = quadratics(seed)
        b, c = theory.quadratic_heterogeneity(matrices, shifts)
        rng = torch.Generator().manual_seed(seed)
        x = 10 ** (seed % 4 - 2) * torch.randn(shifts.shape, generator=rng).double()
        g = gradients(matrices, shifts, x - shifts)
        own = torch.diagonal(g).T.square().sum(1)
        _, distance = ratio_at(g)
        assert (distance <= b**2 + c * own[:, None] + 1e-12).all()


def test_property_1_is_zero_between_equals_and_has_no_offset_at_a_shared_minimum():
    matrices, shifts = quadratics()
    b, c = theory.quadratic_heterogeneity(matrices, shifts)
    assert (b.diagonal() == 0).all()
    assert (c.diagonal() == 0).all()
    b, c = theory.quadratic_heterogeneity(matrices, shifts[:1].expand(5, -1))
    assert (b == 0).all()
    assert c[0, 1] > 0


def test_property_1_as_printed_forgets_that_the_gradient_has_a_factor_two():
    matrices = torch.eye(2).expand(2, 2, 2)
    shifts = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    b, c = theory.quadratic_heterogeneity(matrices, shifts)
    assert float(c[0, 1]) == 0
    _, distance = ratio_at(gradients(matrices, shifts, torch.zeros(2, 2)))
    assert float(distance[0, 1]) == pytest.approx(4 * 25)  # |2 (xi_i - xi_k)|^2
    printed = math.sqrt(2) * 5
    assert float(distance[0, 1]) > printed**2
    assert float(b[0, 1]) == pytest.approx(2 * printed)


# Definition 2 and Lemma 2.


@pytest.mark.parametrize("phi", [PHI, weights.continuous], ids=["binary", "continuous"])
def test_effective_variance_is_at_most_the_sufficient_one(phi):
    for seed in range(20):
        matrices, shifts = quadratics(seed)
        b, c = theory.quadratic_heterogeneity(matrices, shifts)
        mu = 2 * float(torch.linalg.eigvalsh(matrices).min())
        rng = torch.Generator().manual_seed(seed)
        x = torch.randn(shifts.shape, generator=rng).double() * 3
        precision = 0.1 + torch.rand(5, generator=rng).double()
        ratio, _ = ratio_at(gradients(matrices, shifts, x))
        moved = x + shifts
        excess = torch.einsum("id,ide,ie->i", moved, matrices, moved)
        effective = weights.effective_variance(ratio, precision, phi)
        for i in range(5):
            eps = float(excess[i])
            suf = theory.sufficient_variance(b, c, precision, phi, mu=mu, eps=eps)
            assert effective[i] <= suf[i] * (1 + 1e-12)
            cluster = theory.sufficient_cluster(b, c, phi, mu=mu, eps=eps)[i]
            assert not (cluster & (phi(ratio[i]) == 0)).any()


@pytest.mark.parametrize("v", [0.001, 0.01, 0.1, 1.0])
def test_sufficient_cluster_shrinks_from_everyone_to_oneself_as_in_figure_1(v):
    rng = torch.Generator().manual_seed(0)
    shifts = v * torch.randn(20, 10, generator=rng, dtype=torch.float64)
    matrices = torch.eye(10, dtype=torch.float64).expand(20, 10, 10)
    b, c = theory.quadratic_heterogeneity(matrices, shifts)
    sizes = [
        int(theory.sufficient_cluster(b, c, PHI, mu=2.0, eps=v**2 * 10**power)[1].sum())
        for power in (-3, -1, 0, 1, 1.5, 2, 3)
    ]
    assert sizes == sorted(sizes)
    assert sizes[0] == 1
    assert sizes[-1] == 20
    assert 1 < sizes[4] < 20


def test_sufficient_ratio_does_not_depend_on_the_unit_of_the_loss():
    matrices, shifts = quadratics(spread=0.1)

    def ratio(unit):
        b, c = theory.quadratic_heterogeneity(unit * matrices, shifts)
        return theory.sufficient_ratio(b, c, mu=1.5 * unit, eps=2.0 * unit)

    assert_close(ratio(100.0), ratio(1.0))
    assert ((ratio(1.0) > 0) & (ratio(1.0) < 1)).any()


def test_definition_2_with_b_not_squared_breaks_lemma_2():
    matrices = torch.eye(1).expand(2, 1, 1)
    shifts = torch.tensor([[0.0], [10.0]])
    b, c = theory.quadratic_heterogeneity(matrices, shifts)
    x = torch.tensor([[9.0], [9.0]])
    precision, mu, eps = torch.ones(2), 2.0, 81.0  # excess of client 0 is 9^2
    ratio, _ = ratio_at(gradients(matrices, shifts, x))
    effective = weights.effective_variance(ratio, precision, PHI)
    suf = theory.sufficient_variance(b, c, precision, PHI, mu=mu, eps=eps)
    assert effective[0] <= suf[0]
    printed = (1 - b / (2 * mu * eps) - c).clamp(min=0)
    printed_variance = weights.effective_variance(printed, precision, PHI)
    assert effective[0] > 1.5 * printed_variance[0]


def test_the_limit_of_sufficient_variance_holds_precisions_and_not_variances():
    b = torch.tensor([[0.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
    precision = torch.tensor([4.0, 4.0, 4.0])
    limit = theory.sufficient_variance(
        b, torch.zeros(3, 3), precision, weights.continuous, mu=1.0, eps=1e-9
    )
    assert_close(limit, torch.tensor([1 / 8, 1 / 8, 1 / 4]))
    printed = 1 / (2 * (1 / 4))
    assert float(limit[0]) != pytest.approx(printed)


def test_psi_of_the_binary_criterion_is_as_small_as_lam_squared_in_a_cluster():
    # Section 4 says that its minimum over the sufficient cluster is lam.
    edge = math.sqrt(2 * (1 - LAM))  # where the ratio is lam, for mu = eps = 1
    b = torch.tensor([[0.0, edge], [edge, 0.0]], dtype=torch.float64)
    mu, eps = 1.0, 1.0
    zero = torch.zeros_like(b)
    ratio = theory.sufficient_ratio(b, zero, mu=mu, eps=eps - 1e-9)
    assert float(ratio[0, 1]) == pytest.approx(LAM, abs=1e-8)
    assert not theory.sufficient_cluster(b, zero, PHI, mu=mu, eps=eps - 1e-9)[0, 1]
    assert theory.sufficient_cluster(b, zero, PHI, mu=mu, eps=eps + 1e-9)[0, 1]
    alone = theory.sufficient_variance(
        b, zero, torch.tensor([1e-9, 1.0]).double(), PHI, mu=mu, eps=eps + 1e-9
    )
    assert float(alone[0]) == pytest.approx(1 / LAM**2, rel=1e-6)


# Step sizes.


def test_the_largest_step_is_at_least_lam_over_beta_for_binary_weights():
    rng = torch.Generator().manual_seed(0)
    for _ in range(20):
        ratio = torch.rand(6, 6, generator=rng).fill_diagonal_(1)
        precision = 0.1 + torch.rand(6, generator=rng)
        alpha = weights.collaboration_weights(ratio, precision, PHI)
        step = theory.largest_step(alpha, beta=4.0)
        assert_close(step * alpha.sum(1), torch.full((6,), 0.25))
        assert (step >= LAM / 4 - 1e-6).all()


EASY = Problem(start=8.0, variance=1.0, beta=1.0, mu=1.0, cap=1.0)
STIFF = Problem(start=8.0, variance=0.5, beta=10.0, mu=1.0, cap=0.1)
CALM = Problem(start=8.0, variance=1e-4, beta=4.0, mu=0.5, cap=0.25)
PROBLEMS = pytest.mark.parametrize(
    "problem", [EASY, STIFF, CALM], ids=["easy", "stiff", "calm"]
)


def exact(problem, steps, rounds):
    """The largest of four exact curves: start and noise along curvature mu or beta."""
    curves = []
    for noisy in (problem.beta, problem.mu):
        for far in (problem.beta, problem.mu):
            offsets = (0.0, math.sqrt(2 * problem.start / far))
            curves.append(
                expected_excess((noisy, far), offsets, problem.variance, steps, rounds)
            )
    return [max(values) for values in zip(*curves, strict=True)]


@PROBLEMS
@pytest.mark.parametrize("rounds", [1, 5, 50, 500])
def test_constant_bound_holds_exactly(problem, rounds):
    for lr in (problem.cap, problem.cap / 3):
        steps = theory.constant_steps(problem, lr)
        bound = theory.constant_bound(problem, rounds, lr)
        assert exact(problem, steps, rounds)[-1] <= bound * (1 + 1e-9)


@PROBLEMS
@pytest.mark.parametrize("rounds", [300, 3000])
def test_horizon_bound_holds_exactly(problem, rounds):
    steps = theory.horizon_steps(problem, rounds)
    bound = theory.horizon_bound(problem, rounds)
    assert exact(problem, steps, rounds)[-1] <= bound * (1 + 1e-9)


@PROBLEMS
@pytest.mark.parametrize("growth", [1.1, 2.0, 5.0])
def test_decreasing_bound_holds_exactly_at_every_round(problem, growth):
    steps = theory.decreasing_steps(problem, growth)
    assert steps(1) == pytest.approx(problem.cap)
    for t, excess in enumerate(exact(problem, steps, 600)):
        assert excess <= theory.decreasing_bound(problem, t, growth) * (1 + 1e-9)


@PROBLEMS
@pytest.mark.parametrize("rounds", [1, 10, 1000])
def test_stationary_bound_holds_exactly(problem, rounds):
    # On a quadratic with one curvature h, |grad R|^2 = 2 h (R - R*).
    names = ("start", "variance", "beta", "cap")
    known = {name: getattr(problem, name) for name in names}
    lr = theory.stationary_step(rounds, **known)
    for h in (problem.beta, problem.mu):
        x = math.sqrt(2 * problem.start / h)
        curve = expected_excess((h,), (x,), problem.variance, lambda t: lr, rounds)
        mean = sum(2 * h * excess for excess in curve[:-1]) / rounds
        assert mean <= theory.stationary_bound(rounds, **known) * (1 + 1e-9)


def test_bound_over_time_is_the_sum_of_theorem_1():
    variances = torch.tensor([1.0, 3.0, 2.0, 0.5], dtype=torch.float64)
    lr, mu, beta, start = 0.2, 0.7, 1.5, 4.0
    bounds = theory.bound_over_time(start, variances, lr=lr, mu=mu, beta=beta)
    for rounds in range(5):
        noise = sum(
            (1 - lr * mu) ** (rounds - t) * float(variances[t - 1])
            for t in range(1, rounds + 1)
        )
        expected = (1 - lr * mu) ** rounds * start + beta * lr**2 / 2 * noise
        assert float(bounds[rounds]) == pytest.approx(expected)


def test_constant_bound_is_the_limit_of_theorem_1():
    variances = torch.full((2000,), EASY.variance, dtype=torch.float64)
    curve = theory.bound_over_time(EASY.start, variances, lr=0.1, mu=1.0, beta=1.0)
    assert float(curve[-1]) == pytest.approx(theory.constant_bound(EASY, 2000, 0.1))


def test_too_large_steps_and_too_short_horizons_are_refused():
    refuses(r"`lr` must be at most 0\.1", theory.constant_steps, STIFF, 0.2)
    refuses("for 2 rounds", theory.horizon_steps, STIFF, 2)
    refuses("for 1 rounds it is 0", theory.horizon_bound, replace(EASY, start=1e-3), 1)
    refuses("`growth`", theory.decreasing_steps, EASY, 1.0)
    refuses(r"`cap` must be at most 0\.1", replace, STIFF, cap=0.2)
    refuses("`mu` must be at most 10", replace, STIFF, mu=11.0)


# Printed bounds that are none.


@pytest.mark.parametrize(
    ("problem", "rounds"), [(EASY, 1), (STIFF, 10)], ids=["easy", "stiff"]
)
def test_the_printed_decreasing_step_breaks_its_own_condition_and_bound(
    problem, rounds
):
    c = 2.0

    def printed_steps(t):
        return c / (problem.mu * t)

    assert printed_steps(1) > problem.cap
    noise = problem.beta * problem.variance * c**2 / (2 * problem.mu**2 * (c - 1))
    printed = max(noise, problem.start) / rounds
    assert exact(problem, printed_steps, rounds)[-1] > 1.2 * printed
    # Ours keeps the condition, and its bound.
    steps = theory.decreasing_steps(problem)
    assert steps(1) == pytest.approx(problem.cap)
    bound = theory.decreasing_bound(problem, rounds)
    assert exact(problem, steps, rounds)[-1] <= bound


def test_the_printed_decreasing_bound_fails_for_the_shifted_step_too():
    steps = theory.decreasing_steps(CALM)
    rounds = 10
    noise = CALM.beta * CALM.variance * 4 / (2 * CALM.mu**2)
    printed = max(noise, CALM.start) / rounds
    assert exact(CALM, steps, rounds)[-1] > 1.2 * printed


def test_corollary_1_as_printed_forgets_the_start():
    eps = 0.01
    steps = theory.decreasing_steps(CALM)
    printed = math.ceil(CALM.beta * CALM.variance * 4 / (2 * CALM.mu**2 * eps))
    ours = theory.sample_complexity(CALM, eps)
    curve = exact(CALM, steps, ours)
    assert curve[printed] > 100 * eps
    assert curve[ours] <= eps
    assert theory.decreasing_bound(CALM, ours) <= eps
    assert theory.decreasing_bound(CALM, ours - 1) > eps


def test_sample_complexity_is_corollary_1_to_leading_order_when_noise_dominates():
    noisy = replace(EASY, variance=100.0)
    eps = 1e-3
    printed = noisy.beta * noisy.variance * 4 / (2 * noisy.mu**2 * eps)
    assert theory.sample_complexity(noisy, eps) == pytest.approx(printed, rel=1e-4)


def test_theorem_3_as_printed_fails_where_the_cap_on_the_step_binds():
    start, variance, beta, cap, rounds = 1.0, 1e-6, 1.0, 1.0, 10
    known = {"start": start, "variance": variance, "beta": beta, "cap": cap}
    lr = theory.stationary_step(rounds, **known)
    assert lr == cap
    x = math.sqrt(2 * start)
    curve = expected_excess((beta,), (x,), variance, lambda t: lr, rounds)
    mean = sum(2 * beta * excess for excess in curve[:-1]) / rounds
    printed = 2 * math.sqrt(2 * start * beta * variance / rounds)
    assert mean > 100 * printed
    assert mean <= theory.stationary_bound(rounds, **known)


def test_theorem_3_is_the_printed_one_where_the_cap_does_not_bind():
    known = {"start": 2.0, "variance": 3.0, "beta": 1.5, "cap": 0.5}
    printed = 2 * math.sqrt(2 * 2.0 * 1.5 * 3.0 / 400)
    assert theory.stationary_bound(400, **known) == pytest.approx(printed)


def test_without_the_condition_of_theorem_2_there_is_no_sufficient_variance():
    # R_i(x) = cos(x - a_i) is smooth, and its gradients differ by at most |a_i - a_k|.
    # At its maximum the excess is 2 and the gradient 0: nobody can be trusted there.
    a = torch.tensor([0.0, 0.1])
    g = -torch.sin(a[:1, None] - a)  # (1, 2) grad R_k at x = a_0
    distance = (g - g[:, :1]).square().expand(2, 2)
    ratio = weights.similarity_ratio(distance, torch.zeros(2))
    effective = weights.effective_variance(ratio, torch.ones(2), PHI)[0]
    b = (a[:, None] - a).abs()
    for mu in (0.01, 1.0):
        suf = theory.sufficient_variance(
            b, torch.zeros(2, 2), torch.ones(2), PHI, mu=mu, eps=2.0
        )
        assert effective > 1.5 * suf[0]


def test_the_appendix_form_of_the_horizon_bound_is_negative_for_flat_losses():
    flat = Problem(start=1.0, variance=1.0, beta=0.01, mu=0.01, cap=100.0)
    rounds = 1000
    excess = exact(flat, theory.horizon_steps(flat, rounds), rounds)[-1]
    scale = flat.beta * flat.variance / (2 * flat.mu**2 * rounds)
    appendix = scale * (
        1 + math.log(2 * rounds * flat.mu**2 * flat.start / flat.variance)
    )
    assert appendix < 0 < excess <= theory.horizon_bound(flat, rounds)


def test_the_appendix_form_of_lemma_1_fails_for_steps_above_two():
    beta, lr, variance = 0.1, 5.0, 1.0
    excess = expected_excess((beta,), (0.0,), variance, lambda t: lr, 1)[1]
    assert excess > 2 * (lr * beta * variance)
    ours = theory.bound_over_time(
        0.0, torch.tensor([variance]), lr=lr, mu=beta, beta=beta
    )
    assert excess <= float(ours[1]) * (1 + 1e-6)


# The algorithm itself, by sampling.


def all_for_one(matrices, shifts, x, sigma, *, lr, rounds, runs, seed):
    """Excess losses and effective variances of client 0, shape (rounds + 1, runs).

    Gradients carry Gaussian noise of total variance sigma_k^2; ratios are true ones.
    """
    rng = torch.Generator().manual_seed(seed)
    n, d = shifts.shape
    x = x.expand(runs, n, d)
    step = torch.vmap(
        lambda ratio: (
            weights.collaboration_weights(ratio, sigma**-2, PHI),
            weights.effective_variance(ratio, sigma**-2, PHI),
        )
    )
    excess, variances = [], []
    for _ in range(rounds + 1):
        own = x[:, 0] + shifts[0]
        excess.append(torch.einsum("rd,de,re->r", own, matrices[0], own))
        moved = x[:, :, None] + shifts  # (runs, i, k, d)
        g = 2 * torch.einsum("kde,rike->rikd", matrices, moved)
        ratio = torch.vmap(lambda g: ratio_at(g)[0])(g)
        alpha, effective = step(ratio)
        variances.append(effective[:, 0])
        noise = torch.randn(g.shape, generator=rng, dtype=g.dtype) / math.sqrt(d)
        g = g + noise * sigma[:, None]
        x = x - lr * torch.einsum("rik,rikd->rid", alpha, g)
    return torch.stack(excess), torch.stack(variances)


def mean_and_error(samples):
    """The mean over runs and four standard errors: one false alarm in 30,000."""
    return samples.mean(1), 4 * samples.std(1) / math.sqrt(samples.shape[1])


def test_all_for_one_obeys_theorems_1_and_2_on_quadratics():
    matrices, shifts = quadratics(seed=3, n=5, d=2, spread=0.1)
    curvatures = 2 * torch.linalg.eigvalsh(matrices)
    mu, beta = float(curvatures.min()), float(curvatures.max())
    sigma = torch.tensor([1.0, 0.5, 1.5, 1.0, 2.0], dtype=torch.float64)
    x = torch.full((5, 2), 3.0, dtype=torch.float64)
    lr, rounds, eps = LAM / beta, 30, 0.3
    excess, variances = all_for_one(
        matrices, shifts, x, sigma, lr=lr, rounds=rounds, runs=2000, seed=0
    )
    start = float(excess[0, 0])
    bound = theory.bound_over_time(
        start, variances.mean(1)[:-1], lr=lr, mu=mu, beta=beta
    )
    mean, error = mean_and_error(excess)
    assert (mean <= bound + error + 1e-9).all()

    b, c = theory.quadratic_heterogeneity(matrices, shifts)
    suf = theory.sufficient_variance(b, c, sigma**-2, PHI, mu=mu, eps=eps)[0]
    assert suf < 0.9 * sigma[0] ** 2 / LAM  # collaboration is promised at all
    assert (variances[excess >= eps] <= suf * (1 + 1e-9)).all()

    problem = Problem(start, float(suf), beta, mu, cap=lr)
    above = torch.cat([torch.ones_like(excess[:1]), (excess >= eps).cumprod(0)[:-1]])
    mean, error = mean_and_error(excess * above)
    some = above.mean(1)  # the share of runs that have not reached eps
    assert ((some > 0.1) & (some < 0.9)).any()
    for t in range(rounds + 1):
        bound = theory.constant_bound(problem, t, lr)
        assert mean[t] <= bound + error[t]


def test_theorem_2_fails_if_only_the_mean_excess_is_above_the_precision():
    # Client 0 starts at its minimum, where it trusts nobody, and is thrown off by its
    # own noise; the mean excess after one round is eps, for which 50 partners suffice.
    n, lr, lam = 50, LAM, LAM
    matrices = torch.full((n, 1, 1), 0.5, dtype=torch.float64)  # mu = beta = 1
    shifts = torch.full((n, 1), 0.01, dtype=torch.float64)
    shifts[0] = 0
    sigma = torch.ones(n, dtype=torch.float64)
    eps = lr**2 / 2
    b, c = theory.quadratic_heterogeneity(matrices, shifts)
    suf = theory.sufficient_variance(b, c, sigma**-2, PHI, mu=1.0, eps=eps)[0]
    assert suf < 1.1 / (lam * n)
    given = matrices, shifts, torch.zeros(n, 1, dtype=torch.float64), sigma
    excess, _ = all_for_one(*given, lr=lr, rounds=2, runs=300, seed=0)
    mean, error = mean_and_error(excess)
    assert abs(mean[1] - eps) <= error[1]
    printed = theory.constant_bound(Problem(0.0, float(suf), 1.0, 1.0, lr), 2, lr)
    assert mean[2] - error[2] > printed
