"""Claims about eigenvalues of graphs: closed forms, many nodes, nothing dense."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.graphs import (
    contraction,
    edges_of,
    eigengap,
    gossip_matrix,
    lazy,
    max_degree,
    spectral_gap,
)
from coterie.graphs.spectra import swaps
from coterie_theory.mixing import fixed_mixing, periodic_mixing
from support.refusals import refuses

REAL = torch.float64
RIGHT = 1e-8  # of itself: what is promised


def ones(edges: torch.Tensor) -> torch.Tensor:
    return torch.ones(len(edges), dtype=REAL)


def least_of_a_ring(n: int) -> float:
    """2 - 2 cos(2 pi / n), without cancellation."""
    return 4 * math.sin(math.pi / n) ** 2


# On both sides of where matrices become sparse.
LAPLACIANS = {
    "ring 40": (edges_of("ring", 40), least_of_a_ring(40)),
    "ring 3000": (edges_of("ring", 3000), least_of_a_ring(3000)),
    "line 2000": (edges_of("line", 2000), least_of_a_ring(4000)),
    "star 1000": (edges_of("star", 1000), 1.0),
    "complete 501": (edges_of("complete", 501), 501.0),
    "torus 10000": (edges_of("torus", 10_000), least_of_a_ring(100)),
    "torus of 3 sides": (edges_of("torus(3)", 9**3), least_of_a_ring(9)),
    "grid 2500": (edges_of("grid", 2500), least_of_a_ring(100)),
    "hypercube 16": (edges_of("hypercube", 16), 2.0),
    "hypercube 1024": (edges_of("hypercube", 1024), 2.0),
}


@pytest.mark.parametrize(
    ("edges", "gap"), LAPLACIANS.values(), ids=[*LAPLACIANS.keys()]
)
def test_eigengaps_have_their_closed_forms(edges, gap):
    assert eigengap(edges, ones(edges)) == pytest.approx(gap, rel=RIGHT)
    assert eigengap(edges, 7 * ones(edges)) == pytest.approx(7 * gap, rel=RIGHT)


def test_an_expander_of_ten_thousand_nodes_is_one():
    edges = edges_of("expander(4)", 10_000)
    gap = eigengap(edges, ones(edges))
    # Almost all 4-regular graphs are almost as good as any can be (Alon-Boppana).
    assert gap == pytest.approx(4 - 2 * math.sqrt(3), rel=0.02)


@pytest.mark.parametrize("text", ["expander(3)", "ring", "erdos_renyi(0.02)"])
def test_unequal_weights_give_what_a_dense_solver_gives(text):
    edges = edges_of(text, 600)
    rng = torch.Generator().manual_seed(0)
    weights = 10 ** (4 * torch.rand(len(edges), generator=rng, dtype=REAL) - 2)
    laplacian = torch.zeros(600, 600, dtype=REAL)
    for (v, w), weight in zip(edges.tolist(), weights, strict=True):
        laplacian[[v, w], [v, w]] += weight
        laplacian[[v, w], [w, v]] -= weight
    expected = np.linalg.eigvalsh(laplacian.numpy())[1]
    assert eigengap(edges, weights) == pytest.approx(expected, rel=1e-7)


@pytest.mark.parametrize("n", [40, 3000])
def test_weights_of_zero_join_nobody(n):
    edges = edges_of("ring", n)
    weights = ones(edges)
    weights[3] = 0.0  # which leaves a line
    gap = least_of_a_ring(2 * n)
    assert eigengap(edges, weights) == pytest.approx(gap, rel=RIGHT)
    weights[7] = 0.0
    refuses(f"must connect all {n} nodes", eigengap, edges, weights)


# Matrices to gossip with: on regular graphs of degree d, W = I - L / (d + 1).

FIXED = {
    "ring 3000": (edges_of("ring", 3000), least_of_a_ring(3000) / 3),
    "torus 2500": (edges_of("torus", 2500), least_of_a_ring(50) / 5),
    "star 1000": (edges_of("star", 1000), 1 / 1000),
    "complete 501": (edges_of("complete", 501), 1.0),
}


@pytest.mark.parametrize(("edges", "rho"), FIXED.values(), ids=[*FIXED.keys()])
def test_gossip_mixes_as_fast_as_its_closed_form_says(edges, rho):
    n = int(edges.max()) + 1
    found = fixed_mixing(gossip_matrix(edges, n)).rho
    assert found == pytest.approx(rho, rel=RIGHT)


def shift(n: int) -> torch.Tensor:
    """Everybody takes the model of the next one."""
    turn = torch.arange(n)
    return torch.sparse_coo_tensor(
        torch.stack([turn, (turn + 1) % n]),
        torch.ones(n, dtype=REAL),
        (n, n),
        check_invariants=True,
    )


@pytest.mark.parametrize("n", [6, 600])
def test_what_only_swaps_or_falls_apart_does_not_mix(n):
    two_sides = (shift(n) + shift(n).transpose(0, 1)) / 2  # even nodes, and odd ones
    parts = torch.cat([edges_of("ring", n - 3), torch.tensor([[n - 2, n - 1]])])
    for matrix in (shift(n), two_sides, gossip_matrix(parts, n)):
        assert contraction([matrix]) == pytest.approx(1.0, abs=1e-14)
        refuses("must mix within the window", fixed_mixing, matrix)


@pytest.mark.parametrize("n", [6, 600])
def test_without_symmetry_the_norm_counts(n):
    lazy = (shift(n) + torch.eye(n, dtype=REAL).to_sparse()) / 2
    # A circulant matrix is normal: |W - J| is the largest |1 + e^(ia)| / 2 = cos(a / 2)
    # for a = 2 pi / n.
    rho = 2 * math.sin(math.pi / (2 * n)) ** 2
    assert fixed_mixing(lazy).rho == pytest.approx(rho, rel=RIGHT)


def test_sparse_matrices_in_turn_mix_as_dense_ones_do():
    even = gossip_matrix(torch.tensor([[0, 1], [2, 3]]), 4)
    odd = gossip_matrix(torch.tensor([[1, 2], [0, 3]]), 4)
    both = periodic_mixing(torch.stack([even, odd]))
    assert both.window == 2 and both.rho == pytest.approx(1.0)
    dense = torch.stack([even.to_dense(), odd.to_dense()])
    assert periodic_mixing(dense, window=3).rho == pytest.approx(
        periodic_mixing(torch.stack([even, odd]), window=3).rho
    )


def test_many_matrices_in_turn_mix_as_their_product_does():
    n = 600
    ring = gossip_matrix(edges_of("ring", n), n)
    twice = periodic_mixing(torch.stack([ring, ring]))
    rho = least_of_a_ring(n) / 3
    assert twice.window == 2
    assert twice.rho == pytest.approx(1 - (1 - rho) ** 2, rel=1e-7)


# The gap rho of the thesis, min(1 - lambda_2, 1 + lambda_n).


@pytest.mark.parametrize("n", [10, 11, 600, 601])
def test_rings_have_the_gaps_of_their_closed_forms(n):
    """Eigenvalues of D - A are 2 - 2 cos(2 pi k / n)."""
    edges = edges_of("ring", n)
    least = least_of_a_ring(n)
    # Nobody counts itself: the smallest eigenvalue of W is -1 if n is even.
    low = 1 - 2 * math.sin(math.pi * (n // 2) / n) ** 2
    plain = min(least / 2, 1 + low)
    assert spectral_gap(max_degree(edges, n)) == pytest.approx(plain, abs=1e-9)
    assert (plain < 1e-12) == (n % 2 == 0)
    assert spectral_gap(lazy(edges, n)) == pytest.approx(least / 4, rel=RIGHT)
    assert spectral_gap(gossip_matrix(edges, n)) == pytest.approx(least / 3, rel=RIGHT)


@pytest.mark.parametrize("dim", [3, 4])
def test_a_hypercube_has_the_gap_of_its_dimension(dim):
    edges, n = edges_of("hypercube", 2**dim), 2**dim
    found = spectral_gap(gossip_matrix(edges, n))
    assert found == pytest.approx(2 / (dim + 1), rel=RIGHT)
    assert spectral_gap(max_degree(edges, n)) == pytest.approx(0, abs=1e-12)
    assert spectral_gap(lazy(edges, n)) == pytest.approx(1 / dim, rel=RIGHT)


def test_among_all_the_gap_is_not_one():
    """The largest degree is n - 1, and not n: an eigenvalue is -1 / (n - 1)."""
    found = spectral_gap(max_degree(edges_of("complete", 9), 9))
    assert found == pytest.approx(1 - 1 / 8)


def test_an_even_torus_does_not_converge_and_an_odd_one_does():
    even = edges_of("torus", 36)
    assert spectral_gap(max_degree(even, 36)) == pytest.approx(0, abs=1e-12)
    assert spectral_gap(lazy(even, 36)) == pytest.approx(least_of_a_ring(6) / 8)
    odd = edges_of("torus", 25)
    largest = 2 * (2 - 2 * math.cos(4 * math.pi / 5))  # of D - A, in both directions
    expected = min(least_of_a_ring(5) / 4, 2 - largest / 4)
    assert spectral_gap(max_degree(odd, 25)) == pytest.approx(expected)


@pytest.mark.parametrize("text", ["ring", "line", "torus", "star", "complete"])
@pytest.mark.parametrize("n", [9, 12, 16])
def test_graphs_that_only_swap_are_those_without_a_gap(text, n):
    edges = edges_of(text, n)
    assert swaps(edges, n) == (spectral_gap(max_degree(edges, n)) < 1e-12)
