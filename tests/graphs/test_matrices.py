"""Claims about matrices of graphs: Metropolis weights, who is joined, nothing dense."""

from __future__ import annotations

import math

import networkx as nx
import pytest
import torch

from coterie.algorithms.agraf import agraf
from coterie.algorithms.loss_network import loss_network
from coterie.checks import InputError
from coterie.collaboration.weights import count_links
from coterie.graphs import (
    degrees,
    edges_of,
    fastest_mixing,
    gossip_matrix,
    laplacian_matrix,
    lazy,
    linked_pairs,
    loss_rates,
    max_degree,
    neighbourhoods,
    refuse_apart,
)
from coterie_theory.mixing import fixed_mixing
from support.refusals import refuses

REAL = torch.float64
GRAPHS = ("barbell", "complete", "erdos_renyi(0.4)", "expander(3)", "grid", "star")


@pytest.mark.parametrize("text", [*GRAPHS, "line", "ring", "expander"])
def test_gossip_matrices_are_those_of_metropolis_and_hastings(text):
    edges = edges_of(text, 12)
    sparse, degree = gossip_matrix(edges, 12), dict(nx.Graph(edges.tolist()).degree)
    assert sparse.layout == torch.sparse_coo and sparse.is_coalesced()
    assert sparse.values().shape == (2 * len(edges) + 12,)
    matrix = sparse.to_dense()
    assert matrix.dtype == REAL and torch.equal(matrix, matrix.T)
    listed = edges.tolist()
    for v in range(12):
        for w in range(v):
            share = 1 / (1 + max(degree[v], degree[w])) if [w, v] in listed else 0.0
            assert matrix[v, w].item() == pytest.approx(share, abs=0)
        # A sum of twelve numbers in double precision.
        assert matrix[v].sum().item() == pytest.approx(1.0, abs=1e-14)
        assert matrix[v, v] > 0
    assert fixed_mixing(sparse).rho > 0


def test_gossip_among_all_is_the_mean():
    found = gossip_matrix(edges_of("complete", 5), 5).to_dense()
    torch.testing.assert_close(found, torch.full((5, 5), 0.2, dtype=REAL))
    with pytest.raises(InputError, match="must join nodes 0 to 3, but one names 4"):
        gossip_matrix(edges_of("line", 5), 4)


def test_a_node_without_edges_keeps_its_model():
    matrix = gossip_matrix(torch.tensor([[0, 1]]), 3).to_dense()
    assert matrix[2].tolist() == [0.0, 0.0, 1.0]


@pytest.mark.parametrize("text", [*GRAPHS, "line", "ring", "torus", "geometric(0.6)"])
@pytest.mark.parametrize("kind", [max_degree, lazy, fastest_mixing])
def test_matrices_of_every_kind_are_doubly_stochastic_on_the_graph(text, kind):
    edges = edges_of(text, 12)
    matrix = kind(edges, 12)
    assert matrix.layout == torch.sparse_coo and matrix.dtype == REAL
    dense = matrix.to_dense()
    assert torch.equal(dense, dense.T) and (dense >= 0).all()
    assert (dense.sum(1) - 1).abs().max() < 1e-14
    near = torch.zeros(12, 12, dtype=torch.bool)
    near[edges[:, 0], edges[:, 1]] = True
    assert not dense[~(near | near.T | torch.eye(12, dtype=torch.bool))].any()


@pytest.mark.parametrize("text", ["ring", "star", "erdos_renyi(0.4)"])
def test_the_largest_degree_divides_the_laplacian(text):
    """Printed with the other sign, it would have an eigenvalue above 1 and diverge."""
    edges = edges_of(text, 9)
    graph = nx.Graph(edges.tolist())
    plain = torch.tensor(nx.laplacian_matrix(graph, range(9)).toarray(), dtype=REAL)
    d = max(dict(graph.degree).values())
    eye = torch.eye(9, dtype=REAL)
    torch.testing.assert_close(max_degree(edges, 9).to_dense(), eye - plain / d)
    torch.testing.assert_close(lazy(edges, 9).to_dense(), eye - plain / (2 * d))
    printed = torch.linalg.eigvalsh(eye + plain / d)
    assert printed.max() > 1.5
    assert (
        torch.linalg.eigvalsh(max_degree(edges, 9).to_dense()).abs().max() < 1 + 1e-12
    )


