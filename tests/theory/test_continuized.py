"""Continuized Nesterov: flows, recursions, limits of schedules, coins."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.integrate import solve_ivp

from coterie.checks import InputError
from coterie_theory.descent import continuized as co
from support.draws import rng

REAL = torch.float64
L, MU = 4.0, 0.25
SCHEDULES = {
    "convex": co.convex(L),
    "strongly_convex": co.strongly_convex(L, MU),
    "unified": co.unified(L, MU),
    "least_squares": co.least_squares(L, 3.0, MU),
}
R = math.sqrt(MU / L)
RATES = {
    "convex": lambda t: (2 / t, 0.0),
    "strongly_convex": lambda t: (R, R),
    "unified": lambda t: (R / math.tanh(R * t / 2), R * math.tanh(R * t / 2)),
    "least_squares": lambda t: (1 / math.sqrt(16 * 3), 1 / math.sqrt(16 * 3)),
}
ALL = pytest.mark.parametrize("name", SCHEDULES)
EXACT = {"rtol": 1e-12, "atol": 1e-13}


def time(value):
    return torch.tensor(value, dtype=REAL)


def quadratic(d=6, seed=0):
    """Curvatures from MU to L, and the gradient of x' H x / 2."""
    h = torch.logspace(math.log10(MU), math.log10(L), d, dtype=REAL)
    x = torch.randn(d, generator=rng(seed), dtype=REAL)
    return h, x, lambda x, rng: h * x


@ALL
def test_flows_solve_their_equations(name):
    rates = RATES[name]
    for t0, t1 in ((0.5, 0.9), (0.5, 8.0), (20.0, 23.0), (120.0, 121.0)):

        def equation(t, s):
            eta, back = rates(t)
            return [eta * (s[1] - s[0]), back * (s[0] - s[1])]

        found = solve_ivp(equation, (t0, t1), [1.0, -2.0], rtol=1e-11, atol=1e-12)
        start = co.Points(time([1.0]), time([-2.0]), time(t0))
        x, z, _ = co.flow_to(SCHEDULES[name], start, time(t1))
        assert [float(x), float(z)] == pytest.approx(found.y[:, -1], abs=1e-8)


@ALL
def test_flows_go_on_from_where_they_stopped(name):
    start = co.Points(time([1.0, 3.0]), time([-2.0, 0.5]), time(0.7))
    at_once = co.flow_to(SCHEDULES[name], start, time(5.0))
    halfway = co.flow_to(SCHEDULES[name], start, time(2.0))
    in_two = co.flow_to(SCHEDULES[name], halfway, time(5.0))
    for one, two in zip(at_once, in_two, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)


def test_what_flows_preserve():
    start = co.Points(time([1.0, 3.0]), time([-2.0, 0.5]), time(0.7))
    x, z, _ = co.flow_to(SCHEDULES["convex"], start, time(5.0))
    assert torch.equal(z, start.z)
    x, z, _ = co.flow_to(SCHEDULES["strongly_convex"], start, time(5.0))
    torch.testing.assert_close(x + z, start.x + start.z, **EXACT)


