"""Claims about messages that edges and nodes can carry, and those that are dropped."""

from __future__ import annotations

import pytest
import torch

from coterie.graphs import RingTimes, edges_of
from coterie_theory.gossip import admitted_rings
from coterie_theory.gossip.capacities import accepted_messages, kept_by_truncation
from support.refusals import refuses
from support.rings import REAL, drawn, times

WAYS = (kept_by_truncation, accepted_messages)
LIMITS = [{"capacity": 2}, {"edge_capacity": 1}, {"capacity": 3, "edge_capacity": 2}]


def crowd(seed: int = 0, n: int = 6):
    edges = edges_of("complete", n)
    rng = torch.Generator().manual_seed(seed)
    delays = torch.rand(len(edges), generator=rng, dtype=REAL) + 0.05
    rings = drawn(torch.full((len(edges),), 0.8, dtype=REAL), 40.0, seed)
    return edges, rings, delays


def by_definition(edges, rings, delays, capacity, edge_capacity, raw):
    """Definition 4.3.1, ring by ring."""
    pairs, kept = edges.tolist(), []
    longest = {
        v: max(float(delays[e]) for e, pair in enumerate(pairs) if v in pair)
        for v in edges.unique().tolist()
    }
    before: list[tuple[float, int]] = []
    for time, edge in zip(*(part.tolist() for part in rings), strict=True):
        free = True
        if edge_capacity is not None:
            span = float(delays[edge])
            count = sum(time - span <= s < time and e == edge for s, e in before)
            free = count < edge_capacity
        for v in pairs[edge] if capacity is not None else ():
            count = sum(
                time - longest[v] <= s < time and v in pairs[e] for s, e in before
            )
            free = free and count < capacity
        if free or raw:
            before.append((time, edge))
        kept.append(free)
    return kept


@pytest.mark.parametrize("limits", LIMITS)
def test_both_ways_of_counting_are_the_definition(limits):
    edges, rings, delays = crowd()
    both = {"capacity": None, "edge_capacity": None, **limits}
    for way in WAYS:
        expected = by_definition(
            edges, rings, delays, **both, raw=way is kept_by_truncation
        )
        assert way(edges, rings, delays, **limits).tolist() == expected


@pytest.mark.parametrize("limits", LIMITS)
def test_messages_written_at_the_same_time_do_not_count_for_each_other(limits):
    """Windows are [t - tau, t): messages at t - tau count, and those at t do not."""
    edges = edges_of("complete", 5)
    rng = torch.Generator().manual_seed(4)
    delays = torch.randint(1, 4, (len(edges),), generator=rng).double()
    when = torch.randint(0, 30, (120,), generator=rng).double().sort().values
    which = torch.randint(0, len(edges), (120,), generator=rng)
    both = {"capacity": None, "edge_capacity": None, **limits}
    for way in WAYS:
        expected = by_definition(
            edges, RingTimes(when, which), delays, **both, raw=way is kept_by_truncation
        )
        assert way(edges, RingTimes(when, which), delays, **limits).tolist() == expected


@pytest.mark.parametrize("limits", LIMITS)
def test_what_counting_all_keeps_is_kept_by_counting_the_kept_too(limits):
    edges, rings, delays = crowd(1)
    raw, true = (way(edges, rings, delays, **limits) for way in WAYS)
    assert (raw <= true).all() and raw.sum() < true.sum() < len(true)


def test_without_limits_all_are_kept_and_without_delays_too():
    edges, rings, delays = crowd()
    for way in WAYS:
        assert way(edges, rings, delays).all()
        assert way(edges, rings, 0 * delays, capacity=1, edge_capacity=1).all()


@pytest.mark.parametrize("way", WAYS)
def test_never_more_messages_are_under_way_than_a_node_or_an_edge_can_carry(way):
    edges, rings, delays = crowd(2)
    kept = way(edges, rings, delays, capacity=2, edge_capacity=1)
    end, which = rings.times[kept], rings.which[kept]
    begin = end - delays[which]
    for now in torch.cat([begin, end - 1e-9]).tolist():
        going = which[(begin <= now) & (now < end)]
        assert going.bincount().max() <= 1
        assert edges[going].flatten().bincount().max() <= 2


def test_windows_of_the_own_delay_as_printed_break_assumption_4_5_1():
    # Node 0 may have one message in each window of its longest delay, 10.
    edges, delays = torch.tensor([[0, 1], [0, 2]]), times(10.0, 1.0)
    rings = RingTimes(times(20.0, 22.0, 31.0), torch.tensor([1, 1, 1]))
    printed = [True, bool(22.0 - 1.0 > 20.0), bool(31.0 - 1.0 > 22.0)]
    within = (rings.times[torch.tensor(printed)].diff() < 10.0).any()
    assert printed == [True, True, True] and within
    kept = accepted_messages(edges, rings, delays, capacity=1)
    assert kept.tolist() == [True, False, True]


@pytest.mark.parametrize("capacity", [1, 2])
def test_with_equal_delays_it_is_a_network_whose_exchanges_begin_a_delay_before(
    capacity,
):
    edges, rings, _ = crowd(3)
    delays = torch.full((len(edges),), 0.3, dtype=REAL)
    lengths = delays[rings.which]
    kept = accepted_messages(edges, rings, delays, capacity=capacity)
    # Exchanges from t to t + tau in place of t - tau to t: the same order.
    same = admitted_rings(edges, rings, lengths, capacity=capacity)
    assert kept.tolist() == same.tolist()


def test_bad_limits_are_refused():
    edges, rings, delays = crowd()
    for way in WAYS:
        refuses("capacity", way, edges, rings, delays, capacity=0)
        refuses("entry 0 is -1", way, edges, rings, -torch.ones(len(edges)))
