"""Claims about coteries of clients that keep some parameters at home."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.testing import assert_close

from coterie import models
from coterie.algorithms.coteries import coteries, in_use
from coterie.algorithms.local import local
from coterie.clients.simulation import Simulation
from coterie.data.federation import PARTS
from support.linear_groups import are_found, linear_clients
from support.plain_clients import mine
from support.quadratics import EXACT, REAL, train

# As many parameters as a record of losses has numbers, the bias last.
N, D = 8, 6
BIAS = torch.arange(D) == D - 1
OFFSETS = torch.linspace(-2, 2, N, dtype=REAL)


def federation():
    """Two groups of slopes, every other client; and everybody has its own offset."""
    slope = torch.tensor([2.0, -1.0, 0.0, 1.0, 2.0], dtype=REAL)
    side = 1.0 - 2 * (torch.arange(N) % 2).to(REAL)
    found = linear_clients(side[:, None] * slope, noise=0.3, validation=10, train=12)
    targets = found.targets.clone()
    for i in range(N):
        for part in PARTS:
            targets[mine(found, i, part)] += OFFSETS[i]
    return replace(found, targets=targets)


def simulate(data, home):
    module = models.build(lambda: models.linear((5,), 1), 0, REAL)
    return Simulation(data, module, batch_size=0, dtype=REAL, home=home)


def test_groups_are_found_by_what_is_shared_and_the_rest_stays_at_home():
    data = federation()
    simulation, x = simulate(data, BIAS), torch.zeros(N, D, dtype=REAL)
    algorithm = coteries(data.train.size, steps=4)
    states, infos = train(algorithm, simulation, x, 14)
    last = states[-1]
    assert are_found(last.standing.member, data.clusters)
    for c in (0, 1):
        here = last.group[data.clusters == c]
        assert_close(here[:, ~BIAS], here[:1, ~BIAS].expand_as(here[:, ~BIAS]), **EXACT)
    # Samples of several clients tell the slopes, each client's own its offset.
    assert_close(in_use(last)[:, -1], OFFSETS, rtol=0, atol=0.5)
    assert_close(last.own, train(local(steps=4), simulation, x, 14)[0][-1].x)
    # What is sent is counted without it: two or more models, and 57 numbers.
    assert infos[0]["sent"] == N * (2 * (D - 1) + 57)


def test_halves_have_the_parameters_that_each_client_keeps_at_home():
    data = federation()
    simulation, x = simulate(data, BIAS), torch.zeros(N, D, dtype=REAL)
    states, _ = train(coteries(data.train.size, steps=4), simulation, x, 3)
    tried = [state for state in states if bool(state.standing.trial.any())]
    assert tried
    for state in tried:
        home = state.group[:, None, BIAS].expand(N, 2, 1)
        assert_close(state.candidates[..., BIAS], home, **EXACT)
        # And all who share a group try the same halves.
        for c in state.standing.member.unique():
            shared = state.candidates[state.standing.member == c][..., ~BIAS]
            assert_close(shared, shared[:1].expand_as(shared), **EXACT)
            assert (shared[:, 0] - shared[:, 1]).norm() > 0.1
