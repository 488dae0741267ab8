"""How fast averaging along a graph mixes, and what loss networks may promise."""

from __future__ import annotations

import heapq
import itertools
import math

import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import edges_of, loss_rates
from coterie_theory import mixing
from coterie_theory.mixing import Activations, Mixing
from support.refusals import refuses

REAL = torch.float64
SHARE = 1 - 1 / math.e


def pair(n, v, w):
    """The matrix that averages v and w."""
    matrix = torch.eye(n, dtype=REAL)
    matrix[v, v] = matrix[w, w] = matrix[v, w] = matrix[w, v] = 0.5
    return matrix


def pairs(edges):
    n = int(edges.max()) + 1
    return torch.stack([pair(n, v, w) for v, w in edges.tolist()])


def uniform(edges):
    return torch.full((len(edges),), 1 / len(edges), dtype=REAL)


def random_doubly_stochastic(seed, n=5):
    """A random mean of permutations, not symmetric."""
    rng = torch.Generator().manual_seed(seed)
    share = torch.rand(n, generator=rng, dtype=REAL)
    rows = [torch.eye(n, dtype=REAL)[torch.randperm(n, generator=rng)] for _ in share]
    return torch.einsum("p,pij->ij", share / share.sum(), torch.stack(rows))


SIZES = {"ring": 8, "line": 6, "star": 6, "complete": 5}
GRAPHS = {name: edges_of(name, n) for name, n in SIZES.items()}
every_graph = pytest.mark.parametrize("edges", GRAPHS.values(), ids=GRAPHS)


# Fixed matrices and products.


@pytest.mark.parametrize("n", [5, 8])
def test_a_lazy_ring_mixes_as_its_second_eigenvalue_says(n):
    ring = pairs(edges_of("ring", n)).mean(0)  # I - Laplacian / (2 n)
    rho = (1 - math.cos(2 * math.pi / n)) / n
    assert mixing.fixed_mixing(ring).rho == pytest.approx(rho)
    squared = mixing.fixed_mixing(ring @ ring)
    assert squared.rho == pytest.approx(1 - (1 - rho) ** 2)


@pytest.mark.parametrize("seed", range(5))
def test_without_symmetry_rho_is_still_the_worst_contraction(seed):
    matrix = random_doubly_stochastic(seed)
    constants = mixing.fixed_mixing(matrix)
    centred = torch.eye(5, dtype=REAL) - 0.2
    x = torch.randn(5, 200, generator=torch.Generator().manual_seed(seed), dtype=REAL)
    for _ in range(200):  # power iteration towards the worst x
        x = centred @ matrix.T @ matrix @ centred @ x
        x = x / x.norm(dim=0)
    worst = float((matrix @ x).norm(dim=0).max())
    assert worst == pytest.approx(1 - constants.rho)


def test_products_of_gossip_matrices_are_doubly_stochastic_and_not_symmetric():
    # Assumption 5.3.2 as printed asks for symmetry, which a product does not have.
    product = pair(4, 2, 3) @ pair(4, 1, 2) @ pair(4, 0, 1)
    ones = torch.ones(4, dtype=REAL)
    torch.testing.assert_close(product.sum(0), ones)
    torch.testing.assert_close(product.sum(1), ones)
    assert not torch.equal(product, product.T)
    assert 0 < mixing.fixed_mixing(product).rho < 1


def test_two_matchings_in_turn_average_four_nodes_exactly():
    even = pair(4, 0, 1) @ pair(4, 2, 3)
    odd = pair(4, 1, 2) @ pair(4, 3, 0)
    matrices = torch.stack([even, odd])
    constants = mixing.periodic_mixing(matrices)
    assert constants.rho == pytest.approx(1.0)
    assert constants.window == 2
    refuses("must mix within the window", mixing.periodic_mixing, matrices, window=1)


def test_a_window_counts_from_every_start():
    matrices = torch.stack([random_doubly_stochastic(s) for s in range(3)])
    constants = mixing.periodic_mixing(matrices, window=2)
    norms = []
    for k in range(3):
        product = matrices[(k + 1) % 3] @ matrices[k] - 0.2
        norms.append(float(torch.linalg.svdvals(product)[0]))
    assert constants.rho == pytest.approx(1 - max(norms))


# Random matrices.


@every_graph
def test_pairwise_averaging_is_a_random_matrix(edges):
    weights = torch.rand(len(edges), generator=torch.Generator().manual_seed(0))
    chance = weights.double() / weights.double().sum()
    one = mixing.pairwise_mixing(edges, chance)
    other = mixing.random_mixing(pairs(edges), chance)
    assert one.rho == pytest.approx(other.rho)
    assert one.window == other.window == 1


