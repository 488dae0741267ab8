"""Claims about time diameters, lower bounds and typical times of graphs."""

from __future__ import annotations

import math

import networkx as nx
import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import edges_of
from coterie_theory.decentralised.topologies import (
    asynchronous_time,
    distances_from,
    lower_bound,
    synchronous_lower_bound,
    synchronous_time,
    time_diameter,
)
from support.refusals import refuses

REAL = torch.float64


def some(text: str, n: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    edges, rng = edges_of(text, n), torch.Generator().manual_seed(seed)
    return edges, 0.1 + torch.rand(len(edges), generator=rng, dtype=REAL)


@pytest.mark.parametrize("text", ["grid", "erdos_renyi(0.4)", "ring"])
def test_distances_are_those_of_shortest_ways(text):
    edges, lengths = some(text, 12)
    graph = nx.Graph()
    for (v, w), s in zip(edges.tolist(), lengths.tolist(), strict=True):
        graph.add_edge(v, w, weight=s)
    ways = dict(nx.all_pairs_dijkstra_path_length(graph))
    own = torch.linspace(0, 1, 12, dtype=REAL)
    found = distances_from(torch.arange(12), edges, lengths, own)
    for v in range(12):
        for w in range(12):
            expected = 0.0 if v == w else ways[v][w] + float(own[v] + own[w])
            assert float(found[v, w]) == pytest.approx(expected)
    assert time_diameter(edges, lengths, own) == pytest.approx(float(found.max()))


def test_diameters_have_their_closed_forms():
    for text, n, expected in [
        ("line", 9, 8),
        ("ring", 9, 4),
        ("star", 9, 2),
        ("complete", 9, 1),
        ("hypercube", 16, 4),
        ("torus", 25, 4),
        ("grid", 16, 6),
    ]:
        edges = edges_of(text, n)
        assert time_diameter(edges, torch.ones(len(edges))) == expected
    assert time_diameter(edges_of("ring", 600), torch.ones(600)) == 300
    own = torch.tensor([0.5, 9.0, 0.25, 1.0], dtype=REAL)
    # From node 1, which computes for 9, over 2 and 5 to node 3.
    line = time_diameter(edges_of("line", 4), torch.tensor([1.0, 2.0, 5.0]), own)
    assert line == pytest.approx(9 + 2 + 5 + 1)


def test_a_slow_link_beside_fast_ones_costs_only_those_who_wait():
    edges, lengths = edges_of("ring", 10), torch.ones(10, dtype=REAL)
    lengths[3] = 1000.0
    waits = synchronous_lower_bound(edges, lengths, 4.0, math.exp(-3))
    any_way = lower_bound(edges, lengths, 4.0, math.exp(-3))
    assert waits == pytest.approx(1000 * 5 * 2 * 3)
    assert any_way == pytest.approx(9 * 2 * 3)  # the other way round
    own = torch.full((10,), 0.5, dtype=REAL)
    more = lower_bound(edges, lengths, 4.0, math.exp(-3), own)
    assert more == pytest.approx(10 * 2 * 3)


def test_typical_times_have_their_closed_forms():
    edges, lengths = edges_of("ring", 12), torch.full((12,), 2.0, dtype=REAL)
    gap = 2 - 2 * math.cos(2 * math.pi / 12)
    assert synchronous_time(edges, lengths) == pytest.approx(2 * 2 / gap)
    assert asynchronous_time(edges, lengths) == pytest.approx(2 / gap)


def test_asynchrony_is_never_slower_and_does_not_feel_one_slow_link():
    """With printed chances p, which sum to 1, the time would not be in seconds."""
    edges, lengths = some("ring", 12)
    lengths[0] = 1e6
    time = asynchronous_time(edges, lengths)
    assert asynchronous_time(edges, 3 * lengths) == pytest.approx(3 * time)
    d = 2
    assert asynchronous_time(edges, lengths) <= synchronous_time(edges, lengths) / d
    assert synchronous_time(edges, lengths) > 1e4 * asynchronous_time(edges, lengths)


def test_what_cannot_be_is_refused():
    edges = edges_of("line", 3)
    refuses("`lengths`", time_diameter, edges, torch.tensor([1.0, 0.0]))
    with pytest.raises(InputError, match="`computing` must be at least 0"):
        time_diameter(edges, torch.ones(2), -torch.ones(3))
    refuses("`accuracy`", lower_bound, edges, torch.ones(2), 1.0, 0.0)
    with pytest.raises(InputError, match="no way from node 0 to 2"):
        time_diameter(torch.tensor([[0, 1], [2, 3]]), torch.ones(2))
