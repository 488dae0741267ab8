"""The thesis's formula: its own identities, its figures, and where it is too small."""

import math

import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.graphs import edges_of
from coterie.privacy import Input, Ledger, Meetings, Observer, joint_losses, seen_by
from coterie_theory.decentralised.muffliato import walk_bound
from coterie_theory.privacy import exact_losses, group_share, hops, printed_losses
from support.gossip_views import gossip_ledger, ledger_of, metropolis


def by_loops(matrices, n):
    """(6.6), message by message."""
    share, power = np.zeros((n, n)), np.eye(n)
    for matrix in matrices:
        for v in range(n):
            for w in range(n):
                if v != w and matrix[v, w]:
                    share[:, v] += power[w] ** 2 / (power[w] ** 2).sum()
        power = matrix @ power
    np.fill_diagonal(share, 0)
    return torch.from_numpy(share)


@pytest.mark.parametrize("graph", ["line", "star", "erdos_renyi(0.6)"])
def test_it_is_the_formula_written_as_loops(graph):
    matrix = metropolis(graph, 8)
    found = printed_losses(gossip_ledger(matrix, 4)).share
    torch.testing.assert_close(found, by_loops([matrix.to_dense().numpy()] * 4, 8))


def test_it_is_read_with_row_w_and_column_u_where_matrices_do_not_commute():
    one, other = metropolis("line", 4).to_dense(), metropolis("star", 4).to_dense()
    found = printed_losses(ledger_of([one, other, one])).share
    expected = by_loops([m.numpy() for m in (one, other, one)], 4)
    torch.testing.assert_close(found, expected)


def test_by_pairs_it_is_the_formula_over_the_meetings_that_were_drawn():
    """Corollary 6.3.2, where W_t is I but for the pair that meets at t."""
    n, met = 5, [(0, 1), (1, 2), (3, 4), (0, 1), (2, 3)]
    ledger, matrices = Ledger(n, (Input(0, torch.ones(n).bool(), 1.0, 1.0),)), []
    for t, pair in enumerate(met):
        ledger.append(Meetings(t, torch.tensor([pair]), torch.zeros(1, 2).double(), 0))
        a = np.zeros(n)
        a[list(pair)] = 1.0, -1.0
        matrices.append(np.eye(n) - np.outer(a, a) / 2)
    found = printed_losses(ledger)
    torch.testing.assert_close(found.share, by_loops(matrices, n))
    times = torch.tensor(met).flatten().bincount(minlength=n)
    assert bool((found.mean() <= times / n).all())  # (6.7) with T_v


@pytest.mark.parametrize("graph", ["ring", "star", "erdos_renyi(0.4)"])
def test_each_message_counts_one_in_the_sum_over_all_clients(graph):
    """All of them, also the observer, whom the formula does not leave out."""
    n, rounds = 9, 4
    matrix = metropolis(graph, n)
    dense, power, own = matrix.to_dense(), torch.eye(n).double(), torch.zeros(n)
    joined = (dense != 0) & ~torch.eye(n).bool()
    for _ in range(rounds):
        part = power.square() / power.square().sum(1, keepdim=True)
        own = own + (joined.double() * part.T).sum(1)  # what u = v would have
        power = dense @ power
    total = printed_losses(gossip_ledger(matrix, rounds)).share.sum(0) + own
    torch.testing.assert_close(total, rounds * joined.sum(1).double())


def test_nothing_is_told_over_more_steps_than_rounds():
    share = printed_losses(gossip_ledger(metropolis("ring", 12), 3)).share
    far = hops(edges_of("ring", 12), 12)
    assert bool((share[far > 3] == 0).all()) and bool((share[far == 3] > 0).all())


@pytest.mark.parametrize("graph", ["ring", "torus", "hypercube"])
def test_on_symmetric_graphs_both_of_a_pair_lose_the_same(graph):
    n = 16 if graph != "torus" else 9
    share = printed_losses(gossip_ledger(metropolis(graph, n), 4)).share
    torch.testing.assert_close(share, share.T)


def test_on_a_hypercube_it_depends_on_the_distance_alone_with_the_known_values():
    n, m = 256, 8
    rounds = math.ceil(math.sqrt((m + 1) / 2) * math.log(n))
    share = printed_losses(gossip_ledger(metropolis("hypercube", n), rounds)).share
    far = hops(edges_of("hypercube", n), n)
    means = []
    for steps in range(1, 5):
        some = share[far == steps]
        assert float(some.max() - some.min()) < 1e-9
        means.append(float(some.mean()))
    assert means == pytest.approx([2.52, 0.915, 0.404, 0.218], rel=2e-3)


@pytest.mark.parametrize("graph", ["line", "star", "erdos_renyi(0.6)", "complete"])
def test_the_corollary_by_random_walks_is_above_it(graph):
    matrix = metropolis(graph, 8)
    share = printed_losses(gossip_ledger(matrix, 5)).share
    other = ~torch.eye(8).bool()
    assert bool((share <= walk_bound(matrix, 5) + 1e-12)[other].all())


def test_on_a_complete_graph_it_exceeds_local_privacy_until_it_is_capped():
    """1 + (T - 1)(n - 1)/n: of each mean, n - 1 neighbours send 1/n."""
    n, rounds = 5, 3
    matrix = torch.full((n, n), 1 / n, dtype=torch.float64)
    ledger = gossip_ledger(matrix, rounds)
    share = printed_losses(ledger).share[0, 1]
    assert float(share) == pytest.approx(1 + (rounds - 1) * (n - 1) / n)
    assert float(printed_losses(ledger, capped=True).share[0, 1]) == 1


