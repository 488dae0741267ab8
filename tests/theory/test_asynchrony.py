"""Asynchronous gradient descent with a server: delays, step rules, bounds, time."""

from __future__ import annotations

import heapq
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.checks import InputError
from coterie_theory import asynchrony
from coterie_theory.asynchrony import AsyncProblem
from coterie_theory.delays import (
    applied_steps,
    delays_of,
    strongly_convex_weights,
    virtual_iterates,
)

REAL = torch.float64


def random_order(rng, workers, calls):
    """Arrivals with speeds that differ by orders of magnitude."""
    chance = 10 ** rng.uniform(-3, 0, workers)
    return rng.choice(workers, calls, p=chance / chance.sum())


def orders(workers=5, calls=60):
    """Random and adversarial orders of delays, by name."""
    rng = np.random.default_rng(0)
    turns = np.arange(calls) % workers
    last = turns % (workers - 1)
    return {
        "in turn": turns,
        "one comes back only at the end": np.append(last[:-1], workers - 1),
        "one worker does it all": np.zeros(calls, int),
        "bursts": np.repeat(np.arange(workers), calls // workers),
        "two come rarely": np.where(
            np.arange(calls) % 20 < 18, turns % 3, 3 + turns % 2
        ),
        **{f"random {i}": random_order(rng, workers, calls) for i in range(4)},
    }


every_order = pytest.mark.parametrize("order", orders().values(), ids=orders())


def arrivals(times, calls):
    """The order of arrivals for workers of fixed speeds."""
    queue = [(time, worker) for worker, time in enumerate(times)]
    heapq.heapify(queue)
    order = []
    for _ in range(calls):
        now, worker = heapq.heappop(queue)
        order.append(worker)
        heapq.heappush(queue, (now + times[worker], worker))
    return np.array(order)


def run(order, workers, steps, gradient, x):
    """A plain loop of Algorithm 3.1: all models, and gradients as they start."""
    x = np.atleast_1d(np.asarray(x, float))
    first = [gradient(x, worker) for worker in range(workers)]
    open_gradient, read = list(first), [0] * workers
    models, later = [x], []
    for k, worker in enumerate(order, start=1):
        x = x - steps(k, k - read[worker]) * open_gradient[worker]
        read[worker] = k
        open_gradient[worker] = gradient(x, worker)
        models.append(x)
        later.append(open_gradient[worker])
    return np.array(models), np.array(first), np.array(later)


# Delays.


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40))
def test_all_delays_sum_to_workers_times_updates_whatever_the_order(order):
    delays = delays_of(torch.tensor(order), workers=4)
    k = len(order)
    assert int(delays.tau.sum() + (k - delays.open).sum()) == 4 * k
    assert float(delays.tau.double().mean()) <= 4


@every_order
def test_delays_are_those_of_their_definition(order):
    delays = delays_of(torch.tensor(order), workers=5)
    for k, worker in enumerate(order, start=1):
        before = [j for j in range(1, k) if order[j - 1] == worker]
        after = [j for j in range(k + 1, len(order) + 1) if order[j - 1] == worker]
        prev = max(before, default=0)
        assert int(delays.prev[k - 1]) == prev
        assert int(delays.tau[k - 1]) == k - prev
        assert int(delays.next[k - 1]) == min(after, default=0)
    for worker in range(5):
        own = [k for k, m in enumerate(order, start=1) if m == worker]
        assert int(delays.first[worker]) == min(own, default=0)
        assert int(delays.open[worker]) == max(own, default=0)


def test_the_middle_of_3_9_as_printed_is_no_bound():
    # The printed double sum over all k and m of tau(k, m) exceeds K M.
    order, workers = np.arange(60) % 5, 5
    double, last = 0, [0] * workers
    for k, worker in enumerate(order, start=1):
        double += sum(k - j for j in last)
        last[worker] = k
    assert double > 2 * len(order) * workers
    # The first sum, with what is on its way at the end, is K M.
    delays = delays_of(torch.tensor(order), workers)
    assert int(delays.tau.sum() + (60 - delays.open).sum()) == 60 * workers


def test_alone_nothing_is_delayed_and_in_turn_the_delay_is_the_number_of_workers():
    assert delays_of(torch.zeros(9, dtype=torch.long), workers=1).tau.eq(1).all()
    tau = delays_of(torch.arange(30) % 4, workers=4).tau
    torch.testing.assert_close(tau, torch.arange(1, 31).clamp(max=4))


