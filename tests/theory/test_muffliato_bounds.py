"""How long and how well private averaging is, and what it costs in noise."""

import math

import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import contraction, degrees, edges_of, gossip_matrix
from coterie.privacy import Observer, mu_from, renyi
from coterie_theory.decentralised import muffliato as theory
from coterie_theory.decentralised.gossip import accelerated_rate, randomised_rate
from coterie_theory.gossip import chebyshev
from coterie_theory.privacy import exact_losses, muffliato

UNIT = {"clip": 1.0, "noise": 1.0}


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


def second_moment(n, edges, chances, start, meetings):
    """E |x - x_bar|^2 by random pairs, from E x x' itself."""
    moment = start
    for _ in range(meetings):
        after = (1 - sum(chances)) * moment
        for (v, w), chance in zip(edges.tolist(), chances, strict=True):
            a = np.zeros(n)
            a[v], a[w] = 1.0, -1.0
            meet = np.eye(n) - np.outer(a, a) / 2
            after = after + chance * meet @ moment @ meet
        moment = after
    return np.trace(moment)


@pytest.mark.parametrize("graph", ["ring", "complete", "star"])
def test_by_random_pairs_the_error_is_twice_the_noise_over_n_at_its_time(graph):
    """Theorem 6.3 and (6.9), with the moments of all pairs that may meet."""
    n, noise = 6, 0.3
    edges = edges_of(graph, n)
    chances = [1 / len(edges)] * len(edges)
    x = np.linspace(-0.5, 0.5, n)
    spread = float(x @ x) / n
    pace = randomised_rate(edges, torch.tensor(chances, dtype=torch.float64))
    rounds = theory.stopping_time(pace, n, noise, spread=spread)
    start = np.outer(x, x) + noise**2 * np.eye(n)
    for meetings in (0, 5, rounds):
        error = second_moment(n, edges, chances, start, meetings) / (2 * n)
        assert error <= theory.error_bound(pace, meetings, n, noise, spread=spread)
    assert error <= 2 * noise**2 / n


@pytest.mark.parametrize("graph", ["ring", "torus", "hypercube", "complete", "star"])
def test_accelerated_pairs_have_at_least_the_pace_of_remark_6_3_1(graph):
    """sqrt(lambda(p) / (d n)), where all pairs are drawn alike."""
    n = 64
    edges = edges_of(graph, n)
    rates = torch.full((len(edges),), 1 / len(edges), dtype=torch.float64)
    slow, fast = randomised_rate(edges, rates), accelerated_rate(edges, rates)
    d = int(degrees(edges).max())
    assert fast >= math.sqrt(2 * slow / (d * n)) * (1 - 1e-9)
    times = [theory.stopping_time(pace, n, 1.0) for pace in (fast, slow)]
    assert times[0] <= times[1]


def test_accelerated_pairs_obey_6_8_with_their_pace():
    """A ring of 16, in 30 runs of 40 draws of noise each."""
    n, noise = 16, 0.5
    edges = edges_of("ring", n)
    rates = torch.full((n,), 1 / n, dtype=torch.float64)
    x = torch.linspace(-0.5, 0.5, n, dtype=torch.float64)[:, None]
    spread = float(x.square().mean())
    found = accelerated_rate(edges, rates)
    until = theory.stopping_time(found, n, noise, spread=spread)
    assert until < theory.stopping_time(
        randomised_rate(edges, rates), n, noise, spread=spread
    )
    rng, error = torch.Generator().manual_seed(0), 0.0
    for _ in range(30):
        drawn = torch.randn(n, 40, generator=rng, dtype=torch.float64)
        given, free = (x + noise * drawn, edges, rates), {"clip": 1e9, "noise": 0.0}
        mixed = muffliato.accelerated(*given, until=float(until), **free, rng=rng).x
        error += float((mixed - x.mean()).square().mean()) / 2 / 30
    assert error <= theory.error_bound(found, until, n, noise, spread=spread)
    assert error <= 3 * noise**2 / n


