"""Claims of chapter 8: bounds hold where ours do, and fail where the printed ones do.

Losses are quadratics f_i(x) = (x - x_i^*)' A_i (x - x_i^*) / 2 with Gaussian noise, for
which much has a closed form; the rest is sampled, with four standard errors of room.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from coterie import weights
from coterie.checks import InputError
from coterie.data.datasets import load
from coterie.data.splits import divide
from coterie.theory import collaboration as theory
from coterie.theory import lower_bounds, rates
from coterie.theory.collaboration import Clusters
from coterie.theory.rates import Losses

REAL = torch.float64
ONE = Losses(mu=1.0, beta=1.0, variance=1.0)
STIFF = Losses(mu=0.2, beta=4.0, variance=0.5)
CALM = Losses(mu=0.5, beta=1.0, variance=1e-3)
every_loss = pytest.mark.parametrize(
    "losses", [ONE, STIFF, CALM], ids=["one", "stiff", "calm"]
)


def generator(seed):
    return torch.Generator().manual_seed(seed)


def mean_and_error(samples):
    """The mean over runs and four standard errors: one false alarm in 30,000."""
    return float(samples.mean()), 4 * float(samples.std()) / math.sqrt(len(samples))


# Rates of stochastic gradient descent.


def exact_excess(losses, start, lr, calls):
    """The largest expected excess over noise and start along curvature mu or beta."""
    values = []
    for noisy in (losses.mu, losses.beta):
        for far in (losses.mu, losses.beta):
            a, b = 0.0, 2 * start / far  # second moments
            for _ in range(calls):
                a = (1 - lr * noisy) ** 2 * a + lr**2 * losses.variance
                b = (1 - lr * far) ** 2 * b
            values.append(noisy * a / 2 + far * b / 2)
    return max(values)


@every_loss
@pytest.mark.parametrize("calls", [1, 7, 60, 900])
@pytest.mark.parametrize("start", [1e-3, 8.0])
def test_the_bounds_of_gradient_descent_hold_exactly(losses, calls, start):
    for lr in (1 / losses.beta, 0.1 / losses.beta):
        bound = rates.sgd_bound(start, lr, calls, losses)
        assert exact_excess(losses, start, lr, calls) <= bound * (1 + 1e-9)
    lr = rates.sgd_step(start, calls, losses)
    tuned = rates.tuned_bound(start, calls, losses)
    assert exact_excess(losses, start, lr, calls) <= tuned * (1 + 1e-9)
    assert rates.sgd_bound(start, lr, calls, losses) <= tuned * (1 + 1e-9)


def test_the_tuned_step_is_the_best_one_where_nothing_limits_it():
    start, calls = 8.0, 500
    lr = rates.sgd_step(start, calls, ONE)
    assert lr == pytest.approx(math.log(2 * calls * start) / calls)
    bound = math.exp(-lr * calls) * start + lr / 2
    for other in (0.9 * lr, 1.1 * lr):
        assert math.exp(-other * calls) * start + other / 2 > bound


def test_the_printed_step_of_8_5_goes_uphill_when_calls_are_few():
    start, calls = 0.01, 5
    printed = math.log(2 * calls * start) / calls
    assert printed < 0
    assert exact_excess(ONE, start, printed, calls) > 10 * start
    lr = rates.sgd_step(start, calls, ONE)
    assert exact_excess(ONE, start, lr, calls) <= rates.tuned_bound(start, calls, ONE)


def test_the_printed_rate_fails_where_its_logarithm_is_below_one():
    calls = 100
    start = 1.1 / (2 * calls)
    logarithm = math.log(1.1)
    printed = start * math.exp(-calls / 2) + logarithm / calls
    assert exact_excess(ONE, start, logarithm / calls, calls) > 3 * printed


@every_loss
@pytest.mark.parametrize("eps", [0.01, 0.05])
def test_precision_calls_reach_the_precision(losses, eps):
    start = 3.0
    lr = rates.precision_step(eps, losses)
    calls = rates.precision_calls(eps, start, losses)
    assert rates.sgd_bound(start, lr, calls, losses) <= eps * (1 + 1e-9)
    assert exact_excess(losses, start, lr, calls) <= eps
    printed = max(losses.beta * losses.variance / (eps * losses.mu), losses.beta)
    printed *= 2 / losses.mu * math.log(start / eps)
    assert calls == pytest.approx(printed, rel=0.15)  # ours has a factor 4/3 inside


def test_lemma_8_b_1_holds_for_the_last_iterate_and_not_for_the_average_as_printed():
    still = replace(STIFF, variance=0.0)
    eps, start = 1e-4, 1.0
    lr = rates.precision_step(eps, still)
    calls = rates.precision_calls(eps, start, still)
    x, total = math.sqrt(2 * start / still.mu), 0.0
    for _ in range(calls):
        total += x
        x -= lr * still.mu * x
    assert still.mu * x**2 / 2 <= eps
    assert still.mu * (total / calls) ** 2 / 2 > 50 * eps


def test_convex_rates_hold_for_the_average():
    runs, calls, beta, variance, radius = 2000, 50, 2.0, 4.0, 1.5
    lr = rates.convex_sgd_step(radius, calls, beta=beta, variance=variance)
    bound = rates.convex_sgd_bound(radius, calls, beta=beta, variance=variance)
    for curvature in (beta, 0.05):
        rng = generator(0)
        x = torch.full((runs,), radius, dtype=REAL)
        total = torch.zeros(runs, dtype=REAL)
        for _ in range(calls):
            total += x
            noise = math.sqrt(variance) * torch.randn(runs, generator=rng, dtype=REAL)
            x = x - lr * (curvature * x + noise)
        mean, error = mean_and_error(curvature * (total / calls).square() / 2)
        assert mean <= bound + error


def test_rates_of_bounded_gradients_hold_for_the_average():
    runs, calls, bound, radius = 2000, 50, 2.0, 1.5
    lr = rates.bounded_sgd_step(radius, calls, bound=bound)
    rng = generator(0)
    x = torch.full((runs,), radius, dtype=REAL)
    total = torch.zeros(runs, dtype=REAL)
    for _ in range(calls):
        total += x
        noise = math.sqrt(3) * (2.0 * torch.randint(2, (runs,), generator=rng) - 1)
        x = x - lr * (x.sign() + noise)  # of |x|; mean square 1 + 3
    mean, error = mean_and_error((total / calls).abs())
    limit = rates.bounded_sgd_bound(radius, calls, bound=bound)
    assert mean <= limit + error
    assert limit == pytest.approx(bound * radius * math.sqrt(2 / calls))


def test_losses_that_cannot_be_are_refused():
    with pytest.raises(InputError, match=r"`mu` must be at most 1, got 2\.0"):
        Losses(mu=2.0, beta=1.0, variance=1.0)
    with pytest.raises(InputError, match=r"`lr` must be at most 1, got 1\.5"):
        rates.sgd_bound(1.0, 1.5, 3, ONE)
    with pytest.raises(InputError, match="`calls` must be at least 1, got 0"):
        rates.sgd_step(1.0, 0, ONE)


# Who is near whom.


def quadratics(seed=0, n=6, d=2, spread=1.0, alike=False):
    """Random curvatures from 1 to 3, or the same for all, and random optima."""
    rng = generator(seed)
    q = torch.linalg.qr(torch.randn(n, d, d, generator=rng, dtype=REAL))[0]
    curvature = 1 + 2 * torch.rand(n, d, generator=rng, dtype=REAL)
    matrices = q @ torch.diag_embed(curvature) @ q.mT
    if alike:
        matrices = matrices[:1].expand(n, d, d)
    return matrices, spread * torch.randn(n, d, generator=rng, dtype=REAL)


def losses_of(matrices, variance):
    curvature = torch.linalg.eigvalsh(matrices)
    return Losses(float(curvature.min()), float(curvature.max()), variance)


def excess_of(matrices, best, x):
    moved = x - best
    return torch.einsum("...id,ide,...ie->...i", moved, matrices, moved) / 2


def test_everybody_counts_itself_and_nobody_is_gained_by_a_finer_precision():
    rng = generator(0)
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
    matrices, best = quadratics()
    gap = theory.quadratic_gaps(matrices, best)
    distance = theory.quadratic_distances(matrices, best)
    for i in range(6):
        for j in range(6):
            x = best[j].clone().requires_grad_()
            value = (x - best[i]) @ matrices[i] @ (x - best[i]) / 2
            (slope,) = torch.autograd.grad(value, x)  # that of f_j is 0 there
            assert float(gap[i, j]) == pytest.approx(value.item(), abs=1e-12)
            assert float(distance[i, j]) == pytest.approx(float(slope.norm()))


def test_lemma_8_5_1_and_proposition_1_bound_every_gap():
    for seed in range(20):
        matrices, best = quadratics(seed)
        gap = theory.quadratic_gaps(matrices, best)
        b = theory.quadratic_distances(matrices, best)
        mu = losses_of(matrices, 0.0).mu
        assert (gap <= theory.gap_of_distance(b, mu) + 1e-12).all()
        diameter = float(torch.cdist(best, best).max())
        assert (gap <= theory.convex_gap_of_distance(b, diameter) + 1e-12).all()
        assert_close(theory.gradient_gap_of_distance(b), b**2)


def moments(seed, n=4, d=3, scale=1.0):
    """E z z' of linear regressions with z = (a, b), and their optima."""
    rng = generator(seed)
    root = torch.randn(n, d + 1, d + 1, generator=rng, dtype=REAL)
    root[:, :, :d] *= scale
    moment = root.mT @ root
    best = torch.linalg.solve(moment[:, :d, :d], moment[:, :d, d])
    return moment, best