@every_order
def test_real_and_virtual_iterates_differ_by_the_gradients_on_their_way(order):
    rng, workers, last = np.random.default_rng(1), 5, len(order)
    steps = asynchrony.practical_steps(0.05, workers)
    matrices = rng.normal(size=(workers, 3, 3))

    def gradient(x, worker):
        return matrices[worker] @ x + rng.normal(size=3)

    models, first, later = run(order, workers, steps, gradient, np.ones(3))
    start, gradients = torch.ones(3, dtype=REAL), map(torch.from_numpy, (first, later))
    delays = delays_of(torch.tensor(order), workers)
    virtual = virtual_iterates(start, *gradients, delays, steps)
    for k in range(1, last + 1):
        flying = np.zeros(3)
        for m in set(range(workers)) - {order[k - 1]}:
            prev = max((j for j in range(1, k) if order[j - 1] == m), default=0)
            after = [j for j in range(k, last + 1) if order[j - 1] == m]
            tau = min(after) - prev if after else max(1, last - prev)
            g = later[prev - 1] if prev else first[m]
            flying += steps(min(after, default=last), tau) * g
        # Sums of up to 60 terms of order 1.
        expected = torch.from_numpy(models[k] - flying)
        torch.testing.assert_close(virtual[k - 1], expected, rtol=0, atol=1e-12)


@every_order
def test_sums_over_gradients_on_their_way_are_those_of_lemma_3_b_2(order):
    """Any a_k, b_prev(k,m) and c_next(k,m); c after the stop is one number."""
    rng, workers, calls = np.random.default_rng(2), 5, len(order)
    a, b, c = rng.random(calls + 1), rng.random(calls + 1), rng.random(calls + 2)
    left = 0.0
    for k in range(1, calls + 1):
        for m in set(range(workers)) - {order[k - 1]}:
            prev = max((j for j in range(1, k) if order[j - 1] == m), default=0)
            later = (j for j in range(k, calls + 1) if order[j - 1] == m)
            left += a[k] * b[prev] * c[next(later, calls + 1)]
    delays = delays_of(torch.tensor(order), workers)
    first, back = (
        [j or calls + 1 for j in found.tolist()]
        for found in (delays.first, delays.next)
    )
    right = b[0] * sum(c[j] * a[1:j].sum() for j in first)
    right += sum(
        b[k] * c[back[k - 1]] * a[k + 1 : back[k - 1]].sum() for k in range(1, calls)
    )
    assert left == pytest.approx(right)


@every_order
def test_with_own_data_virtual_iterates_are_as_near_as_lemmas_3_d_1_and_3_d_2_say(
    order,
):
    """Losses L (x - c_m)^2 / 2 without noise, with the steps of Theorem 3.3."""
    workers, calls, beta = 5, len(order), 2.0
    centres = np.array([-2.0, -1.0, 0.5, 1.0, 1.5])
    zeta = beta * np.abs(centres - centres.mean()).max()
    best = centres.mean()
    start = beta * ((3.0 - centres) ** 2 - (best - centres) ** 2).mean() / 2
    problem = AsyncProblem(workers, calls, beta)
    steps = asynchrony.heterogeneous_steps(start, problem)
    models, first, later = run(
        order, workers, steps, lambda x, m: beta * (x - centres[m]), 3.0
    )
    delays = delays_of(torch.tensor(order), workers)
    gradients = map(torch.from_numpy, (first, later))
    virtual = virtual_iterates(
        torch.full((1,), 3.0, dtype=REAL), *gradients, delays, steps
    )
    away = ((models[1:] - virtual.numpy()) ** 2).sum(1)
    slopes = (beta * (models[:, 0] - best)) ** 2
    for k in range(1, calls + 1):
        bound = 0.0
        for m in set(range(workers)) - {order[k - 1]}:
            prev = max((j for j in range(1, k) if order[j - 1] == m), default=0)
            later_by = [j for j in range(k, calls + 1) if order[j - 1] == m]
            at = later_by[0] if later_by else calls
            gamma = steps(at, max(1, at - prev))
            bound += gamma**2 * 2 * (workers - 1) * (slopes[prev] + zeta**2)
        assert away[k - 1] <= 2 * bound * (1 + 1e-9)
    applied, gamma = applied_steps(delays, steps).numpy(), steps(10**9, 1)
    noise = 2 * beta * (workers * gamma) ** 2 + applied.sum() / 2
    bound = start / 4 + zeta**2 * noise + (applied * slopes[1:]).sum() / 2
    assert 8 * beta**2 * (applied * away).sum() <= bound