def test_the_ten_cycle_has_the_constants_of_the_specification():
    ring = edges_of("ring", 10)
    constants = mixing.pairwise_mixing(ring, uniform(ring))
    assert constants.rho == pytest.approx(0.0095952, abs=5e-8)
    assert constants.rho_bar == pytest.approx(0.0060653, abs=5e-8)
    gap = (2 - 2 * math.cos(2 * math.pi / 10)) / 10
    assert constants.rho == pytest.approx(1 - math.sqrt(1 - gap / 2))


def test_the_factor_one_half_of_randomised_gossip_is_needed():
    # One edge of two nodes: the eigengap is 2, and averaging is exact.
    edges = torch.tensor([[0, 1]])
    assert mixing.eigengap(edges, torch.ones(1, dtype=REAL)) == pytest.approx(2.0)
    assert mixing.pairwise_mixing(edges, torch.ones(1, dtype=REAL)).rho == 1.0


@every_graph
def test_the_worst_expected_contraction_is_reached_by_an_eigenvector(edges):
    n = int(edges.max()) + 1
    laplacian = sum(2 * (torch.eye(n, dtype=REAL) - p) for p in pairs(edges))
    x = torch.linalg.eigh(laplacian / len(edges)).eigenvectors[:, 1]
    expected = float((pairs(edges) @ x).square().sum(1).mean())
    constants = mixing.pairwise_mixing(edges, uniform(edges))
    assert expected == pytest.approx((1 - constants.rho) ** 2)


def test_averaging_now_and_then_divides_by_the_steps_between():
    assert mixing.every(5) == Mixing(1.0, 5)
    pairwise = mixing.pairwise_mixing(edges_of("ring", 6), uniform(edges_of("ring", 6)))
    assert mixing.every(5, pairwise) == Mixing(pairwise.rho, 5)
    assert mixing.every(1, pairwise) == pairwise
    buffered = mixing.every(5, pairwise).rho_bar
    assert buffered == pytest.approx(pairwise.rho_bar / 5)


# Conversions of Proposition 5.A.1.