def test_moments_of_linear_regression_bound_the_distance_of_gradients():
    for seed in range(10):
        moment, best = moments(seed)
        d = best.shape[1]
        diameter = theory.linear_diameter(best)
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
    assert gradients <= theory.linear_diameter(best) * float(change.norm())


# What nobody can beat.


def line(n=8, d=1):
    """Distances of points on a line."""
    place = torch.linspace(0, 1, n, dtype=REAL)
    return (place[:, None] - place).abs()


def test_who_can_help_does_not_depend_on_the_unit_of_the_loss_as_the_text_would():
    b, mu, eps = line(), 0.5, 0.05
    here = lower_bounds.lower_bound(b, eps, mu=mu, variance=1.0)
    unit = 7.0  # all losses times 7: b, mu, eps and sigma too
    there = lower_bounds.lower_bound(
        unit * b, unit * eps, mu=unit * mu, variance=unit**2
    )
    assert_close(here, there)
    printed = [theory.count_near((u * b) ** 2, u * eps) for u in (1.0, unit)]
    assert (printed[0] != printed[1]).any()


def test_lower_bounds_follow_their_formulas():
    b, n = line(), 8
    eps, mu, variance, radius, bound = 0.01, 2.0, 3.0, 1.5, 0.7
    near = [
        sum(float(b[i, j]) ** 2 <= 4 * mu * eps for j in range(n)) for i in range(n)
    ]
    expected = [variance / (mu * eps * count) for count in near]
    found = lower_bounds.lower_bound(b, eps, mu=mu, variance=variance)
    assert found.tolist() == pytest.approx(expected)

    gap = b**2
    near = [sum(float(gap[i, j]) <= 4 * eps for j in range(n)) for i in range(n)]
    expected = [5 * radius**2 * bound**2 * n / (eps**2 * count) for count in near]
    found = lower_bounds.lower_bound_convex(
        gap, eps, radius=radius, bound=bound, constant=5.0
    )
    assert found.tolist() == pytest.approx(expected)

    near = [sum(float(gap[i, j]) <= 4 * n * eps for j in range(n)) for i in range(n)]
    inverse = sum(1 / count for count in near)
    found = lower_bounds.all_for_all_lower_bound(gap, eps, mu=mu, variance=variance)
    assert found == pytest.approx(variance / (mu * n * eps) * inverse)
    found = lower_bounds.all_for_all_lower_bound_convex(
        gap, eps, radius=radius, bound=bound
    )
    assert found == pytest.approx(radius**2 * bound**2 / (n**2 * eps**2) * inverse)


def hard(distance, *, samples, delta=0.25, d=8, variance=1.0, seed=0):
    return lower_bounds.hard_instance(
        torch.tensor(distance, dtype=REAL),
        generator(seed),
        delta=delta,
        dimension=d,
        samples=samples,
        variance=variance,
    )


def test_the_hard_instance_has_the_gaps_of_its_proof():
    b = [0.0, 0.0, 0.1, 0.2, 0.5]
    made = hard(b, samples=40_000)
    assert_close(made.tilts, torch.tensor([0.25, 0.25, 0.15, 0.05, 0.0]).double())
    assert ((made.optima[0] - 0.5).abs() == 0.25).all()
    assert (made.features.sum(2) == 1).all()
    d = 8
    second = torch.einsum("ijk,ijl->ikl", made.features, made.features) / 40_000
    # Four standard errors of a frequency of 1/8 among 40,000.
    even = torch.eye(d).expand(5, d, d).double() / d
    assert_close(second, even, rtol=0, atol=0.007)
    means = torch.einsum("ijk,ij->ik", made.features, made.targets) / 40_000
    assert_close(d * means, made.optima, rtol=0, atol=8 * 4 * 0.3 / 200)
    # The loss (x_k - coin)^2 has Hessian 2 / d.
    gap = theory.quadratic_gaps(
        2 / d * torch.eye(d).expand(5, d, d).double(), made.optima
    )
    tilt = made.tilts
    assert_close(gap, (tilt[:, None] - tilt).square())
    distance = torch.tensor(b, dtype=REAL)
    assert (gap <= (distance[:, None] - distance).square() + 1e-12).all()


