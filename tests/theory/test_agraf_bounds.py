"""AGRAF: steps and bounds against formulas, units, and small simulations."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie_theory import agraf, delays, mixing
from coterie_theory.agraf import EqualNodes, SampledNodes, Tradeoff
from support.refusals import refuses

REAL = torch.float64
N, STEPS = 6, 400
CYCLE = torch.tensor([[v, (v + 1) % N] for v in range(N)])
RHO_BAR = mixing.pairwise_mixing(CYCLE, torch.full((N,), 1 / N, dtype=REAL)).rho_bar


def schedules(steps=STEPS):
    """Schedules of active nodes, by name."""
    rng = np.random.default_rng(0)
    one = np.eye(N, dtype=bool)
    late = one[rng.integers(1, N, steps)]
    late[99::100] = one[0]
    return {
        "one at random": one[rng.integers(N, size=steps)],
        "one comes rarely": late,
        "all": np.ones((steps, N), bool),
        "in turn": one[np.arange(steps) % N],
    }


every_schedule = pytest.mark.parametrize(
    "active", schedules().values(), ids=schedules()
)


class Run:
    """(5.3) with a random edge averaging at each step; x is (runs, n)."""

    def __init__(self, active, gradient, lr, *, start=3.0, runs=30, seed=0):
        rng = np.random.default_rng(seed)
        x = np.full((runs, N), start)
        slope, noisy = gradient(x, rng)
        self.models, self.applied, self.virtual, self.open = [], [], [], []
        virtual = x.mean(1) - lr * noisy.mean(1)
        for now in np.broadcast_to(active, (len(active), N)):
            self.models.append(x)
            self.open.append(noisy)
            self.virtual.append(virtual)
            self.applied.append((slope**2 * now).sum(1))
            v = rng.integers(N, size=runs)
            w, row = (v + 1) % N, np.arange(runs)
            x = x.copy()
            x[row, v] = x[row, w] = (x[row, v] + x[row, w]) / 2
            x -= lr * noisy * now
            new_slope, new_noisy = gradient(x, rng)
            slope = np.where(now, new_slope, slope)
            noisy = np.where(now, new_noisy, noisy)
            virtual = virtual - lr / N * (noisy * now).sum(1)
        self.models = np.array(self.models)  # (K, runs, n)

    def output(self, active):
        """The mean of x_v^k over active nodes, (runs,)."""
        return (self.models * active[:, None]).sum((0, 2)) / active.sum()

    def mean_spread(self):
        """sum_k |x^k - x_bar^k|^2, mean over runs."""
        away = self.models - self.models.mean(2, keepdims=True)
        return float((away**2).sum((0, 2)).mean())


def signs(x, rng):
    """Gradients of F(x, xi) = |x - xi|, xi normal; the loss is `folded_excess`."""
    g = np.sign(x - rng.normal(size=x.shape))
    return np.ones_like(x), g


def folded_excess(x):
    """E |x - xi| - E |xi|."""
    density = np.exp(-(x**2) / 2) * math.sqrt(2 / math.pi)
    tail = np.array([math.erf(v / math.sqrt(2)) for v in np.atleast_1d(x)])
    return density + x * tail - math.sqrt(2 / math.pi)


def noisy(slope, sigma):
    """Gradients with a coin of variance sigma^2."""

    def gradient(x, rng):
        g = slope(x)
        return g, g + sigma * rng.choice([-1.0, 1.0], x.shape)

    return gradient


# The form of all bounds.


@pytest.mark.parametrize("seed", range(20))
def test_the_tuned_step_is_within_a_factor_of_three_of_the_best_one(seed):
    a, b, c, cap = 10 ** np.random.default_rng(seed).uniform(-3, 3, 4)
    bound = Tradeoff(a, b, c, cap, calls=1000)
    found = bound.at(bound.step)
    # Each of three terms is at most once the best, the cubic one 2 / 1.89 times.
    grid = cap * np.logspace(-8, 0, 2000)
    best = min(bound.at(float(lr)) for lr in grid)
    assert best * 0.99 <= found <= 3.1 * best
    assert found <= bound.rate * (1 + 1e-12)


def test_without_noise_the_step_is_the_largest():
    assert agraf.tune_eta(1.0, 0.0, 0.0, 10, eta_max=0.3) == 0.3
    assert agraf.tune_eta(8.0, 0.0, 1.0, 1, eta_max=9.0) == pytest.approx(2.0)
    with pytest.raises(InputError, match=r"`lr` must be at most 0\.3, got 0\.4"):
        Tradeoff(1.0, 0.0, 0.0, 0.3, 10).at(0.4)


def test_after_the_crossover_the_root_is_the_step():
    bound = Tradeoff(2.0, 0.5, 0.7, 0.1, calls=1)
    for factor, statistical in ((1.01, True), (0.99, False)):
        calls = factor * bound.crossover
        tuned = Tradeoff(2.0, 0.5, 0.7, 0.1, calls)
        root = math.sqrt(2.0 / (0.5 * calls))
        assert (tuned.step == pytest.approx(root, rel=1e-9)) == statistical
    assert Tradeoff(2.0, 0.0, 0.7, 0.1, calls=1).crossover == math.inf


# Formulas.


def every_bound(network, sampled, *, radius, start, bound, longest=50):
    return {
        "5.1.1": agraf.lipschitz_tradeoff(radius, bound, network),
        "5.2": agraf.smooth_lipschitz_tradeoff(radius, bound, network),
        "5.E.2": agraf.smooth_lipschitz_sampled_tradeoff(radius, bound, sampled),
        "5.3.1": agraf.smooth_tradeoff(radius, longest, network),
        "5.3.2": agraf.smooth_sampled_tradeoff(radius, sampled),
        "5.4.1": agraf.nonconvex_tradeoff(start, longest, network),
        "5.4.2": agraf.nonconvex_sampled_tradeoff(start, sampled),
    }


def bounds_in(length, loss):
    """All bounds of one problem, with x and the losses measured in other units."""
    slope, curve = loss / length, loss / length**2
    p = torch.linspace(0.05, 0.6, 8, dtype=REAL)
    known = {"beta": 2 * curve, "variance": 0.3 * slope**2}
    network = EqualNodes(8, 0.1, 5000, **known)
    sampled = SampledNodes(p, 0.1, 700, **known, zeta=0.4 * slope, first=5.0 * slope**2)
    sizes = {"radius": 3.0 * length, "start": 4.0 * loss, "bound": 1.5 * slope}
    return every_bound(network, sampled, **sizes), network, sampled, sizes


@pytest.mark.parametrize("length, loss", [(10.0, 1.0), (1.0, 10.0)])
def test_bounds_do_not_depend_on_units(length, loss):
    plain, *_ = bounds_in(1.0, 1.0)
    other, network, sampled, sizes = bounds_in(length, loss)
    for name, bound in plain.items():
        unit = (loss / length) ** 2 if name.startswith("5.4") else loss
        same = other[name]
        assert same.step == pytest.approx(bound.step * length**2 / loss)
        assert same.at(same.step) == pytest.approx(unit * bound.at(bound.step))
        assert same.rate == pytest.approx(unit * bound.rate)
    _, one, many, own = bounds_in(1.0, 1.0)
    radius = (sizes["radius"], sizes["bound"]), (own["radius"], own["bound"])
    for step in (agraf.lipschitz_step, agraf.lipschitz_sampled_step):
        near, far = (one, network) if step is agraf.lipschitz_step else (many, sampled)
        expected = step(*radius[1], near) * length**2 / loss
        assert step(*radius[0], far) == pytest.approx(expected)


def test_the_statistical_term_of_5_2_as_printed_depends_on_units():
    # sqrt(sigma^2 B^2 / N) in place of sqrt(D^2 sigma^2 / N).
    def printed_term(network, sizes):
        return math.sqrt(network.variance / network.gradients) * sizes["bound"]

    _, plain, _, own = bounds_in(1.0, 1.0)
    _, network, _, sizes = bounds_in(10.0, 1.0)
    assert printed_term(network, sizes) == pytest.approx(printed_term(plain, own) / 100)


def test_bounds_are_those_of_the_theorems():
    bounds, *_ = bounds_in(1.0, 1.0)
    n, r, s2, z2, b2, d2, f0 = 8, 0.1, 0.3, 0.16, 2.25, 9.0, 4.0
    beta, tau, k, total, g0 = 2.0, 50, 700, 5000, 5.0
    p_min, p_bar, p_max = 0.05, 0.325, 0.6
    eta = 1e-4
    lr = n * eta
    first = p_max * g0 / (n * p_bar * r**2 * k)
    expected = {
        "5.1.1": d2 / (2 * eta * total) + eta * b2 / 2 * (3 * n + 3 * n / r),
        "5.2": d2 / (eta * total)
        + eta * s2
        + eta**2 * n**2 * beta * (16 * s2 / r + 8 * b2),
        "5.E.2": 2 * d2 / (lr * p_bar * k)
        + 2 * lr * (s2 + 2 * z2) / n
        + lr**2 * beta * (8 * b2 + 24 * s2 * p_max / r + 96 * z2 * p_max / r**2)
        + 48 * lr**2 * beta * first,
        "5.3.1": d2 / (eta * total) + 3 * eta * s2 + 16 * eta**2 * beta * s2 * n**2 / r,
        "5.3.2": 2
        * (
            2 * d2 / (p_bar * lr * k)
            + 2 * lr * (s2 + 2 * z2) / n
            + lr**2 * beta * (16 * s2 / n + 32 * z2 * p_bar / p_min)
            + lr**2 * beta * (48 * s2 * p_max / r + 384 * z2 * p_max / r**2)
        ),
        "5.4.1": 2 * n * f0 / (lr * total)
        + 2 * lr * beta * s2 / n
        + 2 * lr**2 * beta**2 * s2 / r,
        "5.4.2": 4 * f0 / (lr * p_bar * k)
        + 4 * lr * beta * s2 / n
        + 16 * lr**2 * beta**2 * s2 * p_max / r
        + 8 * lr * beta * z2 / n * (1 + 8 * n * lr * beta * p_max / r**2)
        + 32 * lr**2 * beta**2 * first,
    }
    caps = {
        "5.1.1": math.inf,
        "5.2": n / (4 * beta * n * (1 + 2 / r)),
        "5.E.2": min(1 / 16, r / (14 * math.sqrt(p_max)), r) / beta,
        "5.3.1": 1 / (4 * beta * (1 + 2 / r + 4 * math.sqrt(tau / n))),
        "5.3.2": min(
            1 / 24,
            r / (24 * math.sqrt(p_max)),
            math.sqrt(p_min / p_max) / 14,
            r * math.sqrt(p_bar / p_max) / 20,
        )
        / beta,
        "5.4.1": min(1 / 4, 1 / (8 * (math.sqrt(tau / n) + 1 / r))) / beta,
        "5.4.2": min(1 / 24, r / (16 * math.sqrt(p_max)), math.sqrt(p_min / p_bar) / 4)
        / beta,
    }
    for name, bound in bounds.items():
        # To rounding, as some terms are a millionth of the others.
        assert bound.at(lr) == pytest.approx(expected[name], rel=1e-12), name
        assert bound.cap == pytest.approx(caps[name]), name


def test_theorem_5_1_1_has_the_values_of_the_specification():
    for gradients, expected in ((20_000, 5.77), (200_000, 1.82)):
        network = EqualNodes(10, 0.0060653, gradients)
        rate = agraf.lipschitz_rate(5.0, 1.0, network)
        assert rate == pytest.approx(expected, abs=0.005)
        lr = agraf.lipschitz_step(5.0, 1.0, network)
        spread = 3 * 10 + 2 * 10 / 0.0060653
        assert lr / 10 == pytest.approx(5.0 / math.sqrt(2 * gradients * spread))
        assert agraf.lipschitz_tradeoff(5.0, 1.0, network).at(lr) <= rate


def test_theorem_5_1_1_recovers_minibatches_and_a_server():
    def rate(n, gradients):
        return agraf.lipschitz_rate(1.0, 1.0, EqualNodes(n, 0.5, gradients))

    steps = 1000
    for n in (10, 40):  # everybody at each step, or one
        assert rate(n, n * steps) == pytest.approx(rate(1, steps))
        assert rate(n, steps) == pytest.approx(math.sqrt(n) * rate(1, steps))


def test_theorem_5_1_2_gains_the_root_of_the_largest_probability():
    n, k, rho_bar = 100, 10_000, 1e-4
    alone = torch.full((n,), 1 / n, dtype=REAL)
    sampled = agraf.lipschitz_sampled_rate(1.0, 1.0, SampledNodes(alone, rho_bar, k))
    assert sampled == pytest.approx(
        math.sqrt(n * math.sqrt(1 / n) * (1 + 1 / rho_bar) / k)
    )
    arbitrary = math.sqrt(n / (rho_bar * k))
    assert sampled / arbitrary == pytest.approx(n**-0.25, rel=1e-3)
    lr = agraf.lipschitz_sampled_step(1.0, 1.0, SampledNodes(alone, rho_bar, k))
    spread = n + 0.1 * n / rho_bar + n**1.5 / n
    assert lr / n == pytest.approx(1 / math.sqrt(k * spread))


def test_the_final_rate_of_5_4_1_follows_from_its_steps():
    n, r, tau, total, beta, s2, f0 = 8, 0.1, 50, 5000, 2.0, 0.3, 4.0
    network = EqualNodes(n, r, total, beta, s2)
    slow = math.sqrt(n * tau) + n / r
    cubic = beta * math.sqrt(s2) * n * f0 / (total * math.sqrt(r))
    expected = 16 * beta * f0 * slow / total + 4 * math.sqrt(beta * s2 * f0 / total)
    expected += 4 * cubic ** (2 / 3)
    assert agraf.nonconvex_tradeoff(f0, tau, network).rate == pytest.approx(expected)


@pytest.mark.parametrize("rho_bar", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("longest", [8, 100, 10_000])
def test_the_printed_step_of_5_4_1_breaks_the_condition_of_its_proof(rho_bar, longest):
    # The proof drops (gamma / n) |grad f|^2 times this, minus 1/8.
    def weight(lr, beta=2.0, n=8):
        return 2 * (lr * beta) ** 2 * (1 / rho_bar**2 + longest / n)

    lr = agraf.nonconvex_tradeoff(1.0, longest, EqualNodes(8, rho_bar, 100, 2.0)).cap
    assert weight(lr) <= 1 / 8
    printed = (math.sqrt(8 / longest) + rho_bar) / (8 * 2.0)
    assert printed >= 2 * lr
    if rho_bar == 0.01 or longest == 10_000:
        assert weight(printed) > 1 / 8


def test_the_printed_last_limit_of_5_4_2_never_matters():
    p = torch.tensor([1e-4, 0.5, 0.5], dtype=REAL)
    cap = agraf.nonconvex_sampled_tradeoff(1.0, SampledNodes(p, 1.0, 100)).cap
    assert cap == pytest.approx(math.sqrt(1e-4 / float(p.mean())) / 4)
    printed = math.sqrt(float(p.mean()) / 1e-4) / 4
    assert printed > 1 / 24 > cap


def test_twenty_is_enough_where_5_3_2_prints_384():
    p = torch.tensor([0.4, 0.5, 0.9], dtype=REAL)
    network = SampledNodes(p, 0.01, 100, beta=2.0)
    cap = agraf.smooth_sampled_tradeoff(1.0, network).cap
    kappa = float(p.max() / p.mean())
    assert 384 * (2.0 * cap) ** 2 * kappa <= 0.01**2
    assert cap > 0.01 / (2.0 * 384)


# Table 5.1.


def growth(crossover, **change):
    """The factor by which a crossover grows."""
    plain = {"n": 200, "rho_bar": 0.1, "longest": 200.0}
    return crossover(**{**plain, **change}) / crossover(**plain)


def crossovers():
    def smooth(n, rho_bar, longest):
        network = EqualNodes(n, rho_bar, 1, 1.0, variance=1.0)
        return agraf.smooth_lipschitz_tradeoff(1.0, 0.0, network).crossover

    def nonconvex(n, rho_bar, longest):
        network = EqualNodes(n, rho_bar, 1, 1.0, variance=1.0)
        return agraf.nonconvex_tradeoff(1.0, longest, network).crossover

    def sampled_calls(n, rho_bar, longest):
        p = torch.full((n,), 1 / n, dtype=REAL)
        network = SampledNodes(p, rho_bar, 1, zeta=1.0)
        return agraf.nonconvex_sampled_tradeoff(1.0, network).crossover  # N = K

    return {
        "Theorem 5.2": smooth,
        "Theorem 5.4.1": nonconvex,
        "Theorem 5.4.2": sampled_calls,
    }


@pytest.mark.parametrize("name", crossovers())
def test_table_5_1_grows_as_the_bounds_do(name):
    crossover = crossovers()[name]

    def table(n, rho_bar, longest):
        return agraf.statistical_regime(n, rho_bar, longest)[name]

    for change in ({"n": 400}, {"rho_bar": 0.05}, {"longest": 400.0}):
        expected = growth(table, **change)
        assert growth(crossover, **change) == pytest.approx(expected, rel=1e-6)


def test_long_delays_count_once_in_5_4_1_and_to_the_fourth_in_earlier_work():
    rows = [agraf.statistical_regime(10, 0.5, tau) for tau in (1e9, 2e9)]
    assert rows[1]["Lian 2015"] == pytest.approx(16 * rows[0]["Lian 2015"])
    assert rows[1]["Theorem 5.4.1"] == pytest.approx(2 * rows[0]["Theorem 5.4.1"])
    assert rows[0]["Theorem 5.4.1"] == pytest.approx(10 * 1e9)
    assert rows[0]["Bornstein 2023"] == math.inf
    network = EqualNodes(10, 0.5, 1, variance=1.0)
    one, two = (agraf.nonconvex_tradeoff(1.0, t, network).crossover for t in (1e9, 2e9))
    # sqrt(tau / n) + 1 / rho_bar, squared: the second term is a 5000th of the first.
    assert two / one == pytest.approx(2, rel=1e-3)


def test_the_last_row_of_table_5_1_is_not_for_everybody_at_a_time():
    # The text takes p_bar of order 1; then the bound gives n^4 / rho_bar^4 gradients.
    def gradients(n):
        p = torch.ones(n, dtype=REAL)
        bound = agraf.nonconvex_sampled_tradeoff(1.0, SampledNodes(p, 0.1, 1, zeta=1.0))
        return n * bound.crossover

    assert gradients(400) / gradients(200) == pytest.approx(2**4)


# Who computes when.


@every_schedule
def test_starts_and_waits_are_those_of_their_definitions(active):
    active = active[:150]
    starts = delays.starts_of(torch.from_numpy(active))
    sizes, longest = active.sum(1), 0
    for v in range(N):
        own = [k for k in range(len(active)) if active[k, v]]
        for k in range(len(active)):
            before = [step for step in own if step < k]
            assert int(starts[k, v]) == (1 + max(before) if before else 0)
        for begin, end in zip([0, *own], [*own, len(active)], strict=True):
            longest = max(longest, sizes[begin:end].sum())
    assert delays.longest_wait(torch.from_numpy(active)) == longest


def test_if_all_take_part_nothing_is_delayed_and_as_printed_all_would_be():
    starts = delays.starts_of(torch.ones(5, N, dtype=torch.bool))
    steps = torch.arange(5)[:, None].expand(5, N)
    torch.testing.assert_close(starts, steps)
    printed = starts - 1  # max{l < k : v in I_l}
    assert (steps[1:] - printed[1:] == 1).all()


def test_the_longest_wait_is_the_number_of_nodes_in_turn_and_long_with_a_straggler():
    waits = {
        name: delays.longest_wait(torch.from_numpy(active))
        for name, active in schedules().items()
    }
    assert waits["in turn"] == waits["all"] == N
    assert waits["one comes rarely"] == 100


# Simulations.


@every_schedule
def test_means_move_by_the_applied_gradients_and_virtual_ones_by_the_started(active):
    lr = 0.1
    run = Run(active, noisy(np.tanh, 0.5), lr, runs=3)
    means = run.models.mean(2)
    for k in range(0, len(active) - 1, 7):
        moved = lr / N * (run.open[k] * active[k]).sum(1)
        np.testing.assert_allclose(means[k + 1], means[k] - moved, atol=1e-12)
        found = agraf.virtual_mean(
            torch.from_numpy(run.models[k].T), torch.from_numpy(run.open[k].T), lr
        )
        # Sums of 400 terms of order 1.
        np.testing.assert_allclose(found.numpy(), run.virtual[k], atol=1e-12)
        assert np.abs(run.virtual[k] - means[k]).max() <= lr * 1.5
    assert agraf.virtual_radius(2.0, 1.5, lr) == pytest.approx(2.15)


def test_virtual_and_real_means_are_as_near_as_lemma_5_b_1_says():
    gradients, sigma, lr = np.array([0.5, -1.0, 2.0]), 0.7, 0.1
    noise = sigma * np.random.default_rng(0).normal(size=(4000, 3))
    away = (lr * (gradients + noise).mean(1)) ** 2
    squares = torch.tensor(gradients**2)
    bound = agraf.virtual_spread(squares, sigma**2, lr)
    assert bound == pytest.approx(2 * lr**2 / 3 * (0.49 + 5.25))
    assert away.mean() <= bound


@every_schedule
def test_theorem_5_1_1_holds_whatever_the_order(active):
    network = EqualNodes(N, RHO_BAR, int(active.sum()))
    lr = agraf.lipschitz_step(3.0, 1.0, network)
    run = Run(active, signs, lr, start=3.0, runs=10)
    gap = float(folded_excess(run.output(active)).mean())
    assert gap <= agraf.lipschitz_rate(3.0, 1.0, network)
    bound = agraf.lipschitz_tradeoff(agraf.virtual_radius(3.0, 1.0, lr), 1.0, network)
    assert gap <= bound.at(lr)
    assert run.mean_spread() <= agraf.consensus_bound(1.0, lr, network)


@every_schedule
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_theorems_5_2_5_3_1_and_5_4_1_hold_whatever_the_order(active, sigma):
    network = EqualNodes(N, RHO_BAR, int(active.sum()), 1.0, sigma**2)
    longest = delays.longest_wait(torch.from_numpy(active))
    gradient = noisy(np.tanh, sigma)  # of log cosh
    excess = float(np.log(np.cosh(3.0)))
    smooth = agraf.smooth_tradeoff(3.0, longest, network)
    lipschitz = agraf.smooth_lipschitz_tradeoff(3.0, 1 + sigma, network)
    nonconvex = agraf.nonconvex_tradeoff(excess, longest, network)
    for bound in (smooth, lipschitz, nonconvex):
        run = Run(active, gradient, bound.step)
        gap = np.log(np.cosh(run.output(active))).mean()
        slopes = (np.tanh(run.models.mean(2)) ** 2).mean(1)
        slope = slopes @ active.sum(1) / active.sum()
        assert (slope if bound is nonconvex else gap) <= bound.at(bound.step)
        sums = float(np.sum(run.applied, 0).mean())
        spread = agraf.smooth_consensus_bound(sums, bound.step, network)
        assert run.mean_spread() <= spread


def sampled_problem(p, sigma):
    """Losses (x - c_v)^2 / 2 with weights proportional to p."""
    optima = np.array([0.0, 1.0, -1.0, 2.0, 3.0, -2.0])
    q = np.array(p) / sum(p)
    best = float(q @ optima)
    zeta = math.sqrt(float(q @ (optima - best) ** 2))
    known = {"variance": sigma**2, "zeta": zeta}
    known["first"] = float(((3.0 - optima) ** 2).sum())
    network = SampledNodes(torch.tensor(p, dtype=REAL), RHO_BAR, STEPS, **known)
    active = np.random.default_rng(1).random((STEPS, N)) < np.array(p)
    return optima, best, network, active


@pytest.mark.parametrize("p", [[1 / N] * N, [0.9, 0.5, 0.2, 0.1, 0.1, 0.3]])
@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_theorems_5_3_2_and_5_4_2_hold_with_sampling(p, sigma):
    optima, best, network, active = sampled_problem(p, sigma)
    start = (3.0 - best) ** 2 / 2
    gradient = noisy(lambda x: x - optima, sigma)
    convex = agraf.smooth_sampled_tradeoff(abs(3.0 - best), network)
    nonconvex = agraf.nonconvex_sampled_tradeoff(start, network)
    for bound, factor in ((convex, 0.5), (nonconvex, 1.0)):
        lr = bound.step
        run = Run(active, gradient, lr)
        squares = (run.models.mean(2) - best) ** 2
        assert factor * squares.mean() <= bound.at(lr)
        slopes = float(squares.sum(0).mean())
        assert run.mean_spread() <= agraf.sampled_consensus_bound(slopes, lr, network)


@pytest.mark.parametrize("sigma", [0.0, 1.0])
def test_5_e_2_holds_with_sampling(sigma):
    p = [0.9, 0.5, 0.2, 0.1, 0.1, 0.3]
    optima, _, network, active = sampled_problem(p, sigma)
    q, grid = np.array(p) / sum(p), np.linspace(-4, 4, 8001)[:, None]
    losses = np.log(np.cosh(grid - optima)) @ q
    slopes = np.tanh(grid - optima)
    zeta = math.sqrt(float((((slopes - slopes @ q[:, None]) ** 2) @ q).max()))
    first = float((np.tanh(3.0 - optima) ** 2).sum())
    network = replace(network, zeta=zeta, first=first)
    radius = abs(3.0 - float(grid[losses.argmin(), 0]))
    bound = agraf.smooth_lipschitz_sampled_tradeoff(radius, 1 + sigma, network)
    run = Run(active, noisy(lambda x: np.tanh(x - optima), sigma), bound.step)
    means = run.models.mean(2)[..., None]
    gap = (np.log(np.cosh(means - optima)) @ q).mean() - losses.min()
    assert 0 < gap <= bound.at(bound.step)


def test_with_small_steps_nodes_meet_at_the_optimum_weighted_by_participation():
    p = [0.9, 0.5, 0.2, 0.1, 0.1, 0.3]
    optima, best, _, _ = sampled_problem(p, 0.0)
    active = np.random.default_rng(2).random((2500, N)) < np.array(p)
    run = Run(active, noisy(lambda x: x - optima, 0.0), 0.01, start=best, runs=4)
    limit = run.models[1000:].mean()
    # The bias is of the order of gamma / rho_bar = 0.1, the optima are 5 apart.
    assert limit == pytest.approx(best, abs=0.15)
    assert abs(limit - optima.mean()) > 0.25


# What is refused.


def test_bad_numbers_are_refused_in_one_sentence():
    refuses("`rho_bar` must be greater than 0, got 0", EqualNodes, 5, 0.0, 100)
    refuses("`rho_bar` must be at most 1, got 2", EqualNodes, 5, 2, 100)
    message = "`probabilities` must be positive, but entry 1"
    refuses(message, SampledNodes, torch.tensor([0.5, 0.0]), 0.1, 100)
    with pytest.raises(InputError, match="`largest probability` must be at most 1"):
        SampledNodes(torch.tensor([0.5, 1.5]), 0.1, 100)
    network = SampledNodes(torch.tensor([0.5, 0.25]), 0.1, 100)
    with pytest.raises(InputError, match=r"`lr` must be at most 0\.0353553"):
        agraf.sampled_consensus_bound(1.0, 1.0, network)
