"""What clients who share all they see can learn, by the formulas of 6.D.1."""

import itertools
import math

import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import contraction, gossip_matrix
from coterie.privacy import Observer, mu_from, renyi
from coterie_theory.decentralised import colluders
from coterie_theory.decentralised import muffliato as theory
from coterie_theory.privacy import exact_losses, muffliato, printed_losses
from support.gossip_views import gossip_ledger, metropolis

GRAPHS = ["line", "ring", "star", "erdos_renyi(0.5)", "complete"]


def pairs_and_triples(n):
    return [v for size in (2, 3) for v in itertools.combinations(range(n), size)]


# Known graphs.


def test_neighbours_of_those_who_share_are_counted_once_and_not_among_themselves():
    star, line = metropolis("star", 5), metropolis("line", 5)
    assert colluders.joint_degree(star, [1, 2, 3]) == 1
    assert colluders.joint_degree(star, [0, 1]) == 3
    assert colluders.joint_degree(line, [1, 3]) == 3
    assert colluders.joint_degree(line, [2, 3]) == 2


@pytest.mark.parametrize("graph", GRAPHS)
def test_corollary_6_d_1_is_above_6_15_for_all_who_share(graph):
    n, rounds = 6, 4
    matrix = metropolis(graph, n)
    together = pairs_and_triples(n)
    share = printed_losses(gossip_ledger(matrix, rounds), together).share
    for place, some in enumerate(together):
        bound = colluders.colluders_walk_bound(matrix, rounds, some)
        assert bool((share[:, place] <= bound + 1e-12).all())
        assert not bound[list(some)].any()


@pytest.mark.parametrize("graph", GRAPHS)
def test_corollary_6_d_1_is_that_of_walks_written_as_sums(graph):
    matrix = metropolis(graph, 6).to_dense()
    some, rounds = (1, 4), 3
    found = colluders.colluders_walk_bound(matrix, rounds, some)
    others = [w for w in range(6) if w not in some]
    weights = [float(matrix[v, w]) for v in some for w in others if matrix[v, w]]
    for u in others:
        total = sum(
            float(torch.linalg.matrix_power(matrix, t)[u, list(some)].sum()) ** 2
            for t in range(1, rounds + 1)
        )
        assert float(found[u]) == pytest.approx(6 * total / min(weights) ** 2)


@pytest.mark.parametrize("graph", GRAPHS)
def test_one_who_shares_with_nobody_has_the_bound_of_a_pair(graph):
    matrix = metropolis(graph, 7)
    for v in range(7):
        found = colluders.colluders_walk_bound(matrix, 3, [v])
        expected = theory.walk_bound(matrix, 3)[:, v]
        expected[v] = 0
        torch.testing.assert_close(found, expected)


def test_corollary_6_d_1_as_printed_does_not_know_how_far_an_input_moves():
    """Three in a complete graph: client 2 sends its input to 0 and 1 as it is."""
    matrix = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    alpha, sensitivity, noise = 2.0, 4.0, 1.0
    ledger = gossip_ledger(matrix, 1, sensitivity=sensitivity, noise=noise)
    mu = float(exact_losses(ledger, [Observer((0, 1))]).mu[2, 0])
    bound = float(colluders.colluders_walk_bound(matrix, 1, [0, 1])[2])
    assert bound == pytest.approx(3 * 9 * (2 / 3) ** 2)
    assert renyi(mu, alpha) <= renyi(mu_from(sensitivity, noise), alpha) * bound
    assert renyi(mu, alpha) > alpha / (2 * noise**2) * bound  # without Delta^2


@pytest.mark.parametrize("graph", ["line", "ring", "erdos_renyi(0.5)"])
def test_the_mean_loss_to_those_who_share_is_at_most_their_messages_over_n(graph):
    """(6.16), and it holds for exact losses too: they sum to a rank."""
    n, rounds = 7, 3
    matrix = metropolis(graph, n)
    ledger, together = gossip_ledger(matrix, rounds), pairs_and_triples(n)
    exact = exact_losses(ledger, [Observer(each) for each in together]).mean()
    printed = printed_losses(ledger, together).mean()
    for place, some in enumerate(together):
        degree = colluders.joint_degree(matrix, some)
        bound = theory.mean_loss(degree, rounds, n) + 1e-9
        assert float(exact[place]) <= bound and float(printed[place]) <= bound


