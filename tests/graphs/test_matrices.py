"""Claims about matrices of graphs: Metropolis weights, who is joined, nothing dense."""

from __future__ import annotations

import networkx as nx
import pytest
import torch

from coterie.algorithms.agraf import agraf
from coterie.algorithms.loss_network import loss_network
from coterie.checks import InputError
from coterie.collaboration.weights import links
from coterie.graphs import circles, edges_of, gossip_matrix, joined, refuse_apart
from coterie.theory.mixing import fixed_mixing, loss_rates

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
    assert joined(given).tolist() == near
    ordered = sum(bool(matrix[v, w]) for v in range(7) for w in range(7) if v != w)
    assert links(given) == ordered
    found = [circle.tolist() for circle in circles(joined(given), 7)]
    assert found == [
        sorted({v, *(a + b - v for a, b in near if v in (a, b))}) for v in range(7)
    ]


def test_a_diagonal_joins_nobody():
    assert joined(torch.eye(3)).shape == (0, 2)
    assert [c.tolist() for c in circles(joined(torch.eye(3)), 3)] == [[0], [1], [2]]


def test_what_a_graph_has_is_found_in_its_matrix():
    for text in GRAPHS:
        edges = edges_of(text, 12)
        assert torch.equal(joined(gossip_matrix(edges, 12)), edges)


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
    assert links(matrix) == 2 * n
    refuse_apart("ring", joined(matrix), n)
    method = agraf(matrix, lr=0.1)
    x = torch.arange(n, dtype=REAL)[:, None].repeat(1, 2)
    assert torch.equal(method.flow.init(x).x, x)
    assert torch.equal(loss_network(matrix).flow.edges, edges)
    # Two edges at every node, each busy for 1: p = min(1, 1 / 2).
    rates = loss_rates(edges, torch.ones(n, dtype=REAL))
    assert (rates == 0.5).all()
    apart = gossip_matrix(edges[1:-2], n)
    with pytest.raises(InputError, match="`mixing` must join all 20000 nodes"):
        agraf(apart)