def test_the_mean_loss_of_rounds_has_n_and_not_n_squared():
    """A ring: the rank of a view is more than d T / n^2 times n."""
    n, rounds = 16, 4
    matrix = gossip_matrix(edges_of("ring", n), n)
    given, rng = (torch.zeros(n, 1), matrix), torch.Generator().manual_seed(0)
    ledger = muffliato.synchronous(*given, rounds=rounds, **UNIT, rng=rng).ledger
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
        given = torch.zeros(n, 1), edges, chances
        ledger = muffliato.randomised(*given, meetings=ticks, **UNIT, rng=rng).ledger
        received += sum(2 * len(e.pairs) for e in ledger.events[1:]) / n / n / runs
    expected = theory.mean_loss_by_pairs(ticks, n) * (1 - 1 / n)
    assert received == pytest.approx(expected, rel=0.05)
    assert received > 1.8 * ticks / n**2  # as printed, with its 1/2 too many


def test_a_pair_on_a_complete_graph_has_the_mean_loss_of_the_specification():
    """n = 40, 148 meetings: a node receives 7.4 messages, and S is about .185."""
    n = 40
    edges = edges_of("complete", n)
    rng = torch.Generator().manual_seed(0)
    given = torch.zeros(n, 1), edges, torch.full((len(edges),), 1 / len(edges))
    ledger = muffliato.randomised(*given, meetings=148, **UNIT, rng=rng).ledger
    share = exact_losses(ledger).share
    assert float(share.sum()) / n**2 == pytest.approx(0.185, abs=0.01)


def test_on_a_secret_graph_others_lose_little_and_nobody_too_much():
    """The rank of a view, shared by all who could be exchanged, is below the bound."""
    n, rounds = 200, 6
    rng = torch.Generator().manual_seed(0)
    edges = muffliato.connected_edges(n, 1.5 * math.log(n) / n, rng)
    matrix = gossip_matrix(edges, n)
    v = int(degrees(edges).argmin())
    d = int(degrees(edges)[v])
    x = torch.zeros(n, 1)
    ledger = muffliato.synchronous(x, matrix, rounds=rounds, **UNIT, rng=rng).ledger
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


def test_mixtures_are_told_apart_as_little_as_lemma_6_a_1_says():
    """By quadrature; at `largest_order` c is 1, and its factor 2."""
    mu = 0.8
    alpha = theory.largest_order(mu)
    c = (alpha - 1) * renyi(mu, alpha)
    assert c == pytest.approx(1)
    x = np.linspace(-25, 25, 40_001)
    for places, shifts in (((0.0, 0.0), (0.0, mu)), ((-1.0, 2.0), (mu, -mu / 2))):
        each = [np.exp(-((x - place) ** 2) / 2) for place in places]
        moved = [
            np.exp(-((x - place - shift) ** 2) / 2)
            for place, shift in zip(places, shifts, strict=True)
        ]
        p, q = sum(moved) / math.sqrt(8 * math.pi), sum(each) / math.sqrt(8 * math.pi)
        ratio = np.exp(alpha * np.log(p) + (1 - alpha) * np.log(q))
        mixed = math.log(np.trapezoid(ratio, x)) / (alpha - 1)
        mean = sum(renyi(abs(shift), alpha) for shift in shifts) / 2
        assert mixed <= (1 + c) * mean


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

    some = theory.gossip_steps(0.25, 100, 0.1, dissimilarity=1e4, sampling=0.99)
    assert some == math.ceil(2 * math.log(1e4))


