"""Claims about rings, layers, and pairs that take their mean."""

from __future__ import annotations

import heapq
import math

import pytest
import torch
from scipy.stats import ks_2samp
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.graphs import RingTimes, eigengap
from coterie_theory import gossip
from coterie_theory.decentralised.gossip import randomised_rate
from coterie_theory.gossip.capacities import kept_by_truncation
from support.gossip_loops import pairwise_loop
from support.refusals import refuses
from support.rings import REAL, deviation, drawn, normal, times, uniform


@pytest.mark.parametrize(
    ("name", "n", "until", "width"),
    [
        *((name, 30, 500.0, 7) for name in ("expander(4)", "star", "line", "complete")),
        ("expander(4)", 40, 60.0, 5000),  # six meetings in a piece
        ("ring", 6, 20.0, 40_000),  # and whole layers
    ],
)
def test_layers_and_pieces_of_them_give_the_serial_order_bit_by_bit(
    name, n, until, width
):
    edges, rates = uniform(name, n)
    rings, x = drawn(rates, until), normal(n, width)
    found = gossip.randomised(x, edges, rings, times(until))[0]
    assert torch.equal(found, pairwise_loop(x, edges, rings))


def test_no_two_events_of_a_layer_touch_and_events_of_a_node_keep_their_order():
    edges, rates = uniform("grid", 30)
    ends = edges[drawn(rates, 300.0).which]
    level = torch.empty(len(ends), dtype=torch.long)
    for number, layer in enumerate(gossip.layers(ends, 30)):
        assert len(ends[layer].unique()) == 2 * len(layer)
        level[layer] = number
    for node in range(30):
        assert (level[(ends == node).any(1)].diff() > 0).all()


def test_rows_at_a_time_are_those_after_all_rings_until_then():
    edges, rates = uniform("ring", 8)
    rings, x = drawn(rates, 60.0), normal(8, 2)
    found = gossip.randomised(x, edges, rings, times(0.0, 20.0, 20.0, 60.0))
    assert torch.equal(found[0], x)
    early = rings.times <= 20.0
    part = RingTimes(rings.times[early], rings.which[early])
    assert torch.equal(found[1], pairwise_loop(x, edges, part))
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[3], pairwise_loop(x, edges, rings))


def test_the_mean_stays_and_the_rows_given_are_not_changed():
    edges, rates = uniform("grid", 16)
    x = normal(16, 3)
    kept = x.clone()
    found = gossip.randomised(x, edges, drawn(rates, 400.0), times(100.0, 400.0))
    assert_close(found.mean(1), kept.mean(0).expand(2, 3))
    assert torch.equal(x, kept)


def test_relabelling_nodes_relabels_the_result_bit_by_bit():
    edges, rates = uniform("expander(4)", 12)
    rings, x = drawn(rates, 80.0), normal(12, 3)
    names = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    other = torch.empty_like(x)
    other[names] = x
    one = gossip.randomised(x, edges, rings, times(80.0))[0]
    two = gossip.randomised(other, names[edges], rings, times(80.0))[0]
    assert torch.equal(two[names], one)


def test_moving_all_rows_moves_the_result():
    edges, rates = uniform("ring", 9)
    rings, x, at = drawn(rates, 90.0), normal(9, 2), times(90.0)
    moved = gossip.randomised(x + 3.0, edges, rings, at)
    assert_close(moved, gossip.randomised(x, edges, rings, at) + 3.0)


def test_a_meeting_is_a_gradient_step_of_one_half_on_half_the_squared_difference():
    edges, rates = uniform("line", 6)
    rings, x = drawn(rates, 30.0), normal(6, 2)
    found = x.clone().requires_grad_()
    for edge in rings.which.tolist():
        v, w = edges[edge].tolist()
        (g,) = torch.autograd.grad((found[v] - found[w]).square().sum() / 2, found)
        found = (found - g / 2).detach().requires_grad_()
    assert_close(gossip.randomised(x, edges, rings, times(30.0))[0], found.detach())