def test_those_who_share_count_a_message_once():
    """0 and 2 of a line of four: 1 sends to both, 3 to 2."""
    matrix = metropolis("line", 4)
    ledger = gossip_ledger(matrix, 2)
    found = printed_losses(ledger, [(0, 2), (1,)]).share
    dense = matrix.to_dense().numpy()
    expected = np.zeros(4)
    for power in (np.eye(4), dense):
        for w in (1, 3):
            expected += power[w] ** 2 / (power[w] ** 2).sum()
    expected[[0, 2]] = 0
    torch.testing.assert_close(found[:, 0], torch.from_numpy(expected))
    torch.testing.assert_close(found[:, 1], printed_losses(ledger).share[:, 1])


def test_with_messages_among_those_who_share_as_printed_6_15_breaks_6_16():
    """0 and 1 of a line of three: only 2 tells them something, once in a round."""
    matrix, rounds = metropolis("line", 3), 2
    dense, printed = matrix.to_dense().numpy(), 0.0
    for power in (np.eye(3), dense):
        for w in range(3):  # all w with a link to 0 or 1, also 0 and 1 themselves
            printed += power[w, 2] ** 2 / (power[w] ** 2).sum()
    right = float(printed_losses(gossip_ledger(matrix, rounds), [(0, 1)]).share[2, 0])
    assert right == pytest.approx(1 + (4 / 9) / (5 / 9))
    assert right <= rounds * 1 < printed  # the sum over all u not in V of (6.16)


@pytest.mark.parametrize("graphs", [("ring", "ring"), ("line", "star", "ring")])
def test_steps_add_each_by_its_own_matrix(graphs):
    """(6.12) and (6.13) as loops; shares are of what all steps would tell locally."""
    n, exchanges = 6, 3
    matrices = [metropolis(graph, n) for graph in graphs]
    ledger, expected = Ledger(n), torch.zeros(n, n, dtype=torch.float64)
    for step, matrix in enumerate(matrices):
        for event in gossip_ledger(matrix, exchanges).events:
            ledger.append(event._replace(round=step))
        expected += by_loops([matrix.to_dense().numpy()] * exchanges, n)
    found = printed_losses(ledger)
    torch.testing.assert_close(found.share * len(matrices), expected)
    # The mean over clients is at most the messages of the busiest, K sum_t d_v(t).
    received = exchanges * sum((m.to_dense() != 0).sum(1) - 1 for m in matrices)
    mean = found.share.sum(0) * len(matrices) / n
    assert bool((mean <= received / n).all())


def test_the_losses_of_some_clients_are_those_of_all():
    ledger = gossip_ledger(metropolis("ring", 7), 3)
    some = printed_losses(ledger, clients=[2]).share
    torch.testing.assert_close(some[2], printed_losses(ledger).share[2])
    assert float(some.sum()) == pytest.approx(float(some[2].sum()))


# Where it is wrong.


def test_equation_6_6_is_no_bound_on_what_an_observer_learns():
    for graph, n, rounds in (("line", 3, 2), ("ring", 12, 8), ("hypercube", 16, 5)):
        ledger = gossip_ledger(metropolis(graph, n), rounds)
        exact, printed = exact_losses(ledger).share, printed_losses(ledger).share
        assert float((exact - printed).max()) > 0.5


def test_sums_of_losses_over_all_clients_are_never_below_the_exact_ones():
    """So mean losses stay bounds, (6.7): ranks are at most numbers of messages."""
    for graph, n, rounds in (("line", 5, 4), ("ring", 12, 8), ("hypercube", 16, 5)):
        matrix = metropolis(graph, n)
        exact = exact_losses(gossip_ledger(matrix, rounds)).share.sum(0)
        neighbours = (matrix.to_dense() != 0).sum(1) - 1
        assert bool((exact <= rounds * neighbours + 1e-6).all())


def test_equation_6_12_has_no_loss_across_rounds():
    """u - w - v, one exchange in a round: v learns of u's first step in the second."""
    ledger = gossip_ledger(metropolis("line", 3), 1, steps=2)
    printed, joint = printed_losses(ledger), joint_losses(ledger)
    assert float(printed.share[0, 2]) == 0
    # In units of one step, of which there are two.
    assert float(joint.share[0, 2]) * 2 == pytest.approx((1 / 9) / (1 / 9 + 1))


def test_equation_6_18_is_for_a_group_that_moves_together_and_not_for_each():
    """A pair behind one neighbour, at one more exchange: both may move by Delta."""
    matrix = metropolis("star", 4)  # 0 in the middle; 3 observes, 1 and 2 move
    ledger = gossip_ledger(matrix, 2)
    printed = printed_losses(ledger).share
    by_formula = float(printed[1, 3] + printed[2, 3])
    seen = seen_by(ledger, Observer((3,)))
    p = seen.basis.T @ seen.basis
    both = float(p[1, 1] + p[2, 2] + 2 * p[1, 2])
    assert both == pytest.approx(group_share(seen, [1, 2], each=True), abs=1e-6)
    assert both > 2 * by_formula


def test_inputs_that_only_hide_are_refused():
    ledger = gossip_ledger(metropolis("line", 3), 1, sensitivity=0.0)
    with pytest.raises(InputError, match="positive sensitivity"):
        printed_losses(ledger)
