"""Claims about walks: their chances, laws and trails, and when a token was where."""

from __future__ import annotations

import itertools

import networkx as nx
import pytest
import torch

from coterie import graphs
from coterie.checks import InputError

REAL = torch.float64
ON_CLIENTS = ("metropolis", "simple", "lazy", "iid", "cyclic")
# A triangle with a tail: degrees 2, 2, 3, 2, 1.
TAIL = torch.tensor([[0, 1], [0, 2], [1, 2], [2, 3], [3, 4]])


def graph_for(kind: str) -> torch.Tensor:
    return graphs.edges_of("complete", 5) if kind in graphs.WALKS[-3:] else TAIL


def chances(kind: str, v: int, w: int) -> float:
    """P_vw as the module says it, on the graph of `graph_for`."""
    graph = nx.Graph(graph_for(kind).tolist())
    degree = dict(graph.degree)
    near = graph.has_edge(v, w)
    return {
        "metropolis": near / (1 + max(degree[v], degree[w])),
        "simple": near / degree[v],
        "lazy": (near or v == w) / (degree[v] + 1),
        "iid": 1 / 5,
        "cyclic": float(w == (v + 1) % 5),
    }[kind]


@pytest.mark.parametrize("kind", ON_CLIENTS)
def test_matrices_have_the_chances_of_their_walks(kind):
    matrix = graphs.transition(kind, graph_for(kind), 5)
    assert matrix.layout == torch.sparse_coo and matrix.dtype == REAL
    dense = matrix.to_dense()
    for v in range(5):
        for w in range(5):
            if v != w or kind != "metropolis":
                assert dense[v, w].item() == pytest.approx(chances(kind, v, w))
    torch.testing.assert_close(dense.sum(1), torch.ones(5, dtype=REAL))


def test_metropolis_walks_are_gossip_matrices():
    assert torch.equal(
        graphs.transition("metropolis", TAIL, 5).to_dense(),
        graphs.gossip_matrix(TAIL, 5).to_dense(),
    )


@pytest.mark.parametrize("kind", ON_CLIENTS)
def test_the_law_of_a_walk_is_the_stationary_one_of_its_matrix(kind):
    edges = graph_for(kind)
    law = graphs.walk_on(kind, edges, 5).law
    torch.testing.assert_close(
        law, graphs.stationary_law(graphs.transition(kind, edges, 5))
    )
    torch.testing.assert_close(law.sum(), torch.tensor(1.0, dtype=REAL))


def test_non_backtracking_walks_use_all_directed_edges_alike():
    """So that they are at a client in proportion to its degree."""
    matrix = graphs.transition("non_backtracking", TAIL, 5)
    alike = torch.full((10,), 0.1, dtype=REAL)
    torch.testing.assert_close(graphs.stationary_law(matrix), alike)
    heads = torch.cat([TAIL, TAIL.flip(1)])[:, 1]
    law = torch.zeros(5, dtype=REAL).index_add_(0, heads, alike)
    torch.testing.assert_close(graphs.walk_on("non_backtracking", TAIL, 5).law, law)


def walk_steps(kind: str, steps: int, edges: torch.Tensor, n: int = 5) -> list[int]:
    walk, rng = graphs.walk_on(kind, edges, n), torch.Generator().manual_seed(3)
    found, trail = [0], walk.trail(0)
    for _ in range(steps):
        at, trail = walk.following(found[-1], trail, rng)
        found.append(at)
    return found


@pytest.mark.parametrize("kind", ON_CLIENTS)
def test_tokens_go_with_the_chances_of_the_matrix(kind):
    places = torch.tensor(walk_steps(kind, 8000, graph_for(kind)))
    steps = 5 * places[:-1] + places[1:]
    counts = torch.bincount(steps, minlength=25).view(5, 5).to(REAL)
    visits = counts.sum(1, keepdim=True)
    exact = graphs.transition(kind, graph_for(kind), 5).to_dense()
    # Five standard deviations of a share of that many draws.
    spare = 5 * (exact * (1 - exact) / visits).sqrt()
    assert ((counts / visits - exact).abs() <= spare + 1e-12).all()