def excess_of_descent(graph, n, noise, problem, k=None):
    """The mean excess of Muffliato-GD on quadratics that differ, in 40 runs."""
    rng = torch.Generator().manual_seed(0)
    curvature = torch.tensor([[1.5, 2.0], [0.5, 4.0]], dtype=torch.float64)
    # Those of one half of a ring are alike, (n, 1, 2); the mean is 1 and 3.
    curvature = curvature.repeat_interleave(n // 2, 0)[:, None]
    centres = torch.linspace(-9, 9, n, dtype=torch.float64)[:, None, None]
    centres = centres.expand(n, 1, 2)
    best = (curvature * centres).mean(0) / curvature.mean(0)
    zeta = float((curvature * (best - centres)).square().sum(2).mean())
    matrix = gossip_matrix(edges_of(graph, n), n)
    gap = min(1.0, 1 - contraction([matrix]))
    k = k or theory.gossip_steps(gap, n, noise, dissimilarity=zeta, dim=2)
    x = (best + math.sqrt(0.5)).expand(n, 40, 2)  # at distance 1
    mean = torch.zeros(40, 2, dtype=torch.float64)
    for weight in theory.sgd_weights(problem).tolist():
        mean += weight * x.mean(0)
        drawn = torch.randn(x.shape, generator=rng, dtype=torch.float64)
        g = (x - centres) * curvature + noise * drawn
        moved = x - theory.sgd_step(problem) * g
        x = chebyshev(moved.flatten(1), matrix, rounds=k, gap=gap).reshape(x.shape)
    return float((curvature.mean(0) * (mean - best).square()).sum(1).mean()) / 2


def test_muffliato_gd_obeys_theorem_6_8_on_every_graph_and_needs_its_exchanges():
    """Up to the logarithm of its step; four times the clients, a quarter of it."""
    steps, noise, found = 150, 2.0, {}
    for n in (16, 64):
        problem = theory.PrivateDescent(n, steps, 2 * noise**2, 1.0, 1.0, 4.0)
        bound = theory.sgd_rate(problem) * math.log(n * steps / (2 * noise**2))
        on_two = [
            excess_of_descent(g, n, noise, problem) for g in ("hypercube", "ring")
        ]
        assert max(on_two) <= bound
        assert on_two[0] == pytest.approx(on_two[1], rel=0.2)
        found[n] = on_two[1]
    assert found[16] / found[64] == pytest.approx(4, rel=0.5)
    assert excess_of_descent("ring", 64, noise, problem, k=1) > bound


def test_the_trade_off_of_theorem_6_9_follows_from_its_noise():
    """alpha D Delta^2 d/(2 n^2 mu eps sqrt(l)) + rho^2/(n L), T = kappa."""
    n, dim, degree, loss, gap = 50, 3, 4, 0.5, 0.25
    mu, smoothness, sampling, alpha, sensitivity = 0.5, 20.0, 7.0, 3.0, 2.0
    steps, exchanges = round(smoothness / mu), round(1 / math.sqrt(gap))
    known = {"alpha": alpha, "sensitivity": sensitivity}
    received = steps * exchanges * degree
    noise = theory.sgd_noise(loss, n=n, received=received, **known)
    variance = dim * noise**2 + sampling
    problem = theory.PrivateDescent(n, steps, variance, 0.0, mu, smoothness)
    private = alpha * dim * sensitivity**2 * degree / (n**2 * mu * loss * gap**0.5)
    expected = private / 2 + sampling / (n * smoothness)
    assert theory.sgd_rate(problem) == pytest.approx(expected)


def test_weights_of_the_average_grow_by_a_factor_and_sum_to_one():
    problem = theory.PrivateDescent(10, 30, 1.0, 1.0, 0.5, 2.0)
    weights = theory.sgd_weights(problem)
    assert float(weights.sum()) == pytest.approx(1)
    factor = 1 / (1 - theory.sgd_step(problem) * 0.5 / 2)
    assert (weights[1:] / weights[:-1]).tolist() == pytest.approx([factor] * 29)


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
        (lambda: theory.sgd_rate(theory.PrivateDescent(5, 0, 1.0)), "`steps`"),
        (
            lambda: theory.sgd_step(theory.PrivateDescent(5, 9, 1.0, mu=2.0)),
            "at most `smooth",
        ),
    ],
)
def test_bad_numbers_are_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()
