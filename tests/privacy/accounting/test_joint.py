"""Losses over several inputs together."""

import itertools

import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.privacy import Ledger, Observer, Release, joint_losses
from coterie_theory.privacy import exact_losses
from support.gossip_views import gossip_ledger, metropolis, projected


@pytest.mark.parametrize("graph", ["line", "ring", "erdos_renyi(0.5)"])
def test_one_input_is_the_pairwise_loss(graph):
    ledger = gossip_ledger(metropolis(graph, 7), 3)
    one, joint = exact_losses(ledger), joint_losses(ledger)
    torch.testing.assert_close(joint.share, one.share, rtol=0, atol=1e-8)
    torch.testing.assert_close(joint.unit, one.unit)


def test_the_known_value_of_two_rounds_on_a_line():
    ledger = gossip_ledger(metropolis("line", 3), 1, steps=2)
    assert float(joint_losses(ledger).share[0, 2]) * 2 == pytest.approx(0.1)


def dense_view(matrix, exchanges, steps, v):
    """Rows over (round, client) of what v receives, without its own columns."""
    n, rows = len(matrix), []
    theta = np.zeros((n, steps * n))
    for s in range(steps):
        theta[:, s * n : (s + 1) * n] += np.eye(n)
        for _ in range(exchanges):
            rows += [theta[w].copy() for w in range(n) if w != v and matrix[v, w]]
            theta = matrix @ theta
    found = np.array(rows)
    found[:, [s * n + v for s in range(steps)]] = 0
    return found


@pytest.mark.parametrize("graph", ["line", "ring"])
def test_it_bounds_every_move_of_all_steps_and_is_at_most_local_privacy(graph):
    n, steps = 6, 3
    matrix = metropolis(graph, n)
    share = joint_losses(gossip_ledger(matrix, 2, steps=steps)).share
    assert bool((share <= 1).all())
    for v in range(n):
        p = projected(dense_view(matrix.to_dense().numpy(), 2, steps, v))
        for u in set(range(n)) - {v}:
            place = [s * n + u for s in range(steps)]
            block = p[np.ix_(place, place)]
            signs = [np.array(s) for s in itertools.product((-1, 1), repeat=steps)]
            most = max(float(s @ block @ s) for s in signs)
            assert float(share[u, v]) * steps >= most - 1e-7


def test_steps_of_other_sizes_count_by_their_own_mu():
    """Complete graph, one exchange each: every step is told as it is."""
    matrix = torch.full((3, 3), 1 / 3, dtype=torch.float64)
    events = list(gossip_ledger(matrix, 1, steps=2).events)
    events[2] = events[2]._replace(sensitivity=3.0)
    found = joint_losses(Ledger(3, tuple(events)), [Observer((0,))])
    torch.testing.assert_close(found.unit, torch.full((3,), 10**0.5).double())
    torch.testing.assert_close(found.share[:, 0], torch.tensor([0.0, 1, 1]).double())


def test_a_release_is_refused():
    release = Release(1, "mix", torch.tensor([[0, 1]]), 1.0, 1.0)
    ledger = gossip_ledger(metropolis("line", 3), 1)
    ledger.append(release)
    with pytest.raises(InputError, match="Release of `mix` in round 1"):
        joint_losses(ledger)
