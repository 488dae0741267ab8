"""Claims about gossip in rounds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from coterie.conformance.cases import Setting, simulation_of
from coterie.conformance.federations import small_federation
from coterie.graphs import chebyshev_factor, contraction, edges_of, gossip_matrix
from coterie.types import traffic_of
from coterie_theory.decentralised.gossip import synchronous_bound
from coterie_theory.gossip import chebyshev, plain, time_varying
from support.refusals import refuses
from support.rings import deviation, normal


def lazy_ring(n: int):
    return gossip_matrix(edges_of("ring", n), n)


def test_plain_gossip_is_the_power_of_its_matrix():
    matrix, x = lazy_ring(6), normal(6, 3)
    expected = torch.linalg.matrix_power(matrix.to_dense(), 5) @ x
    assert_close(plain(x, matrix, rounds=5), expected)
    assert torch.equal(plain(x, matrix, rounds=0), x)


def test_the_deviation_falls_by_the_gap_in_every_round():
    matrix, x = lazy_ring(9), normal(9, 2)
    rho = 1 - contraction([matrix])
    for t in range(1, 30):
        bound = synchronous_bound(rho, t)
        assert deviation(plain(x, matrix, rounds=t)) <= bound * deviation(x)
        # The slowest eigenvector falls by the bound, and 1 stays.
        wave = (2 * math.pi / 9 * torch.arange(9, dtype=torch.float64)).cos()
        left = plain(1 + wave[:, None], matrix, rounds=t)
        assert deviation(left) == pytest.approx(bound * deviation(wave[:, None]))
        assert_close(left.mean(), torch.tensor(1.0, dtype=torch.float64))


def test_matrices_that_change_are_applied_in_turn():
    line = gossip_matrix(edges_of("line", 6), 6)
    x = normal(6, 2)
    found = time_varying(x, [lazy_ring(6), line, line])
    assert_close(found, line.to_dense() @ line.to_dense() @ lazy_ring(6).to_dense() @ x)


def test_chebyshev_is_its_polynomial_of_the_matrix():
    matrix, x = lazy_ring(10), normal(10, 2)
    gap = 1 - contraction([matrix])
    omega = chebyshev_factor(gap)
    values, vectors = torch.linalg.eigh(matrix.to_dense())
    before, now = torch.ones_like(values), values
    for _ in range(6):
        before, now = now, omega * values * now + (1 - omega) * before
    expected = vectors @ (now[:, None] * (vectors.T @ x))
    assert_close(chebyshev(x, matrix, rounds=7), expected)
    assert_close(chebyshev(x, matrix, rounds=7, gap=gap), expected)


@pytest.mark.parametrize("n", [20, 40, 80])
def test_chebyshev_obeys_its_bound_and_is_faster_than_plain_gossip(n):
    matrix = gossip_matrix(edges_of("line", n), n)
    x = torch.linspace(-1, 1, n, dtype=torch.float64)[:, None]
    gap = 1 - contraction([matrix])
    rounds = math.ceil(12 / math.sqrt(gap))
    left = deviation(chebyshev(x, matrix, rounds=rounds)) / deviation(x)
    assert left <= 2 * math.exp(-rounds * math.sqrt(gap))
    assert deviation(plain(x, matrix, rounds=rounds)) > 1000 * left * deviation(x)


@pytest.mark.parametrize("gap", [1e-5, 1e-3, 1e-2, 0.1, 0.3, 0.9, 1.0])
def test_the_polynomials_are_small_within_the_gap_as_the_bound_says(gap):
    omega, x = chebyshev_factor(gap), np.linspace(-1 + gap, 1 - gap, 501)
    before, now = np.ones_like(x), x
    for t in range(1, 200):
        assert (now**2).max() <= 2 * math.exp(-t * math.sqrt(gap))
        before, now = now, omega * x * now + (1 - omega) * before


def test_the_proof_s_sharper_form_of_the_bound_fails_for_a_gap_of_one():
    omega = chebyshev_factor(1.0)
    assert omega == pytest.approx(1.0718, abs=1e-4)
    # P_2(0) = 1 - omega, while (1 - sqrt(gap))^2 is 0.
    assert abs(1 - omega) > 0.07


def test_the_factor_is_that_of_the_identity_with_a_root():
    for gap in (1e-6, 0.01, 0.5, 1.0):
        c = 1 - gap / 2
        assert chebyshev_factor(gap) == pytest.approx(2 / (1 + math.sqrt(1 - c * c)))


def test_the_mean_stays_and_does_not_with_the_factor_on_the_first_round():
    matrix, x = lazy_ring(12), 1 + normal(12, 2)
    assert_close(chebyshev(x, matrix, rounds=25).mean(0), x.mean(0))
    omega = chebyshev_factor(1 - contraction([matrix]))
    before, now = torch.zeros_like(x), x  # as if x^{-1} were 0
    for _ in range(400):
        before, now = now, omega * (matrix @ now) + (1 - omega) * before
    assert_close(now.mean(0), x.mean(0) / (2 - omega))


def test_single_precision_stays_single():
    x = normal(6, 2).float()
    assert plain(x, lazy_ring(6), rounds=2).dtype == torch.float32
    assert chebyshev(x, lazy_ring(6), rounds=3).dtype == torch.float32


def test_products_may_be_those_of_an_oracle_which_counts_what_is_sent():
    federation = small_federation()
    oracle = simulation_of(federation, Setting()).at(1)
    matrix, x = lazy_ring(len(federation)), normal(len(federation), 2)
    found = chebyshev(x, matrix, rounds=4, mix=oracle.mix)
    assert_close(found, chebyshev(x, matrix, rounds=4))
    assert [sent.verb for sent in oracle.sent] == ["mix"] * 4
    # Both ways over each edge of the ring, a row of two numbers.
    assert traffic_of(oracle.sent).peers == 4 * 2 * len(federation) * 2


def test_relabelling_and_moving_commute_with_gossip():
    matrix, x = lazy_ring(7).to_dense(), normal(7, 2)
    names = torch.randperm(7, generator=torch.Generator().manual_seed(0))
    for way in (plain, chebyshev):
        found = way(x, matrix, rounds=5)
        moved = way(x[names] + 2, matrix[names][:, names], rounds=5)
        assert_close(moved, found[names] + 2)


def test_bad_input_is_refused_in_a_sentence():
    matrix, x = lazy_ring(6), normal(6, 2)
    swap = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    around = torch.eye(3, dtype=torch.float64).roll(1, 0)
    for words, call in {
        "column": lambda: plain(x[:, :0], matrix, rounds=1),
        "rounds": lambda: plain(x, matrix, rounds=-1),
        "finite": lambda: chebyshev(x / 0, matrix, rounds=1),
        "every row": lambda: plain(x, 2 * matrix, rounds=1),
        "non-negative": lambda: plain(x[:2], 2 * torch.eye(2) - swap.float(), rounds=1),
        "`gap` must be greater than": lambda: chebyshev(x[:2], swap, rounds=1),
        "symmetric": lambda: chebyshev(x[:3], around, rounds=1),
    }.items():
        refuses(words, call)
    apart = torch.eye(6, dtype=torch.float64)
    refuses("gap", chebyshev, x, apart, rounds=1)