@ALL
def test_jumps_and_flows_are_the_recursion(name):
    _, x, grad = quadratic()
    times = co.arrivals(40, rng=rng(1))
    process = co.continuized(grad, SCHEDULES[name], x, times, rng())
    discrete = co.recursion(grad, SCHEDULES[name], x, times, rng())
    for one, two in zip(process, discrete, strict=True):
        torch.testing.assert_close(one.x, two.x, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(one.z, two.z, rtol=1e-9, atol=1e-10)


def test_parameters_of_the_recursion_are_those_of_theorem_2_3():
    """With gamma' at the time of the jump, where the theorem prints the one before."""
    before, after = time(1.5), time(2.25)
    convex, steady = SCHEDULES["convex"], SCHEDULES["strongly_convex"]
    tau, back = convex.flow(before, after)
    assert float(tau) == pytest.approx(1 - (1.5 / 2.25) ** 2) and float(back) == 0
    assert float(convex.jump(after).z) == pytest.approx(2.25 / (2 * L))
    tau, back = steady.flow(before, after)
    assert float(tau) == pytest.approx((1 - math.exp(-2 * R * 0.75)) / 2)
    assert float(back / (1 - tau)) == pytest.approx(math.tanh(R * 0.75))
    assert steady.jump(after) == (1 / L, 1 / math.sqrt(MU * L))


def test_gamma_at_the_time_before_as_printed_is_not_the_process():
    """With T_k in place of T_{k+1} the recursion leaves the process at once."""
    _, x, grad = quadratic()
    times = co.arrivals(10, rng=rng(1))
    convex = co.convex(L)
    late = {float(t): float(s) for t, s in zip(times[1:], times[:-1], strict=True)}
    late[float(times[0])] = 0.0
    printed = co.Schedule(
        convex.flow,
        lambda t: co.Jump(1 / L, torch.full_like(t, late[float(t)]) / 2 / L),
    )
    right = list(co.continuized(grad, convex, x, times, rng()))
    wrong = list(co.recursion(grad, printed, x, times, rng()))
    assert float((right[-1].z - wrong[-1].z).norm()) > 0.01


def test_the_unified_schedule_begins_as_convex_and_ends_as_strongly_convex():
    flat, both = co.convex(L), co.unified(L, 1e-9)
    for one, two in zip(
        flat.flow(time(1.0), time(3.0)), both.flow(time(1.0), time(3.0)), strict=True
    ):
        assert float(one) == pytest.approx(float(two), abs=1e-4)
    assert float(both.jump(time(3.0)).z) == pytest.approx(3 / (2 * L), rel=1e-6)
    late, both = co.strongly_convex(L, MU), co.unified(L, MU)
    times = time(60.0), time(63.0)  # r t is 15 there, and 11.9 further below
    for t0, t1 in (times, (time(47.6), time(50.0))):
        for one, two in zip(late.flow(t0, t1), both.flow(t0, t1), strict=True):
            assert float(one) == pytest.approx(float(two), abs=1e-4)
    assert float(both.jump(times[1]).z) == pytest.approx(
        1 / math.sqrt(MU * L), rel=1e-5
    )


@pytest.mark.parametrize("name", ["convex", "unified"])
def test_the_start_of_x_does_not_matter_where_eta_is_infinite_at_zero(name):
    first, back = SCHEDULES[name].flow(time(0.0), time(0.3))
    assert float(first) == 1.0 and float(back) == 0.0


def test_without_mixing_x_is_gradient_descent():
    _, x, grad = quadratic()
    alone = co.steady(0.0, co.Jump(1 / L, 5.0))
    times = co.arrivals(8, rng=rng())
    for points in co.continuized(grad, alone, x, times, rng()):
        now = points.x
    for _ in range(8):
        x = x - grad(x, None) / L
    torch.testing.assert_close(now, x, **EXACT)


def test_runs_side_by_side_are_runs_one_by_one():
    _, x, grad = quadratic()
    times = co.arrivals(3, 12, rng=rng())
    starts = torch.stack([x, 2 * x, -x])
    *_, together = co.continuized(grad, co.convex(L), starts, times, rng())
    for j in range(3):
        *_, alone = co.continuized(grad, co.convex(L), starts[j], times[j], rng())
        torch.testing.assert_close(together.x[j], alone.x, **EXACT)
        torch.testing.assert_close(together.z[j], alone.z, **EXACT)


@pytest.mark.parametrize(("tick", "spread"), [(0.0, 1.0), (0.25, 0.75), (1.0, 0.0)])
def test_waiting_times_have_mean_one_whatever_the_coin(tick, spread):
    """p Geometric(p) has the variance 1 - p: exponential for p = 0, constant for 1."""
    times = co.arrivals(40_000, rng=rng(), tick=tick)
    waiting = times.diff(prepend=torch.zeros(1, dtype=REAL))
    assert float(waiting.mean()) == pytest.approx(1.0, abs=0.02)
    assert float(waiting.var()) == pytest.approx(spread, abs=0.05)
    if tick:
        assert torch.allclose(waiting / tick, (waiting / tick).round())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: co.convex(0.0), "`smoothness` must be greater than 0, got 0.0"),
        (
            lambda: co.strongly_convex(1.0, 2.0),
            "`curvature` must be at most 1, got 2.0",
        ),
        (lambda: co.unified(1.0, 0.0), "`curvature` must be greater than 0, got 0.0"),
        (lambda: co.least_squares(1.0, 99.0, 0.1), "`condition` must be at most 10"),
        (
            lambda: co.arrivals(3, rng=rng(), tick=2.0),
            "`tick` must be at most 1, got 2.0",
        ),
    ],
)
def test_bad_numbers_are_refused(wrong, said):
    with pytest.raises(InputError, match=said):
        wrong()
