"""Claims about who meets whom, and about graphs by name."""

from __future__ import annotations

from collections import Counter

import networkx as nx
import pytest
import torch

from coterie.graphs import GRAPHS, degrees, edges_of, matchings
from support.refusals import refuses


def draw_matchings(
    active: torch.Tensor, meetings: int, seed: int = 0
) -> list[list[int]]:
    rng = torch.Generator().manual_seed(seed)
    return matchings(active, meetings, rng).tolist()


def pairs(matching: list[int]) -> list[tuple[int, int]]:
    return [(i, j) for i, j in enumerate(matching) if i < j]


@pytest.mark.parametrize("clients", range(2, 10))
@pytest.mark.parametrize("extra", [0, 5])
def test_every_pair_meets_exactly_once_in_a_whole_tournament(clients, extra):
    everybody = torch.ones(clients, dtype=torch.bool)
    rounds = draw_matchings(everybody, clients - 1 + extra)
    # Of an odd number one rests in every round, which takes one round more.
    assert len(rounds) == clients - 1 + clients % 2
    met = Counter(pair for matching in rounds for pair in pairs(matching))
    assert met == {(i, j): 1 for i in range(clients) for j in range(i + 1, clients)}


@pytest.mark.parametrize("clients", range(2, 10))
def test_partners_are_mutual_nobody_meets_twice_and_one_rests_at_most(clients):
    everybody = torch.ones(clients, dtype=torch.bool)
    for meetings in range(clients - 1):
        rounds = draw_matchings(everybody, meetings, seed=meetings)
        assert len(rounds) == meetings
        for matching in rounds:
            assert all(matching[j] == i for i, j in enumerate(matching))
            assert sum(i == j for i, j in enumerate(matching)) == clients % 2
        met = [pair for matching in rounds for pair in pairs(matching)]
        assert len(set(met)) == len(met)


def test_inactive_clients_meet_nobody_and_the_others_all():
    active = torch.tensor([True, False, True, True, False, True, False])
    rounds = draw_matchings(active, 3)
    met = {pair for matching in rounds for pair in pairs(matching)}
    assert met == {(0, 2), (0, 3), (0, 5), (2, 3), (2, 5), (3, 5)}


def test_nobody_meets_where_one_is_alone_or_no_meetings_are_wanted():
    assert draw_matchings(torch.tensor([True]), 5) == []
    assert draw_matchings(torch.tensor([False, True]), 1) == []
    assert draw_matchings(torch.tensor([True, True]), 0) == []


def test_all_matchings_are_equally_likely():
    everybody = torch.ones(6, dtype=torch.bool)
    draws = 1500
    met = Counter(tuple(draw_matchings(everybody, 1, seed)[0]) for seed in range(draws))
    # Six clients can be paired in 5 * 3 = 15 ways: counts are binomial with mean 100
    # and a standard deviation of 9.7, and 5 of these are room for 15 of them.
    assert len(met) == 15
    assert all(abs(count - draws / 15) < 50 for count in met.values())


# Graphs by name.

SIZES = {
    "barbell": 2 * 15 + 1,
    "complete": 66,
    "expander(3)": 18,
    "expander": 24,
    "grid": 3 * 3 + 2 * 4,
    "geometric(1.5)": 66,  # longer than any way across the square
    "line": 11,
    "random_regular(3)": 18,
    "ring": 12,
    "small_world(4, 0.2)": 24,
    "star": 11,
    "stochastic_block(3, 1, 1)": 66,
    "torus": 24,
    "torus(1)": 12,
}


def as_networkx(edges: torch.Tensor) -> nx.Graph:
    return nx.Graph(edges.tolist())


@pytest.mark.parametrize("text", SIZES)
def test_families_have_their_numbers_of_edges_and_join_all(text):
    edges = edges_of(text, 12)
    assert len(edges) == SIZES[text]
    assert (edges[:, 0] < edges[:, 1]).all()
    assert edges.tolist() == sorted(edges.tolist())
    graph = as_networkx(edges)
    assert sorted(graph) == list(range(12)) and nx.is_connected(graph)


def test_every_graph_of_the_registry_is_tested_and_described():
    named = {text.partition("(")[0] for text in SIZES} | {"erdos_renyi", "hypercube"}
    assert set(GRAPHS) == named
    assert all(make.__doc__ for make in GRAPHS.values())


