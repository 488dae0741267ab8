"""Claims about accelerated randomised gossip."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.graphs import eigengap, resistances
from coterie_theory.decentralised.gossip import accelerated_bound, accelerated_rate
from coterie_theory.gossip import GossipPace, accelerated, pace, pace_of, randomised
from support.gossip_loops import dense_accelerated
from support.refusals import refuses
from support.rings import REAL, deviation, drawn, normal, times, uniform


@pytest.mark.parametrize("name", ["ring", "grid", "star"])
def test_nodes_that_flow_when_they_meet_are_where_all_flow_at_every_ring(name):
    edges, rates = uniform(name, 12)
    rings, x, eta_gamma = drawn(rates, 150.0), normal(12, 3), pace(edges, rates)
    found = accelerated(x, edges, rings, times(150.0), eta_gamma)
    expected = dense_accelerated(x, edges, rings, 150.0, *eta_gamma)
    assert_close(found.x[0], expected[0], rtol=1e-9, atol=1e-12)
    assert_close(found.z[0], expected[1], rtol=1e-9, atol=1e-12)


def test_without_flow_it_is_randomised_gossip_bit_by_bit():
    edges, rates = uniform("grid", 12)
    rings, x, at = drawn(rates, 100.0), normal(12, 3), times(40.0, 100.0)
    for gamma in (0.0, 0.5, 7.0):
        found = accelerated(x, edges, rings, at, GossipPace(0.0, gamma))
        assert torch.equal(found.x, randomised(x, edges, rings, at))


def test_it_is_continuized_descent_with_one_sample_an_edge():
    # Theorem 2.4 with a = e_v - e_w, R^2 = 2, kappa~ = R_max and kappa = 2 / mu.
    edges, rates = uniform("ring", 6)
    rings, x, until = drawn(rates, 40.0), normal(6, 1), 40.0
    mu, most = eigengap(edges, rates), float(resistances(edges, rates).max())
    square, kappa, other = 2.0, 2 / mu, most
    eta, step = 1 / math.sqrt(kappa * other), 1 / square
    long = math.sqrt(kappa / other) / square
    found = accelerated(x, edges, rings, times(until), pace_of(mu, most))
    y, z, now = x[:, 0].clone(), x[:, 0].clone(), 0.0
    flow = torch.tensor([[-eta, eta], [eta, -eta]], dtype=REAL)
    for time, edge in zip(*(part.tolist() for part in rings), strict=True):
        y, z = torch.linalg.matrix_exp(flow * (time - now)) @ torch.stack([y, z])
        now = time
        a = torch.zeros(6, dtype=REAL)
        a[edges[edge]] = torch.tensor([1.0, -1.0], dtype=REAL)
        g = (a @ y) * a
        y, z = y - step * g, z - long * g
    y, z = torch.linalg.matrix_exp(flow * (until - now)) @ torch.stack([y, z])
    assert_close(found.x[0, :, 0], y, rtol=1e-9, atol=1e-12)
    assert_close(found.z[0, :, 0], z, rtol=1e-9, atol=1e-12)


def test_looking_does_not_change_what_happens():
    edges, rates = uniform("line", 8)
    rings, x, eta_gamma = drawn(rates, 60.0), normal(8, 2), pace(edges, rates)
    often = accelerated(x, edges, rings, times(10.0, 20.0, 60.0), eta_gamma)
    once = accelerated(x, edges, rings, times(60.0), eta_gamma)
    assert torch.equal(often.x[-1], once.x[0])
    assert torch.equal(often.z[-1], once.z[0])


def test_the_sums_of_both_rows_stay():
    edges, rates = uniform("star", 9)
    x = normal(9, 2)
    at = times(20.0, 100.0)
    found = accelerated(x, edges, drawn(rates, 100.0), at, pace(edges, rates))
    for part in found:
        assert_close(part.sum(1), x.sum(0).expand(2, 2))


def test_relabelling_and_moving_commute_with_it():
    edges, rates = uniform("expander(4)", 10)
    rings, x, at = drawn(rates, 80.0), normal(10, 2), times(80.0)
    names = torch.randperm(10, generator=torch.Generator().manual_seed(0))
    other = torch.empty_like(x)
    other[names] = x
    eta_gamma = pace(edges, rates)
    one = accelerated(x, edges, rings, at, eta_gamma)
    two = accelerated(other, names[edges], rings, at, eta_gamma)
    assert torch.equal(two.x[0, names], one.x[0])
    assert_close(accelerated(x + 5.0, edges, rings, at, eta_gamma).x[0], one.x[0] + 5.0)


def test_all_rates_times_a_number_are_the_same_path_in_another_time():
    edges, rates = uniform("grid", 9)
    rings, x, at = drawn(rates, 50.0), normal(9, 2), times(50.0)
    one, two = pace(edges, rates), pace(edges, 8 * rates)
    assert two.gamma == pytest.approx(one.gamma)
    assert two.eta == pytest.approx(8 * one.eta)
    fast = rings._replace(times=rings.times / 8)
    assert_close(
        accelerated(x, edges, fast, at / 8, two).x,
        accelerated(x, edges, rings, at, one).x,
    )


def mean_left(name: str, n: int, until: float, runs: int):
    """Mean and standard error of what is left, and theta."""
    edges, rates = uniform(name, n)
    eta, gamma = pace(edges, rates)
    apart = (edges + n * torch.arange(runs)[:, None, None]).reshape(-1, 2)
    x = torch.zeros(n, 1, dtype=REAL)
    x[0] = 1.0
    given = x.repeat(runs, 1), apart, drawn(rates.repeat(runs), until), times(until)
    found = accelerated(*given, GossipPace(eta, gamma))
    left = deviation(found.x[0].view(runs, n, 1)) / deviation(x)
    return float(left.mean()), float(left.std()) / math.sqrt(runs), eta


@pytest.mark.parametrize("name", ["line", "ring", "star", "complete"])
def test_the_deviation_obeys_theorem_2_5_within_the_error_of_its_estimate(name):
    left, error, theta = mean_left(name, 8, 40.0, 200)
    rate = accelerated_rate(*uniform(name, 8))
    assert rate == theta
    assert left - 3 * error <= accelerated_bound(rate, 40.0)


def test_a_smaller_gap_and_a_larger_resistance_are_safe():
    edges, rates = uniform("grid", 9)
    one = pace(edges, rates)
    safe = pace_of(eigengap(edges, rates) / 2, float(1 / rates.min()))
    assert safe.eta < one.eta
    rings, x = drawn(rates, 400.0), normal(9, 1)
    found = accelerated(x, edges, rings, times(400.0), safe)
    assert deviation(found.x[0]) <= 2 * math.exp(-400.0 * safe.eta) * deviation(x)


def test_bad_input_is_refused_in_a_sentence():
    edges, rates = uniform("line", 4)
    refuses("connect all", pace, torch.tensor([[0, 1], [2, 3]]), torch.ones(2))
    refuses("`weights` must be at least 0", pace, edges, -rates)
    with pytest.raises(InputError, match="column"):
        accelerated(
            normal(4, 0), edges, drawn(rates, 1.0), times(1.0), GossipPace(1.0, 1.0)
        )
    with pytest.raises(InputError, match="eta"):
        accelerated(
            normal(4, 1), edges, drawn(rates, 1.0), times(1.0), GossipPace(-1.0, 1.0)
        )
    refuses("resistance", pace_of, 1.0, 0.0)
