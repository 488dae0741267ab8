"""Claims of chapter 8 about All-for-one.

Bounds hold where ours do, and fail where the printed ones do.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from coterie.collaboration import weights
from coterie_theory import collaboration as theory
from coterie_theory import lower_bounds, rates
from coterie_theory.rates import BoundedLosses, LossClass
from support.collaboration_runs import (
    all_for_one_runs,
    every_weights,
    first_call_below,
    mean_and_error,
)
from support.noisy_quadratics import (
    REAL,
    excess_of,
    line,
    losses_of,
    quadratic_distances,
    quadratics,
)


@every_weights
@pytest.mark.parametrize("calls", [3, 40])
def test_all_for_one_obeys_its_bound(build, calls):
    matrices, best = quadratics(alike=True, spread=0.5)
    b = quadratic_distances(matrices, best)
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
    still = LossClass(1.0, 1.0, 0.0)
    none = torch.zeros(4, 4, dtype=REAL)
    bound = theory.all_for_one_bound(lam, none, start, lr, 6, still)
    assert bound.tolist() == pytest.approx([2 * 0.75**6] * 4)


def test_steps_and_bounds_have_all_digits_of_their_numbers():
    """Each client's is that of SGD with its variance, which is a Python number."""
    lam = torch.tensor([[0.7, 0.3], [0.1, 0.9]], dtype=REAL)
    b = torch.tensor([[0.0, 0.2], [0.3, 0.0]], dtype=REAL)
    start, losses = torch.tensor([0.7, 1.3], dtype=REAL), LossClass(0.3, 1.1, 0.9)
    lr = theory.all_for_one_step(lam, start, 50, losses)
    bound = theory.all_for_one_bound(lam, b, start, lr, 50, losses)
    assert lr.dtype == bound.dtype == REAL
    bias = [0.3 * 0.2**2 / 0.6, 0.1 * 0.3**2 / 0.6]
    for i, share in enumerate((0.7**2 + 0.3**2, 0.1**2 + 0.9**2)):
        own = replace(losses, variance=0.9 * share)
        step = rates.sgd_step(float(start[i]), 50, own)
        assert step < 1 / (2 * 1.1)  # the logarithm, of which no digit is round
        # A few roundings of double precision; single precision would be off by 1e-8.
        assert float(lr[i]) == pytest.approx(step, rel=1e-14)
        alone = rates.sgd_bound(float(start[i]), step, 50, own)
        assert float(bound[i]) == pytest.approx(alone + bias[i], rel=1e-13)


def test_the_printed_threshold_of_all_for_one_forgets_the_curvature():
    # Two flat losses: a small distance of gradients is a large one of optima.
    mu, eps = 0.01, 0.1
    b = math.sqrt(0.49 * eps)
    far = torch.tensor([[0.0, b], [b, 0.0]], dtype=REAL)
    printed = weights.threshold_weights(far.square(), eps / 2)
    assert (printed == 0.5).all()
    midpoint = mu / 2 * (b / mu / 2) ** 2  # the excess at which both then stay
    assert midpoint > 5 * eps
    assert torch.equal(theory.all_for_one_weights(far, eps, mu), torch.eye(2).double())


def test_all_for_one_needs_no_more_calls_than_predicted_and_an_nth_of_those_alone():
    eps, n, sigma2 = 0.02, 8, 4.0
    matrices = torch.eye(2, dtype=REAL).expand(n, 2, 2)
    best = torch.zeros(n, 2, dtype=REAL)
    best[4:] = 3.0  # four like client 0, and four far ones
    b = quadratic_distances(matrices, best)
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
            0.1 * lower_bounds.lower_bound(distance, eps, losses)[0]
        )
    speed = theory.all_for_one_speed_up(b, eps, losses.mu)
    assert speed.tolist() == [4.0] * n
    assert needed["alone"] / needed["together"] == pytest.approx(4, rel=0.2)


def test_calls_of_all_for_one_follow_their_formula():
    losses = LossClass(0.5, 2.0, 3.0)
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
    noisy = LossClass(1.0, 1.0, 100.0)
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
    known = BoundedLosses(radius=1.0, bound=1.0)
    lr = float(theory.all_for_one_bounded_step(lam, calls, known)[0])
    none = torch.zeros(n, n, dtype=REAL)
    bound = float(theory.all_for_one_bounded_bound(lam, none, calls, known)[0])
    mean = descend_absolute(lr, calls)
    assert mean <= bound
    printed = math.sqrt(2 / calls * float(lam[0].square().sum()))
    step_in_print = lr / math.sqrt(2)
    assert descend_absolute(step_in_print, calls) > 3 * printed


def test_samples_of_6_a_reach_the_precision():
    gap = line() * 0.4
    eps, known = 0.1, BoundedLosses(radius=1.3, bound=2.0)
    samples = theory.all_for_one_bounded_samples(gap, eps, known)
    lam = weights.threshold_weights(2 * gap, eps)
    for i in range(8):
        calls = math.ceil(float(samples[i]))
        bound = theory.all_for_one_bounded_bound(lam, gap, calls, known)
        assert float(bound[i]) <= eps
    near = theory.count_near(2 * gap, eps)
    assert float(samples[0]) == pytest.approx(4 * 1.3**2 * 4 / 0.01 * 8 / int(near[0]))