def test_laplacians_have_the_quadratic_form_of_their_weights():
    edges, rng = edges_of("grid", 12), torch.Generator().manual_seed(1)
    weights = torch.rand(len(edges), generator=rng, dtype=REAL)
    x = torch.rand(12, generator=rng, dtype=REAL)
    matrix = laplacian_matrix(edges, weights, 12)
    assert matrix.layout == torch.sparse_coo
    expected = sum(
        w * (x[a] - x[b]) ** 2 for w, (a, b) in zip(weights, edges, strict=True)
    )
    torch.testing.assert_close(x @ (matrix @ x), expected)
    message = "`weights` must be at least 0, but entry 0 is -1"
    refuses(message, laplacian_matrix, edges, -torch.ones(len(edges)), 12)


# The matrix that mixes fastest.


def slem(matrix: torch.Tensor) -> float:
    values = torch.linalg.eigvalsh(matrix.to_dense()).abs().sort().values
    return float(values[-2])


@pytest.mark.parametrize("n", [2, 3, 6, 9])
def test_the_fastest_chain_on_a_path_gives_each_edge_one_half(n):
    """Boyd, Diaconis, Sun, Xiao, "Fastest mixing Markov chain on a path", 2006."""
    found = fastest_mixing(edges_of("line", n), n)
    assert slem(found) == pytest.approx(math.cos(math.pi / n), abs=1e-6)


def test_the_fastest_on_a_star_and_among_all():
    # 1 - w and |1 - n w| are eigenvalues of a star, where (n - 1) w is at most 1.
    assert slem(fastest_mixing(edges_of("star", 7), 7)) == pytest.approx(
        5 / 6, abs=1e-6
    )
    assert slem(fastest_mixing(edges_of("complete", 6), 6)) < 1e-6


@pytest.mark.parametrize(
    ("text", "n"), [("ring", 7), ("ring", 8), ("torus", 9), ("hypercube", 16)]
)
def test_where_all_edges_are_alike_the_fastest_has_one_weight(text, n):
    """By convexity: `w = min(1 / d, 2 / (lambda_2 + lambda_n))` of the Laplacian."""
    edges = edges_of(text, n)
    ones = torch.ones(len(edges), dtype=REAL)
    values = torch.linalg.eigvalsh(laplacian_matrix(edges, ones, n).to_dense())
    low, high = float(values[1]), float(values[-1])
    w = min(1 / int(degrees(edges).max()), 2 / (low + high))
    found = slem(fastest_mixing(edges, n))
    assert found == pytest.approx(max(1 - w * low, w * high - 1), abs=1e-6)


@pytest.mark.parametrize("text", ["barbell", "erdos_renyi(0.4)", "grid", "line"])
def test_the_fastest_is_never_slower_than_others(text):
    edges = edges_of(text, 12)
    best = slem(fastest_mixing(edges, 12))
    for kind in (gossip_matrix, max_degree, lazy):
        assert best <= slem(kind(edges, 12))
    assert best < slem(gossip_matrix(edges, 12)) - 0.01


def test_no_small_change_of_weights_mixes_faster():
    """Least for every direction is least, for the function is convex."""
    edges, rng = edges_of("grid", 6), torch.Generator().manual_seed(0)
    best = fastest_mixing(edges, 6)
    share = best.to_dense()[edges[:, 0], edges[:, 1]]
    for _ in range(200):
        change = 0.01 * torch.randn(len(edges), generator=rng, dtype=REAL)
        other = (share + change).clamp(min=0)
        matrix = torch.eye(6, dtype=REAL) - laplacian_matrix(edges, other, 6).to_dense()
        if (matrix.diagonal() >= 0).all():
            assert slem(matrix) > slem(best) - 1e-6