def test_the_printed_loss_of_the_hard_instance_has_other_optima_than_its_proof():
    made = hard([0.0], samples=40_000)
    xi = made.features * made.targets[:, :, None]
    minimiser = xi.mean(1)[0]  # of the mean of |x - xi|^2 / 2
    assert_close(8 * minimiser, made.optima[0], rtol=0, atol=0.05)
    assert (minimiser - made.optima[0]).abs().min() > 0.15


def test_rarer_and_larger_targets_have_more_variance_and_the_same_mean():
    plain, noisy = (hard([0.0], samples=100_000, variance=v) for v in (1.0, 9.0))
    assert set(noisy.targets.unique().tolist()) == {0.0, 9.0}
    for made in (plain, noisy):
        assert float(made.targets.mean()) == pytest.approx(
            float(made.optima.mean()), abs=0.04
        )
    expected = 9 * float(noisy.optima.mean()) - float(noisy.optima.mean()) ** 2
    assert float(noisy.targets.var()) == pytest.approx(expected, rel=0.05)


def test_the_hard_instance_is_a_data_set():
    table = load("hard_instance", clients=5, twins=2, dimension=4, samples=30, seed=3)
    federation = divide(table, "natural", seed=0)
    assert len(federation) == 5
    assert federation.clusters.tolist() == [0, 0, 1, 1, 1]
    assert_close(federation.optima[0], federation.optima[1])
    assert (federation.optima[2:] == 0.5).all()
    again = load("hard_instance", clients=5, twins=2, dimension=4, samples=30, seed=3)
    assert torch.equal(table.targets, again.targets)
    with pytest.raises(InputError, match="`twins` must be at most 5, got 6"):
        load("hard_instance", clients=5, twins=6)
    with pytest.raises(InputError, match="`dimension` must be at most 2,000,000,000"):
        load("hard_instance", dimension=10**9)


def mean_error(twins, calls, d=40, delta=0.25, runs=100):
    """Mean excess of client 1 when it averages the coins of its twins, 1/2 at first."""
    rng = generator(twins)
    sign = 2.0 * torch.randint(2, (runs, d), generator=rng).to(REAL) - 1
    best = 0.5 + delta * sign
    total, heads = torch.zeros(2, runs, d, dtype=REAL)
    errors = []
    for _ in range(calls):
        k = torch.randint(d, (runs, twins), generator=rng)
        coin = torch.bernoulli(best.gather(1, k), generator=rng)
        total.scatter_add_(1, k, torch.ones_like(coin))
        heads.scatter_add_(1, k, coin)
        x = (heads + 0.5) / (total + 1)
        errors.append(float((x - best).square().mean()))
    return torch.tensor(errors)


def first_below(errors, eps):
    return int((errors <= eps).nonzero()[0]) + 1


