"""Claims about rates of links: gains, Braess's paradox, and slopes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.graphs import delayed_gains, delayed_gap, edges_of, eigengap, tuned_rates
from coterie.graphs.intensities import phi_slope

REAL = torch.float64
LINE = edges_of("line", 10)
CLOSED = torch.cat([LINE, torch.tensor([[0, 9]])])


def by_loops(edges, rates, delays):
    """K_e as it is written."""
    found = []
    for e, (v, w) in enumerate(edges.tolist()):
        total = 0.0
        for other, pair in enumerate(edges.tolist()):
            if v in pair or w in pair:
                late = float(delays[e]) + math.e * float(delays[other])
                total += float(rates[other]) * late
        found.append(float(rates[e]) / (1 + total))
    return torch.tensor(found, dtype=REAL)


def random_network(seed: int = 0, n: int = 9):
    rng = torch.Generator().manual_seed(seed)
    edges = edges_of("erdos_renyi(0.6)", n)
    rates = torch.rand(len(edges), generator=rng, dtype=REAL)
    return edges, rates, 0.2 + torch.rand(len(edges), generator=rng, dtype=REAL)


def test_gains_are_those_of_the_sum_over_adjacent_edges():
    edges, rates, delays = random_network()
    assert_close(delayed_gains(edges, rates, delays), by_loops(edges, rates, delays))


# Braess's paradox, with reference values of an independent script.


def closed_gap(delay: float, rate: float) -> float:
    """The eigengap of a line of ten with p = tau = 1 and one more edge."""
    delays, rates = torch.ones(10, dtype=REAL), torch.ones(10, dtype=REAL)
    delays[-1], rates[-1] = delay, rate
    return delayed_gap(CLOSED, rates, delays)


def test_the_line_alone():
    ones = torch.ones(9, dtype=REAL)
    assert delayed_gap(LINE, ones, ones) == pytest.approx(0.008147, rel=1e-3)


@pytest.mark.parametrize(
    ("delay", "often", "seldom"),
    [
        (1, 0.0314, 0.0314),
        (10, 0.0169, 0.01053),
        (100, 0.00427, 0.008115),
        (1000, 0.000456, 0.008079),
    ],
)
def test_one_more_edge_helps_if_fast_and_harms_if_slow(delay, often, seldom):
    assert closed_gap(delay, 1.0) == pytest.approx(often, rel=3e-3)
    assert closed_gap(delay, 1 / delay) == pytest.approx(seldom, rel=1e-3)


@pytest.mark.parametrize("seed", range(3))
def test_slopes_are_those_of_differences(seed):
    edges, rates, delays = (tensor.numpy() for tensor in random_network(seed, 7))
    value, slope = phi_slope(edges, 7, rates, delays, 0.01)
    for e in range(len(edges)):
        up, down = rates.copy(), rates.copy()
        up[e] += 1e-6
        down[e] -= 1e-6
        high, _ = phi_slope(edges, 7, up, delays, 0.01)
        low, _ = phi_slope(edges, 7, down, delays, 0.01)
        assert slope[e] == pytest.approx((high - low) / 2e-6, rel=1e-3, abs=1e-8)
    expected = eigengap(
        torch.from_numpy(edges), by_loops(torch.from_numpy(edges), rates, delays)
    )
    assert value == pytest.approx(expected - 0.01 * float(rates @ delays))


def test_a_slow_edge_is_left_out_and_a_fast_one_kept():
    delays = torch.ones(10, dtype=REAL)
    delays[-1] = 100.0
    rates = tuned_rates(CLOSED, delays, steps=300)
    assert rates[-1] == 0 and (rates[:-1] > 0).all()
    assert delayed_gap(CLOSED, rates, delays) > closed_gap(100, 1 / 100)
    delays[-1] = 1.0
    assert (tuned_rates(CLOSED, delays, steps=300) > 0).all()


def test_the_first_step_of_adam_is_as_long_in_every_coordinate():
    """The second of two points is looked at: p tau moves by 0.1 * 0.01^(1/2)."""
    delays = torch.linspace(0.5, 2.0, 10, dtype=REAL)
    rates = tuned_rates(CLOSED, delays, price=1e-3, steps=2)
    moved = (rates * delays - 1).abs()
    torch.testing.assert_close(moved, torch.full((10,), 0.01, dtype=REAL))


def test_three_points_of_adam_are_those_of_its_recursion():
    delays = torch.linspace(0.5, 2.0, 10, dtype=REAL)
    use = torch.ones(10, dtype=REAL)
    first, second = torch.zeros(2, 10, dtype=REAL)
    seen = []
    for t in (1, 2, 3):
        value, slope = phi_slope(
            CLOSED.numpy(), 10, (use / delays).numpy(), delays.numpy(), 1e-3
        )
        seen.append((value, use / delays))
        g = torch.from_numpy(slope) / delays
        first, second = 0.9 * first + 0.1 * g, 0.99 * second + 0.01 * g**2
        length = 0.1 * 0.01 ** (t / 3)
        use = use + length * (first / (1 - 0.9**t)) / (second / (1 - 0.99**t)).sqrt()
    best = max(seen, key=lambda pair: pair[0])[1]
    found = tuned_rates(CLOSED, delays, price=1e-3, steps=3)
    torch.testing.assert_close(found, best)


def test_what_is_found_is_never_worse_than_plain_rates_with_or_without_slow_edges():
    edges = edges_of("erdos_renyi(0.5)", 12)
    slow = torch.from_numpy(np.random.default_rng(0).random(len(edges)) < 0.15)
    delays = torch.where(slow, 1.0, 0.01).double()
    price = 1e-3
    plain = 1 / delays

    def phi(p):
        return delayed_gap(edges, p, delays) - price * float(p @ delays)

    best = phi(tuned_rates(edges, delays, price=price, steps=200))
    assert best >= phi(plain) and best >= phi(torch.where(slow, 0.0, plain))
    assert slow.any()


def test_what_cannot_be_is_refused():
    with pytest.raises(InputError, match="`delays`"):
        tuned_rates(LINE, torch.zeros(9))
    with pytest.raises(InputError, match="at most 500 nodes, got 501"):
        tuned_rates(edges_of("ring", 501), torch.ones(501))
    with pytest.raises(InputError, match="no way from node 0 to 2"):
        tuned_rates(torch.tensor([[0, 1], [2, 3]]), torch.ones(2))
