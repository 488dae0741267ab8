"""What an observer of gossip learns is a projection: identities, loops, simulations."""

import itertools
import math

import numpy as np
import pytest
import torch

from coterie.graphs import chebyshev_factor, contraction, edges_of, gossip_matrix
from coterie.privacy import Input, Ledger, Meetings, Observer, Release, seen_by
from coterie.privacy.accounting import projection
from coterie_theory.privacy import (
    by_distance,
    exact,
    exact_losses,
    group_share,
    hops,
    printed_losses,
)
from support.gossip_views import (
    gossip_ledger,
    ledger_of,
    metropolis,
    projected,
    shares,
    view,
)
from support.refusals import refuses

GRAPHS = [("line", 5, 3), ("ring", 7, 4), ("star", 6, 2), ("erdos_renyi(0.4)", 9, 5)]
CLOSE = {"rtol": 0.0, "atol": 1e-7}


@pytest.mark.parametrize(("graph", "n", "rounds"), GRAPHS)
def test_losses_are_the_diagonal_of_the_projection_as_a_matrix(graph, n, rounds):
    matrix = metropolis(graph, n)
    found = exact_losses(gossip_ledger(matrix, rounds)).share
    dense = [matrix.to_dense().numpy()] * rounds
    for v in range(n):
        torch.testing.assert_close(found[:, v], shares(dense, [v]), **CLOSE)


@pytest.mark.parametrize(("graph", "n", "rounds"), GRAPHS)
def test_losses_sum_to_the_rank_and_lie_between_0_and_1(graph, n, rounds):
    matrix = metropolis(graph, n)
    share = exact_losses(gossip_ledger(matrix, rounds)).share
    assert bool((share >= 0).all()) and bool((share <= 1).all())
    dense = matrix.to_dense().numpy()
    for v in range(n):
        a = view([dense] * rounds, [v])
        rank = np.linalg.matrix_rank(a, tol=1e-9 * np.linalg.norm(a, 2))
        assert float(share[:, v].sum()) == pytest.approx(rank, abs=1e-6)
        assert rank <= len(a)


@pytest.mark.parametrize(("graph", "n", "rounds"), GRAPHS)
def test_chebyshev_and_plain_gossip_tell_the_same(graph, n, rounds):
    matrix = metropolis(graph, n)
    factor = chebyshev_factor(1 - contraction([matrix]))
    plain = exact_losses(gossip_ledger(matrix, rounds)).share
    fast = exact_losses(gossip_ledger(matrix, rounds, gamma=factor)).share
    torch.testing.assert_close(fast, plain, **CLOSE)


def test_neighbours_learn_all_of_each_other():
    matrix = metropolis("ring", 8)
    share = exact_losses(gossip_ledger(matrix, 1)).share
    expected = (hops(edges_of("ring", 8), 8) == 1).double()
    torch.testing.assert_close(share, expected, **CLOSE)


def test_on_a_complete_graph_nothing_is_gained():
    matrix = torch.full((6, 6), 1 / 6, dtype=torch.float64)
    share = exact_losses(gossip_ledger(matrix, 3)).share
    torch.testing.assert_close(share, 1 - torch.eye(6).double(), **CLOSE)


def test_two_exchanges_on_a_line_of_three_tell_all_and_the_formula_says_a_third():
    """v sees z_w and (z_u + z_w + z_v) / 3, and knows z_v."""
    ledger = gossip_ledger(metropolis("line", 3), 2)
    assert float(exact_losses(ledger).share[0, 2]) == pytest.approx(1.0)
    assert float(printed_losses(ledger).share[0, 2]) == pytest.approx(1 / 3)


def test_on_a_ring_of_32_all_is_told_over_31_rounds_and_the_formula_says_nothing():
    ledger = gossip_ledger(metropolis("ring", 32), 31)
    alone = exact_losses(ledger, [Observer((0,))]).share[:, 0]
    assert float(alone[16]) == pytest.approx(1.0, abs=1e-6)
    assert float(printed_losses(ledger).share[16, 0]) == pytest.approx(8.7e-6, rel=0.01)


def test_on_a_hypercube_of_64_the_formula_is_too_small_for_22_of_63():
    ledger = gossip_ledger(metropolis("hypercube", 64), 8)
    exact = exact_losses(ledger, [Observer((0,))]).share[:, 0]
    printed = printed_losses(ledger).share[:, 0]
    assert int((exact > printed + 1e-9).sum()) == 22


