"""Networks with capacities: who is admitted, by plain loops and queueing theory."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from coterie.engine.clocks import Rings
from coterie.graphs import capacities, degrees, loss_rates
from coterie.graphs.capacities import (
    RingTimes,
    exchange_rate_bounds,
    exchange_rates,
)
from coterie.graphs.families import edges_of
from coterie_theory.gossip.capacities import admitted_rings
from coterie_theory.mixing import loss_eigengap
from support.refusals import refuses

REAL = torch.float64


def poisson(text, n, *, rate=1.0, until=60.0, seed=0):
    edges = edges_of(text, n)
    rates = torch.full((len(edges),), rate, dtype=REAL)
    return edges, Rings(edges, rates, seed=seed).until(until)


def random_lengths(rings, seed=0, scale=2.0):
    rng = torch.Generator().manual_seed(seed)
    return scale * torch.rand(len(rings.times), generator=rng, dtype=REAL)


def plain(edges, rings, lengths, capacity, edge_capacity=None):
    """For every ring, looks at all rings before it."""
    times, which = (values.tolist() for values in rings)
    pairs, length, result = edges.tolist(), lengths.tolist(), []
    for i, (time, edge) in enumerate(zip(times, which, strict=True)):
        going = [
            which[j] for j in range(i) if result[j] and times[j] + length[j] > time
        ]
        free = all(
            sum(end in pairs[other] for other in going) < capacity
            for end in pairs[edge]
        )
        if edge_capacity is not None:
            free = free and going.count(edge) < edge_capacity
        result.append(free)
    return result


CASES = [
    (name, capacity, edge_capacity)
    for name in ("ring", "star", "complete")
    for capacity, edge_capacity in ((1, None), (2, None), (3, 1), (5, 2))
]


def as_plain(edges, rings, lengths, *limits):
    """The admitted rings, which must be those of a plain loop."""
    named = dict(zip(("capacity", "edge_capacity"), limits, strict=True))
    found = admitted_rings(edges, rings, lengths, **named)
    assert found.tolist() == plain(edges, rings, lengths, *limits)
    return found


@pytest.mark.parametrize(("name", "capacity", "edge_capacity"), CASES)
def test_admission_is_the_plain_loop(name, capacity, edge_capacity):
    edges, rings = poisson(name, 6, until=40.0)
    found = as_plain(edges, rings, random_lengths(rings), capacity, edge_capacity)
    assert 0 < int(found.sum()) < len(found)


def test_rings_at_the_same_time_and_exchanges_without_length_are_counted_in_order():
    edges = torch.tensor([[0, 1], [1, 2], [2, 3]])
    times = torch.tensor([0.0, 0, 0, 1, 1, 1, 1, 2, 2, 2], dtype=REAL)
    rings = RingTimes(times, torch.tensor([0, 1, 2, 1, 1, 0, 2, 0, 0, 1]))
    lengths = torch.tensor([1.0, 1, 2, 0, 0, 1, 0, 0, 1, 1], dtype=REAL)
    for limits in ((1, None), (2, None), (2, 1)):
        as_plain(edges, rings, lengths, *limits)


def test_nobody_is_in_more_exchanges_at_once_than_its_capacity():
    for capacity, name in itertools.product((1, 2), ("complete", "star")):
        edges, rings = poisson(name, 6, until=100.0)
        lengths = random_lengths(rings)
        kept = admitted_rings(edges, rings, lengths, capacity=capacity)
        begins, ends = rings.times[kept], (rings.times + lengths)[kept]
        for node in range(6):
            mine = (edges[rings.which[kept]] == node).any(1)
            inside = (begins[mine, None] >= begins[mine]) & (
                begins[mine, None] < ends[mine]
            )
            assert int(inside.sum(1).max()) == capacity  # itself with it


def test_room_for_all_admits_all_and_short_exchanges_lose_nothing():
    edges, rings = poisson("complete", 5)
    lengths = random_lengths(rings)
    assert admitted_rings(edges, rings, lengths, capacity=len(lengths)).all()
    # C 13: as exchanges get short, rings are those of randomised gossip.
    assert admitted_rings(edges, rings, 1e-9 * lengths).all()


def test_two_nodes_lose_rings_as_erlang_says():
    """For a Poisson process of rate p with a service of mean m, 1 / (1 + p m) begin."""
    edges, rings = poisson("complete", 2, rate=1.0, until=8000.0)
    kept = admitted_rings(edges, rings, random_lengths(rings, scale=1.0))
    share = 1 / (1 + 0.5)
    # Renewals of mean 3/2 and variance 1 + 1/12: the number in time t has the deviation
    # sqrt(t variance / mean^3), and five of these are room.
    deviation = math.sqrt(8000 * (1 + 1 / 12) / 1.5**3)
    assert abs(int(kept.sum()) - 8000 * share) < 5 * deviation


def test_idle_edges_of_a_loss_network_are_used_at_their_rate():
    """C 13: while both ends are free, exchanges of an edge begin at its rate p."""
    edges = edges_of("grid", 9)
    lengths = 0.5 + torch.arange(len(edges), dtype=REAL) / len(edges)
    rates, until = loss_rates(edges, lengths), 6000.0
    rings = Rings(edges, rates, seed=1).until(until)
    kept = admitted_rings(edges, rings, lengths[rings.which])
    begins, which = rings.times[kept].tolist(), rings.which[kept].tolist()
    for edge, ends in enumerate(edges.tolist()):
        free = until
        spans = [
            (t, t + float(lengths[e]))
            for t, e in zip(begins, which, strict=True)
            if set(edges[e].tolist()) & set(ends)
        ]
        last = 0.0  # busy at one end or the other, which may overlap
        for start, stop in spans:
            free -= max(0.0, min(stop, until) - max(start, last))
            last = max(last, stop)
        count = which.count(edge)
        mean = float(rates[edge]) * free
        assert abs(count - mean) < 5 * math.sqrt(mean)
        # Lemma 5.C.3: idle with chance 1/e at least, here with room for chance.
        assert free / until > 1 / math.e


def test_edges_ring_in_order_and_at_their_rates_until_the_end():
    edges = edges_of("line", 4)
    rates = torch.tensor([0.5, 1.0, 4.0], dtype=REAL)
    rings = Rings(edges, rates, seed=3)
    found = rings.until(500.0)
    assert (found.times.diff() >= 0).all() and float(found.times[-1]) <= 500
    for edge in range(3):
        own = found.times[found.which == edge]
        zero = torch.tensor([0])
        assert torch.equal(
            own, rings.times(torch.tensor([edge]), zero, len(own) + 1)[0, :-1]
        )
        mean = 500 * float(rates[edge])
        assert abs(len(own) - mean) < 5 * math.sqrt(mean)


def test_what_cannot_be_is_refused_in_one_sentence():
    edges, ok = edges_of("line", 3), torch.tensor([0.0, 1.0], dtype=REAL)
    which, ones = torch.tensor([0, 1]), torch.ones(2, dtype=REAL)

    def bad(words, *, times=ok, lengths=ones, edge=which, **limits):
        refuses(words, admitted_rings, edges, RingTimes(times, edge), lengths, **limits)

    bad("`capacity` must be at least 1, got 0", capacity=0)
    bad("`edge_capacity` must be at least 1, got 0", edge_capacity=0)
    for value, name in ((math.nan, "nan"), (-1.0, "-1"), (math.inf, "inf")):
        other = torch.tensor([0.0, value], dtype=REAL)
        words = "must be finite and at least 0, but entry 1 is"
        bad(f"`times` {words} {name}", times=other)
        bad(f"`lengths` {words} {name}", lengths=other)
    bad("`times` must be ascending, but 1 is before 0", times=ok.flip(0))
    bad("`rings` must name edges 0 to 1, got 0 to 2", edge=torch.tensor([0, 2]))
    bad("one entry per ring, got 2, 2 and 1", lengths=ones[:1])
    refuses("`time` must be greater than 0", Rings(edges, ones).until, 0.0)


def test_one_slow_edge_slows_both_its_ends_however_dense_the_others_are():
    """So stragglers do harm with the rates of Theorem 5.5, and none once left out."""
    edges, found = edges_of("complete", 10), []
    for slow in (1.0, 100.0, 1000.0):
        busy = torch.ones(45, dtype=REAL)
        busy[0] = slow
        rates = loss_rates(edges, busy)
        at_end = rates[(edges == 0).any(1)]
        assert (at_end <= 1 / slow).all()
        # No eigengap is above n / (n - 1) times the weights at one node; per second:
        per_second = loss_eigengap(edges, rates) * float(rates.sum())
        assert per_second <= 10 / 9 * float(at_end.sum())
        found.append(per_second)
    # All weights at node 0 are those of the slow edge, 1 / (16 slow), over d_max = 9.
    assert found[1] / found[0] == pytest.approx(1 / 100)
    assert found[2] / found[0] == pytest.approx(1 / 1000)
    without = loss_rates(edges[1:], torch.ones(44, dtype=REAL))
    restored = loss_eigengap(edges[1:], without) * float(without.sum())
    assert 0.8 * found[0] < restored < found[0]


def by_matchings(edges, rho):
    """The chance that both ends of each edge are free, over all sets of exchanges."""
    pairs, free, total = edges.tolist(), torch.zeros(len(edges), dtype=REAL), 0.0
    for size in range(len(pairs) + 1):
        for some in itertools.combinations(range(len(pairs)), size):
            ends = [end for e in some for end in pairs[e]]
            if len(set(ends)) < len(ends):
                continue
            chance = math.prod(float(rho[e]) for e in some)
            total += chance
            idle = [float(not {*pair} & {*ends}) for pair in pairs]
            free += chance * torch.tensor(idle, dtype=REAL)
    return free / total


@pytest.mark.parametrize("text", ["line", "star"])
def test_on_trees_rings_find_both_ends_free_as_often_as_matchings_say(text):
    edges = edges_of(text, 7)
    rates = torch.linspace(0.2, 3.0, len(edges), dtype=REAL)
    lengths = torch.linspace(5.0, 0.1, len(edges), dtype=REAL)
    wanted = rates * by_matchings(edges, rates * lengths)
    torch.testing.assert_close(
        exchange_rates(edges, rates, lengths), wanted, rtol=1e-9, atol=1e-12
    )


@pytest.mark.parametrize(
    ("text", "n"),
    [("ring", 6), ("grid", 6), ("grid", 9), ("complete", 5), ("erdos_renyi(0.6)", 6)],
)
def test_on_small_graphs_with_circles_they_are_those_of_matchings_too(text, n):
    edges = edges_of(text, n)
    rates = torch.linspace(0.2, 3.0, len(edges), dtype=REAL)
    for length in (0.1, 1.0, 10.0):
        lengths = length * torch.linspace(1.0, 0.3, len(edges), dtype=REAL)
        wanted = rates * by_matchings(edges, rates * lengths)
        found = exchange_rates(edges, rates, lengths)
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-12)


def test_long_rings_have_the_rates_of_their_recursion():
    """Z of a line of n nodes is a_n = a_(n-1) + rho a_(n-2); one edge leaves n - 2."""
    n, rho = 300, 1.5
    a = [1.0, 1.0]
    for _ in range(n):
        a.append((a[-1] + rho * a[-2]) / 1.0)
    ring = a[n] + rho * a[n - 2]  # without an edge of the ring, or with it
    edges, one = edges_of("ring", n), torch.ones(n, dtype=REAL)
    found = exchange_rates(edges, one, rho * one)
    torch.testing.assert_close(found, one * a[n - 2] / ring, rtol=1e-9, atol=0)


@pytest.mark.parametrize(
    ("text", "n", "circle"),
    [("line", 6, math.inf), ("ring", 6, 6), ("grid", 9, 4), ("complete", 5, 3)],
)
def test_exact_rates_and_nearly_exact_ones_lie_between_their_bounds(
    text, n, circle, monkeypatch
):
    edges = edges_of(text, n)
    assert capacities.girth(edges) == circle
    rates = torch.linspace(0.5, 1.5, len(edges), dtype=REAL)
    for length in (0.02, 0.3, 2.0):
        lengths = torch.full_like(rates, length)
        exact = exchange_rates(edges, rates, lengths)
        low, high = exchange_rate_bounds(edges, rates, lengths)
        assert (low <= exact + 1e-12).all() and (exact <= high + 1e-12).all()
        monkeypatch.setattr(capacities, "_WIDTH", 0)
        near = exchange_rates(edges, rates, lengths)
        monkeypatch.undo()
        assert (low <= near + 1e-12).all() and (near <= high + 1e-12).all()
        # Off by paths around a circle, whose edges all have to be busy.
        busiest = float(rates.max()) * length
        if circle > n:
            torch.testing.assert_close(low, high, rtol=1e-9, atol=0)
        else:
            if length > 0.1:
                assert not torch.allclose(near, exact, rtol=1e-6)
            crowd = int(degrees(edges).max()) - 1
            assert float((high / low).max()) <= 1 + 4 * (busiest * crowd) ** (
                circle - 2
            )


def test_graphs_too_wide_for_sums_are_nearly_exact():
    """Nineteen nodes of a complete graph, where each half of the bounds is known.

    All u are equal: u = 1 / (1 + 17 rho u). The exact sum is the matching polynomial,
    sum_k n! / ((n - 2k)! k! 2^k) rho^k.
    """
    n, rho = 19, 0.05
    edges = edges_of("complete", n)
    one = torch.ones(len(edges), dtype=REAL)
    assert capacities.free_chances(edges, rho * one) is None
    found = exchange_rates(edges, one, rho * one)
    u = (math.sqrt(1 + 4 * 17 * rho) - 1) / (2 * 17 * rho)
    assert found[0] == pytest.approx(u**2 / (1 + rho * u**2))

    def total(n):
        return sum(
            math.factorial(n)
            / (math.factorial(n - 2 * k) * math.factorial(k) * 2**k)
            * rho**k
            for k in range(n // 2 + 1)
        )

    exact = total(n - 2) / total(n)
    low, high = exchange_rate_bounds(edges, one, rho * one)
    assert float(low[0]) <= exact <= float(high[0])
    assert float(found[0]) == pytest.approx(exact, rel=0.01)


def test_so_many_rings_are_admitted_whatever_the_law_of_lengths():
    """Twenty thousand rings: 1 / 100 is three times their chance and more."""
    edges, rings = poisson("line", 5, until=5000.0, seed=3)
    wanted = exchange_rates(
        edges, torch.ones(4, dtype=REAL), torch.ones(4, dtype=REAL)
    ).mean()
    steady = torch.ones_like(rings.times)
    for lengths in (steady, random_lengths(rings)):  # of mean 1, both
        share = admitted_rings(edges, rings, lengths).double().mean()
        assert float(share) == pytest.approx(float(wanted), abs=0.01)


def test_what_takes_no_time_finds_everybody_free():
    edges = edges_of("complete", 5)
    rates = torch.linspace(0.5, 2.0, 10, dtype=REAL)
    assert torch.equal(exchange_rates(edges, rates, 0 * rates), rates)