@every_order
def test_bounded_gradients_keep_virtual_iterates_near(order):
    problem = AsyncProblem(workers=5, calls=len(order))
    steps = asynchrony.lipschitz_steps(1.0, 2.0, problem)
    rng = np.random.default_rng(2)
    signs = 2.0 * rng.choice([-1.0, 1.0], (5 + len(order), 1))
    later, first = torch.from_numpy(signs[5:]), torch.from_numpy(signs[:5])
    given_signs = iter([*signs[:5], *signs[5:]])
    models, _, _ = run(order, 5, steps, lambda x, m: next(given_signs), 0.0)
    delays = delays_of(torch.tensor(order), workers=5)
    x = torch.zeros(1, dtype=REAL)
    virtual = virtual_iterates(x, first, later, delays, steps)
    away = np.abs(models[1:] - virtual.numpy()).max()
    assert away <= 4 * steps(1, 1) * 2.0 * (1 + 1e-9)


def test_gradients_on_their_way_at_the_stop_get_the_delay_they_have_so_far():
    delays = delays_of(torch.tensor([0, 1, 0, 0, 0]), workers=3)
    applied = applied_steps(delays, lambda k, tau: float(tau))
    # x_1 returns at 3, x_2 is 3 old at the stop, x_3 and x_4 at once; x_5 is fresh.
    assert applied.tolist() == [2.0, 3.0, 1.0, 1.0, 1.0]


# Steps.


SETTING = AsyncProblem(workers=4, calls=100, beta=2.0, variance=0.25, mu=0.1)


def rules(radius, setting):
    return {
        "3.2.1": asynchrony.convex_steps(radius, setting),
        "3.2.2": asynchrony.strongly_convex_steps(radius, setting),
        "3.2.3": asynchrony.nonconvex_steps(radius, setting),
        "3.3": asynchrony.heterogeneous_steps(radius, setting),
    }


@pytest.mark.parametrize("tau", [1, 4, 9, 80])
@pytest.mark.parametrize("b", [1e-3, 3.0])
def test_steps_are_those_of_the_theorems(tau, b):
    noise = math.sqrt(b / (100 * 2 * 0.25))
    logarithm = math.log(math.e + (0.1 * 100 * b) ** 2 / 0.25)
    fast = math.exp(-0.1 * tau / (4 * 4 * 2)) / (8 * tau)
    expected = {
        "3.2.1": min(1 / (8 * tau), 1 / 32, b / (0.5 * 10)),
        "3.2.2": min(fast, 1 / 64, 504 * logarithm / 10),
        "3.2.3": min(1 / (8 * tau), 1 / 16, noise),
        "3.3": min(1 / (16 * tau), 1 / 32, noise),
    }
    for name, steps in rules(b, SETTING).items():
        assert steps(tau, tau) == pytest.approx(expected[name])
        assert steps(tau, tau) == steps(99, tau)
    prior = asynchrony.cautious_steps(80, beta=2.0)
    assert prior(1, tau) == pytest.approx(1 / 640)


def test_without_noise_only_delays_and_workers_limit_the_step():
    calm = AsyncProblem(workers=4, calls=100, beta=2.0, mu=0.1)
    limits = {"3.2.1": 1 / 32, "3.2.2": 1 / 64, "3.2.3": 1 / 16, "3.3": 1 / 32}
    for name, steps in rules(1e-9, calm).items():
        assert steps(1, 1) == pytest.approx(limits[name])


def test_theorem_3_2_needs_the_radius_and_not_its_square_as_printed():
    # Measuring x in another unit, c times smaller, must multiply the step by c^2.
    c = 10.0
    other = AsyncProblem(4, 100, beta=2.0 / c**2, variance=0.25 / c**2)
    step = asynchrony.convex_steps(1e-2, SETTING)(1, 1)
    assert asynchrony.convex_steps(c * 1e-2, other)(1, 1) == pytest.approx(c**2 * step)
    printed = asynchrony.convex_steps(c**2 * 1e-4, other)(1, 1)
    wrong = asynchrony.convex_steps(1e-4, SETTING)(1, 1)
    assert printed == pytest.approx(c**3 * wrong)