def test_neighbours_are_who_the_names_say():
    assert edges_of("line", 4).tolist() == [[0, 1], [1, 2], [2, 3]]
    assert edges_of("star", 4).tolist() == [[0, 1], [0, 2], [0, 3]]
    square = [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert edges_of("grid", 4).tolist() == square
    six = [[0, 1], [0, 3], [1, 2], [1, 4], [2, 5], [3, 4], [4, 5]]
    assert edges_of("grid", 6).tolist() == six  # rows 0 1 2 and 3 4 5
    assert set(degrees(edges_of("expander(5)", 16)).tolist()) == {5}
    assert edges_of("ring", 2).tolist() == edges_of("line", 2).tolist() == [[0, 1]]


def test_random_graphs_depend_on_the_seed_alone():
    for text in (
        "erdos_renyi(0.4)",
        "expander(4)",
        "geometric(0.5)",
        "small_world(4, 0.5)",
        "stochastic_block(2, 0.8, 0.3)",
    ):
        one, same, other = (edges_of(text, 20, seed) for seed in (1, 1, 2))
        assert torch.equal(one, same)
        assert one.shape != other.shape or not torch.equal(one, other)


@pytest.mark.parametrize("p", [0.3, 0.09])
def test_pairs_are_edges_with_the_chance_given(p):
    edges = edges_of(f"erdos_renyi({p})", 200)
    pairs = 200 * 199 / 2
    assert abs(len(edges) - p * pairs) < 5 * (p * (1 - p) * pairs) ** 0.5
    # Among the nodes below 100 as among all.
    quarter = 100 * 99 / 2
    low = int((edges < 100).all(1).sum())
    assert abs(low - p * quarter) < 5 * (p * (1 - p) * quarter) ** 0.5


def test_a_torus_is_a_product_of_rings_and_a_hypercube_one_of_edges():
    for text, n, sides in [("torus", 12, (3, 4)), ("torus(3)", 60, (3, 4, 5))]:
        expected = nx.grid_graph(sides, periodic=True)
        assert nx.is_isomorphic(as_networkx(edges_of(text, n)), expected)
    assert edges_of("torus(1)", 7).tolist() == edges_of("ring", 7).tolist()
    cube = as_networkx(edges_of("hypercube", 16))
    assert nx.is_isomorphic(cube, nx.hypercube_graph(4))


def test_a_small_world_begins_as_a_ring_of_near_neighbours():
    edges = {frozenset(edge) for edge in edges_of("small_world(4, 0)", 9).tolist()}
    near = {frozenset((v, (v + k) % 9)) for v in range(9) for k in (1, 2)}
    assert edges == near


def test_a_geometric_graph_is_that_of_the_distances_between_places():
    """Edges only appear as the radius grows, and their share is that of a disc."""
    small, large = (edges_of(f"geometric({r})", 400).tolist() for r in (0.15, 0.2))
    assert {*map(tuple, small)} <= {*map(tuple, large)}
    # Two uniform points are within r with chance pi r^2 - 8 r^3 / 3 + r^4 / 2.
    chance = 3.14159 * 0.2**2 - 8 * 0.2**3 / 3 + 0.2**4 / 2
    assert len(large) == pytest.approx(chance * 400 * 399 / 2, rel=0.1)


def test_blocks_have_the_chances_given_within_and_between():
    n, within, between = 300, 0.3, 0.05
    edges = edges_of(f"stochastic_block(3, {within}, {between})", n)
    same = (edges // 100)[:, 0] == (edges // 100)[:, 1]
    inside, across = 3 * 100 * 99 / 2, 3 * 100 * 100
    for found, p, total in [(same, within, inside), (~same, between, across)]:
        assert abs(int(found.sum()) - p * total) < 5 * (p * (1 - p) * total) ** 0.5
    apart = edges_of("stochastic_block(2, 1, 0.2)", 7).tolist()
    assert [[v, w] for v, w in apart if w < 4] == [
        [v, w] for v in range(4) for w in range(v + 1, 4)
    ]


@pytest.mark.parametrize("text", ["torus", "geometric(0.03)", "random_regular(4)"])
def test_ten_thousand_nodes_are_ordinary(text):
    edges = edges_of(text, 10_000)
    assert int(edges.max()) == 9_999 and (edges[:, 0] < edges[:, 1]).all()
    if text != "geometric(0.03)":
        assert (degrees(edges) == 4).all()


def test_complete_is_the_random_graph_in_which_every_pair_is_an_edge():
    assert torch.equal(edges_of("erdos_renyi(1)", 6), edges_of("complete", 6))


def test_a_graph_comes_from_a_file(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("w,v\n2,1\n0,1\n1,2\n")
    assert edges_of(str(path), 3).tolist() == [[0, 1], [1, 2]]


def test_a_file_may_call_nodes_by_name(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("v,w\nChur,Bern\nThun,Chur\n")
    names = ("Bern", "Chur", "Thun")
    assert edges_of(str(path), 3, names=names).tolist() == [[0, 1], [1, 2]]
    path.write_text("v,w\n0,1\n1,2\n")
    assert edges_of(str(path), 3, names=names).tolist() == [[0, 1], [1, 2]]
    path.write_text("v,w\nBern,Chur\nChurr,Thun\n")
    said = "row 3 .* names 'Churr', which is not a client. Did you mean 'Chur'"
    refuses(said, edges_of, str(path), 3, names=names)


def test_numbers_that_are_names_are_names(tmp_path):
    path = tmp_path / "edges.csv"
    path.write_text("v,w\n1,2\n2,0\n")
    assert edges_of(str(path), 3, names=("2", "1", "0")).tolist() == [[0, 1], [0, 2]]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ("v,w\n0,1\n3,2\n", "no way from node 0 to 2"),
        ("v,w\n0,1\n1,2\n2,4\n", "must have nodes 0 to 3, but .* names 4"),
        ("v,w\n", "no way from node 0 to 1"),
        ("v,w\n0,1\n1,1\n", "pairs of different nodes"),
        ("v,w\n-1,1\n", "pairs of different nodes"),
        ("v,w\n0,one\n", "row 2 of the graph .* must have two nodes"),
        ("v,w\n\n0\n", "row 3 of the graph .* must have two nodes"),
        ("v,u\n0,1\n", "has no column 'w'"),
    ],
)
def test_bad_files_are_refused_in_one_sentence(tmp_path, rows, words):
    path = tmp_path / "edges.csv"
    path.write_text(rows)
    refuses(words, edges_of, str(path), 4)


@pytest.mark.parametrize(
    ("text", "n", "words"),
    [
        ("rings", 6, "`graph` must be one of .* Did you mean 'ring'"),
        ("ring(3)", 6, "must be written `ring`, got 'ring.3.'"),
        ("erdos_renyi", 6, "must be written `erdos_renyi.p.`"),
        ("erdos_renyi(0.02)", 20, "`graph` must join all 20 nodes, but"),
        ("erdos_renyi(1.5)", 6, "`graph p` must be at most 1"),
        ("expander(3)", 7, "needs a whole degree with 7 degree even, got 3"),
        ("expander(9)", 6, "`graph degree` must be at most 5"),
        ("torus", 10, "needs 2 whole sides of at least 3 nodes, but 10 nodes cannot"),
        ("torus(1.5)", 9, "needs 1.5 whole sides"),
        ("hypercube", 12, "hypercube needs 2, 4, 8, ... nodes, got 12"),
        ("geometric(0)", 9, "`graph radius` must be .*, got 0"),
        ("geometric(0.001)", 9, "`graph` must join all 9 nodes, but"),
        ("small_world(3)", 9, "needs an even degree, got 3"),
        ("stochastic_block(2)", 9, "stochastic_block.blocks, within, between."),
        ("stochastic_block(2, 1, 0)", 9, "no way from node 0 to 4"),
        ("grid", 7, "7 nodes only make a line"),
        ("barbell", 7, "needs an even number of nodes, got 7"),
        ("ring", 1, "`number of nodes` must be at least 2, got 1"),
        ("nowhere.csv", 3, "cannot read the graph nowhere.csv"),
    ],
)
def test_graphs_that_cannot_be_are_refused_in_one_sentence(text, n, words):
    refuses(words, edges_of, text, n)