def test_the_fastest_is_refused_for_many_edges():
    with pytest.raises(InputError, match="at most 1,000 edges, got 1,001"):
        fastest_mixing(edges_of("ring", 1001), 1001)


# The graph of a matrix.


def some_matrix(seed: int) -> torch.Tensor:
    """About a third of the entries of (7, 7), in either direction or in both."""
    rng = torch.Generator().manual_seed(seed)
    entries = torch.rand(7, 7, generator=rng, dtype=REAL)
    return torch.where(torch.rand(7, 7, generator=rng) < 0.3, entries, 0)


def layouts(matrix: torch.Tensor) -> dict[str, torch.Tensor]:
    """The matrix dense and sparse, with a stored 0, or with entries in two halves."""
    coo = matrix.to_sparse()
    places, values = coo.indices(), coo.values()
    zero = int((matrix == 0).flatten().nonzero()[0])
    corner = torch.tensor([[zero // len(matrix)], [zero % len(matrix)]])

    def made(places: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        size = tuple(matrix.shape)
        return torch.sparse_coo_tensor(places, values, size, check_invariants=True)

    return {
        "dense": matrix,
        "coo": coo,
        "with a zero": made(
            torch.cat([places, corner], 1), torch.cat([values, values.new_zeros(1)])
        ),
        "halves": made(places.repeat(1, 2), values.repeat(2) / 2),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", ["dense", "coo", "with a zero", "halves"])
def test_pairs_are_joined_by_an_entry_in_either_direction(seed, kind):
    matrix = some_matrix(seed)
    given = layouts(matrix)[kind]
    near = [
        [v, w]
        for v in range(7)
        for w in range(v + 1, 7)
        if matrix[v, w] != 0 or matrix[w, v] != 0
    ]
    assert linked_pairs(given).tolist() == near
    ordered = sum(bool(matrix[v, w]) for v in range(7) for w in range(7) if v != w)
    assert count_links(given) == ordered
    found = [circle.tolist() for circle in neighbourhoods(linked_pairs(given), 7)]
    assert found == [
        sorted({v, *(a + b - v for a, b in near if v in (a, b))}) for v in range(7)
    ]


def test_a_diagonal_joins_nobody():
    nobody = linked_pairs(torch.eye(3))
    assert nobody.shape == (0, 2)
    assert [c.tolist() for c in neighbourhoods(nobody, 3)] == [[0], [1], [2]]


def test_what_a_graph_has_is_found_in_its_matrix():
    for text in GRAPHS:
        edges = edges_of(text, 12)
        assert torch.equal(linked_pairs(gossip_matrix(edges, 12)), edges)


# Many nodes: a dense matrix of 20,000 of them would take 3.2 GB.


def test_twenty_thousand_nodes_are_ordinary(monkeypatch):
    n = 20_000
    edges = edges_of("ring", n)
    dense = torch.Tensor.to_dense

    def only_vectors(tensor: torch.Tensor) -> torch.Tensor:
        assert tensor.dim() < 2, "a matrix became dense."
        return dense(tensor)

    monkeypatch.setattr(torch.Tensor, "to_dense", only_vectors)
    matrix = gossip_matrix(edges, n)
    assert count_links(matrix) == 2 * n
    refuse_apart("ring", linked_pairs(matrix), n)
    method = agraf(matrix, lr=0.1)
    x = torch.arange(n, dtype=REAL)[:, None].repeat(1, 2)
    assert torch.equal(method.flow.init(x).x, x)
    assert torch.equal(loss_network(matrix).flow.edges, edges)
    # Two edges at every node, each busy for 1: p = min(1, 1 / 2).
    rates = loss_rates(edges, torch.ones(n, dtype=REAL))
    assert (rates == 0.5).all()
    apart = gossip_matrix(edges[1:-2], n)
    refuses("`mixing` must join all 20000 nodes", agraf, apart)
