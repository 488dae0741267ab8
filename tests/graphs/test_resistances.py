"""Claims about effective resistances: closed forms, Foster, and many nodes."""

from __future__ import annotations

import sys

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.graphs import edges_of, eigengap, laplacian_matrix, resistances

REAL = torch.float64
SOME = ["grid", "erdos_renyi(0.3)", "barbell", "complete", "star", "ring"]


def weights_of(edges: torch.Tensor, seed: int = 0) -> torch.Tensor:
    rng = torch.Generator().manual_seed(seed)
    return 0.1 + torch.rand(len(edges), generator=rng, dtype=REAL)


def by_pseudo_inverse(edges, weights, pairs, n):
    inverse = torch.linalg.pinv(laplacian_matrix(edges, weights, n).to_dense())
    v, w = pairs.T
    return inverse[v, v] + inverse[w, w] - 2 * inverse[v, w]


@pytest.mark.parametrize("text", SOME)
def test_resistances_are_those_of_the_pseudo_inverse(text):
    edges = edges_of(text, 40)
    weights = weights_of(edges)
    expected = by_pseudo_inverse(edges, weights, edges, 40)
    assert_close(resistances(edges, weights), expected, rtol=1e-10, atol=1e-12)


def test_any_pair_may_be_asked_for():
    edges = edges_of("grid", 30)
    weights = weights_of(edges)
    pairs = torch.tensor([[0, 29], [29, 0], [4, 4], [3, 17], [0, 1]])
    expected = by_pseudo_inverse(edges, weights, pairs, 30)
    assert_close(resistances(edges, weights, pairs), expected, rtol=1e-10, atol=1e-12)
    line = resistances(edges_of("line", 9), torch.ones(8), torch.tensor([[1, 7]]))
    assert_close(line, torch.tensor([6.0], dtype=REAL))


@pytest.mark.parametrize("text", [*SOME, "random_regular(4)", "geometric(0.4)"])
def test_facts_of_foster_and_rayleigh_hold(text):
    n = 60
    edges = edges_of(text, n)
    weights = weights_of(edges, 3)
    found = resistances(edges, weights)
    shares = weights * found
    assert float(shares.sum()) == pytest.approx(n - 1, rel=1e-10)  # Foster
    assert (shares <= 1 + 1e-10).all()
    largest = float(found.max())
    assert largest <= 1 / float(weights.min()) + 1e-10
    assert n - 1 <= largest * float(weights.sum()) + 1e-9
    assert largest <= 2 / eigengap(edges, weights)


@pytest.mark.parametrize("text", ["line", "star"])
def test_on_a_tree_resistances_are_those_of_the_edges(text):
    edges = edges_of(text, 12)
    weights = weights_of(edges)
    assert_close(resistances(edges, weights), 1 / weights)


@pytest.mark.parametrize(
    ("text", "n"), [("ring", 9), ("complete", 7), ("hypercube", 16), ("torus", 25)]
)
def test_where_all_edges_are_alike_and_chances_equal_it_is_one_less_than_nodes(text, n):
    edges = edges_of(text, n)
    chance = torch.full((len(edges),), 1 / len(edges), dtype=REAL)
    assert_close(resistances(edges, chance), torch.full_like(chance, n - 1))


@pytest.mark.parametrize("few", [0, 2, 5])
def test_it_does_not_matter_how_many_nodes_are_replaced(few, monkeypatch):
    edges = edges_of("erdos_renyi(0.3)", 30)
    weights = weights_of(edges)
    expected = by_pseudo_inverse(edges, weights, edges, 30)
    module = sys.modules[resistances.__module__]
    monkeypatch.setattr(module, "_FEW", few)
    assert_close(resistances(edges, weights), expected, rtol=1e-10, atol=1e-12)


def test_a_ring_of_ten_thousand():
    edges = edges_of("ring", 10_000)
    found = resistances(edges, torch.ones(len(edges)))
    assert_close(found, torch.full((10_000,), 0.9999, dtype=REAL))


def test_what_cannot_be_is_refused():
    edges = edges_of("line", 4)
    with pytest.raises(InputError, match="no way from node 0 to 2"):
        resistances(torch.tensor([[0, 1], [2, 3]]), torch.ones(2))
    for wrong in (0.0, -1.0):
        with pytest.raises(InputError, match="`weights`"):
            resistances(edges, torch.tensor([1.0, wrong, 1.0]))
    with pytest.raises(InputError, match="`pairs` must name nodes 0 to 3"):
        resistances(edges, torch.ones(3), torch.tensor([[0, 4]]))
    with pytest.raises(InputError, match="pairs of different nodes"):
        resistances(torch.tensor([[1, 1]]), torch.ones(1))
