"""How long and how well private averaging is, and what it costs in noise."""

import math

import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.gossip import chebyshev_factor
from coterie.graphs import contraction, degrees, edges_of, gossip_matrix
from coterie.privacy import Observer, exact_losses, mu_from, muffliato, renyi
from coterie.theory.decentralised import muffliato as theory


def test_the_stopping_times_of_the_figures():
    """Spec: hypercube of 2048 (gap 1/6) 19, grid of 2025 (gap 9.85e-4) 243."""
    assert theory.stopping_time(math.sqrt(1 / 6), 2048, 1.0) == 19
    assert theory.stopping_time(math.sqrt(9.85e-4), 2025, 1.0) == 243


def test_at_the_stopping_time_the_bound_is_three_times_the_noise_over_n():
    for gap in (0.01, 0.2, 1.0):
        for noise in (0.1, 1.0, 3.0):
            pace, n = math.sqrt(gap), 50
            rounds = theory.stopping_time(pace, n, noise)
            bound = theory.error_bound(pace, rounds, n, noise)
            assert bound <= 3 * noise**2 / n * (1 + 1e-12)


def test_chebyshev_polynomials_are_below_their_bound_but_not_that_of_the_proof():
    """P_t(x)^2 <= 2 e^{-t sqrt(l)} on |x| <= 1 - l; (1 - sqrt(l))^t fails at 1."""
    for gap in (1e-3, 0.1, 0.9):
        x = torch.linspace(-(1 - gap), 1 - gap, 101, dtype=torch.float64)
        omega = chebyshev_factor(gap)
        before, now = torch.ones_like(x), x
        for t in range(2, 40):
            before, now = now, omega * x * now + (1 - omega) * before
            assert float(now.square().max()) <= 2 * math.exp(-t * math.sqrt(gap))
    at_one = 1 - chebyshev_factor(1.0)  # P_2(0) for l = 1
    assert at_one**2 > (1 - math.sqrt(1.0)) ** 2


def test_the_mean_loss_of_rounds_has_n_and_not_n_squared():
    """A ring: the rank of a view is more than d T / n^2 times n."""
    n, rounds = 16, 4
    matrix = gossip_matrix(edges_of("ring", n), n)
    x = torch.zeros(n, 1)
    rng = torch.Generator().manual_seed(0)
    ledger = muffliato.synchronous(
        x, matrix, rounds=rounds, clip=1.0, noise=1.0, rng=rng
    ).ledger
    mean = float(exact_losses(ledger, [Observer((0,))]).mean()[0])
    assert mean <= theory.mean_loss(2, rounds, n)
    assert mean > 2 * rounds / n**2  # as printed


def test_the_mean_loss_by_pairs_is_twice_the_printed_one():
    """A complete graph with p = 2 W / n: E T_v = T pi_v, of which 1/n each."""
    n, ticks, runs = 40, 148, 10
    edges = edges_of("complete", n)
    chances = torch.full((len(edges),), 2 / n**2, dtype=torch.float64)  # W = J / n
    received = 0.0
    for seed in range(runs):
        rng = torch.Generator().manual_seed(seed)
        ledger = muffliato.randomised(
            torch.zeros(n, 1), edges, chances, meetings=ticks, clip=1, noise=1, rng=rng
        ).ledger
        received += sum(2 * len(e.pairs) for e in ledger.events[1:]) / n / n / runs
    expected = theory.mean_loss_by_pairs(ticks, n) * (1 - 1 / n)
    assert received == pytest.approx(expected, rel=0.05)
    assert received > 1.8 * ticks / n**2  # as printed, with its 1/2 too many


def test_a_pair_on_a_complete_graph_has_the_mean_loss_of_the_specification():
    """n = 40, 148 meetings: a node receives 7.4 messages, and S is about .185."""
    n = 40
    edges = edges_of("complete", n)
    rng = torch.Generator().manual_seed(0)
    ledger = muffliato.randomised(
        torch.zeros(n, 1),
        edges,
        torch.full((len(edges),), 1 / len(edges)),
        meetings=148,
        clip=1.0,
        noise=1.0,
        rng=rng,
    ).ledger
    share = exact_losses(ledger).share
    assert float(share.sum()) / n**2 == pytest.approx(0.185, abs=0.01)