@pytest.mark.parametrize("rho", [0.001, 0.1, 0.29, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("window", [1, 2, 3, 10, 100])
def test_rho_bar_bounds_the_decay_at_every_step(rho, window):
    # The slowest schedule with these constants contracts at the end of windows only.
    rho_bar = Mixing(rho, window).rho_bar
    for steps in range(8 * window):
        slowest = (1 - rho) ** (2 * (steps // window))
        assert slowest <= 2 * (1 - rho_bar) ** (2 * steps) * (1 + 1e-12)


@pytest.mark.parametrize("steps", [2, 5, 50])
def test_rho_bar_without_a_cap_on_rho_fails_just_before_the_average(steps):
    # Exact averaging every H steps: before it, nothing has happened.
    uncapped = SHARE / steps
    assert 2 * (1 - uncapped) ** (2 * (steps - 1)) < 1
    assert 2 * (1 - mixing.every(steps).rho_bar) ** (2 * (steps - 1)) >= 1
    assert mixing.every(steps).rho_bar == pytest.approx(
        SHARE * (1 - math.sqrt(0.5)) / steps
    )


def test_the_printed_cap_of_proposition_5_a_1_is_negative():
    assert 1 - math.sqrt(2) < 0 < 1 - 1 / math.sqrt(2)
    assert 1 / (1 - (1 - 1 / math.sqrt(2))) ** 2 == pytest.approx(2)  # what it needs
    # So rho counts as that at most, where windows are longer than 1.
    cap = 1 - 1 / math.sqrt(2)
    found = mixing.Mixing(1.0, window=3).rho_bar
    assert found == mixing.Mixing(cap, window=3).rho_bar
    assert found == pytest.approx((1 - 1 / math.e) * cap / 3)


@pytest.mark.parametrize("rho", [0.01, 0.3, 0.9])
@pytest.mark.parametrize("rho_bar", [0.003, 0.05, 0.2])
def test_windows_are_the_shortest_that_suffice_and_the_printed_ones_do_not(
    rho, rho_bar
):
    window = mixing.window_of(rho, rho_bar)
    assert 2 * (1 - rho_bar) ** (2 * window) <= (1 - rho) ** 2 * (1 + 1e-12)
    assert 2 * (1 - rho_bar) ** (2 * (window - 1)) > (1 - rho) ** 2
    logarithms = 0.5 * math.log(2) * math.log(1 - rho)
    printed = math.ceil(logarithms / math.log(1 - rho_bar))
    assert printed < window
    assert 2 * (1 - rho_bar) ** (2 * printed) > (1 - rho) ** 2


def test_conversions_there_and_back_lose_a_constant():
    there = Mixing(0.05, 7)
    back = mixing.window_of(0.05, there.rho_bar)
    # ln(2) / 2 + rho over rho_bar, against rho / rho_bar: a factor 8 / 0.63 here.
    assert 7 < back < 7 * 13


# Estimates.


def test_the_estimate_for_a_fixed_matrix_is_exact():
    ring = pairs(edges_of("ring", 5)).mean(0)
    rho = mixing.fixed_mixing(ring).rho
    found = mixing.estimated_rho_bar(
        lambda rng: ring.expand(20, 5, 5), torch.Generator(), runs=1
    )
    assert found == pytest.approx(rho)


def test_the_estimate_for_random_pairs_of_a_complete_graph_is_near_the_truth():
    edges, steps = edges_of("complete", 5), 12
    matrices = pairs(edges)

    def draw(rng):
        return matrices[torch.randint(len(edges), (steps,), generator=rng)]

    # There every x contracts alike in expectation, so that the decay is no faster.
    rho = mixing.pairwise_mixing(edges, uniform(edges)).rho
    found = mixing.estimated_rho_bar(draw, torch.Generator().manual_seed(0), runs=1500)
    assert found == pytest.approx(rho, rel=0.1)


# Loss networks.


def delays(edges, seed):
    rng = torch.Generator().manual_seed(seed)
    n = int(edges.max()) + 1
    links = 10 ** (torch.rand(len(edges), generator=rng, dtype=REAL) * 2 - 1)
    computing = 10 ** (torch.rand(n, generator=rng, dtype=REAL) * 2 - 1)
    return links, computing


@every_graph
@pytest.mark.parametrize("seed", [0, 1])
def test_loss_networks_have_the_parameters_of_theorem_5_5(edges, seed):
    links, computing = delays(edges, seed)
    busy = mixing.busy_times(edges, links, computing)
    rates = loss_rates(edges, busy)
    wait = mixing.waiting_times(edges, rates, busy, chance=0.1)
    listed = [set(e) for e in edges.tolist()]
    degree = [sum(v in e for e in listed) for v in range(int(edges.max()) + 1)]
    assert mixing.degrees(edges).tolist() == degree
    factor = 1 / abs(math.log(1 - (1 - 1 / math.e) / math.e))
    assert factor == pytest.approx(3.7782, abs=5e-5)
    weights = []
    for e, (v, w) in enumerate(edges.tolist()):
        near = [f for f, other in enumerate(listed) if other & {v, w}]
        expected = float(links[e]) + max(float(computing[v]), float(computing[w]))
        assert float(busy[e]) == pytest.approx(expected)
        longest = max(float(busy[f]) for f in near)
        p = 1 / longest
        if max(degree[v], degree[w]) > 1:
            p = min(p, 1 / (2 * (max(degree[v], degree[w]) - 1) * float(busy[e])))
        assert float(rates[e]) == pytest.approx(p)
        time = factor * math.log(10) * (1 / p + longest)
        assert float(wait[e]) == pytest.approx(time)
        weights.append(min(float(rates[f]) for f in near))
    weights = torch.tensor(weights, dtype=REAL) / (max(degree) * rates.sum())
    expected = mixing.eigengap(edges, weights)
    assert mixing.loss_eigengap(edges, rates) == pytest.approx(expected)


def test_the_printed_logarithm_of_theorem_5_5_is_negative():
    printed = 1 / math.log(1 - (1 - 1 / math.e) / math.e)
    assert printed == pytest.approx(-3.7782, abs=5e-5)
    one, rates = torch.tensor([[0, 1]]), torch.ones(1, dtype=REAL)
    wait = mixing.waiting_times(one, rates, rates, chance=0.1)
    assert float(wait) == pytest.approx(-printed * math.log(10) * 2)


def test_lambda_has_the_values_of_the_specification():
    for edges, expected in (
        (edges_of("ring", 16), 4.8e-3),
        (edges_of("grid", 16), 4.9e-3),
        (edges_of("complete", 10), 0.0247),
    ):
        rates = loss_rates(edges, torch.ones(len(edges), dtype=REAL))
        found = mixing.loss_eigengap(edges, rates)
        assert found == pytest.approx(expected, rel=0.011)  # two digits are given


@every_graph
@pytest.mark.parametrize("factor", [1e-3, 7.0])
def test_another_clock_scales_rates_and_leaves_exchanges_alone(edges, factor):
    busy = mixing.busy_times(edges, *delays(edges, 3))
    rates = loss_rates(edges, busy)
    slow = loss_rates(edges, factor * busy)
    torch.testing.assert_close(slow, rates / factor)
    one, other = (mixing.loss_eigengap(edges, r) for r in (rates, slow))
    assert one == pytest.approx(other)


@every_graph
def test_the_neighbours_of_an_edge_leave_it_alone_with_chance_one_in_e(edges):
    # The queue of Lemma 5.C.2 is empty with chance exp(-sum p tau'), over all others.
    busy = mixing.busy_times(edges, *delays(edges, 6))
    load, listed = loss_rates(edges, busy) * busy, edges.tolist()
    near = torch.tensor([[bool({*e} & {*f}) for f in listed] for e in listed])
    others = near & ~torch.eye(len(edges), dtype=torch.bool)
    assert (others.double() @ load).max() <= 1 + 1e-12
    equal = torch.ones(len(edges), dtype=REAL)
    load = loss_rates(edges, equal) * equal
    if len(edges) == 8:  # the cycle: with an edge's own exchanges it is 3/2
        assert (near.double() @ load).max() == pytest.approx(1.5)


def exchanges(edges, rates, busy, rng, *, until):
    """Times and edges of a loss network, in which all nodes are idle at first."""
    clocks = [(rng.exponential(1 / p), e) for e, p in enumerate(rates)]
    heapq.heapify(clocks)
    free, log = np.zeros(int(edges.max()) + 1), []
    while not until(log, clocks[0][0]):
        now, e = heapq.heappop(clocks)
        ends = edges[e]
        if (free[ends] <= now).all():
            free[ends] = now + busy[e]
            log.append((now, e))
        heapq.heappush(clocks, (now + rng.exponential(1 / rates[e]), e))
    return log


@pytest.mark.parametrize("name", ["ring", "star"])
def test_edges_are_used_within_their_waiting_time_but_for_the_chance_given(name):
    edges = GRAPHS[name]
    busy = mixing.busy_times(edges, *delays(edges, 4))
    rates = loss_rates(edges, busy)
    chance, runs, rng = 0.2, 150, np.random.default_rng(0)
    wait = mixing.waiting_times(edges, rates, busy, chance=chance).numpy()
    plain, p, hold = edges.numpy(), rates.numpy(), busy.numpy()
    missed = np.zeros(len(edges))
    for _ in range(runs):
        log = exchanges(plain, p, hold, rng, until=lambda log, now: now > wait.max())
        for e in range(len(edges)):
            missed[e] += not any(f == e and now <= wait[e] for now, f in log)
    assert (missed / runs).max() <= chance


@pytest.mark.parametrize("slow", [1.0, 20.0])
def test_loss_networks_mix_faster_than_lambda(slow):
    edges, steps = edges_of("ring", 6), 60
    busy = torch.ones(6, dtype=REAL)
    busy[0] = slow
    rates, matrices = loss_rates(edges, busy), pairs(edges)
    chances = np.random.default_rng(1)
    plain, p, hold = edges.numpy(), rates.numpy(), busy.numpy()

    def draw(rng):
        log = exchanges(
            plain, p, hold, chances, until=lambda log, now: len(log) == steps
        )
        return matrices[[e for _, e in log]]

    found = mixing.estimated_rho_bar(draw, torch.Generator(), runs=60)
    squared = 1 - (1 - found) ** 2  # decay of |x - x_bar|^2 per exchange
    assert squared >= mixing.loss_eigengap(edges, rates)


# Any order of edges.


def mean_spread(order, edges, x, window):
    """mean over k <= l < k + T of |W_{l-1} ... W_0 x - x_bar|^2, for all k."""
    x = x - x.mean()
    values = [float(x.square().sum())]
    for e in order:
        v, w = edges[e].tolist()
        x = pair(len(x), v, w) @ x
        values.append(float(x.square().sum()))
    return [sum(values[k : k + window]) / window for k in range(len(values) - window)]


@every_graph
def test_edges_in_turn_contract_as_theorem_5_6_says(edges):
    count = len(edges)
    known = Activations(torch.ones(count, dtype=REAL), a=count, b=1.0, window=count)
    gap = mixing.activation_gap(edges, known)
    most = int(mixing.degrees(edges).max())
    weight = 1 / (2 * (2 * count + 8 * most**2 * count))
    expected = mixing.eigengap(edges, torch.full((count,), weight, dtype=REAL))
    assert gap == pytest.approx(expected)
    rng = torch.Generator().manual_seed(0)
    for _ in range(3):
        turn = torch.randperm(count, generator=rng).tolist()
        x = torch.randn(int(edges.max()) + 1, generator=rng, dtype=REAL)
        spread = mean_spread(turn * 6, edges, x, count)
        for now, then in itertools.pairwise(spread):
            assert then <= (1 - gap) * now + 1e-15  # below rounding of 1


def test_an_edge_that_is_rarely_used_contracts_as_theorem_5_6_says():
    # On a line of 4, the last edge is used once in 9 steps, the others in turn.
    edges, turn = edges_of("line", 4), [0, 1, 0, 1, 0, 1, 0, 1, 2]
    lengths = torch.tensor([1.0, 1.0, 3.0], dtype=REAL)
    # Gaps 3, 3 and 9 are a l_e for a = 3; between two uses of the last edge the middle
    # one is used 4 times, at most ceil(3 b) for b = 4/3.
    known = Activations(lengths, a=3.0, b=4 / 3, window=9)
    gap = mixing.activation_gap(edges, known)
    x = torch.tensor([1.0, -2.0, 0.5, 4.0], dtype=REAL)
    spread = mean_spread(turn * 8, edges, x, 9)
    for now, then in itertools.pairwise(spread):
        assert then <= (1 - gap) * now + 1e-15


def test_a_mean_over_later_steps_does_not_bound_the_first_as_printed_in_5_c_4():
    # Two nodes that average at the second step: |x^0|^2 / 2 is above the mean over T.
    edges, x = torch.tensor([[0, 1]]), torch.tensor([1.0, -1.0], dtype=REAL)
    (first, *_), window = mean_spread([0] * 6, edges, x, 5), 5
    assert first == pytest.approx(2 / window) and first < float(x.square().sum()) / 2
    constants = mixing.likely_mixing(0.1, window=20)
    assert constants.window == 60
    left = 0.25 * 0.9 ** (20 / 3) + 0.75
    assert (1 - constants.rho) ** 2 == pytest.approx(left)


@every_graph
def test_constants_of_loss_networks_are_those_of_5_c_3(edges):
    busy = mixing.busy_times(edges, *delays(edges, 5))
    rates = loss_rates(edges, busy)
    known = mixing.loss_activations(edges, rates)
    total, count = float(rates.sum()), len(edges)
    tries = 3.77822 * math.log(6 * count)
    window = math.ceil(2 * total / float(rates.min()) * tries)
    assert known.window == pytest.approx(window, abs=1)
    b = 2 * math.e * 3.77822 * math.log(6 * count * known.window)
    assert known.b == pytest.approx(b, rel=1e-5)
    assert known.a == pytest.approx(total * b, rel=1e-5)
    # Long enough for every edge: T exchanges take about T / I, or more.
    wait = mixing.waiting_times(edges, rates, busy, chance=1 / (6 * count))
    assert known.window >= total * float(wait.max()) - 1
    gap = mixing.activation_gap(edges, known)
    assert 0 < gap < mixing.loss_eigengap(edges, rates)
    assert mixing.likely_mixing(gap, known.window).rho_bar > 0


# What is refused.


def test_what_does_not_mix_is_refused_in_one_sentence():
    apart = torch.tensor([[0, 1], [2, 3]])
    refuses("must connect all 4 nodes", mixing.pairwise_mixing, apart, uniform(apart))


def test_bad_matrices_edges_and_delays_are_refused_in_one_sentence():
    rows = torch.tensor([[1.0, 0.0], [1.0, 0.0]])
    refuses("every column of `matrix 0` must sum to 1", mixing.fixed_mixing, rows)
    with pytest.raises(InputError, match="every row of `matrix 0` must sum to 1"):
        mixing.fixed_mixing(rows.T.contiguous())
    with pytest.raises(InputError, match="`edges` must be pairs of different nodes"):
        mixing.degrees(torch.tensor([[1, 1]]))
    with pytest.raises(InputError, match="`edges` must not repeat a pair"):
        mixing.degrees(torch.tensor([[0, 1], [1, 0]]))
    with pytest.raises(InputError, match="`links` must be positive, but entry 1 is 0"):
        mixing.busy_times(edges_of("line", 3), torch.tensor([1.0, 0.0]), torch.ones(3))
    with pytest.raises(InputError, match="`busy` must be positive, but entry 0 is -1"):
        loss_rates(edges_of("line", 3), torch.tensor([-1.0, 1.0]))
    with pytest.raises(InputError, match="`probabilities` must sum to 1"):
        mixing.random_mixing(pairs(edges_of("line", 3)), torch.tensor([0.3, 0.3]))
    with pytest.raises(InputError, match="`probabilities` must sum to at most 1"):
        mixing.pairwise_mixing(edges_of("line", 3), torch.tensor([0.7, 0.7]))
