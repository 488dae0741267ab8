"""Rates of stochastic gradient descent in chapter 8.

Bounds hold where ours do, and fail where the printed ones do.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coterie.checks import InputError
from coterie_theory import rates
from coterie_theory.rates import LossClass
from support.collaboration_runs import exact_excess, mean_and_error
from support.noisy_quadratics import ONE, REAL, generator
from support.refusals import refuses

STIFF = LossClass(mu=0.2, beta=4.0, variance=0.5)
CALM = LossClass(mu=0.5, beta=1.0, variance=1e-3)
every_loss = pytest.mark.parametrize(
    "losses", [ONE, STIFF, CALM], ids=["one", "stiff", "calm"]
)


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
    lr = rates.sgd_step(start, calls, ONE)
    assert lr == pytest.approx(1 / calls)  # the logarithm counts as 1
    tuned = rates.tuned_bound(start, calls, ONE)
    assert exact_excess(ONE, start, lr, calls) <= tuned
    assert tuned == pytest.approx(start * math.exp(-calls / 2) + 1 / calls)


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
    losses = rates.ConvexLosses(radius, beta, variance)
    lr = rates.convex_sgd_step(calls, losses)
    bound = rates.convex_sgd_bound(calls, losses)
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
    losses = rates.BoundedLosses(radius, bound)
    lr = rates.bounded_sgd_step(calls, losses)
    rng = generator(0)
    x = torch.full((runs,), radius, dtype=REAL)
    total = torch.zeros(runs, dtype=REAL)
    for _ in range(calls):
        total += x
        noise = math.sqrt(3) * (2.0 * torch.randint(2, (runs,), generator=rng) - 1)
        x = x - lr * (x.sign() + noise)  # of |x|; mean square 1 + 3
    mean, error = mean_and_error((total / calls).abs())
    limit = rates.bounded_sgd_bound(calls, losses)
    assert mean <= limit + error
    assert limit == pytest.approx(bound * radius * math.sqrt(2 / calls))


def test_losses_that_cannot_be_are_refused():
    with pytest.raises(InputError, match=r"`mu` must be at most 1, got 2\.0"):
        LossClass(mu=2.0, beta=1.0, variance=1.0)
    refuses(r"`lr` must be at most 1, got 1\.5", rates.sgd_bound, 1.0, 1.5, 3, ONE)
    refuses("`calls` must be at least 1, got 0", rates.sgd_step, 1.0, 0, ONE)