def test_calls_on_the_hard_instance_fall_with_the_twins_and_never_below_the_bound():
    delta, d = 0.25, 40
    eps = delta**2 / 36
    needed = {}
    for twins in (8, 16, 32):
        calls = first_below(mean_error(twins, 28_000 // twins), eps)
        tilts = torch.full((twins,), delta)
        assert calls >= lower_bounds.fano_calls(tilts, d)
        needed[twins] = calls
    slope = math.log(needed[32] / needed[8]) / math.log(4)
    assert slope == pytest.approx(-1, abs=0.1)


def test_the_bound_of_fano_follows_its_formula():
    # Coins of chance 3/4 tell ln 2 - h(3/4) of their sign.
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    signs = 100 / 2 * math.log(2 / math.sqrt(math.e))
    expected = (2 / 3 * signs - math.log(2)) / (3 * (math.log(2) - entropy))
    found = lower_bounds.fano_calls(torch.full((3,), 0.25), 100)
    assert found == pytest.approx(expected)
    assert found > 14


def test_who_knows_nothing_of_the_signs_lowers_no_bound():
    tilts = lower_bounds.tilts_of(torch.tensor([0.0, 0.1, 0.25, 0.9]).double(), 0.25)
    assert tilts.tolist() == pytest.approx([0.25, 0.15, 0, 0])
    all_of_them = lower_bounds.fano_calls(tilts, 50)
    assert all_of_them == pytest.approx(lower_bounds.fano_calls(tilts[:2], 50))
    assert all_of_them < lower_bounds.fano_calls(tilts[:1], 50)
    scarce = lower_bounds.fano_calls(tilts, 50, variance=4.0)
    assert scarce == pytest.approx(4 * all_of_them)
    with pytest.raises(InputError, match=r"`delta` must be at most 0\.5"):
        lower_bounds.tilts_of(tilts, 0.7)


def test_the_number_of_signs_in_place_of_its_logarithm_would_forbid_what_is_possible():
    delta, d = 0.25, 120
    alone = torch.tensor([delta])
    told = 2 / 3 * d / 2 * (math.log(2) - 0.5) - math.log(2)
    told /= lower_bounds.fano_calls(alone, d)
    count = (2 / math.sqrt(math.e)) ** (d / 2)
    printed = (2 / 3 * count - math.log(2)) / told
    # Means of K / d coins per coordinate have an error of a quarter of d / K at most.
    enough = d / 4 / (delta**2 / 36)
    assert lower_bounds.fano_calls(alone, d) < enough < printed


# Runs of the two methods.


def noise_like(x, sigma, rng):
    """Noise of total variance sigma^2 for every client."""
    d = x.shape[-1]
    return sigma / math.sqrt(d) * torch.randn(x.shape, generator=rng, dtype=x.dtype)


def all_for_all_runs(lam, matrices, best, x, sigma, lr, calls, *, runs=400, seed=0):
    """Mean excess F^k of each run, shape (calls + 1, runs)."""
    rng = generator(seed)
    product = lam @ lam.T
    x = x.expand(runs, *best.shape)
    curve = [excess_of(matrices, best, x).mean(1)]
    for _ in range(calls):
        g = torch.einsum("ide,rie->rid", matrices, x - best) + noise_like(x, sigma, rng)
        x = x - lr * torch.einsum("ij,rjd->rid", product, g)
        curve.append(excess_of(matrices, best, x).mean(1))
    return torch.stack(curve)


def all_for_one_runs(lam, matrices, best, x, sigma, lr, calls, *, runs=400, seed=0):
    """Excess of every client in each run, shape (calls + 1, runs, n)."""
    rng = generator(seed)
    x = x.expand(runs, *best.shape)
    curve = [excess_of(matrices, best, x)]
    for _ in range(calls):
        shared = noise_like(x, sigma, rng)  # of contributor k, the same for all readers
        moved = x[:, :, None] - best
        g = torch.einsum("kde,rike->rikd", matrices, moved) + shared[:, None]
        x = x - lr[:, None] * torch.einsum("ik,rikd->rid", lam, g)
        curve.append(excess_of(matrices, best, x))
    return torch.stack(curve)


WEIGHTS = {
    "clusters": lambda b: weights.same_cluster(
        torch.arange(len(b)) % 2, torch.ones(len(b), dtype=REAL)
    ),
    "threshold": lambda b: weights.within(b, float(b.median())),
    "mixture": lambda b: weights.interpolation(0.5, len(b)).to(REAL),
    "random": lambda b: weights.normalised(
        torch.rand(b.shape, generator=generator(5), dtype=REAL)
    ),
    "alone": lambda b: torch.eye(len(b), dtype=REAL),
}
every_weights = pytest.mark.parametrize("build", WEIGHTS.values(), ids=WEIGHTS)


# All-for-one.


@every_weights
@pytest.mark.parametrize("calls", [3, 40])
def test_all_for_one_obeys_its_bound(build, calls):
    matrices, best = quadratics(alike=True, spread=0.5)
    b = theory.quadratic_distances(matrices, best)
    lam = build(b)
    losses = losses_of(matrices, 2.0)
    x = torch.full((6, 2), 3.0, dtype=REAL)
    start = excess_of(matrices, best, x)
    for lr in (
        theory.all_for_one_step(lam, start, calls, losses),
        torch.full((6,), 1 / losses.beta, dtype=REAL),
    ):
        bound = theory.all_for_one_bound(lam, b, start, lr, calls, losses)
        last = all_for_one_runs(lam, matrices, best, x, math.sqrt(2.0), lr, calls)[-1]
        for i in range(6):
            mean, error = mean_and_error(last[:, i])
            assert mean <= float(bound[i]) + error


def test_all_for_one_without_noise_and_bias_is_exactly_gradient_descent():
    lam = torch.full((4, 4), 0.25, dtype=REAL)
    start = torch.full((4,), 2.0, dtype=REAL)
    lr = torch.full((4,), 0.25, dtype=REAL)
    still = Losses(1.0, 1.0, 0.0)
    none = torch.zeros(4, 4, dtype=REAL)
    bound = theory.all_for_one_bound(lam, none, start, lr, 6, still)
    assert bound.tolist() == pytest.approx([2 * 0.75**6] * 4)


def test_the_printed_threshold_of_all_for_one_forgets_the_curvature():
    # Two flat losses: a small distance of gradients is a large one of optima.
    mu, eps = 0.01, 0.1
    b = math.sqrt(0.49 * eps)
    far = torch.tensor([[0.0, b], [b, 0.0]], dtype=REAL)
    printed = weights.within(far.square(), eps / 2)
    assert (printed == 0.5).all()
    midpoint = mu / 2 * (b / mu / 2) ** 2  # the excess at which both then stay
    assert midpoint > 5 * eps
    assert torch.equal(theory.all_for_one_weights(far, eps, mu), torch.eye(2).double())


def first_call_below(curve, eps):
    """The first call from which on the mean over runs is below eps."""
    above = (curve.mean(1) > eps).nonzero()
    return int(above[-1]) + 1 if len(above) else 0


def test_all_for_one_needs_no_more_calls_than_predicted_and_an_nth_of_those_alone():
    eps, n, sigma2 = 0.02, 8, 4.0
    matrices = torch.eye(2, dtype=REAL).expand(n, 2, 2)
    best = torch.zeros(n, 2, dtype=REAL)
    best[4:] = 3.0  # four like client 0, and four far ones
    b = theory.quadratic_distances(matrices, best)
    losses = losses_of(matrices, sigma2)
    x = torch.full((n, 2), 1.5, dtype=REAL)
    start = excess_of(matrices, best, x)
    needed = {}
    for name, distance in (("together", b), ("alone", b + 99 * (1 - torch.eye(n)))):
        lam = theory.all_for_one_weights(distance, eps, losses.mu)
        predicted = int(theory.all_for_one_calls(distance, eps, start, losses)[0])
        own = replace(losses, variance=sigma2 * float(lam[0].square().sum()))
        lr = torch.full((n,), rates.precision_step(eps, own), dtype=REAL)
        curve = all_for_one_runs(
            lam, matrices, best, x, math.sqrt(sigma2), lr, predicted, runs=50
        )
        mean, error = mean_and_error(curve[-1, :, 0])
        assert mean <= eps + error
        needed[name] = first_call_below(curve[:, :, 0], eps)
        # The proof's constants lose less than a factor of four.
        assert predicted / 4 <= needed[name] <= predicted
        assert needed[name] >= float(
            lower_bounds.lower_bound(
                distance, eps, mu=losses.mu, variance=sigma2, constant=0.1
            )[0]
        )
    speed = theory.speed_up(b, eps, losses.mu)
    assert speed.tolist() == [4.0] * n
    assert needed["alone"] / needed["together"] == pytest.approx(4, rel=0.2)


def test_calls_of_all_for_one_follow_their_formula():
    losses = Losses(0.5, 2.0, 3.0)
    eps, start = 0.1, torch.tensor([4.0, 2.0, 1.0], dtype=REAL)
    b = torch.tensor([[0, 0.1, 9], [0.1, 0, 9], [9, 9, 0]], dtype=REAL)
    found = theory.all_for_one_calls(b, eps, start, losses)
    for i, count in enumerate((2, 2, 1)):
        worse = max(1.0, 3.0 / (0.5 * eps * count))
        expected = 2 * 4 * worse * math.log(2 * float(start[i]) / eps)
        assert int(found[i]) == math.ceil(expected)


def test_the_relaxed_bound_holds_where_gradients_are_multiples_of_each_other():
    # f_2 = 2 f_1: |grad f_1 - g| is at most a third of |g| for equal weights.
    base = torch.diag(torch.tensor([1.0, 3.0], dtype=REAL))
    matrices = torch.stack([base, 2 * base])
    best = torch.zeros(2, 2, dtype=REAL)
    lam = torch.full((2, 2), 0.5, dtype=REAL)
    losses = losses_of(matrices, 1.0)
    x = torch.full((2, 2), 2.0, dtype=REAL)
    start = lam @ excess_of(matrices, best, x)
    lr, calls = torch.full((2,), 1 / losses.beta, dtype=REAL), 15
    none = torch.zeros(2, 2, dtype=REAL)
    bound = theory.all_for_one_relaxed_bound(
        lam, none, start, lr, calls, losses, slope=1 / 9
    )
    last = all_for_one_runs(lam, matrices, best, x, 1.0, lr, calls)[-1]
    for i in range(2):
        mean, error = mean_and_error(last[:, i])
        assert mean <= float(bound[i]) + error
    kappa = losses.beta / losses.mu
    plain = theory.all_for_one_bound(lam, none, start, lr, calls, losses)
    assert_close(bound, 2 * (1 + 1 / 9) * kappa * plain)


def test_the_printed_step_of_setting_2_has_the_weights_on_the_wrong_side():
    n, calls, start = 100, 1000, 1.0
    lam = torch.full((n, n), 1 / n, dtype=REAL)
    share = 1 / n
    assert math.log(start * calls / 100 * share) < 0  # as printed, sigma^2 = 100
    assert math.log(start * calls / 100 / share) > 0
    noisy = Losses(1.0, 1.0, 100.0)
    steps = theory.all_for_one_step(lam, torch.ones(n, dtype=REAL), calls, noisy)
    expected = math.log(2 * calls / (100 * share)) / calls
    assert steps.tolist() == pytest.approx([expected] * n)


def descend_absolute(lr, calls, scale=1.0):
    """The mean of |x| over `calls` steps of sign descent from 1."""
    x, total = 1.0, 0.0
    for _ in range(calls):
        total += abs(x)
        x -= lr * math.copysign(scale, x)
    return total / calls


def test_one_client_at_a_time_obeys_6_a_and_not_the_printed_one_without_n():
    # A hundred clients with the loss |x|: one at a time gives n / n sign(x).
    n, calls = 100, 400
    lam = torch.full((n, n), 1 / n, dtype=REAL)
    known = {"diameter": 1.0, "bound": 1.0}
    lr = float(theory.all_for_one_bounded_step(lam, calls, **known)[0])
    none = torch.zeros(n, n, dtype=REAL)
    bound = float(theory.all_for_one_bounded_bound(lam, none, calls, **known)[0])
    mean = descend_absolute(lr, calls)
    assert mean <= bound
    printed = math.sqrt(2 / calls * float(lam[0].square().sum()))
    step_in_print = lr / math.sqrt(2)
    assert descend_absolute(step_in_print, calls) > 3 * printed


def test_samples_of_6_a_reach_the_precision():
    gap = line() * 0.4
    eps, known = 0.1, {"diameter": 1.3, "bound": 2.0}
    samples = theory.all_for_one_bounded_samples(gap, eps, **known)
    lam = weights.within(2 * gap, eps)
    for i in range(8):
        calls = math.ceil(float(samples[i]))
        bound = theory.all_for_one_bounded_bound(lam, gap, calls, **known)
        assert float(bound[i]) <= eps
    near = theory.count_near(2 * gap, eps)
    assert float(samples[0]) == pytest.approx(4 * 1.3**2 * 4 / 0.01 * 8 / int(near[0]))


# All-for-all.


@every_weights
@pytest.mark.parametrize("calls", [3, 60])
def test_all_for_all_obeys_its_bound(build, calls):
    matrices, best = quadratics(seed=1, spread=0.5)
    gap = theory.quadratic_gaps(matrices, best)
    lam = build(torch.cdist(best, best))
    losses = losses_of(matrices, 2.0)
    x = torch.full((6, 2), 2.0, dtype=REAL)
    start = float(excess_of(matrices, best, x).mean())
    largest = 1 / (losses.beta * weights.spectral_radius(lam))
    for lr in (theory.all_for_all_step(lam, start, calls, losses), largest):
        bound = theory.all_for_all_bound(lam, gap, start, lr, calls, losses)
        curve = all_for_all_runs(lam, matrices, best, x, math.sqrt(2.0), lr, calls)
        mean, error = mean_and_error(curve[-1])
        assert mean <= bound + error


def printed_theorem_8_3(lam, gap, start, calls, losses):
    """The step and the bound as they are printed and proved for mu > 0."""
    n = len(lam)
    variance = losses.variance * float(lam.square().sum()) / n
    ratio = 2 * losses.mu**2 * calls * start / (losses.beta * variance)
    lr = min(1 / (2 * losses.beta), math.log(ratio) / (losses.mu * calls))
    noise = losses.beta * variance / (losses.mu**2 * calls) * math.log(ratio)
    decay = start * math.exp(-calls * losses.mu / (2 * losses.beta))
    return lr, decay + noise + theory.mean_bias(lam, gap)


@pytest.mark.parametrize("calls", [20, 100, 400])
def test_theorem_8_3_holds_as_printed_for_clusters(calls):
    matrices, best = quadratics(seed=2, spread=0.5)
    gap = theory.quadratic_gaps(matrices, best)
    lam = WEIGHTS["clusters"](gap)
    losses = losses_of(matrices, 1.0)
    there = theory.effective(lam, losses)
    assert there.mu == pytest.approx(losses.mu)
    assert there.beta == pytest.approx(losses.beta)
    assert there.variance == pytest.approx(1 / 3)
    x = torch.full((6, 2), 3.0, dtype=REAL)
    start = float(excess_of(matrices, best, x).mean())
    lr, printed = printed_theorem_8_3(lam, gap, start, calls, losses)
    assert lr == pytest.approx(theory.all_for_all_step(lam, start, calls, losses))
    curve = all_for_all_runs(lam, matrices, best, x, 1.0, lr, calls, runs=200)
    mean, error = mean_and_error(curve[-1])
    assert mean <= printed + error


def test_theorem_8_3_as_printed_fails_on_a_star_where_the_radius_is_not_one():
    n, calls = 50, 30
    far = torch.ones(n, n, dtype=REAL)
    far[0] = far[:, 0] = 0
    lam = weights.within(far, 0.5)
    matrices = torch.eye(1, dtype=REAL).expand(n, 1, 1)
    best = torch.zeros(n, 1, dtype=REAL)
    x = torch.ones(n, 1, dtype=REAL)
    still = Losses(1.0, 1.0, 1e-6)
    gap = theory.quadratic_gaps(matrices, best)
    lr, printed = printed_theorem_8_3(lam, gap, 0.5, calls, still)
    curve = all_for_all_runs(lam, matrices, best, x, 1e-3, lr, calls, runs=3)
    assert float(curve[-1].min()) > 1e6 > printed
    lr = theory.all_for_all_step(lam, 0.5, calls, still)
    assert lr * weights.spectral_radius(lam) <= 0.5 + 1e-9
    curve = all_for_all_runs(lam, matrices, best, x, 1e-3, lr, calls, runs=3)
    bound = theory.all_for_all_bound(lam, gap, 0.5, lr, calls, still)
    assert float(curve[-1].max()) <= bound


def test_too_large_steps_have_no_bound():
    lam = torch.full((3, 3), 1 / 3, dtype=REAL)
    none = torch.zeros(3, 3, dtype=REAL)
    with pytest.raises(InputError, match="`lr` must be at most"):
        theory.all_for_all_bound(lam, none, 1.0, 1.1, 5, ONE)


def least_stacked(lam, matrices, best):
    """The least mean excess of models x = L y."""
    d = best.shape[1]
    spread = torch.kron(lam, torch.eye(d, dtype=REAL))
    blocks = torch.block_diag(*matrices)
    root = torch.linalg.cholesky(blocks).T
    y = torch.linalg.lstsq(root @ spread, root @ best.flatten(), driver="gelsd")[0]
    x = (spread @ y).reshape(best.shape)
    return float(excess_of(matrices, best, x).mean())


def test_lemma_8_5_2_bounds_what_the_best_mixtures_lose():
    for seed in range(20):
        matrices, best = quadratics(seed)
        gap = theory.quadratic_gaps(matrices, best)
        for name, build in WEIGHTS.items():
            lam = build(torch.cdist(best, best))
            least = least_stacked(lam, matrices, best)
            assert least <= theory.mean_bias(lam, gap) + 1e-10, name
            assert least >= -1e-12


def test_the_last_term_of_theorem_8_3_has_its_indices_swapped_in_print():
    # All use the model of the first, whose loss is flat: it likes every other model.
    curvature = torch.tensor([0.01, 1.0, 1.0], dtype=REAL)
    matrices = curvature[:, None, None]
    best = torch.tensor([[0.0], [1.0], [-1.0]], dtype=REAL)
    lam = torch.zeros(3, 3, dtype=REAL)
    lam[:, 0] = 1
    gap = theory.quadratic_gaps(matrices, best)
    least = least_stacked(lam, matrices, best)
    assert least <= theory.mean_bias(lam, gap)
    assert least > 10 * theory.mean_bias(lam, gap.T)


def test_the_report_s_exponent_in_3_b_does_not_depend_on_the_calls():
    # One noiseless call from F^0 = 1 with mu = 0.01, beta = 1.
    flat = Losses(0.01, 1.0, 0.0)
    printed = math.exp(-flat.beta / flat.mu / (2 * flat.beta))
    after = exact_excess(flat, 1.0, 0.5, 1)
    assert after > 1e6 * printed
    assert after <= rates.tuned_bound(1.0, 1, flat)


def spectrum_of(lam):
    values = torch.linalg.eigvalsh(lam @ lam.T)
    return float(values[values > 1e-12].min()), float(values.max())


@every_weights
def test_effective_constants_are_those_of_the_stacked_loss(build):
    matrices, best = quadratics()
    lam = build(torch.cdist(best, best))
    losses = losses_of(matrices, 3.0)
    s, rho = spectrum_of(lam)
    there = theory.effective(lam, losses)
    assert there.mu == pytest.approx(losses.mu * s, rel=1e-8)
    assert there.beta == pytest.approx(losses.beta * rho)
    assert there.variance == pytest.approx(3.0 * float(lam.square().sum()) / 6)


def test_all_for_all_needs_no_more_calls_than_predicted_and_the_share_of_those_alone():
    eps, sigma2, n = 0.02, 4.0, 8
    matrices = torch.eye(2, dtype=REAL).expand(n, 2, 2)
    best = torch.zeros(n, 2, dtype=REAL)
    best[2:] = 3.0  # two and six alike
    b = theory.quadratic_distances(matrices, best)
    losses = losses_of(matrices, sigma2)
    x = torch.full((n, 2), 1.5, dtype=REAL)
    start = float(excess_of(matrices, best, x).mean())
    needed = {}
    for name, distance in (("together", b), ("alone", b + 99 * (1 - torch.eye(n)))):
        lam = theory.all_for_all_weights(distance, eps, losses.mu)
        there = theory.effective(lam, losses)
        lr = rates.precision_step(eps, there)
        predicted = theory.all_for_all_calls(lam, eps, start, losses)
        curve = all_for_all_runs(
            lam, matrices, best, x, math.sqrt(sigma2), lr, predicted, runs=50
        )
        mean, error = mean_and_error(curve[-1])
        assert mean <= eps + error
        needed[name] = first_call_below(curve, eps)
        assert predicted / 4 <= needed[name] <= predicted
    share = theory.share_of_calls(b, eps, losses.mu)
    assert share == pytest.approx((2 / 2 + 6 / 6) / 8)
    assert needed["together"] / needed["alone"] == pytest.approx(share, rel=0.2)


def test_calls_of_corollary_8_5_1_reach_the_precision_on_a_line_of_clients():
    place = torch.linspace(0, 1, 8, dtype=REAL)
    matrices = torch.ones(8, 1, 1, dtype=REAL)
    best = place[:, None]
    eps, sigma2 = 0.03, 0.5
    losses = Losses(1.0, 1.0, sigma2)
    lam = theory.all_for_all_weights(torch.cdist(best, best), eps, 1.0)
    assert 8 < int((lam > 0).sum()) < 64
    x = torch.full((8, 1), 2.0, dtype=REAL)
    start = float(excess_of(matrices, best, x).mean())
    there = theory.effective(lam, losses)
    assert there.mu < 0.5  # so that the printed number of calls is another one
    lr = rates.precision_step(eps, there)
    calls = theory.all_for_all_calls(lam, eps, start, losses)
    gap = theory.quadratic_gaps(matrices, best)
    assert theory.mean_bias(lam, gap) <= eps / 2
    assert theory.all_for_all_bound(lam, gap, start, lr, calls, losses) <= eps
    # With mu in place of mu s, fewer calls are not proved to be enough, but are.
    hopeful = replace(there, mu=losses.mu)
    lr = rates.precision_step(eps, hopeful)
    few = rates.calls_for(4 * start / eps, lr, hopeful)
    assert few < calls / 10
    curve = all_for_all_runs(
        lam, matrices, best, x, math.sqrt(sigma2), lr, few, runs=50
    )
    mean, error = mean_and_error(curve[-1])
    assert mean <= eps + error


@every_weights
def test_convex_all_for_all_obeys_its_bound(build):
    # One direction is flat: mu = 0.
    matrices, best = quadratics(seed=3, spread=0.5)
    flat = torch.diag(torch.tensor([1.0, 0.0], dtype=REAL))
    matrices = flat @ matrices @ flat
    gap = theory.quadratic_gaps(matrices, best)
    lam = build(torch.cdist(best, best))
    beta = float(torch.linalg.eigvalsh(matrices).max())
    x = torch.full((6, 2), 2.0, dtype=REAL)
    radius = math.sqrt(float((x - best).square().sum(1).mean()))
    known = {"radius": radius, "beta": beta, "variance": 2.0}
    for calls in (5, 80):
        lr = theory.all_for_all_convex_step(lam, calls, **known)
        bound = theory.all_for_all_convex_bound(lam, gap, calls, **known)
        curve = all_for_all_runs(lam, matrices, best, x, math.sqrt(2.0), lr, calls)
        mean, error = mean_and_error(curve[:-1].mean(0))
        assert mean <= bound + error


def test_what_mixtures_lose_stays_and_is_in_the_convex_bound():
    matrices, best = quadratics(seed=3)
    gap = theory.quadratic_gaps(matrices, best)
    lam = torch.full((6, 6), 1 / 6, dtype=REAL)
    beta = losses_of(matrices, 0.0).beta
    x = torch.zeros(6, 2, dtype=REAL)
    radius, calls = math.sqrt(float(best.square().sum(1).mean())), 3000
    known = {"radius": radius, "beta": beta, "variance": 0.0}
    lr = theory.all_for_all_convex_step(lam, calls, **known)
    curve = all_for_all_runs(lam, matrices, best, x, 0.0, lr, calls, runs=1)
    mean = float(curve[:-1].mean())
    without = 2 * beta * radius**2 / calls
    assert mean > 10 * without
    bias = theory.mean_bias(lam, gap)
    bound = theory.all_for_all_convex_bound(lam, gap, calls, **known)
    assert mean <= bound == pytest.approx(without + 2 * bias)


def test_the_printed_convex_step_depends_on_the_unit_of_the_loss():
    lam = torch.full((3, 3), 1 / 3, dtype=REAL)

    def steps(unit):
        known = {"radius": 1.0, "beta": unit, "variance": 400 * unit**2}
        ours = theory.all_for_all_convex_step(lam, 100, **known)
        printed = math.sqrt(unit / (100 * 400 * unit**2 / 3))
        return ours, printed

    (ours, printed), (ours_then, printed_then) = steps(1.0), steps(4.0)
    assert ours_then == pytest.approx(ours / 4)  # gradients are four times as large
    assert printed_then == pytest.approx(printed / 2)


def test_the_printed_step_of_the_report_s_theorem_8_is_n_times_too_large():
    n = 10
    lam = torch.full((n, n), 1 / n, dtype=REAL)
    matrices = torch.eye(1, dtype=REAL).expand(n, 1, 1)
    best = torch.zeros(n, 1, dtype=REAL)
    x = torch.ones(n, 1, dtype=REAL)
    printed = n / 2  # N / (2 L), with little noise
    curve = all_for_all_runs(lam, matrices, best, x, 0.0, printed, 20, runs=1)
    assert float(curve[-1]) > 1e6
    ours = theory.all_for_all_convex_step(lam, 20, radius=1.0, beta=1.0, variance=0.0)
    curve = all_for_all_runs(lam, matrices, best, x, 0.0, ours, 20, runs=1)
    assert float(curve[-1]) < 1e-6


def absolute_runs(lam, best, x, lr, calls, *, runs=300, seed=0):
    """Mean over calls of 1/n sum_i |x_i - best_i|, one active client at a time."""
    rng = generator(seed)
    product = lam @ lam.T
    x = x.expand(runs, len(best)).clone()
    total = torch.zeros(runs, dtype=REAL)
    for _ in range(calls):
        total += (x - best).abs().mean(1)
        i = torch.randint(len(best), (runs,), generator=rng)
        g = (x - best).gather(1, i[:, None]).sign()
        noise = 2.0 * torch.randint(2, g.shape, generator=rng) - 1
        x = x - lr * product[i] * (g + noise)  # mean square 1 + 1
    return total / calls


def test_bounded_all_for_all_obeys_3_a_and_samples_of_theorem_4_suffice():
    best = torch.tensor([0.0, 0, 0, 1, 1, 1, 1, 2], dtype=REAL)
    gap = (best[:, None] - best).abs()  # f_i(best_j) - f_i(best_i)
    eps, bound = 0.4, math.sqrt(2.0)
    x = torch.full((8,), 0.7, dtype=REAL)
    lam = weights.within(2 * gap, eps)  # clusters: the best y is `best`
    radius = math.sqrt(float((x - best).square().mean()))
    samples = theory.all_for_all_bounded_samples(gap, eps, radius=radius, bound=bound)
    assert samples == pytest.approx(4 * radius**2 * 2 / eps**2 * 3)
    for calls in (20, math.ceil(samples)):
        lr = theory.all_for_all_bounded_step(lam, calls, radius=radius, bound=bound)
        limit = theory.all_for_all_bounded_bound(
            lam, gap, calls, radius=radius, bound=bound
        )
        mean, error = mean_and_error(absolute_runs(lam, best, x, lr, calls))
        assert mean <= limit + error
    assert limit <= eps


# Clusters that are found from a few samples.


def found_weights(means, threshold):
    return weights.within(torch.cdist(means, means).square(), threshold)


def sample_means(centres, size, samples, deviation, rng):
    """Means of samples of M clusters of `size` clients each."""
    true = centres.repeat_interleave(size, 0)
    noise = torch.randn(true.shape, generator=rng, dtype=REAL)
    return true, true + noise * deviation / math.sqrt(samples)


SPREADS = {
    "even": torch.ones(6, dtype=REAL),
    "uneven": torch.tensor([1.0, 0.3, 0.1, 0, 0, 0], dtype=REAL),
}


@pytest.mark.parametrize("deviation", SPREADS.values(), ids=SPREADS)
@pytest.mark.parametrize("separation", [3.0, 1.2])
def test_shares_and_biases_of_found_clusters_obey_their_bounds(deviation, separation):
    nu, dimension = theory.noise_of(torch.diag(deviation.square()))
    assert nu == pytest.approx(1.0)
    assert dimension == pytest.approx(float(deviation.square().sum()))
    clusters, size, samples = 3, 4, 40
    least = 8 * nu * dimension / samples
    centres = torch.zeros(clusters, 6, dtype=REAL)
    centres[1, 0], centres[2, 0] = separation, -separation
    farthest = 2 * separation
    for threshold in (least, max(least, separation**2 / 4)):
        found = Clusters(clusters, size, samples, separation, nu, dimension, threshold)
        rng = generator(0)
        inverse, bias, missed = [], [], []
        for _ in range(200):
            true, means = sample_means(centres, size, samples, deviation, rng)
            lam = found_weights(means, threshold)
            inverse.append(lam.square().sum(1).mean())
            bias.append((lam * torch.cdist(true, true).square()).sum(1).mean())
            same = torch.cdist(true, true) == 0
            missed.append((same & (lam == 0)).sum() / (same.sum() - len(true)))
        for values, bound in (
            (inverse, found.inverse_size),
            (bias, found.bias(farthest)),
            (missed, found.missed),
        ):
            mean, error = mean_and_error(torch.stack(values).to(REAL))
            assert mean <= bound + error


@pytest.mark.parametrize("threshold", [2.0, 4.0])
def test_strangers_are_confused_less_often_than_the_bound_says(threshold):
    samples, nu = 4, 1.0
    rng = generator(0)
    first, second = torch.randn(2, 200_000, generator=rng) / math.sqrt(samples)
    for separation in (2 * math.sqrt(threshold), 3 * math.sqrt(threshold)):
        found = Clusters(2, 1, samples, separation, nu, 1.0, threshold)
        joined = (separation + first - second).square() <= threshold
        mean, error = mean_and_error(joined.double())
        assert mean <= found.confused + error


def test_the_exponent_of_theorem_8_4_is_for_one_mean_and_not_for_two():
    # Twenty even directions, S = 1: the squared distance of two means is 2 chi^2_20.
    d, rng = 20, generator(0)
    distance = 2 * torch.randn(200_000, d, generator=rng).square().sum(1)
    threshold = 4.0 * d  # the least that the theorem allows
    mean, error = mean_and_error((distance > threshold).double())
    share = 1 / 2 + mean / 2  # E[1 / N_i] in clusters of two
    for factor in (1, 2):  # printed, and what its proof counts
        assert share - error > 1 / 2 + factor * 2 * math.exp(-threshold / 8)
    with pytest.raises(InputError, match="`threshold` must be at least 160"):
        Clusters(2, 2, 1, 1.0, 1.0, float(d), threshold)


@pytest.mark.parametrize("d", [1, 5, 20, 100])
def test_the_chance_to_miss_one_s_like_is_below_its_bound_exactly(d):
    samples, nu = 3, 2.0
    for factor in (1.0, 2.0):
        threshold = factor * 8 * nu * d / samples
        found = Clusters(2, 5, samples, 1.0, nu, float(d), threshold)
        # The squared distance is 2 nu^2 / S times chi^2 of d degrees of freedom.
        half = torch.tensor([d / 2, threshold * samples / (2 * nu) / 2], dtype=REAL)
        missed = float(torch.special.gammaincc(half[0], half[1]))
        assert missed <= found.missed
        assert found.missed == pytest.approx(math.exp(-factor * d / 2))
        assert found.inverse_size == pytest.approx(min(1, 0.2 + 4 * found.missed))
    # With the printed exponent and many directions not even this threshold is enough.
    if d == 100:
        half[1] /= 2
        exact = float(torch.special.gammaincc(half[0], half[1]))
        assert exact > 1e3 * math.exp(-8 * d / 8)


def test_the_bias_of_theorem_8_4_as_printed_misses_clusters_that_are_merged():
    # Two near clusters, infinitely many samples, and a threshold above their distance.
    separation, threshold = 0.1, 0.02
    found = Clusters(2, 1, 10**9, separation, 1.0, 1.0, threshold)
    centres = torch.tensor([[0.0], [separation]], dtype=REAL)
    lam = found_weights(centres, threshold)
    bias = float((lam * torch.cdist(centres, centres).square()).sum(1).mean())
    printed = 4 * threshold**2 if 2 * threshold >= separation else 0.0
    assert bias > printed == 0
    assert bias <= found.bias(separation)


def test_the_farthest_clusters_count_with_their_square_and_not_as_printed():
    # Far clusters that few samples confuse: their bias is a squared distance.
    farthest, threshold = 100.0, 2400.0
    found = Clusters(2, 1, 4, farthest, 625.0, 1.0, threshold)
    rng = generator(0)
    noise = torch.randn(2, 100_000, generator=rng, dtype=REAL) * 25 / 2
    joined = (farthest + noise[0] - noise[1]).square() <= threshold
    bias = joined.to(REAL) / 2 * farthest**2
    mean, error = mean_and_error(bias)
    # Its 2 u^2 would make the printed one smaller still.
    printed = 4 * farthest * math.exp(-4 * (farthest**2 - 2 * threshold) / (8 * 625))
    assert mean - error > printed
    assert mean <= found.bias(farthest) + error
    assert found.bias(farthest) == pytest.approx(farthest**2 * printed / 400)


def test_the_printed_effective_dimension_is_below_the_noise():
    d, samples = 50, 10
    covariance = torch.eye(d, dtype=REAL)
    nu, dimension = theory.noise_of(covariance)
    assert (nu, dimension) == pytest.approx((1.0, d))
    printed = float(torch.linalg.matrix_norm(covariance, 2)) / nu
    assert printed == pytest.approx(1.0)
    rng = generator(0)
    ones = torch.ones(d, dtype=REAL)
    _, means = sample_means(torch.zeros(1, d, dtype=REAL), 12, samples, ones, rng)
    alone = found_weights(means, 4 * nu * printed / samples)
    assert torch.equal(alone, torch.eye(12).double())
    together = found_weights(means, 8 * nu * dimension / samples)
    assert (together > 0).all()


def test_the_printed_threshold_merges_near_clusters():
    separation = 0.1
    centres = torch.tensor([[0.0], [separation]], dtype=REAL)
    assert (found_weights(centres, separation / 4) == 0.5).all()
    ours = found_weights(centres, theory.cluster_threshold(separation))
    assert torch.equal(ours, torch.eye(2).double())


@pytest.mark.parametrize("separation", [0.3, 2.0])
def test_the_samples_that_are_asked_for_put_the_threshold_above_the_noise(separation):
    known = {"noise": 1.5, "dimension": 4.0}
    samples = theory.cluster_samples(separation, **known)
    threshold = theory.cluster_threshold(separation)
    Clusters(3, 5, samples, separation, 1.5, 4.0, threshold)
    with pytest.raises(InputError, match="`threshold` must be at least"):
        Clusters(3, 5, samples - 1, separation, 1.5, 4.0, threshold)


def estimated_run(size, samples, calls, *, clusters=3, d=4, runs=40, separation=5.0):
    """Mean excess of All-for-all for means, in clusters that are found before."""
    rng = generator(size)
    centres = separation / math.sqrt(2) * torch.eye(clusters, d, dtype=REAL)
    ones = torch.ones(d, dtype=REAL)
    found = Clusters(
        clusters,
        size,
        samples,
        separation,
        1.0,
        float(d),
        theory.cluster_threshold(separation),
    )
    losses = Losses(1.0, 1.0, float(d))
    start = separation**2 / 4  # of x = 0
    own = replace(losses, variance=d * found.inverse_size)
    lr = rates.sgd_step(start, calls, own)
    ends = []
    for _ in range(runs):
        true, means = sample_means(centres, size, samples, ones, rng)
        lam = found_weights(means, found.threshold)
        product, x = lam @ lam.T, torch.zeros_like(true)
        for _ in range(calls):
            g = x - true + torch.randn(x.shape, generator=rng, dtype=REAL)
            x = x - lr / weights.spectral_radius(lam) * product @ g
        ends.append((x - true).square().sum(1).mean() / 2)
    bound = theory.estimated_bound(
        found, start, calls, losses, diameter=1.0, farthest=separation
    )
    return torch.stack(ends), bound


def test_all_for_all_in_found_clusters_obeys_theorem_8_4():
    for size in (2, 8):
        ends, bound = estimated_run(size, samples=20, calls=30)
        mean, error = mean_and_error(ends)
        assert mean <= bound + error


def test_with_few_samples_of_each_more_clients_are_worth_more_samples():
    # S and K stay, C grows fourfold twice: the error falls in proportion.
    small, middle, large = (
        float(estimated_run(size, samples=20, calls=30)[0].mean())
        for size in (2, 8, 32)
    )
    # Steps get longer with C, and their logarithm costs up to a quarter.
    assert small / middle == pytest.approx(4, rel=0.35)
    assert middle / large == pytest.approx(4, rel=0.35)
