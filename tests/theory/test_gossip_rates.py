"""Claims about rates and bounds of averaging over a graph."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import degrees, delayed_gains, edges_of, eigengap, resistances
from coterie_theory.decentralised import gossip as theory
from coterie_theory.gossip import GossipPace, pace
from coterie_theory.gossip.capacities import kept_by_truncation
from support.refusals import refuses
from support.rings import REAL, drawn, times, uniform

# Graph, nodes, mu, R, mu / 2, exact randomised, theta, exact accelerated, and that with
# the printed eta: values of an independent computation.
TABLE = [
    ("line", 10, 0.010876, 9, 0.005438, 0.010795, 0.024581, 0.034761, 0.026275),
    ("line", 15, 0.003122, 14, 0.001561, 0.003115, 0.010559, 0.015703, 0.005401),
    ("line", 20, 0.001296, 19, 0.000648, 0.001295, 0.005840, 0.008964, -0.00208),
    ("ring", 10, 0.038197, 9, 0.019098, 0.036549, 0.046066, 0.059691, 0.055044),
    ("grid", 16, 0.024408, 16.821, 0.012204, 0.023647, 0.026935, 0.038581, 0.035799),
    ("star", 8, 0.142857, 7, 0.071429, 0.098323, 0.101015, 0.105514, 0.104719),
    ("complete", 8, 0.285714, 7, 0.142857, 0.142857, 0.142857, 0.142857, 0.142857),
    ("barbell", 10, 0.014211, 21, 0.007106, 0.013454, 0.018395, 0.026138, 0.024133),
]
SMALL = [row for row in TABLE if row[1] < 20]


def near(value: float):
    """Equal to the last digit that is given."""
    return pytest.approx(value, rel=2e-4, abs=6e-7)


@pytest.mark.parametrize("row", TABLE, ids=lambda row: f"{row[0]}{row[1]}")
def test_bounds_and_exact_randomised_rates_are_those_of_the_table(row):
    name, n, mu, most, half, exact, theta, *_ = row
    graph = uniform(name, n)
    assert eigengap(*graph) == near(mu)
    assert float(resistances(*graph).max()) == near(most)
    assert theory.randomised_rate(*graph) == near(half)
    assert theory.accelerated_rate(*graph) == near(theta)
    assert theory.exact_randomised_rate(*graph) == near(exact)


@pytest.mark.parametrize("row", SMALL, ids=lambda row: f"{row[0]}{row[1]}")
def test_exact_accelerated_rates_are_those_of_the_table(row):
    name, n, *_, exact, printed = row
    graph = uniform(name, n)
    eta, gamma = pace(*graph)
    assert theory.exact_accelerated_rate(*graph) == near(exact)
    twice = theory.exact_accelerated_rate(*graph, GossipPace(2 * eta, gamma))
    assert twice == pytest.approx(printed, rel=1e-3)


def test_the_printed_eta_diverges_in_mean_square_on_a_line_of_twenty():
    graph = uniform("line", 20)
    mu, most = eigengap(*graph), float(resistances(*graph).max())
    right = pace(*graph)
    printed = GossipPace(math.sqrt(2 * mu / most), right.gamma)
    assert theory.exact_accelerated_rate(*graph, printed) == pytest.approx(
        -0.00208, abs=1e-5
    )
    assert theory.exact_accelerated_rate(*graph) == near(0.008964)


def kronecker(edges, rates, eta, gamma):
    """The whole generator, of matrices that are not symmetric as well."""
    n = int(edges.max()) + 1
    basis = np.linalg.svd(np.ones((1, n)))[2][1:]
    m = n - 1
    eye = np.eye(2 * m)
    b = eta * np.kron([[-1, 1], [1, -1]], np.eye(m))
    total = np.kron(b, eye) + np.kron(eye, b)
    for (v, w), p in zip(edges.tolist(), rates.tolist(), strict=True):
        a = basis[:, v] - basis[:, w]
        j = eye.copy()
        j[:m, :m] -= np.outer(a, a) / 2
        j[m:, :m] -= gamma * np.outer(a, a)
        total += p * (np.kron(j, j) - np.eye(4 * m * m))
    return -np.linalg.eigvals(total).real.max()


@pytest.mark.parametrize("name", ["line", "complete", "star"])
def test_exact_rates_are_eigenvalues_of_the_whole_generator(name):
    edges, _ = uniform(name, 5)
    rates = torch.linspace(0.1, 0.4, len(edges), dtype=REAL)
    eta, gamma = pace(edges, rates)
    found = theory.exact_accelerated_rate(edges, rates)
    assert found == pytest.approx(kronecker(edges, rates, eta, gamma), rel=1e-6)


def test_a_larger_graph_is_solved_with_a_factorisation_to_the_same_rate():
    # 9 nodes make 136 unknowns, 10 make 171 and 11 make 210: on both sides of 200.
    small = theory.exact_accelerated_rate(*uniform("complete", 10))
    large = theory.exact_accelerated_rate(*uniform("complete", 11))
    assert (small, large) == (pytest.approx(1 / 9), pytest.approx(1 / 10))


@pytest.mark.parametrize(
    "name", ["ring", "star", "grid", "complete", "erdos_renyi(0.6)"]
)
def test_exact_rates_lie_between_their_bounds(name):
    edges = edges_of(name, 9)
    rng = torch.Generator().manual_seed(0)
    rates = torch.rand(len(edges), generator=rng, dtype=REAL) + 0.05
    mu = eigengap(edges, rates)
    exact = theory.exact_randomised_rate(edges, rates)
    assert mu / 2 * (1 - 1e-9) <= exact <= mu * (1 + 1e-9)
    theta = theory.accelerated_rate(edges, rates)
    assert theory.exact_accelerated_rate(edges, rates) >= theta * (1 - 1e-9)
    assert theta >= theory.randomised_rate(edges, rates)
    # As the thesis compares them, with theta_RG = mu.
    assert theta >= math.sqrt(mu * float(rates.min()) / 2)


def test_rates_of_lines_grow_with_the_powers_two_and_three():
    ns = (8, 12, 17)
    rates = [
        (theory.exact_accelerated_rate(*g), theory.exact_randomised_rate(*g))
        for g in (uniform("line", n) for n in ns)
    ]
    fast, slow = np.polyfit(np.log(ns), np.log(rates), 1)[0]
    assert fast == pytest.approx(-2, abs=0.2)
    assert slow == pytest.approx(-3, abs=0.2)


def test_degrees_bound_what_is_gained():
    edges, rates = uniform("grid", 16)
    mu, d = eigengap(edges, rates), float(degrees(edges)[edges].sum(1).max()) / 2
    assert theory.accelerated_rate(edges, rates) >= math.sqrt(mu / (2 * d * 16))


def test_the_rate_of_a_complete_graph_is_half_the_printed_one():
    graph = uniform("complete", 6)
    exact = theory.exact_randomised_rate(*graph)
    assert exact == pytest.approx(theory.randomised_rate(*graph))
    assert exact < 0.51 * eigengap(*graph)  # printed: at least lambda_2


# With delays and capacities.


def test_bounds_are_their_formulas():
    assert theory.delayed_bound(0.1, 50.0, 2.0) == pytest.approx(
        math.exp(-2.5) * 1.04 / 0.8
    )
    assert theory.accelerated_bound(0.1, 20.0) == pytest.approx(2 * math.exp(-2))
    assert theory.CAPACITY == pytest.approx(18.6948, abs=1e-4)


def test_the_rate_with_delays_is_half_the_gap_of_the_gains_or_the_longest_delay():
    edges, ones = edges_of("ring", 8), torch.ones(8, dtype=REAL)
    k = delayed_gains(edges, ones, ones)
    assert theory.delayed_rate(edges, k, ones) == pytest.approx(0.0241, abs=5e-5)
    half = theory.delayed_rate(edges, k, ones, kept=0.5)
    assert half == pytest.approx(theory.delayed_rate(edges, k, ones) / 2)
    assert theory.delayed_rate(edges, 1e9 * ones, ones) == 1.0
    assert theory.delayed_rate(edges, ones, 0 * ones) == eigengap(edges, ones) / 2


def test_half_of_all_messages_are_kept_under_4_33():
    edges = edges_of("grid", 9)
    rng = torch.Generator().manual_seed(0)
    delays = torch.rand(len(edges), generator=rng, dtype=REAL) + 0.1
    limits = {"capacity": 2, "edge_capacity": 1}
    rates = 1 / delays
    load = theory.capacity_load(edges, rates, delays, **limits)
    rates = rates / load
    assert theory.capacity_load(edges, rates, delays, **limits) == pytest.approx(1.0)
    kept = kept_by_truncation(edges, drawn(rates, 2000.0), delays, **limits)
    assert float(kept.double().mean()) >= 0.5


def test_loads_are_the_sides_of_4_33():
    edges, p, tau = torch.tensor([[0, 1], [1, 2]]), times(1.0, 2.0), times(0.5, 0.1)
    c = theory.CAPACITY
    assert theory.capacity_load(edges, p, tau) == 0
    assert theory.capacity_load(edges, p, tau, edge_capacity=2) == pytest.approx(
        c * 0.5 / 2
    )
    assert theory.capacity_load(edges, p, tau, capacity=3) == pytest.approx(
        c * 3 * 0.5 / 3
    )


def test_bad_input_is_refused_in_a_sentence():
    edges, rates = uniform("line", 4)
    refuses("number of nodes", theory.exact_randomised_rate, *uniform("ring", 31))
    with pytest.raises(InputError, match="connect all"):
        theory.exact_randomised_rate(torch.tensor([[0, 1], [2, 3]]), torch.ones(2))
    refuses("kept", theory.delayed_rate, edges, rates, rates, kept=0.0)
    refuses("delays", theory.capacity_load, edges, rates, -rates, capacity=1)
    refuses("gap", theory.chebyshev_bound, 1.5, 3)
