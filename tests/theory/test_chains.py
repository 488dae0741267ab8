"""Claims about chains: golden times, identities, and what is refused."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import (
    edges_of,
    hitting_time,
    hitting_time_of,
    hitting_times,
    stationary_law,
    transition,
    walk_on,
)
from coterie_theory.decentralised.chains import (
    mixing_time,
    paths,
    period,
    relaxation_time,
)
from support.cover_times import cover_time
from support.refusals import refuses

REAL = torch.float64


def of(graph: nx.Graph) -> tuple[torch.Tensor, int]:
    named = nx.convert_node_labels_to_integers(graph, ordering="sorted")
    return torch.tensor(list(named.edges)), len(named)


def torus(side: int) -> nx.Graph:
    return nx.grid_2d_graph(side, side, periodic=True)


@pytest.mark.parametrize(
    ("graph", "expected"),
    [
        (nx.cycle_graph(20), 100),
        (nx.complete_graph(20), 20),
        (nx.hypercube_graph(4), 64 / 3),
        (torus(5), 36),
    ],
    ids=["cycle", "complete", "hypercube", "torus"],
)
def test_golden_hitting_times_of_simple_walks(graph, expected):
    chain = transition("simple", *of(graph))
    assert hitting_time(chain) == pytest.approx(expected, rel=1e-9)


def test_off_the_diagonal_of_a_complete_graph_it_takes_one_less():
    times = hitting_times(transition("simple", *of(nx.complete_graph(20))))
    assert times[0, 1].item() == pytest.approx(19)
    assert times[3, 3].item() == pytest.approx(20)


@pytest.mark.parametrize(
    ("graph", "hit", "mix", "quarter"),
    [
        (nx.cycle_graph(16), 96, 58, 18),
        (nx.cycle_graph(32), 384, 288, 73),
        (nx.cycle_graph(64), 1536, 1369, 292),
        (torus(4), 26.7, 7, None),
        (torus(8), 139.8, 38, None),
        (torus(12), 360.2, 99, None),
        (nx.complete_graph(9), 9, 1, 1),
    ],
)
def test_golden_times_of_lazy_walks(graph, hit, mix, quarter):
    chain = transition("lazy", *of(graph))
    assert hitting_time(chain) == pytest.approx(hit, abs=0.05)
    assert mixing_time(chain) == mix
    if quarter is not None:
        assert mixing_time(chain, 0.25) == quarter


def test_hitting_times_of_tokens_that_remember():
    ring = edges_of("ring", 7)
    assert hitting_time_of(walk_on("non_backtracking", ring, 7)) == pytest.approx(7)
    assert hitting_time_of(walk_on("cyclic", ring, 7)) == 7
    lazy = walk_on("lazy", ring, 7)
    assert hitting_time_of(lazy) == hitting_time(transition("lazy", ring, 7))
    # On a line it goes to the end and back: 2 (n - 1) to where it was.
    line = walk_on("non_backtracking", edges_of("line", 5), 5)
    assert hitting_time_of(line) == pytest.approx(8)
    everybody = walk_on("reshuffled", edges_of("complete", 4), 4)
    assert hitting_time_of(everybody) == longest_wait_of_reshuffling(4) == 5.5


def longest_wait_of_reshuffling(n: int) -> float:
    """For the first of an epoch: what is left of it, and then each place alike."""
    return n - 1 + sum(place / n for place in range(1, n + 1))


def random_chain(n: int, seed: int) -> torch.Tensor:
    """Not reversible, with a law of its own."""
    rng = torch.Generator().manual_seed(seed)
    chain = torch.rand(n, n, generator=rng, dtype=REAL) ** 3
    return chain / chain.sum(1, keepdim=True)


@pytest.mark.parametrize("seed", range(3))
def test_laws_hitting_and_mixing_times_are_those_of_their_definitions(seed):
    chain = random_chain(5, seed)
    law, times = stationary_law(chain), hitting_times(chain)
    torch.testing.assert_close(law @ chain, law)
    torch.testing.assert_close(law, torch.linalg.matrix_power(chain, 200)[0])
    # E[tau_w | v] = 1 + sum_{u != w} P_vu E[tau_w | u], also for v = w.
    for w in range(5):
        others = times[:, w].clone()
        others[w] = 0
        torch.testing.assert_close(times[:, w], 1 + chain @ others)
    torch.testing.assert_close(times.diagonal(), 1 / law)
    # Kemeny: the mean time to a client drawn by the law is the same from anywhere.
    means = (times.fill_diagonal_(0) * law).sum(1)
    torch.testing.assert_close(means, means[:1].expand(5))
    t, power = 1, chain.clone()
    while (power - law).abs().sum(1).max() / 2 > law.min() / 2:
        t, power = t + 1, power @ chain
    assert mixing_time(chain) == t


def test_a_periodic_walk_is_hit_but_does_not_mix():
    ring = transition("simple", edges_of("ring", 6), 6)
    assert period(ring) == 2 and hitting_time(ring) == pytest.approx(9)
    assert relaxation_time(ring) == math.inf
    refuses("it has period 2", mixing_time, ring)
    around = transition("cyclic", edges_of("ring", 6), 6)
    assert period(around) == 6 and hitting_time(around) == pytest.approx(6)
    assert period(transition("simple", edges_of("ring", 5), 5)) == 1


def test_chains_that_do_not_lead_everywhere_are_refused():
    trap = torch.tensor([[0.5, 0.5], [0.0, 1.0]])
    for function in (stationary_law, hitting_times, mixing_time, relaxation_time):
        refuses("no way from 0 to 1 and back", function, trap)
    with pytest.raises(InputError, match="every row of `chain` must sum to 1"):
        stationary_law(torch.tensor([[0.5, 0.4], [0.5, 0.5]]))


def test_relaxation_times_of_cycles_hypercubes_and_of_no_symmetry():
    for n in (5, 16):
        chain = transition("lazy", *of(nx.cycle_graph(n)))
        gap = 1 - (1 + 2 * math.cos(2 * math.pi / n)) / 3
        assert relaxation_time(chain) == pytest.approx(1 / gap)
    cube = transition("metropolis", *of(nx.hypercube_graph(4)))
    assert relaxation_time(cube) == pytest.approx(5 / 2)
    chain = random_chain(6, 1)
    second = sorted(abs(np.linalg.eigvals(chain.numpy())))[-2]
    assert relaxation_time(chain) == pytest.approx(1 / (1 - second))
    large = transition("metropolis", edges_of("ring", 2000), 2000)
    gap = 2 / 3 * (1 - math.cos(2 * math.pi / 2000))
    assert relaxation_time(large) == pytest.approx(1 / gap, rel=1e-6)


def test_cover_times_are_those_of_coupons_and_of_rotations():
    """The first place is met again too: n H_n coupons, and n steps around."""
    rng = torch.Generator().manual_seed(0)
    coupons = transition("iid", edges_of("complete", 6), 6)
    exact = 6 * sum(1 / k for k in range(1, 7))
    # A deviation of coupons is about 6, that of 3000 walks .11, and six means count.
    assert cover_time(coupons, rng, runs=3000) == pytest.approx(exact, abs=0.4)
    ring = transition("cyclic", edges_of("ring", 8), 8)
    assert cover_time(ring, rng, runs=2) == 8


def test_paths_have_the_chances_of_the_chain():
    chain, rng = random_chain(4, 2), torch.Generator().manual_seed(1)
    start = torch.zeros(20000, dtype=torch.long)
    steps = paths(chain, start, 2, rng)
    assert steps.shape == (3, 20000) and torch.equal(steps[0], start)
    shares = torch.bincount(steps[2], minlength=4) / 20000
    exact = (chain @ chain)[0]
    assert ((shares - exact).abs() < 5 * (exact / 20000).sqrt()).all()
