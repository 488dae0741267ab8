"""What a client may learn of another one if inputs depend on received rows.

Stars of 21 clients train `decentralised_sgd` privately for two rounds. Leaf v attacks
leaf u. The middle w takes such a large step that the clipped step shows the sign of its
model, which holds the row of u. So the second message of w reveals u in a second way,
which the account of fixed inputs does not see.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import pytest
import torch
from torch import nn

from coterie.algorithms.decentralised_sgd import decentralised_sgd
from coterie.clients.simulation import Simulation
from coterie.data import Table, federate
from coterie.graphs import gossip_matrix
from coterie.privacy import epsilon_of, joint_losses
from coterie.privacy.accounting.accounts import by_pairs, totals
from coterie.privacy.accounting.ledger import Input, Ledger
from coterie.privacy.mechanisms import Mechanism, events_of, make_private, plan_calls
from support.gossip_views import gossip_ledger, metropolis

NODES, STARS, RUNS, CLIP, NOISE, LR = 21, 50, 16, 1.0, 0.5, 50.0
W, U, V = range(3)  # the middle, the attacked leaf, the attacker
REAL = torch.float64


def one_number() -> nn.Module:
    """The model x, whose loss on a sample is its squared distance to the target."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(module.weight)
    return module.to(REAL)


def federation_of(stars: int):
    """Leaf u is at 9 in every second star, and at -9 in the others; the rest is 0."""
    position = torch.arange(stars * NODES)
    side = torch.where(position // NODES % 2 == 0, 9.0, -9.0)
    targets = torch.where(position % NODES == U, side, 0.0).to(REAL)
    three = position.repeat(3)  # to train, to validate, to test
    role = torch.arange(3).repeat_interleave(len(position))
    ones = torch.ones(len(three), 1, dtype=REAL)
    table = Table("stars", ones, targets[three], "regression", 1)
    return federate(table, three, role)


def star_weights(stars: int):
    """Metropolis weights of stars whose last leaves form a line.

    In two rounds nothing comes from one star to the middle of another.
    """
    middle = NODES * torch.arange(stars)
    leaves = middle[:, None] + torch.arange(1, NODES)
    edges = torch.stack([middle[:, None].expand_as(leaves), leaves], -1).flatten(0, 1)
    line = torch.stack([leaves[:-1, -1], leaves[1:, -1]], 1)
    return gossip_matrix(torch.cat([edges, line]), stars * NODES)


def attacked():
    """The ledger of two private rounds, and of each star what v holds at the end.

    (stars,) the second message of w less what v knows of it, and the part of the model
    of w that v knows.
    """
    heard = []

    class Listener(Simulation):
        """Keeps the rows that are mixed, as they leave."""

        def at(self, *args, **options):
            oracle = super().at(*args, **options)
            mix = oracle.mix

            def listening(weights, rows, **how):
                heard.append(rows.clone())
                return mix(weights, rows, **how)

            oracle.mix = listening
            return oracle

    n, everybody = STARS * NODES, torch.ones(STARS * NODES, dtype=torch.bool)
    algorithm = decentralised_sgd(star_weights(STARS), lr=LR)
    simulation = Listener(federation_of(STARS), one_number(), batch_size=0, dtype=REAL)
    foreseen = plan_calls(algorithm, [everybody] * 2, seed=0, label="it")
    messages, known = [], []
    for seed in range(RUNS):
        mechanism = Mechanism(CLIP, NOISE, seed=seed)
        made = make_private(algorithm, foreseen, mechanism, simulation.names)
        heard.clear()
        state = made.init(torch.zeros(n, 1, dtype=REAL), simulation.at(0))
        for t in (1, 2):
            state, _ = made.step(state, simulation.at(t), torch.Generator())
        first, second = (rows.reshape(STARS, NODES) for rows in heard)
        known.append((first[:, W] + first[:, V]) / NODES)
        messages.append(second[:, W] - known[-1])
    return events_of(state.ledger), torch.stack(messages), torch.stack(known)


def log_ratio(message, known):
    """log p(message | u at 9) - log p(message | u at -9), by a sum over models of w."""
    spread = NOISE * math.sqrt(NODES - 2) / NODES  # of rows that v does not see
    hidden = torch.linspace(-8 * spread, 8 * spread, 801, dtype=REAL)

    def density(side):
        a = side * CLIP / NODES + hidden
        model = a + known[..., None]
        moved = (-LR * 2 * model).clamp(-CLIP, CLIP)
        away = (message[..., None] - a - moved) / NOISE
        return (-(away.square() + (hidden / spread).square()) / 2).logsumexp(-1)

    return density(1) - density(-1)


def advantage(mu):
    """True less false positives of the best test of N(0, 1) against N(mu, 1)."""
    return 2 * NormalDist().cdf(mu / 2) - 1


def test_an_attack_beats_the_account_of_fixed_inputs_and_not_the_reported_one():
    events, messages, known = attacked()
    guess = log_ratio(messages, known) > 0
    true, false = guess[:, ::2].double().mean(), guess[:, 1::2].double().mean()
    reached = float(true - false)
    # Hoeffding for the difference of two means; one false alarm in 100,000.
    room = math.sqrt(2 * math.log(1e5) / (RUNS * STARS))
    of_fixed = joint_losses(Ledger(NODES, tuple(one_star(events)))).mu[U, V]
    assert epsilon_of(float(of_fixed), 1e-5) == pytest.approx(0.672, abs=5e-4)
    assert advantage(float(of_fixed)) == pytest.approx(0.074, abs=5e-4)
    assert reached == pytest.approx(0.318, abs=room)
    assert reached - room > advantage(float(of_fixed))
    reported = float(by_pairs(events, STARS * NODES)[U, V])
    assert reported == pytest.approx(2 * (2 * CLIP / NOISE) ** 2)  # all of its releases
    assert reached + room < advantage(math.sqrt(reported))


def one_star(events):
    """The events of the first of all stars."""
    for event in events:
        if isinstance(event, Input):
            yield event._replace(who=event.who[:NODES])
        else:
            links = event.links[(event.links < NODES).all(1)]
            weights = event.weights.to_dense()[:NODES, :NODES]
            yield event._replace(links=links, weights=weights)


def test_pairs_of_inputs_that_were_made_before_anything_was_sent_have_their_own_loss():
    ledger = gossip_ledger(metropolis("line", 3), 1)
    # One exchange: v hears its neighbour alone, and of u nothing.
    found = by_pairs(ledger.events, 3)[:, :3]
    assert found.tolist() == [[0, 1, 0], [1, 0, 1], [0, 1, 0]]
    ledger = gossip_ledger(metropolis("ring", 12), 3)
    losses = joint_losses(ledger)
    torch.testing.assert_close(
        by_pairs(ledger.events, 12)[:, :12],
        losses.share * losses.unit.square()[:, None],
    )


def test_pairs_of_later_inputs_have_the_total_of_the_client_where_a_chain_joins_them():
    # On a line of six, one exchange in each of two rounds: two steps in two rounds.
    ledger = gossip_ledger(metropolis("line", 6), 1, steps=2, sensitivity=3.0)
    found, whole = by_pairs(ledger.events, 6), totals(ledger.events, 6)
    assert whole.tolist() == [18.0] * 6
    steps = (torch.arange(6)[:, None] - torch.arange(6)).abs()
    expected = torch.where((steps > 0) & (steps <= 2), 18.0, 0.0).double()
    torch.testing.assert_close(found[:, :6], expected)
    assert not found[:, 6].any()  # there is no server
