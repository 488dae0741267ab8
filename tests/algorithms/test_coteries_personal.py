"""Claims about coteries of clients that keep some parameters at home."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch.testing import assert_close

from coterie import models
from coterie.algorithms.coteries import coteries, group_of, halves_of, in_use
from coterie.algorithms.local import local
from coterie.clients.simulation import Simulation
from coterie.conformance import cases as conformance
from coterie.data.federation import PARTS
from support.federations import error
from support.linear_groups import are_found, linear_clients
from support.plain_clients import mine
from support.quadratics import EXACT, REAL
from support.rounds import train

# The bias is last.
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


def run(data, rounds):
    """States before the first round and after each, and what each of them sent."""
    algorithm = coteries(data.train.size, steps=4)
    simulation = simulate(data, BIAS)
    start = torch.zeros(N, D, dtype=REAL)
    found = conformance.trace_rounds(algorithm, simulation, start, rounds)
    return found.states, found.sent


def test_groups_are_found_by_what_is_shared_and_the_rest_stays_at_home():
    data = federation()
    states, sent = run(data, 16)
    last = states[-1]
    assert are_found(last.place.member, data.clusters)
    for c in (0, 1):
        here = group_of(last)[data.clusters == c]
        assert_close(here[:, ~BIAS], here[:1, ~BIAS].expand_as(here[:, ~BIAS]), **EXACT)
    # Samples of several clients tell the slopes, each client's own its offset.
    assert_close(in_use(last)[:, -1], OFFSETS, rtol=0, atol=0.5)
    assert error(data, in_use(last)[:, ~BIAS]) < error(data, last.own[:, ~BIAS]) / 2
    simulation, x = simulate(data, BIAS), torch.zeros(N, D, dtype=REAL)
    assert torch.equal(last.own, train(local(steps=4), simulation, x, 16)[0][-1].x)
    # Models are sent without it: the group's up and down, and a direction; two halves
    # begin, and there are as many numbers as elsewhere.
    assert sent[0] == N * ((2 + 1 + 4) * (D - 1) + (4 + 2) + (1 + 6))


def test_halves_have_the_parameters_that_each_client_keeps_at_home():
    """Those that its own steps left, whichever half it takes."""
    states, _ = run(federation(), 12)
    tried = [state for state in states if state.server.clock.phase]
    assert tried
    for state in tried:
        home = halves_of(state)[..., BIAS]
        assert_close(home[:, 0], home[:, 1], **EXACT)
        # And all who share a group try the same halves.
        for c in state.place.member.unique():
            shared = halves_of(state)[state.place.member == c][..., ~BIAS]
            assert_close(shared, shared[:1].expand_as(shared), **EXACT)
    first = halves_of(tried[0])[0][:, ~BIAS]
    assert (first[0] - first[1]).norm() > 0.1
    assert halves_of(tried[-1])[:, 0, BIAS].std() > 0.5


def test_a_coordinator_sees_directions_of_shared_parameters_alone():
    states, _ = run(federation(), 2)
    assert states[0].server.sketch.shape == (N, D - 1)
    assert states[1].server.sketch.any(1).all()
    assert are_found(states[1].pick, federation().clusters)