def test_losses_on_a_hypercube_of_512_are_not_monotone_in_the_distance():
    edges = edges_of("hypercube", 512)
    ledger = gossip_ledger(gossip_matrix(edges, 512), 14)
    share = exact_losses(ledger, [Observer((0,))]).share[:, 0]
    found = by_distance(share, hops(edges, 512)[0])
    means = [round(each.mean, 3) for each in found]
    assert means == [1, 0.25, 0.107, 0.071, 0.071, 0.107, 0.25, 1, 1]
    assert all(each.most - each.least < 1e-6 for each in found)
    assert float(share.sum()) == pytest.approx(73, abs=1e-6)


def test_losses_at_a_distance_have_their_mean_and_both_ends():
    distance = torch.tensor([0, 1, 1, 2, 1])
    values = torch.tensor([9.0, 1.0, 2.0, 5.0, 6.0], dtype=torch.float64)
    found = by_distance(values, distance)
    assert [tuple(each) for each in found] == [
        (1, 3, 3.0, 1.0, 6.0),
        (2, 1, 5.0, 5.0, 5.0),
    ]


def test_losses_do_not_depend_on_noise_and_sensitivity_but_their_unit_does():
    matrix = metropolis("ring", 7)
    one = exact_losses(gossip_ledger(matrix, 3))
    other = exact_losses(gossip_ledger(matrix, 3, noise=5.0, sensitivity=2.0))
    torch.testing.assert_close(one.share, other.share, **CLOSE)
    torch.testing.assert_close(other.unit, torch.full((7,), 0.4).double())
    expected = other.share.sqrt() * 0.4
    torch.testing.assert_close(other.mu, expected)


def test_with_endless_noise_nothing_is_told():
    matrix = metropolis("ring", 7)
    each = []
    for noise in (1.0, 10.0, 1e3, 1e6):
        ledger = gossip_ledger(matrix, 3, noise=noise)
        each.append(float(exact_losses(ledger).epsilon(1e-5).max()))
    assert each == sorted(each, reverse=True) and each[-1] == 0


def test_losses_grow_with_rounds():
    matrix = metropolis("erdos_renyi(0.3)", 12)
    each = [exact_losses(gossip_ledger(matrix, t)).share for t in (1, 2, 3, 5)]
    for few, more in itertools.pairwise(each):
        assert bool((more >= few - 1e-8).all())


def test_large_noise_of_reading_hides_all_and_none_is_the_exact_loss():
    matrix = metropolis("ring", 9)
    ledger = gossip_ledger(matrix, 4, noise=2.0)
    hidden = exact_losses(ledger, tau=1e6).share
    assert float(hidden.max()) < 1e-10
    little = exact_losses(ledger, tau=1e-8).share
    torch.testing.assert_close(little, exact_losses(ledger).share, rtol=0, atol=1e-5)


def test_noise_of_reading_is_in_the_covariance_of_what_is_read():
    """s^2 a' (s^2 A A' + tau^2 I)^-1 a, with a ring of 6, s = 2 and tau = 0.5."""
    matrix = metropolis("ring", 6)
    found = exact_losses(gossip_ledger(matrix, 3, noise=2.0), tau=0.5).share
    a = view([matrix.to_dense().numpy()] * 3, [0])
    inner = np.linalg.inv(4 * a @ a.T + 0.25 * np.eye(len(a)))
    expected = 4 * np.einsum("ju,jk,ku->u", a, inner, a)
    torch.testing.assert_close(found[:, 0], torch.from_numpy(expected), **CLOSE)


def test_noise_that_senders_add_is_an_input_that_hides_nothing_of_itself():
    """Fresh noise before the second exchange hides what the first one did not tell."""
    matrix = metropolis("line", 3)
    first, second = gossip_ledger(matrix, 2).events[1:]
    everybody = torch.ones(3).bool()
    ledger = Ledger(3, (Input(0, everybody, 1.0, 1.0), first))
    ledger.append(Input(1, everybody, 0.0, 3.0))
    ledger.append(second)
    # v reads z_w, then (z_u + z_w + z_v)/3 + 3 e_w: of z_u a part 1/9 in 1/9 + 9.
    share = exact_losses(ledger).share
    assert float(share[0, 2]) == pytest.approx((1 / 9) / (1 / 9 + 9))


def test_matrices_that_change_are_multiplied_from_the_left():
    """On a line, what v sees in the second round depends on the first matrix."""
    rng = np.random.default_rng(0)
    line = metropolis("line", 4).to_dense().numpy()
    other = line.copy()
    other[1:3, 1:3] += np.array([[0.2, -0.2], [-0.2, 0.2]])
    several = [line if rng.random() < 0.5 else other for _ in range(3)] + [line]
    found = exact_losses(ledger_of([torch.from_numpy(m) for m in several])).share
    for v in range(4):
        torch.testing.assert_close(found[:, v], shares(several, [v]), **CLOSE)