def test_noise_of_corollary_6_d_2_keeps_the_mean_loss_and_the_printed_one_does_not():
    """Printed is s^2 = d_V Delta^2 / (2 alpha epsilon)."""
    n, alpha, some = 16, 6.0, (0, 5)
    matrix = metropolis("ring", n)
    degree, gap = colluders.joint_degree(matrix, some), 1 - contraction([matrix])
    noise, rounds = theory.noise_for_mean(1.0, n=n, degree=degree, gap=gap, alpha=alpha)
    assert theory.stopping_time(math.sqrt(gap), n, noise) <= rounds
    assert theory.error_of(noise, n) == pytest.approx(
        3 * alpha * degree * rounds / (2 * n**2)
    )
    ledger = gossip_ledger(matrix, rounds)
    mean = float(exact_losses(ledger, [Observer(some)]).mean()[0])
    assert mean * renyi(mu_from(1.0, noise), alpha) <= 1
    printed = math.sqrt(degree / (2 * alpha))
    assert mean * renyi(mu_from(1.0, printed), alpha) > 1


# Secret graphs.


def test_one_who_shares_with_nobody_has_the_losses_of_secret_graphs():
    for n, degree, rounds in ((200, 7, 5), (50, 3, 40), (20, 19, 1)):
        one = theory.secret_graph_loss(n, degree, rounds)
        assert colluders.secret_colluders_loss(n, 1, degree, rounds) == one
    assert colluders.linked_chance(0.3, 1) == pytest.approx(0.3)
    assert colluders.expected_degree(50, 0.3, 1) == pytest.approx(49 * 0.3)


def behind_one(many: int, others: int):
    """A clique that shares, one neighbour of it, and all others behind that one."""
    n, door = many + 1 + others, many
    edges = [*itertools.combinations(range(many), 2), (0, door)]
    edges += [(door, u) for u in range(door + 1, n)]
    return gossip_matrix(torch.tensor(edges), n), n


def test_corollary_6_d_3_with_n_in_place_of_the_nodes_that_are_left_is_too_small():
    """All others can be exchanged, and each loses more than 2 T d_V / (n - d_V)."""
    many, others, rounds = 16, 4, 2
    matrix, n = behind_one(many, others)
    some = tuple(range(many))
    degree = colluders.joint_degree(matrix, some)
    assert degree == 1
    share = exact_losses(gossip_ledger(matrix, rounds), [Observer(some)]).share
    # The second message of the one between is, but for what V knows, their sum.
    each = share[many + 1 :, 0]
    torch.testing.assert_close(each, torch.full_like(each, 1 / others))
    assert float(each[0]) <= colluders.secret_colluders_loss(n, many, degree, rounds)
    assert float(each[0]) > 2 * rounds * degree / (n - degree)  # as printed


def test_on_a_drawn_graph_those_without_a_link_lose_less_than_corollary_6_d_3():
    n, rounds, some = 300, 3, (3, 50, 51)
    rng = torch.Generator().manual_seed(0)
    edges = muffliato.connected_edges(n, 1.2 * math.log(n) / n, rng)
    matrix = gossip_matrix(edges, n)
    degree = colluders.joint_degree(matrix, some)
    share = exact_losses(gossip_ledger(matrix, rounds), [Observer(some)]).share[:, 0]
    away = (matrix.to_dense()[:, list(some)] == 0).all(1)
    assert int(away.sum()) == n - len(some) - degree
    bound = colluders.secret_colluders_loss(n, len(some), degree, rounds)
    assert bound < 1 and float(share[away].mean()) <= bound
    linked = ~away
    linked[list(some)] = False
    assert float(share[linked].min()) == pytest.approx(1)


