"""Bounds of continuized acceleration, on simulations with their Monte-Carlo error."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from coterie.checks import InputError
from coterie_theory.decentralised import continuized as bounds
from coterie_theory.descent import continuized as co
from support.draws import rng

REAL = torch.float64
RUNS, STEPS, D = 500, 60, 20
L, MU = 1.0, 1e-2
H = torch.logspace(-2, 0, D, dtype=REAL)


START = torch.randn(D, generator=rng(9), dtype=REAL)
RADIUS = float(START.norm())
GAP = float((H * START**2).sum() / 2)


def gap(x):
    return (H * x**2).sum(-1) / 2


def noisy(sigma):
    def grad(x, rng):
        noise = torch.randn(x.shape, generator=rng, dtype=x.dtype)
        return H * x + sigma / math.sqrt(D) * noise

    return grad


def check_below(values, bound, errors=3.0):
    """The mean over runs is at most the bound but for its standard error."""
    error = float(values.std() / math.sqrt(len(values)))
    assert float(values.mean()) <= bound + errors * error
    return float(values.mean()) / bound


def runs(schedule):
    """The recursion of three points, which Theorem 2.3 is about."""
    times = co.arrivals(RUNS, STEPS, rng=rng(1))
    return co.recursion(noisy(0.0), schedule, START.expand(RUNS, D), times, rng(2))


def at(schedule, t, sigma=0.0):
    """All runs at one time."""
    times = co.arrivals(RUNS, int(t + 8 * math.sqrt(t) + 10), rng=rng(1))
    last = co.Points(START.expand(RUNS, D), START.expand(RUNS, D), times[:, 0] * 0)
    found = last
    for points in co.continuized(noisy(sigma), schedule, last.x, times, rng(2)):
        done = (points.time <= t)[:, None]
        found = co.Points(
            torch.where(done, points.x, found.x),
            torch.where(done, points.z, found.z),
            torch.where(done[:, 0], points.time, found.time),
        )
    return co.flow_to(schedule, found, torch.full_like(found.time, t))


def test_nesterov_is_below_its_bounds_at_every_step():
    for curvature in (0.0, MU):
        method = co.nesterov(
            noisy(0.0), START, 80, rng(), smoothness=L, curvature=curvature
        )
        for k, points in enumerate(method, 1):
            bound = bounds.nesterov_bound(k, RADIUS, L, curvature, GAP)
            assert float(gap(points.x)) <= bound * (1 + 1e-12)


def test_the_bounds_of_nesterov_are_those_that_theorem_2_1_prints():
    """For f = mu |x|^2 / 2 the gap is mu r^2 / 2, so the energy begins at mu r^2."""
    assert bounds.nesterov_bound(3, 2.0, 9.0) == pytest.approx(2 * 9 * 4 / 9)
    found = bounds.nesterov_bound(2, 2.0, 4.0, 1.0, gap=3.0)  # sqrt(mu / L) = 1/2
    assert found == pytest.approx((3 + 1 * 4 / 2) * 0.5**2)
    for k in range(3):
        found = bounds.nesterov_bound(k, 2.0, 4.0, 1.0, gap=1 * 4 / 2)
        assert found == pytest.approx(1 * 4 * 0.5**k)


@pytest.mark.parametrize("t", [3.0, 12.0, 40.0])
def test_smooth_losses_are_below_their_bounds(t):
    check_below(gap(at(co.convex(L), t).x), bounds.convex_bound(t, RADIUS, L))
    steady = bounds.strongly_convex_bound(t, GAP, RADIUS, L, MU)
    check_below(gap(at(co.strongly_convex(L, MU), t).x), steady)
    unified = bounds.unified_bound(t, RADIUS, L, MU)
    check_below(gap(at(co.unified(L, MU), t).x), unified)
    assert unified <= 4 * min(steady, bounds.convex_bound(t, RADIUS, L))


def test_weighted_gaps_at_gradients_are_below_theorem_2_3():
    """The reference has 0.20 and 0.81 of the bounds at most, in 50 dimensions."""
    worst = 0.0
    for points in runs(co.convex(L)):
        weighted = points.time**2 * gap(points.x)
        worst = max(worst, check_below(weighted, bounds.convex_bound(1.0, RADIUS, L)))
    assert worst < 0.4
    energy = bounds.strongly_convex_bound(0.0, GAP, RADIUS, L, MU)
    for points in runs(co.strongly_convex(L, MU)):
        weighted = (math.sqrt(MU / L) * points.time).exp() * gap(points.x)
        check_below(weighted, energy)


@pytest.mark.parametrize("name", ["convex", "strongly_convex"])
def test_mean_energies_do_not_grow(name):
    r = math.sqrt(MU / L)
    schedule = co.convex(L) if name == "convex" else co.strongly_convex(L, MU)

    def energy(t):
        points = at(schedule, t)
        a, b = (t**2 / (4 * L), 1.0) if name == "convex" else (math.exp(r * t),) * 2
        b = MU * b if name == "strongly_convex" else b
        return a * gap(points.x) + b / 2 * points.z.square().sum(1)

    levels = [energy(t) for t in (2.0, 6.0, 15.0, 40.0)]
    for before, after in itertools.pairwise(levels):
        error = float((before - after).std() / math.sqrt(RUNS))
        assert float(after.mean()) <= float(before.mean()) + 3 * error


@pytest.mark.parametrize("sigma", [0.3, 2.0])
def test_added_noise_adds_what_is_said(sigma):
    for t in (5.0, 30.0):
        convex = bounds.convex_bound(t, RADIUS, L, sigma**2)
        check_below(gap(at(co.convex(L), t, sigma).x), convex)
        steady = bounds.strongly_convex_bound(t, GAP, RADIUS, L, MU, sigma**2)
        check_below(gap(at(co.strongly_convex(L, MU), t, sigma).x), steady)


def test_without_noise_bounds_are_those_of_theorem_2_2():
    assert bounds.convex_bound(3.0, 2.0, 5.0) == 2 * 5 * 4 / 9
    expected = (1.5 + 0.1 * 4 / 2) * math.exp(-math.sqrt(0.1 / 5) * 3)
    assert bounds.strongly_convex_bound(3.0, 1.5, 2.0, 5.0, 0.1) == expected


def test_noise_makes_a_valley_in_time_and_the_bound_says_where():
    sigma = 1.0
    best = bounds.convex_best_time(RADIUS, L, sigma**2)
    levels = [
        float(gap(at(co.convex(L), t, sigma).x).mean()) for t in (1.0, best, 150.0)
    ]
    assert levels[1] < levels[0] / 2 and levels[1] < levels[2] / 2
    steps = [
        bounds.convex_bound(best * c, RADIUS, L, sigma**2) for c in (0.99, 1, 1.01)
    ]
    assert steps[1] < min(steps[0], steps[2])


def test_eta_of_the_family_is_that_of_all_schedules_and_2_36_as_printed_is_not():
    """(2.36) prints sqrt(2 B / (L A)), with which x runs ahead of every theorem."""
    t, r = 7.0, math.sqrt(MU / L)
    found = bounds.family(t**2 / (4 * L), 1.0, L)
    assert found == pytest.approx((2 / t, 0.0, t / (2 * L)))
    a = math.exp(r * t)
    found = bounds.family(a, MU * a, L, MU)
    assert found == pytest.approx((r, r, 1 / math.sqrt(MU * L)))
    root, slope = math.sinh(r * t / 2), r / 2 * math.cosh(r * t / 2)
    found = bounds.family(root**2, 4 * L * slope**2, L, MU)
    tanh = math.tanh(r * t / 2)
    assert found == pytest.approx((r / tanh, r * tanh, tanh / math.sqrt(MU * L)))
    printed = math.sqrt(2 * 1.0 / (L * t**2 / (4 * L)))
    assert printed == pytest.approx(math.sqrt(2) * 2 / t)


# Least squares.


def test_constants_of_gaussian_features_are_those_of_many_samples():
    eigenvalues = torch.tensor([1.0, 0.5, 0.1], dtype=REAL)
    exact = bounds.gaussian(eigenvalues)
    assert exact == pytest.approx((3.6, 5.0, 0.1))
    a = torch.randn(200_000, 3, generator=rng(), dtype=REAL) * eigenvalues.sqrt()
    assert bounds.empirical(a) == pytest.approx(exact, rel=0.05)


def test_the_statistical_condition_number_is_never_the_larger_one():
    for seed in range(5):
        a = torch.randn(12, 4, generator=rng(seed), dtype=REAL) ** 3
        found = bounds.empirical(a)
        assert 4 * (1 - 1e-9) <= found.condition <= found.kappa * (1 + 1e-9)


def test_edges_of_a_graph_as_features_have_the_largest_resistance():
    """R^2 = 2 and max R_e, on differences of a ring of 6: 5 for chances 1/6."""
    ends = torch.eye(6, dtype=REAL) - torch.eye(6, dtype=REAL).roll(1, 1)
    basis = torch.linalg.svd(torch.ones(1, 6, dtype=REAL))[2][1:].T  # sum 0
    found = bounds.empirical(ends @ basis)
    assert found.smoothness == pytest.approx(2.0)
    assert found.condition == pytest.approx(5.0)
    assert found.curvature == pytest.approx((2 - 2 * math.cos(math.pi / 3)) / 6)


def sample_gradient(x, rng):
    """The gradient of a single sample a ~ N(0, H), for x* = 0."""
    a = torch.randn(x.shape, generator=rng, dtype=x.dtype) * H.sqrt()
    return a * (a * x).sum(-1, keepdim=True)


@pytest.mark.parametrize("t", [40.0, 150.0])
def test_single_samples_are_below_theorem_2_4(t):
    constants = bounds.gaussian(H)
    r2, condition, mu = constants
    distance = float((START**2 / H).sum())
    steps = int(t)
    times = co.arrivals(400, steps, rng=rng(1))
    start = START.expand(400, D)
    convex = co.convex(r2, second=r2 * condition)
    *_, points = co.continuized(sample_gradient, convex, start, times, rng(2))
    half = points.x.square().sum(1) / 2
    check_below(
        half * points.time**2, bounds.convex_samples_bound(1.0, distance, constants)
    )
    steady = co.least_squares(r2, condition, mu)
    *_, points = co.continuized(sample_gradient, steady, start, times, rng(2))
    rate = 1 / math.sqrt(constants.kappa * condition)
    energy = bounds.samples_bound(0.0, RADIUS**2, distance, constants)
    check_below(points.x.square().sum(1) / 2 * (rate * points.time).exp(), energy)


def test_theorem_2_4_1_as_printed_is_half_of_what_its_energy_gives():
    """phi_0 / A_t, A_t = t^2 / (4 R^2 kappa), B = 1. We know no run that breaks it."""
    constants = bounds.FeatureMoments(2.0, 3.0, 0.1)
    t, distance = 5.0, 7.0
    energy, weight = distance / 2, t**2 / (4 * 2.0 * 3.0)
    found = bounds.convex_samples_bound(t, distance, constants)
    assert found == pytest.approx(energy / weight)
    assert found == pytest.approx(2 * (2.0 * 3.0 * distance / t**2))


# Coordinates.


def coordinate_descent(h, chances, schedule, x, times, rng):
    """(2.44) to (2.46) for R = I: along coordinate i, drawn with chance P_i."""
    points = co.Points(x, x, torch.zeros((), dtype=REAL))
    for time in times:
        x, z, _ = co.flow_to(schedule, points, time)
        i = int(torch.multinomial(chances, 1, generator=rng))
        g, steps = torch.zeros_like(x), schedule.jump(time)
        g[i] = h[i] * x[i] / chances[i]
        points = co.Points(x - steps.x * g / chances, z - steps.z * g, time)
    return points


def test_coordinates_are_below_theorem_2_8():
    h = torch.tensor([4.0, 1.0, 0.25], dtype=REAL)
    chances = h.sqrt() / h.sqrt().sum()  # they make L = max_i M_ii / P_i^2 smallest
    smooth = float((h / chances.square()).max())
    x = torch.tensor([1.0, -1.0, 2.0], dtype=REAL)
    radius, mu = float(x.norm()), 0.25
    start = float((h * x**2).sum()) / 2
    # Both bounds are for a loss with a weight that grows in time.
    flat_bound = bounds.convex_bound(1.0, radius, smooth)
    energy = bounds.strongly_convex_bound(0.0, start, radius, smooth, mu)
    rate = math.sqrt(mu / smooth)
    flat, steep = [], []
    for seed in range(30):
        times = co.arrivals(25, rng=rng(seed))
        for schedule, kept in (
            (co.convex(smooth), flat),
            (co.strongly_convex(smooth, mu), steep),
        ):
            last = coordinate_descent(h, chances, schedule, x, times, rng(seed))
            value, t = float((h * last.x**2).sum()) / 2, float(last.time)
            kept.append(value * (t**2 if kept is flat else math.exp(rate * t)))
    check_below(torch.tensor(flat), flat_bound)
    check_below(torch.tensor(steep), energy)


# Exact rates.


def test_exact_rates_are_those_of_simulations():
    """For ds = B s dt with s <- J s at rate 2: the mean of |s|^2 over many paths."""
    b = torch.tensor([[-0.1, 0.2], [0.0, -0.3]], dtype=REAL)
    j = torch.tensor([[0.5, 0.1], [0.2, 0.9]], dtype=REAL)
    rate = bounds.second_moment_rate(b, [j], [2.0])
    small, s = 1e-3, torch.eye(2, dtype=REAL)
    norms = []
    for step in range(8001):
        if step % 4000 == 0:
            norms.append(math.log(float(s.trace())))
        s = s + small * (b @ s + s @ b.T + 2 * (j @ s @ j.T - s))
    assert (norms[1] - norms[2]) / 4 == pytest.approx(rate, rel=5e-3)


def test_as_many_rates_as_jumps_are_needed():
    message = "`rates` must have one entry per jump, which are 1, got 2"
    with pytest.raises(InputError, match=message):
        bounds.second_moment_rate(torch.eye(2), [torch.eye(2)], [1.0, 1.0])