def test_the_same_matrix_in_every_round_is_a_fixed_one():
    matrix = metropolis("ring", 6)
    fixed = gossip_ledger(matrix, 3)
    renamed = Ledger(6, fixed.events[:1])
    for t, event in enumerate(fixed.events[1:]):
        renamed.append(event._replace(round=t))
    a, b = exact_losses(fixed).share, exact_losses(renamed).share
    torch.testing.assert_close(a, b, **CLOSE)


# Who looks.


def test_those_who_share_see_all_their_messages_and_know_all_their_inputs():
    matrix = metropolis("erdos_renyi(0.4)", 9)
    found = exact_losses(gossip_ledger(matrix, 3), [Observer((1, 4))]).share[:, 0]
    dense = [matrix.to_dense().numpy()] * 3
    torch.testing.assert_close(found, shares(dense, [1, 4]), **CLOSE)


def test_one_more_who_shares_never_lowers_a_loss():
    ledger = gossip_ledger(metropolis("ring", 10), 3)
    share = exact_losses(ledger, [Observer((0,)), Observer((0, 4))]).share
    others = [u for u in range(10) if u not in (0, 4)]
    assert bool((share[others, 1] >= share[others, 0] - 1e-8).all())
    assert float((share[others, 1] - share[others, 0]).max()) > 0.5


def test_those_who_dominate_the_graph_learn_all():
    ledger = gossip_ledger(metropolis("ring", 9), 1)
    share = exact_losses(ledger, [Observer((0, 3, 6))]).share[:, 0]
    expected = torch.tensor([0.0, 1, 1] * 3, dtype=torch.float64)
    torch.testing.assert_close(share, expected, **CLOSE)


def test_who_overhears_a_link_learns_what_its_messages_say():
    """From 1 to 2 on a line of three: z_1, then the mean of all three."""
    ledger = gossip_ledger(metropolis("line", 3), 2)
    share = exact_losses(ledger, [Observer((), ((1, 2),))]).share[:, 0]
    # Given z_1, z_0 + z_2 is told: half of each.
    torch.testing.assert_close(share, torch.tensor([0.5, 1.0, 0.5]).double(), **CLOSE)


def test_a_group_of_one_is_a_client_and_more_are_a_block_of_the_projection():
    matrix = metropolis("ring", 8)
    seen = seen_by(gossip_ledger(matrix, 3), Observer((0,)))
    assert group_share(seen, [3]) == pytest.approx(float(seen.shares[3]))
    a = projected(view([matrix.to_dense().numpy()] * 3, [0]))
    block = a[np.ix_([3, 4, 5], [3, 4, 5])]
    largest = float(np.linalg.eigvalsh(block)[-1])
    assert group_share(seen, [3, 4, 5]) == pytest.approx(largest)
    assert group_share(seen, [3, 4, 5], each=True) == pytest.approx(3 * largest)


def test_a_client_who_dropped_out_sends_and_learns_nothing():
    """Node 1 of a ring of four is away in the only round."""
    matrix = gossip_matrix(torch.tensor([[2, 3], [0, 3]]), 4)
    share = exact_losses(gossip_ledger(matrix, 1)).share
    assert float(share[1].sum()) == 0 and float(share[:, 1].sum()) == 0


# By pairs.


def test_one_meeting_tells_all_of_both_and_nothing_of_others():
    ledger = Ledger(3, (Input(0, torch.ones(3).bool(), 1.0, 1.0),))
    ledger.append(Meetings(0, torch.tensor([[0, 1]]), torch.zeros(1, 2).double()))
    expected = torch.tensor([[0.0, 1, 0], [1, 0, 0], [0, 0, 0]]).double()
    torch.testing.assert_close(exact_losses(ledger).share, expected, **CLOSE)


def test_meetings_are_exchanges_with_the_matrices_of_pairs():
    pairs = [(0, 1), (1, 2), (0, 3), (1, 3), (2, 3)]
    nobody_moves = torch.zeros(1, 2).double()
    start = Input(0, torch.ones(4).bool(), 1.0, 1.0)
    by_pairs, matrices = Ledger(4, (start,)), []
    for t, (v, w) in enumerate(pairs):
        by_pairs.append(Meetings(t, torch.tensor([[v, w]]), nobody_moves))
        matrix = torch.eye(4).double()
        matrix[[v, v, w, w], [v, w, v, w]] = 0.5
        matrices.append(matrix)
    by_matrices = ledger_of(matrices)
    a, b = exact_losses(by_pairs).share, exact_losses(by_matrices).share
    torch.testing.assert_close(a, b, **CLOSE)
    a, b = printed_losses(by_pairs).share, printed_losses(by_matrices).share
    torch.testing.assert_close(a, b, **CLOSE)