def test_rules_for_smooth_losses_have_the_practical_form():
    calm = AsyncProblem(workers=6, calls=100, beta=1.0)
    practical = asynchrony.practical_steps(1 / 24, workers=6)
    for tau in range(1, 40):
        expected = asynchrony.convex_steps(1.0, calm)(tau, tau)
        assert practical(tau, tau) == pytest.approx(expected)


@pytest.mark.parametrize("workers", [1, 2, 5, 12])
def test_workers_in_turn_are_stable_up_to_the_limit(workers):
    limit = asynchrony.round_robin_limit(workers)
    for factor, stable in ((0.98, True), (1.02, False)):
        companion = np.diag(np.ones(workers - 1), -1)
        companion[0, 0] += 1
        companion[0, -1] -= factor * limit
        assert (np.abs(np.linalg.eigvals(companion)).max() < 1) == stable
    # The steps of Theorems 3.2 and 3.3 lie inside; the limit is about pi / (2 M).
    assert 1 / (2 * workers) < limit < math.pi / (2 * workers - 1)


@every_order
def test_applied_steps_sum_to_an_18th_of_the_largest_at_least(order):
    for setting, start in (
        (AsyncProblem(5, len(order), beta=2.0), 1.0),
        (AsyncProblem(5, len(order), beta=2.0, variance=9.0), 0.1),
    ):
        steps = asynchrony.nonconvex_steps(start, setting)
        largest = asynchrony.largest_nonconvex_step(start, setting)
        delays = delays_of(torch.tensor(order), workers=5)
        total = float(applied_steps(delays, steps).sum())
        assert total >= len(order) * largest / 18


def test_lemma_3_c_2_as_printed_has_steps_that_are_too_long():
    setting = AsyncProblem(workers=5, calls=100, beta=2.0)
    largest = asynchrony.largest_nonconvex_step(1.0, setting)
    step = asynchrony.nonconvex_steps(1.0, setting)(15, 15)  # tau = 3 M
    assert step == pytest.approx(largest / 6)
    assert step < largest / 3


def test_weights_of_strongly_convex_averages_are_products():
    applied = torch.tensor([0.5, 0.1, 0.9], dtype=REAL)
    expected, product = [], 1.0
    for step in applied.tolist():
        product /= 1 - 0.3 * step / 2
        expected.append(step * product)
    weights = strongly_convex_weights(applied, mu=0.3)
    expected = torch.tensor(expected, dtype=REAL)
    torch.testing.assert_close(weights, expected / expected.sum())


# What they promise.


@every_order
@pytest.mark.parametrize("centre", [1.0, 0.01])
def test_theorem_3_1_holds_for_every_order(order, centre):
    # F(x) = 2 |x - centre|, gradients 2 sign(x - centre), then with noise in the signs.
    setting = AsyncProblem(workers=5, calls=len(order))
    steps = asynchrony.lipschitz_steps(centre, 2.0, setting)
    bound = asynchrony.lipschitz_bound(centre, 2.0, setting)
    assert bound == pytest.approx(6 * centre * math.sqrt(5 / 60))
    models, _, _ = run(order, 5, steps, lambda x, m: 2 * np.sign(x - centre), 0.0)
    assert 2 * abs(models[1:].mean() - centre) <= bound

    rng, gaps = np.random.default_rng(3), []
    for _ in range(40):  # of F(x) = E 2 |x - centre - s|, s = +-centre / 2
        shifts = rng.choice([-centre / 2, centre / 2], 5 + len(order)).tolist()

        def noisy(x, m, s=shifts):
            return 2 * np.sign(x - centre - s.pop())

        models, _, _ = run(order, 5, steps, noisy, 0.0)
        x = models[1:].mean()
        gaps.append(
            sum(abs(x - centre - s) for s in (-centre / 2, centre / 2)) - centre
        )
    assert np.mean(gaps) <= bound


