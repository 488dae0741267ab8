"""Claims about gossip whose messages take time."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.graphs import (
    RingTimes,
    degrees,
    delayed_gains,
    delayed_shares,
    edges_of,
    eigengap,
)
from coterie_theory.decentralised.gossip import delayed_bound, delayed_rate
from coterie_theory.gossip import delayed, randomised, trajectory_means
from support.gossip_loops import delayed_path, weighted_past
from support.rings import REAL, deviation, drawn, normal, times, uniform

UNEQUAL = times(0.1, 1.0, 0.1, 2.0, 0.1, 0.1, 1.0, 0.1)


def ring_of_eight(delays=UNEQUAL):
    """Edges, rates 1 / tau, delays and shares."""
    node = torch.arange(8)
    edges, rates = torch.stack([node, (node + 1) % 8], 1), 1 / delays
    return edges, rates, delays, delayed_shares(edges, rates, delays)


def test_layers_give_the_path_of_a_plain_loop():
    edges, rates, delays, steps = ring_of_eight()
    rings, x = drawn(rates, 20.0), normal(8, 3)
    at = times(0.0, 5.0, 11.0, 20.0)
    found = delayed(x, edges, rings, at, delays=delays, shares=steps)
    path = delayed_path(x, edges, rings, delays, steps)
    for now, ours in zip(at.tolist(), found, strict=True):
        theirs = [y for time, y in path if time <= now][-1]
        assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_on_a_crowded_graph_too_where_many_messages_overlap():
    edges, rates = uniform("complete", 6)
    rng = torch.Generator().manual_seed(3)
    delays = 40 * torch.rand(len(edges), generator=rng, dtype=REAL)
    steps = torch.full_like(delays, 0.02)
    rings, x = drawn(rates, 300.0), normal(6, 1)
    found = delayed(x, edges, rings, times(300.0), delays=delays, shares=steps)
    path = delayed_path(x, edges, rings, delays, steps)
    assert_close(found[0], path[-1][1], rtol=1e-12, atol=1e-14)


def test_without_delay_and_by_half_the_way_it_is_randomised_gossip():
    edges, rates = uniform("grid", 9)
    # Whole numbers whose halves are exact, so that both are equal bit by bit.
    rings = drawn(rates, 30.0)
    x = 2.0 ** len(rings.times) * normal(9, 2).mul(100).round()
    zero, half = torch.zeros_like(rates), torch.full_like(rates, 0.5)
    found = delayed(x, edges, rings, times(30.0), delays=zero, shares=half)
    few = RingTimes(rings.times[:12], rings.which[:12])
    early = delayed(x, edges, few, times(30.0), delays=zero, shares=half)
    assert torch.equal(early, randomised(x, edges, few, times(30.0)))
    assert_close(found, randomised(x, edges, rings, times(30.0)))


def test_what_is_read_before_time_0_is_the_start():
    edges = torch.tensor([[0, 1]])
    rings = RingTimes(times(1.0, 1.5), torch.tensor([0, 0]))
    x = times(4.0, 0.0)[:, None]
    found = delayed(
        x, edges, rings, times(1.2, 2.0), delays=times(2.0), shares=times(0.25)
    )
    # Both read (4, 0): each writes 0.25 * 4.
    assert_close(found[..., 0], torch.stack([times(3.0, 1.0), times(2.0, 2.0)]))


def test_a_ring_reads_what_an_earlier_one_writes_at_the_same_time():
    line = torch.tensor([[0, 1], [1, 2]])
    rings = RingTimes(times(1.0, 3.0), torch.tensor([0, 1]))
    x = times(8.0, 0.0, 0.0)[:, None]
    delays, half = times(1.0, 2.0), times(0.5, 0.5)
    found = delayed(x, line, rings, times(3.0), delays=delays, shares=half)
    assert_close(found[0, :, 0], times(4.0, 2.0, 2.0))


def test_the_mean_stays_at_every_time():
    edges, rates, delays, steps = ring_of_eight()
    x, at = normal(8, 2), torch.linspace(0, 30, 60, dtype=REAL)
    rings = drawn(rates, 30.0)
    found = delayed(x, edges, rings, at, delays=delays, shares=steps)
    assert_close(found.mean(1), x.mean(0).expand(60, 2))


def test_relabelling_and_moving_commute_with_it():
    edges, rates, delays, steps = ring_of_eight()
    rings, x = drawn(rates, 15.0), normal(8, 2)
    names = torch.randperm(8, generator=torch.Generator().manual_seed(0))
    other = torch.empty_like(x)
    other[names] = x
    timing = {"delays": delays, "shares": steps}
    one = delayed(x, edges, rings, times(15.0), **timing)[0]
    two = delayed(other + 1, names[edges], rings, times(15.0), **timing)[0]
    assert_close(two[names], one + 1)


def test_time_has_no_unit():
    edges, rates, delays, steps = ring_of_eight()
    assert_close(
        delayed_gains(edges, rates / 4, delays * 4),
        delayed_gains(edges, rates, delays) / 4,
    )
    rings, x = drawn(rates, 15.0), normal(8, 2)
    slow = rings._replace(times=4 * rings.times)
    assert_close(
        delayed(x, edges, slow, times(60.0), delays=4 * delays, shares=steps),
        delayed(x, edges, rings, times(15.0), delays=delays, shares=steps),
    )


def test_it_is_delayed_coordinate_descent_of_the_dual():
    # On g(lam) = |A lam|^2 / 2 with A e_vw = mu_e (e_v - e_w), blocks 2 mu_e^2-smooth.
    edges, rates, delays, steps = ring_of_eight()
    k = delayed_gains(edges, rates, delays)
    rings, rng = drawn(rates, 4.0), torch.Generator().manual_seed(2)
    a = torch.zeros(8, 8, dtype=REAL)
    a.scatter_(0, edges.T, torch.tensor([[1.0], [-1.0]], dtype=REAL).expand(2, 8))
    a *= k.sqrt()  # mu_e^2 = K_e; any other would do
    dual = torch.randn(8, generator=rng, dtype=REAL)
    x = (3.0 + a @ dual)[:, None]
    path = [(0.0, dual)]
    for time, edge in zip(*(part.tolist() for part in rings), strict=True):
        seen = [y for s, y in path if s <= time - float(delays[edge])] or [dual]
        slope = a[:, edge] @ (a @ seen[-1])
        new = path[-1][1].clone()
        new[edge] -= k[edge] / (rates[edge] * 2 * k[edge]) * slope
        path.append((time, new))
    found = delayed(x, edges, rings, times(4.0), delays=delays, shares=steps)
    assert_close(found[0, :, 0], 3.0 + a @ path[-1][1])


# The gains K of (4.11).


def test_gains_of_equal_edges_are_known_and_those_without_delay_are_the_rates():
    edges = edges_of("expander(4)", 10)
    p, tau = torch.full((2, len(edges)), 0.7, dtype=REAL)
    assert set(degrees(edges).tolist()) == {4}
    known = 0.7 / (1 + 7 * 0.7 * 0.7 * (1 + math.e))
    assert_close(delayed_gains(edges, p, tau), torch.full_like(p, known))
    assert_close(delayed_gains(edges, p, 0 * tau), p)
    assert_close(delayed_shares(edges, p, 0 * tau), torch.full_like(p, 0.5))


def test_gains_fall_with_every_delay_and_with_the_rates_of_others():
    edges, rates, delays, _ = ring_of_eight()
    now = delayed_gains(edges, rates, delays)
    for e in range(8):
        late, often = delays.clone(), rates.clone()
        late[e] *= 2
        often[e] *= 2
        assert (delayed_gains(edges, rates, late) <= now).all()
        others = torch.arange(8) != e
        assert (delayed_gains(edges, often, delays) <= now)[others].all()


def test_an_edge_that_never_rings_is_like_none():
    edges, rates, delays, _ = ring_of_eight()
    rates[3] = 0.0
    kept = torch.arange(8) != 3
    without = delayed_gains(edges[kept], rates[kept], delays[kept])
    found = delayed_gains(edges, rates, delays)
    assert found[3] == 0
    assert_close(found[kept], without)


# Theorem 4.1.


def left_side(x, edges, rings, delays, steps, gamma, until):
    """The ratio of integrals in (4.12), exactly: x is constant between rings."""
    path = delayed_path(x, edges, rings, delays, steps)
    ends = [time for time, _ in path[1:]] + [until]
    total = sum(
        float(deviation(y)) * (math.exp(gamma * end) - math.exp(gamma * start))
        for (start, y), end in zip(path, ends, strict=True)
    )
    return total / (float(deviation(x)) * math.expm1(gamma * until))


def dirac(n):
    x = torch.zeros(n, 1, dtype=REAL)
    x[0] = 1.0
    return x


@pytest.mark.parametrize("delays", [torch.ones(8, dtype=REAL), UNEQUAL])
def test_theorem_4_1_holds_with_much_room(delays):
    edges, rates, delays, steps = ring_of_eight(delays)
    gamma, until = (
        delayed_rate(edges, delayed_gains(edges, rates, delays), delays),
        30.0,
    )
    left = [
        left_side(dirac(8), edges, drawn(rates, until, s), delays, steps, gamma, until)
        for s in range(5)
    ]
    left = torch.tensor(left)
    error = float(left.std()) / math.sqrt(5)
    bound = delayed_bound(gamma, until, float(delays.max()))
    assert float(left.mean()) + 3 * error <= bound


def test_the_gap_of_the_ring_is_that_of_the_reference():
    for delays, gamma in ((torch.ones(8, dtype=REAL), 0.0241), (UNEQUAL, 0.01036)):
        edges, rates, delays, _ = ring_of_eight(delays)
        found = eigengap(edges, delayed_gains(edges, rates, delays)) / 2
        assert found == pytest.approx(gamma, rel=5e-3)


def test_the_printed_step_swaps_rows_for_ever_and_breaks_theorem_4_1():
    edges, rates = edges_of("ring", 8), torch.ones(8, dtype=REAL)
    zero = torch.zeros(8, dtype=REAL)
    right = delayed_shares(edges, rates, zero)
    printed = delayed_gains(edges, rates, zero) / rates
    rings, gamma, until = drawn(rates, 60.0), eigengap(edges, rates) / 2, 60.0
    bound = delayed_bound(gamma, until, 0.0)
    for steps, holds in ((right, True), (printed, False)):
        left = left_side(dirac(8), edges, rings, zero, steps, gamma, until)
        assert (left <= bound) == holds
    found = delayed(dirac(8), edges, rings, times(until), delays=zero, shares=printed)
    assert_close(deviation(found[0]), deviation(dirac(8)))


# Corollary 4.2.1.


def test_averages_of_the_past_are_their_integrals():
    edges, rates, delays, steps = ring_of_eight()
    rings, x = drawn(rates, 20.0), normal(8, 2)
    at = times(4.0, 20.0)
    found = trajectory_means(
        x, edges, rings, at, delays=delays, shares=steps, gamma=0.05
    )
    path = delayed_path(x, edges, rings, delays, steps)
    for now, ours in zip(at.tolist(), found, strict=True):
        until = [(time, y) for time, y in path if time <= now]
        assert_close(ours, weighted_past(until, 0.05, now), rtol=1e-10, atol=1e-12)


def test_averages_of_the_past_do_not_overflow_after_a_long_time():
    edges, rates = torch.tensor([[0, 1]]), times(1.0)
    rings = drawn(rates, 1000.0)
    x, known = times(2.0, 0.0)[:, None], {"delays": times(0.0), "shares": times(0.5)}
    found = trajectory_means(x, edges, rings, times(1000.0), **known, gamma=0.9)
    assert_close(found[0, :, 0], times(1.0, 1.0))


def test_averages_of_the_past_obey_corollary_4_2_1():
    edges, rates, delays, steps = ring_of_eight()
    gamma, until = eigengap(edges, delayed_gains(edges, rates, delays)) / 2, 20.0
    runs = 10
    apart = (edges + 8 * torch.arange(runs)[:, None, None]).reshape(-1, 2)
    x, rings = dirac(8).repeat(runs, 1), drawn(rates.repeat(runs), until)
    known = {"delays": delays.repeat(runs), "shares": steps.repeat(runs)}
    found = trajectory_means(x, apart, rings, times(until), **known, gamma=gamma)
    left = deviation(found.view(runs, 8, 1)) / deviation(dirac(8))
    error = float(left.std()) / math.sqrt(runs)
    assert float(left.mean()) + 3 * error <= delayed_bound(gamma, until, 2.0)


def test_bad_input_is_refused_in_a_sentence():
    edges, rates, delays, steps = ring_of_eight()
    rings, x, at = drawn(rates, 2.0), normal(8, 1), times(2.0)
    below = delays.clone()
    below[5] = -0.1
    known = {"delays": delays, "shares": steps}
    below, minus = known | {"delays": below}, known | {"shares": -steps}
    for words, call in {
        "`delays` must be at least 0, but entry 5 is -0.1": lambda: delayed(
            x, edges, rings, at, **below
        ),
        "`rates` must be at least 0": lambda: delayed_shares(edges, -rates, delays),
        "`shares` must be at least 0": lambda: delayed(x, edges, rings, at, **minus),
        "column": lambda: delayed(x[:, :0], edges, rings, at, **known),
        "gamma": lambda: trajectory_means(x, edges, rings, at, **known, gamma=0.0),
        "`at` must be greater than 0": lambda: trajectory_means(
            x, edges, rings, 0 * at, **known, gamma=0.1
        ),
    }.items():
        with pytest.raises(InputError, match=words):
            call()
