"""Neighbours without waiting: the rounds where nobody is late, and those who are."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.neighbours import models_in_use, neighbours
from coterie.checks import InputError
from coterie.engine import EventLoop, clock
from coterie.graphs import edges_of, gossip_matrix
from support.linear_groups import two_groups, without_validation
from support.quadratics import EXACT, REAL, zeros
from support.rounds import simulate, train

N = 6


def on(graph, **options):
    return neighbours(gossip_matrix(edges_of(graph, N), N), **options)


def run_of(algorithm, federation, paces):
    x = zeros(federation)
    return EventLoop(algorithm, simulate(federation, 4), x, clock=clock(*paces))


@pytest.mark.parametrize("graph", ["complete", "grid"])
def test_where_nobody_is_late_models_links_and_bytes_are_those_of_rounds(graph):
    federation = two_groups(N, noise=0.1)
    algorithm = on(graph, lr=0.05, steps=3, momentum=0.5)
    states, infos = train(algorithm, simulate(federation, 4), zeros(federation), 6)
    run, sent = run_of(algorithm, federation, ["constant(1)"]), 0.0
    for t, (wanted, info) in enumerate(zip(states[1:], infos, strict=True), 1):
        while run.updates < 2 * N * t:  # each trains, and compares
            run.step()
        state = run.state
        assert_close(state.models[:, 0], wanted.own, **EXACT)
        assert_close(state.models[:, 1], wanted.shared, **EXACT)
        assert_close(state.models[:, 2], wanted.tuned, **EXACT)
        assert torch.equal(state.links.kept, wanted.links.kept)
        assert_close(state.links.evidence, wanted.links.evidence, **EXACT)
        assert_close(run.personal(), models_in_use(wanted), **EXACT)
        assert run.time == 2 * 3 * t
        sent += info["sent"]
        assert run.sent == (0, sent)
    kept = int(wanted.links.kept.sum())
    assert 0 < kept < len(edges_of(graph, N)) * 2  # some are dropped, not all


def test_links_between_groups_are_dropped_whoever_is_slow():
    federation = two_groups(N)
    algorithm = on("complete", lr=0.05, steps=3)
    run = run_of(algorithm, federation, ["lognormal(1, 0.5)", "stragglers(2, 5)"])
    for _ in range(2 * 18 * N):
        run.step()
    weights = algorithm.flow.info(run.state)["weights"]
    same = torch.arange(N)[:, None] % 2 == torch.arange(N) % 2
    assert torch.equal(weights != 0, same)
    assert_close(weights.sum(1), torch.ones(N, dtype=REAL))
    assert run.tasks[0] < min(run.tasks[2:]) / 3


def test_of_a_neighbour_who_has_sent_nothing_nothing_is_taken_and_nothing_known():
    federation = two_groups(N)
    algorithm = on("line", lr=0.05, steps=2)
    run = run_of(algorithm, federation, ["constant(1)", "stragglers(1, 1e9)"])
    for _ in range(40):
        run.step()
    assert run.tasks[0] == 0
    links = run.state.links
    assert bool(links.kept[0].any())  # the only link of client 0
    assert float(links.evidence[0].abs().max()) == 0
    assert float(links.evidence[-1].abs().max()) > 0


def test_options_of_rounds_are_refused_in_time():
    algorithm = on("ring", schedule="inverse(9)")
    with pytest.raises(InputError, match="`schedule` is for rounds"):
        run_of(algorithm, two_groups(N), ["constant(1)"])


def test_without_validation_data_there_is_one_sentence():
    none = without_validation(two_groups(N))
    run = run_of(on("ring"), none, ["lognormal(1, 0.5)"])
    with pytest.raises(InputError, match="neighbours needs validation data"):
        for _ in range(4 * N):
            run.step()