def test_on_a_secret_graph_others_lose_little_and_nobody_more_than_locally():
    """The rank of a view, shared by all who could be exchanged, is below the bound."""
    n, rounds = 200, 6
    rng = torch.Generator().manual_seed(0)
    edges = muffliato.connected_edges(n, 1.5 * math.log(n) / n, rng)
    matrix = gossip_matrix(edges, n)
    v = int(degrees(edges).argmin())
    d = int(degrees(edges)[v])
    ledger = muffliato.synchronous(
        torch.zeros(n, 1), matrix, rounds=rounds, clip=1.0, noise=1.0, rng=rng
    ).ledger
    share = exact_losses(ledger, [Observer((v,))]).share[:, 0]
    others = torch.ones(n, dtype=torch.bool)
    others[v] = False
    others[edges[(edges == v).any(1)].flatten()] = False
    assert float(share[others].mean()) <= theory.secret_graph_loss(n, d, rounds)
    assert theory.secret_graph_loss(10, 5, 100) == 1.0


def test_with_a_trusted_server_the_error_falls_with_the_square_of_n():
    """The mean moves by Delta / n, and so little noise hides it."""
    alpha, loss, errors = 2.0, 1.0, []
    for n in (10, 20):
        noise = math.sqrt(alpha * (1 / n) ** 2 / (2 * loss))
        assert renyi(mu_from(1 / n, noise), alpha) == pytest.approx(loss)
        errors.append(noise**2)
    assert errors[0] / errors[1] == pytest.approx(4)  # and not 2, as printed


def test_orders_up_to_which_secret_graphs_are_covered():
    """sigma^2 >= Delta^2 alpha (alpha - 1) / 2 with equality."""
    for mu in (0.1, 1.0, 3.0):
        alpha = theory.largest_order(mu)
        assert 1 / mu**2 == pytest.approx(alpha * (alpha - 1) / 2)


@pytest.mark.parametrize(
    ("family", "sizes", "slope"),
    [
        ("hypercube", (32, 64, 128, 256, 512, 1024), -1.73),
        ("random_regular(4)", (32, 64, 128, 256, 512, 1024), -1.92),
        ("torus", (36, 64, 144, 256, 576, 1024), -1.55),
        ("ring", (32, 64, 128, 256, 512, 1024), -1.00),
        ("complete", (32, 64, 128, 256), -1.01),
    ],
)
def test_errors_at_a_mean_loss_fall_with_n_as_in_table_6_1(family, sizes, slope):
    errors = []
    for n in sizes:
        edges = edges_of(family, n)
        matrix = gossip_matrix(edges, n)
        gap, degree = 1 - contraction([matrix]), int(degrees(edges).max())
        gap = min(gap, 1.0)
        noise, _ = theory.noise_for_mean(1.0, n=n, degree=degree, gap=gap)
        errors.append(math.log(theory.error_of(noise, n) / math.log(n)))
    found = np.polyfit(np.log(sizes), errors, 1)[0]
    assert float(found) == pytest.approx(slope, abs=0.08)


def test_noise_and_rounds_of_a_plan_fit_each_other_and_fewer_rounds_do_not():
    noise, rounds = theory.noise_for_mean(1.0, n=100, degree=4, gap=0.05)
    assert theory.stopping_time(math.sqrt(0.05), 100, noise) <= rounds
    fewer = math.sqrt(theory.mean_loss(4, rounds - 1, 100))
    assert theory.stopping_time(math.sqrt(0.05), 100, fewer) > rounds - 1
    assert noise**2 == pytest.approx(theory.mean_loss(4, rounds, 100))


def test_exchanges_of_a_round_of_sgd():
    assert theory.gossip_steps(0.25, 100, 1.0) == math.ceil(2 * math.log(100))
    many = theory.gossip_steps(0.25, 100, 0.1, dissimilarity=1e4)
    assert many == math.ceil(2 * math.log(1e6))


def test_noise_for_a_mean_loss_over_all_steps_is_that_of_its_messages():
    """One step of T rounds is averaging."""
    n, degree, rounds = 50, 3, 12
    noise = theory.sgd_noise(1.0, n=n, received=degree * rounds)
    assert theory.mean_loss(degree, rounds, n) / noise**2 == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: theory.stopping_time(0.0, 10, 1.0), "`pace` must be greater than 0"),
        (lambda: theory.stopping_time(0.5, 10, -1.0), "`noise` must be greater than 0"),
        (lambda: theory.noise_for_mean(0.0, n=9, degree=2, gap=0.1), "`loss`"),
        (lambda: theory.secret_graph_loss(5, 5, 1), "`degree` must be at most 4"),
    ],
)
def test_bad_numbers_are_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()