def test_one_clock_with_marks_has_the_law_of_a_clock_for_every_edge():
    rates = torch.tensor([0.5, 1.0, 2.5], dtype=REAL)
    rings = drawn(rates, 400.0)
    rng = torch.Generator().manual_seed(1)

    def gap(edge):
        uniform = torch.rand(1, generator=rng, dtype=REAL)
        return float(-torch.log1p(-uniform) / rates[edge])

    queue = [(gap(edge), edge) for edge in range(3)]
    heapq.heapify(queue)
    own: list[tuple[float, int]] = []
    while queue[0][0] <= 400.0:
        time, edge = queue[0]
        own.append((time, edge))
        heapq.heapreplace(queue, (time + gap(edge), edge))
    for edge in range(3):
        ours = rings.times[rings.which == edge].diff().numpy()
        theirs = torch.tensor([t for t, e in own if e == edge]).diff().numpy()
        assert ks_2samp(ours, theirs).pvalue > 0.001
        # A Poisson number: four deviations.
        mean = 400.0 * float(rates[edge])
        assert abs(len(ours) + 1 - mean) < 4 * math.sqrt(mean)


def means_of_runs(name: str, n: int, until: float, runs: int):
    """Mean and standard error of what is left of the deviation, each run a graph."""
    edges, rates = uniform(name, n)
    apart = (edges + n * torch.arange(runs)[:, None, None]).reshape(-1, 2)
    x = torch.zeros(n, 1, dtype=REAL)
    x[0] = 1.0
    rings = drawn(rates.repeat(runs), until)
    found = gossip.randomised(x.repeat(runs, 1), apart, rings, times(until))[0]
    left = deviation(found.view(runs, n, 1)) / deviation(x)
    return float(left.mean()), float(left.std()) / math.sqrt(runs), (edges, rates)


@pytest.mark.parametrize("name", ["complete", "line", "star"])
def test_the_deviation_obeys_its_bound_within_the_error_of_its_estimate(name):
    left, error, graph = means_of_runs(name, 8, 30.0, 300)
    assert left - 3 * error <= math.exp(-randomised_rate(*graph) * 30.0)
    if name == "complete":  # where the rate is exact
        assert left + 3 * error >= math.exp(-randomised_rate(*graph) * 30.0)


def test_the_rate_as_printed_without_its_half_fails_on_a_complete_graph():
    left, error, graph = means_of_runs("complete", 8, 30.0, 300)
    assert left - 3 * error > math.exp(-eigengap(*graph) * 30.0)


def test_parts_that_no_edge_joins_go_to_their_own_means():
    edges = torch.tensor([[0, 1], [2, 3]])
    rings = drawn(torch.ones(2), 50.0)
    x = times(0.0, 2.0, 10.0, 20.0)[:, None]
    found = gossip.randomised(x, edges, rings, times(50.0))[0, :, 0]
    assert_close(found, times(1.0, 1.0, 15.0, 15.0))


def test_without_rings_nothing_happens():
    edges, rates = uniform("line", 3)
    none = RingTimes(torch.empty(0, dtype=REAL), torch.empty(0, dtype=torch.long))
    x, at = normal(3, 2), times(1.0, 2.0)
    assert torch.equal(gossip.randomised(x, edges, none, at), x.expand(2, 3, 2))
    still = gossip.accelerated(x, edges, none, at, gossip.GossipPace(1.0, 1.0)).x
    assert torch.equal(still, x.expand(2, 3, 2))  # x and z are the same
    late = gossip.delayed(x, edges, none, at, delays=rates, shares=rates)
    assert torch.equal(late, x.expand(2, 3, 2))
    assert kept_by_truncation(edges, none, rates, capacity=1).shape == (0,)


def test_bad_input_is_refused_in_a_sentence():
    edges, rates = uniform("line", 3)
    rings, x, at = drawn(rates, 5.0), normal(3, 2), times(5.0)
    wrong = {
        "at least one column": (x[:, :0], edges, rings, at),
        "join rows 0 to 1": (x[:2], edges, rings, at),
        "finite": (x / 0, edges, rings, at),
        "different nodes": (x, torch.tensor([[0, 0], [1, 2]]), rings, at),
        "ascending": (x, edges, rings, times(5.0, 1.0)),
        "at least 0": (x, edges, rings, times(-1.0)),
        "edges 0 to 1": (x, edges, rings._replace(which=rings.which + 2), at),
    }
    for words, given in wrong.items():
        refuses(words, gossip.randomised, *given)
    for values, words in {
        (1.0, -0.5): "entry 1 is -0.5",
        (0.0, 0.0): "all are 0",
        (math.nan, 1.0): "finite",
    }.items():
        with pytest.raises(InputError, match=words):
            gossip.poisson_rings(torch.tensor(values), 1.0, torch.Generator())
    refuses("until", gossip.poisson_rings, torch.ones(2), -1.0, torch.Generator())