@pytest.mark.parametrize("sigma", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("name", ["in turn", "two come rarely", "random 0"])
def test_theorem_3_2_3_holds_with_the_corrected_constants(sigma, name):
    order, eigenvalues = orders()[name], np.array([0.1, 1.0])
    start = np.array([2.0, 1.0])
    setting = AsyncProblem(5, len(order), beta=1.0, variance=sigma**2)
    excess = float(eigenvalues @ start**2 / 2)
    steps = asynchrony.nonconvex_steps(excess, setting)
    delays = delays_of(torch.tensor(order), workers=5)
    weights = applied_steps(delays, steps).numpy()
    rng, values = np.random.default_rng(4), []

    def gradient(x, worker):
        return eigenvalues * x + sigma / math.sqrt(2) * rng.normal(size=2)

    for _ in range(60):
        models, _, _ = run(order, 5, steps, gradient, start)
        slopes = ((eigenvalues * models[1:]) ** 2).sum(1)
        values.append(weights @ slopes / weights.sum())
    assert np.mean(values) <= asynchrony.nonconvex_bound(excess, setting)


def test_the_bound_of_3_2_3_is_its_formula():
    step = asynchrony.largest_nonconvex_step(3.0, SETTING)
    assert step == min(1 / 16, math.sqrt(3.0 / 50))
    expected = 162 * 3.0 / (100 * step) + 108 * 4 * 2 * 0.25 * step / 100
    expected += 6 * 2 * 0.25 * step
    assert asynchrony.nonconvex_bound(3.0, SETTING) == pytest.approx(expected)


def test_the_noise_of_the_first_gradients_can_raise_the_loss_before_it_starts():
    # F = L x^2 / 2 from its minimum: the printed proof has F(x_hat_1) <= F(x_0).
    workers, beta, sigma, step = 5, 1.0, 1.0, 0.1
    rng = np.random.default_rng(5)
    # The first virtual iterate, by our function, for many coordinates at once.
    noise = torch.from_numpy(sigma * rng.normal(size=(workers, 4000)))
    delays = delays_of(torch.arange(workers), workers)
    virtual = virtual_iterates(
        torch.zeros(4000, dtype=REAL),
        noise,
        torch.zeros(workers, 4000, dtype=REAL),
        delays,
        lambda k, tau: step,
    )[0].numpy()
    loss = beta * virtual**2 / 2
    error = 4 * loss.std() / math.sqrt(len(loss))
    allowed = workers * beta * sigma**2 * step**2 / 2
    assert abs(loss.mean() - allowed) <= error < allowed


def test_rates_are_those_of_minibatches_of_all_workers():
    m, k, b, sigma = 4, 100, 3.0, 0.5
    rounds = k / m
    mini = 2 * b**2 / rounds + sigma * b / math.sqrt(rounds * m)
    assert asynchrony.convex_rate(b, SETTING) == pytest.approx(mini)
    mini = 2 * b / rounds + math.sqrt(2 * b * sigma**2 / (rounds * m))
    assert asynchrony.nonconvex_rate(b, SETTING) == pytest.approx(mini)
    assert asynchrony.nonconvex_rate(b, SETTING, zeta=2.0) == pytest.approx(mini + 4)
    start = 2 * b**2 * math.exp(-0.1 * rounds / 2)
    noise = sigma**2 / (0.1 * rounds * m)
    mini = asynchrony.minibatch_strongly_convex_rate(b, SETTING)
    assert mini == pytest.approx(start + noise)
    logarithm = math.log(math.e + (0.1 * k * b / sigma) ** 2)
    rate = asynchrony.strongly_convex_rate(b, SETTING)
    assert rate == pytest.approx(m * start + noise * logarithm)
    calm = AsyncProblem(4, 100, beta=2.0, mu=0.1)
    assert asynchrony.strongly_convex_rate(b, calm) == pytest.approx(m * start)


def test_stragglers_hurt_the_cautious_rule_and_not_the_adaptive_one():
    eigenvalues, workers, calls = np.logspace(-1, 0, 4), 5, 600
    gaps = {}
    for slow in (1, 10, 100):
        order = arrivals([1, 1.01, 1.02, 1.03, 1.04 * slow], calls)
        longest = int(delays_of(torch.tensor(order), workers).tau.max())
        for name, steps in (
            ("adaptive", asynchrony.convex_steps(1.0, AsyncProblem(workers, calls))),
            ("cautious", asynchrony.cautious_steps(longest, beta=1.0)),
        ):
            models, _, _ = run(
                order, workers, steps, lambda x, m: eigenvalues * x, np.ones(4)
            )
            gaps[name, slow] = float(eigenvalues @ models[-1] ** 2 / 2)
    adaptive = [gaps["adaptive", slow] for slow in (1, 10, 100)]
    assert max(adaptive) <= 3 * min(adaptive)  # the factor of the specification
    assert gaps["cautious", 100] > 100 * gaps["cautious", 1]


def test_the_error_after_updates_in_proportion_to_workers_does_not_depend_on_them():
    gaps = []
    for workers in (5, 10, 20):
        calls = 100 * workers
        steps = asynchrony.convex_steps(1.0, AsyncProblem(workers, calls))
        order = np.arange(calls) % workers
        models, _, _ = run(order, workers, steps, lambda x, m: 0.1 * x, 1.0)
        gaps.append(float(models[-1, 0] ** 2))
    # The first M of 100 M updates have a shorter delay: one percent of the way.
    assert max(gaps) <= 1.1 * min(gaps)


# Time.


times_of_workers = st.lists(st.floats(0.01, 100), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None)
@given(times_of_workers, st.floats(0.01, 100))
def test_one_more_worker_helps_iff_it_is_no_slower_than_the_harmonic_mean(times, new):
    s = torch.tensor(times, dtype=REAL)
    more = torch.cat([s, torch.tensor([new], dtype=REAL)])
    before = len(s) / asynchrony.asynchronous_updates(7.0, s)
    after = len(more) / asynchrony.asynchronous_updates(7.0, more)
    mean = asynchrony.harmonic_mean(s)
    if abs(new / mean - 1) > 1e-9:
        assert (after < before) == (new < mean)


@settings(max_examples=60, deadline=None)
@given(times_of_workers)
def test_the_speed_up_is_the_ratio_of_gradients_used(times):
    s = torch.tensor(times, dtype=REAL)
    used = len(s) * asynchrony.minibatch_updates(7.0, s)
    ratio = asynchrony.asynchronous_updates(7.0, s) / used
    assert asynchrony.speed_up(s) == pytest.approx(ratio)
    harmonic = asynchrony.harmonic_mean(s)
    assert asynchrony.speed_up(s) == pytest.approx(float(s.max()) / harmonic)
    assert asynchrony.speed_up(s) >= 1 - 1e-12
    assert asynchrony.speed_up(torch.full((3,), times[0])) == 1


def test_the_counts_of_updates_are_those_of_a_clock():
    times = [1.0, 1.7, 5.3, 12.1]
    order = arrivals(times, 4000)
    count = np.bincount(order, minlength=4)
    seconds = 12.1 * count[3]
    s = torch.tensor(times, dtype=REAL)
    # Each worker's count is within one of its share, and the stop within one round.
    assert asynchrony.asynchronous_updates(seconds, s) == pytest.approx(4000, abs=25)
    assert asynchrony.minibatch_updates(seconds, s) == pytest.approx(count[3])
    tau = delays_of(torch.tensor(order), 4).tau.double()
    typical = asynchrony.typical_delays(s)
    for worker in range(4):
        own = tau[torch.tensor(order) == worker][1:].mean()
        assert float(own) == pytest.approx(float(typical[worker]), rel=0.01)


@pytest.mark.parametrize("adaptive", [False, True])
def test_workers_with_their_own_data_reach_the_rate_weighted_optimum(adaptive):
    times, optima = [1.0, 1.3, 2.1, 9.7], np.array([0.0, 1.0, -2.0, 5.0])
    s, lr = torch.tensor(times, dtype=REAL), 2e-3
    steps = asynchrony.practical_steps(lr, 4) if adaptive else lambda k, tau: lr
    rules = asynchrony.limit_weights, asynchrony.adaptive_limit_weights
    weights = rules[adaptive](s)
    assert float(weights.sum()) == pytest.approx(1)
    order = arrivals(times, 8000)
    models, _, _ = run(order, 4, steps, lambda x, m: x - optima[m], 0.0)
    limit = models[-3000:].mean()
    # The delay of an update varies by one or two around the typical one.
    expected = float(weights @ torch.tensor(optima))
    assert limit == pytest.approx(expected, abs=0.03 if adaptive else 1e-2)
    assert abs(limit - optima.mean()) > 0.3


# What is refused.


def test_bad_numbers_are_refused_in_one_sentence():
    with pytest.raises(InputError, match="`calls` must be at least 5, got 4"):
        AsyncProblem(workers=5, calls=4)
    with pytest.raises(InputError, match="`calls` must be at least 15, got 14"):
        asynchrony.strongly_convex_steps(1.0, AsyncProblem(5, 14, mu=0.1))
    with pytest.raises(InputError, match="`mu` must be greater than 0"):
        asynchrony.strongly_convex_steps(1.0, AsyncProblem(5, 15))
    with pytest.raises(InputError, match="`order` must be at most 1, got 2"):
        delays_of(torch.tensor([0, 2]), workers=2)
    with pytest.raises(InputError, match="`times` must be positive, but entry 1 is 0"):
        asynchrony.speed_up(torch.tensor([1.0, 0.0]))