def test_corollary_6_d_3_as_printed_does_not_know_how_far_an_input_moves():
    """Whoever has a link loses alpha Delta^2 / (2 s^2), printed alpha / (2 s^2)."""
    ledger = gossip_ledger(metropolis("ring", 5), 1, sensitivity=3.0)
    mu = float(exact_losses(ledger, [Observer((0, 1))]).mu[2, 0])
    assert renyi(mu, 2.0) == pytest.approx(renyi(mu_from(3.0, 1.0), 2.0))
    assert renyi(mu, 2.0) > 2.0 / 2


def test_chances_of_a_link_are_those_of_all_ways_to_draw_them():
    q = 0.3
    for size in (1, 2, 4):
        total = 0.0
        for drawn in itertools.product((False, True), repeat=size):
            total += any(drawn) * math.prod(q if one else 1 - q for one in drawn)
        assert colluders.linked_chance(q, size) == pytest.approx(total)


def test_those_who_share_have_n_times_the_printed_number_of_neighbours():
    """c |V| ln n, in 40 graphs; printed is an n-th of it."""
    n, c, some = 300, 1.5, [0, 1, 2]
    q, rng = c * math.log(n) / n, torch.Generator().manual_seed(0)
    found = []
    for _ in range(40):
        edges = muffliato.random_edges(n, q, rng)
        near = edges[torch.isin(edges, torch.tensor(some)).any(1)].unique()
        found.append(float((near >= len(some)).sum()))
    mean = sum(found) / len(found)
    assert mean == pytest.approx(colluders.expected_degree(n, q, 3), rel=0.1)
    assert mean == pytest.approx(c * 3 * math.log(n), rel=0.2)
    assert c * 3 * math.log(n) / n < mean / 100


def test_graphs_that_are_drawn_anew_add_up_step_by_step():
    """Proposition 6.D.1: 1 where there is a link, else what a secret graph tells."""
    n, size, exchanges = 100, 2, 3
    degrees, linked = [4, 9, 6], [0, 1, 0]
    expected = 2 * 3 * 4 / (99 - 4) + 1 + 2 * 3 * 6 / (99 - 6)
    found = colluders.redrawn_graphs_loss(n, size, degrees, linked, exchanges)
    assert found == pytest.approx(expected)
    # One step is averaging; the mean over draws of links is that of their chance.
    one = colluders.secret_colluders_loss(n, size, 4, exchanges)
    assert colluders.redrawn_graphs_loss(n, size, [4], [0], exchanges) == one
    chance = colluders.linked_chance(0.05, size)
    mean = chance + (1 - chance) * one
    assert colluders.redrawn_graphs_loss(n, size, [4], [chance], 3) == mean
    # Never more than local privacy over all steps, where 6.D.1 has up to twice it.
    assert colluders.redrawn_graphs_loss(20, 5, [15] * 4, [0, 1, 0, 1], 50) == 4


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: colluders.joint_degree(torch.eye(3), []), "some, but not all"),
        (lambda: colluders.joint_degree(torch.eye(3), [0, 1, 2]), "some, but not all"),
        (lambda: colluders.joint_degree(torch.eye(3), [1, 1]), "each once"),
        (lambda: colluders.colluders_walk_bound(torch.eye(3), 1, [3]), "0 to 2"),
        (lambda: colluders.secret_colluders_loss(9, 9, 1, 1), "`colluders` must be"),
        (lambda: colluders.secret_colluders_loss(9, 5, 5, 1), "`degree` must be"),
        (lambda: colluders.linked_chance(1.5, 1), "`chance`"),
        (lambda: colluders.redrawn_graphs_loss(9, 2, [1], [], 1), "got 1 and 0"),
    ],
)
def test_bad_numbers_are_refused(call, said):
    with pytest.raises(InputError, match=said):
        call()


def test_those_without_any_link_learn_nothing():
    found = colluders.colluders_walk_bound(torch.eye(3), 2, [0])
    assert not found.any() and colluders.joint_degree(torch.eye(3), [0]) == 0