# Streams, blocks, simulation.


def test_views_made_short_while_they_grow_and_taken_in_blocks_say_the_same(monkeypatch):
    ledger = gossip_ledger(metropolis("erdos_renyi(0.4)", 12), 6)
    whole = exact_losses(ledger).share
    monkeypatch.setattr(projection, "ROWS", 5)
    monkeypatch.setattr(exact, "ROWS", 5)
    monkeypatch.setattr(exact, "_NUMBERS", 300)
    torch.testing.assert_close(exact_losses(ledger).share, whole, **CLOSE)


def test_simulated_views_are_told_apart_as_well_as_the_exact_loss_says():
    """mu^2 of a best linear test between two data sets, from 40,000 runs of each."""
    matrix = metropolis("ring", 6).to_dense()
    runs, s, shift, v = 40_000, 0.7, 0.5, 0
    rng = torch.Generator().manual_seed(0)
    changed = {}
    for u in (2, 3):
        views = []
        for move in (0.0, shift):
            x = torch.zeros(6, dtype=torch.float64)
            x[u] = move
            noise = torch.randn(runs, 6, generator=rng, dtype=torch.float64)
            z = x + s * noise
            own, seen = z[:, v], []
            for _ in range(2):
                seen += [z[:, 1], z[:, 5]]
                z = z @ matrix.T
            # What it knows itself is taken out by regression on it.
            got = torch.stack(seen, 1)
            slope = (got * own[:, None]).mean(0) / own.square().mean()
            views.append(got - own[:, None] * slope)
        apart = views[1].mean(0) - views[0].mean(0)
        spread = (torch.cov(views[0].T) + torch.cov(views[1].T)) / 2
        changed[u] = float(apart @ torch.linalg.pinv(spread, rtol=1e-6) @ apart)
    share = exact_losses(gossip_ledger(matrix, 2)).share[:, 0]
    for u, found in changed.items():
        expected = float(share[u]) * shift**2 / s**2
        # Four standard errors of a difference of means, squared.
        error = 2 * math.sqrt(expected) * 4 * math.sqrt(2 / runs) + 16 * 4 / runs
        assert found == pytest.approx(expected, abs=error)


# What is refused.


def events():
    """An input of two clients, and an exchange between them."""
    return gossip_ledger(metropolis("line", 2), 1).events


def test_a_release_is_refused_by_name_and_not_ignored():
    release = Release(4, "average", torch.tensor([[0, -1]]), 1.0, 1.0)
    ledger = Ledger(2, (*events(), release))
    for account in (exact_losses, printed_losses):
        refuses("Release of `average` in round 4", account, ledger)


def test_several_inputs_of_a_client_are_left_to_joint_accounting():
    ledger = gossip_ledger(metropolis("line", 3), 1, steps=2)
    refuses("joint_losses", exact_losses, ledger)


def met(pairs, second=0.0):
    """Meetings of pairs of two clients."""
    moved = torch.zeros(len(pairs), 2).double()
    return Meetings(0, torch.tensor(pairs), moved, second)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda i, e: (i._replace(noise=0.0), e), "`noise` of the Input in round 0"),
        (lambda i, e: (i._replace(noise=-1.0), e), "`noise` of the Input in round 0"),
        (lambda i, e: (i, e._replace(gamma=1.5)), "must have gamma = 1, got 1.5"),
        (lambda i, e: (i, e._replace(links=e.links - 1)), "between clients 0 to 1"),
        (
            lambda i, e: (i, e._replace(links=e.links[:1])),
            "must carry the row of client",
        ),
        (lambda i, e: (i, met([[0, 1], [1, 0]])), "must not share a client"),
        (lambda i, e: (i, met([[0, 1]], 0.5), e), "second rows"),
        (lambda i, e: (i._replace(who=torch.ones(3).bool()), e), "each of 2 clients"),
        (lambda i, e: (e,), "must have an `Input`"),
    ],
)
def test_ledgers_that_make_no_sense_are_refused(change, said):
    refuses(said, exact_losses, Ledger(2, change(*events())))


def test_observers_and_groups_that_are_not_there_are_refused():
    ledger = Ledger(2, events())
    refuses("clients between 0 and 1", exact_losses, ledger, [Observer((5,))])
    refuses("clients between 0 and 1", exact_losses, ledger, [Observer()])
    refuses("one input each", group_share, seen_by(ledger, Observer((0,))), [7])