def test_non_backtracking_tokens_turn_only_at_dead_ends():
    places = walk_steps("non_backtracking", 400, TAIL)
    for before, at, to in zip(places, places[1:], places[2:], strict=False):
        assert [min(at, to), max(at, to)] in TAIL.tolist()
        assert (before == to) == (at == 4)
    around = walk_steps("non_backtracking", 30, graphs.edges_of("ring", 6), 6)
    steps = {(w - v) % 6 for v, w in itertools.pairwise(around)}
    assert len(steps) == 1 and steps <= {1, 5}  # a rotation


def test_reshuffled_tokens_meet_everybody_in_every_lap():
    places = walk_steps("reshuffled", 199, graphs.edges_of("complete", 5))
    laps = [places[lap : lap + 5] for lap in range(0, 200, 5)]
    assert all(sorted(lap) == [0, 1, 2, 3, 4] for lap in laps)
    assert len({tuple(lap) for lap in laps}) > 20


def test_a_client_alone_keeps_the_token():
    none = torch.zeros(0, 2, dtype=torch.long)
    for kind in graphs.WALKS:
        walk = graphs.walk_on(kind, none, 1)
        assert walk.following(0, walk.trail(0), torch.Generator()) == (0, walk.trail(0))
        assert walk.law.tolist() == [1.0]


@pytest.mark.parametrize(
    ("kind", "text", "missing"),
    [
        ("cyclic", "line", "between clients 4 and 0"),
        ("cyclic", "star", "between clients 1 and 2"),
        ("reshuffled", "ring", "between clients 0 and 2"),
        ("iid", "ring", "between clients 0 and 2"),
    ],
)
def test_walks_that_need_an_edge_which_is_not_there_are_refused(kind, text, missing):
    with pytest.raises(InputError, match=f"`walk` {kind} needs an edge {missing}"):
        graphs.walk_on(kind, graphs.edges_of(text, 5), 5)


def test_bad_walks_are_refused():
    with pytest.raises(InputError, match="no way from node 0 to 2"):
        graphs.walk_on("simple", torch.tensor([[0, 1], [2, 3]]), 4)
    with pytest.raises(InputError, match="`walk` must be one of"):
        graphs.walk_on("random", TAIL, 5)
    with pytest.raises(InputError, match="reshuffled has no matrix"):
        graphs.transition("reshuffled", graphs.edges_of("complete", 4), 4)


# How long ago a token was everywhere.


@pytest.mark.parametrize("kind", ["lazy", "non_backtracking", "cyclic"])
def test_delays_are_those_of_a_plain_loop_and_epochs_bound_them(kind):
    places = walk_steps(kind, 600, graph_for(kind))
    exact, laps = graphs.Visits([0] * 5), graphs.Visits([0] * 5)
    bounds = []
    for t, client in enumerate(places):
        last = [
            max((s for s in range(t + 1) if places[s] == v), default=0)
            for v in range(5)
        ]
        delay = max(t - d for d in last)
        assert graphs.oldest(exact, client, t) == delay
        bounds.append(graphs.oldest_by_epochs(laps, client, t))
        assert bounds[-1] >= delay
    assert max(bounds[300:]) < 200  # it forgets


def test_the_printed_recursion_of_delays_never_decreases():
    """tau_t = max(tau_{t-1} + 1, t - d_{v_t}(t)) is t, however often all were met."""
    printed, last = 0, [0] * 5
    visits = graphs.Visits([0] * 5)
    for t, client in enumerate(
        walk_steps("cyclic", 200, graphs.edges_of("complete", 5))
    ):
        printed = max(printed + 1, t - last[client]) if t else 0
        last[client] = t
        delay = graphs.oldest(visits, client, t)
    assert printed == 200 and delay == 4
