"""Claims of chapter 8 about All-for-all.

Bounds hold where ours do, and fail where the printed ones do.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coterie.checks import InputError
from coterie.collaboration import weights
from coterie_theory import collaboration as theory
from coterie_theory import rates
from coterie_theory.rates import BoundedLosses, ConvexLosses, LossClass
from support import noisy_quadratics
from support.collaboration_runs import (
    WEIGHTS,
    all_for_all_runs,
    every_weights,
    exact_excess,
    first_call_below,
    mean_and_error,
)
from support.noisy_quadratics import REAL


@every_weights
@pytest.mark.parametrize("calls", [3, 60])
def test_all_for_all_obeys_its_bound(build, calls):
    matrices, best = noisy_quadratics.quadratics(seed=1, spread=0.5)
    gap = noisy_quadratics.quadratic_gaps(matrices, best)
    lam = build(torch.cdist(best, best))
    losses = noisy_quadratics.losses_of(matrices, 2.0)
    x = torch.full((6, 2), 2.0, dtype=REAL)
    start = float(noisy_quadratics.excess_of(matrices, best, x).mean())
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
    matrices, best = noisy_quadratics.quadratics(seed=2, spread=0.5)
    gap = noisy_quadratics.quadratic_gaps(matrices, best)
    lam = WEIGHTS["clusters"](gap)
    losses = noisy_quadratics.losses_of(matrices, 1.0)
    there = theory.effective(lam, losses)
    assert there.mu == pytest.approx(losses.mu)
    assert there.beta == pytest.approx(losses.beta)
    assert there.variance == pytest.approx(1 / 3)
    x = torch.full((6, 2), 3.0, dtype=REAL)
    start = float(noisy_quadratics.excess_of(matrices, best, x).mean())
    lr, printed = printed_theorem_8_3(lam, gap, start, calls, losses)
    assert lr == pytest.approx(theory.all_for_all_step(lam, start, calls, losses))
    curve = all_for_all_runs(lam, matrices, best, x, 1.0, lr, calls, runs=200)
    mean, error = mean_and_error(curve[-1])
    assert mean <= printed + error


def test_theorem_8_3_as_printed_fails_on_a_star_where_the_radius_is_not_one():
    n, calls = 50, 30
    far = torch.ones(n, n, dtype=REAL)
    far[0] = far[:, 0] = 0
    lam = weights.threshold_weights(far, 0.5)
    matrices = torch.eye(1, dtype=REAL).expand(n, 1, 1)
    best = torch.zeros(n, 1, dtype=REAL)
    x = torch.ones(n, 1, dtype=REAL)
    still = LossClass(1.0, 1.0, 1e-6)
    gap = noisy_quadratics.quadratic_gaps(matrices, best)
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
        theory.all_for_all_bound(lam, none, 1.0, 1.1, 5, noisy_quadratics.ONE)


def least_stacked(lam, matrices, best):
    """The least mean excess of models x = L y."""
    d = best.shape[1]
    spread = torch.kron(lam, torch.eye(d, dtype=REAL))
    blocks = torch.block_diag(*matrices)
    root = torch.linalg.cholesky(blocks).T
    y = torch.linalg.lstsq(root @ spread, root @ best.flatten(), driver="gelsd")[0]
    x = (spread @ y).reshape(best.shape)
    return float(noisy_quadratics.excess_of(matrices, best, x).mean())


def test_lemma_8_5_2_bounds_what_the_best_mixtures_lose():
    for seed in range(20):
        matrices, best = noisy_quadratics.quadratics(seed)
        gap = noisy_quadratics.quadratic_gaps(matrices, best)
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
    gap = noisy_quadratics.quadratic_gaps(matrices, best)
    least = least_stacked(lam, matrices, best)
    assert least <= theory.mean_bias(lam, gap)
    assert least > 10 * theory.mean_bias(lam, gap.T)


def test_the_report_s_exponent_in_3_b_does_not_depend_on_the_calls():
    # One noiseless call from F^0 = 1 with mu = 0.01, beta = 1.
    flat = LossClass(0.01, 1.0, 0.0)
    printed = math.exp(-flat.beta / flat.mu / (2 * flat.beta))
    after = exact_excess(flat, 1.0, 0.5, 1)
    assert after > 1e6 * printed
    assert after <= rates.tuned_bound(1.0, 1, flat)


def spectrum_of(lam):
    values = torch.linalg.eigvalsh(lam @ lam.T)
    return float(values[values > 1e-12].min()), float(values.max())


@every_weights
def test_effective_constants_are_those_of_the_stacked_loss(build):
    matrices, best = noisy_quadratics.quadratics()
    lam = build(torch.cdist(best, best))
    losses = noisy_quadratics.losses_of(matrices, 3.0)
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
    b = noisy_quadratics.quadratic_distances(matrices, best)
    losses = noisy_quadratics.losses_of(matrices, sigma2)
    x = torch.full((n, 2), 1.5, dtype=REAL)
    start = float(noisy_quadratics.excess_of(matrices, best, x).mean())
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
    losses = LossClass(1.0, 1.0, sigma2)
    lam = theory.all_for_all_weights(torch.cdist(best, best), eps, 1.0)
    assert 8 < int((lam > 0).sum()) < 64
    x = torch.full((8, 1), 2.0, dtype=REAL)
    start = float(noisy_quadratics.excess_of(matrices, best, x).mean())
    there = theory.effective(lam, losses)
    assert there.mu < 0.5  # so that the printed number of calls is another one
    lr = rates.precision_step(eps, there)
    calls = theory.all_for_all_calls(lam, eps, start, losses)
    gap = noisy_quadratics.quadratic_gaps(matrices, best)
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
    matrices, best = noisy_quadratics.quadratics(seed=3, spread=0.5)
    flat = torch.diag(torch.tensor([1.0, 0.0], dtype=REAL))
    matrices = flat @ matrices @ flat
    gap = noisy_quadratics.quadratic_gaps(matrices, best)
    lam = build(torch.cdist(best, best))
    beta = float(torch.linalg.eigvalsh(matrices).max())
    x = torch.full((6, 2), 2.0, dtype=REAL)
    radius = math.sqrt(float((x - best).square().sum(1).mean()))
    known = ConvexLosses(radius, beta, variance=2.0)
    for calls in (5, 80):
        lr = theory.all_for_all_convex_step(lam, calls, known)
        bound = theory.all_for_all_convex_bound(lam, gap, calls, known)
        curve = all_for_all_runs(lam, matrices, best, x, math.sqrt(2.0), lr, calls)
        mean, error = mean_and_error(curve[:-1].mean(0))
        assert mean <= bound + error


def test_what_mixtures_lose_stays_and_is_in_the_convex_bound():
    matrices, best = noisy_quadratics.quadratics(seed=3)
    gap = noisy_quadratics.quadratic_gaps(matrices, best)
    lam = torch.full((6, 6), 1 / 6, dtype=REAL)
    beta = noisy_quadratics.losses_of(matrices, 0.0).beta
    x = torch.zeros(6, 2, dtype=REAL)
    radius, calls = math.sqrt(float(best.square().sum(1).mean())), 1500
    known = ConvexLosses(radius, beta, variance=0.0)
    lr = theory.all_for_all_convex_step(lam, calls, known)
    curve = all_for_all_runs(lam, matrices, best, x, 0.0, lr, calls, runs=1)
    mean = float(curve[:-1].mean())
    without = 2 * beta * radius**2 / calls
    assert mean > 10 * without
    bias = theory.mean_bias(lam, gap)
    bound = theory.all_for_all_convex_bound(lam, gap, calls, known)
    assert mean <= bound == pytest.approx(without + 2 * bias)


def test_the_printed_convex_step_depends_on_the_unit_of_the_loss():
    lam = torch.full((3, 3), 1 / 3, dtype=REAL)

    def steps(unit):
        known = ConvexLosses(radius=1.0, beta=unit, variance=400 * unit**2)
        ours = theory.all_for_all_convex_step(lam, 100, known)
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
    ours = theory.all_for_all_convex_step(lam, 20, ConvexLosses(1.0, 1.0, 0.0))
    curve = all_for_all_runs(lam, matrices, best, x, 0.0, ours, 20, runs=1)
    assert float(curve[-1]) < 1e-6


def absolute_runs(lam, best, x, lr, calls, *, runs=300, seed=0):
    """Mean over calls of 1/n sum_i |x_i - best_i|, one active client at a time."""
    rng = noisy_quadratics.generator(seed)
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
    lam = weights.threshold_weights(2 * gap, eps)  # clusters: the best y is `best`
    radius = math.sqrt(float((x - best).square().mean()))
    known = BoundedLosses(radius, bound)
    samples = theory.all_for_all_bounded_samples(gap, eps, known)
    assert samples == pytest.approx(4 * radius**2 * 2 / eps**2 * 3)
    for calls in (20, math.ceil(samples)):
        lr = theory.all_for_all_bounded_step(lam, calls, known)
        limit = theory.all_for_all_bounded_bound(lam, gap, calls, known)
        mean, error = mean_and_error(absolute_runs(lam, best, x, lr, calls))
        assert mean <= limit + error
    assert limit <= eps


def test_phases_are_precise_after_the_samples_of_the_anytime_guarantee():
    """Phases p = 0, 1, ... of T(2^-p) samples; the first with 2^-p <= eps suffices."""
    gap, known = noisy_quadratics.line() * 0.4, BoundedLosses(radius=1.3, bound=2.0)

    def total_samples(eps: float) -> float:
        last = math.ceil(-math.log2(eps) - 1e-12)
        phases = [2.0**-p for p in range(last + 1)]
        return sum(theory.all_for_all_bounded_samples(gap, e, known) for e in phases)

    def printed_samples(eps: float) -> float:
        return 4 * theory.all_for_all_bounded_samples(gap, eps, known)

    wrong = 0
    for k in range(120):
        eps = 2.0 ** (-k / 12)
        assert total_samples(eps) <= theory.anytime_samples(gap, eps, known)
        wrong += total_samples(eps) > printed_samples(eps)
        if k % 12 == 0:
            assert total_samples(eps) <= printed_samples(eps)
    assert wrong > 0  # just below a power of 2
