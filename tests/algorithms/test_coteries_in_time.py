"""Claims about coteries where nobody waits."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from coterie.algorithms.coteries import coteries, in_use
from coterie.engine.clocks import clock
from coterie.engine.events import EventLoop
from coterie.engine.rounds import run_rounds
from coterie.types import Arrivals
from support.linear_groups import (
    are_found,
    assert_same_standing,
    linear_clients,
    two_groups,
)
from support.quadratics import REAL, error, simulate, zeros

# Sums in another order, over a hundred steps in double precision.
CLOSE = {"rtol": 1e-9, "atol": 1e-11}


def begun(federation, paces, *, batch_size=4, **options) -> EventLoop:
    algorithm = coteries(federation.train.size, **options)
    simulation, x = simulate(federation, batch_size), zeros(federation)
    return EventLoop(algorithm, simulation, x, clock=paces)


def alike():
    theta = torch.ones(6, 3, dtype=REAL)
    return linear_clients(theta, noise=1.0, seed=16)


@pytest.mark.parametrize(
    ("made", "sure", "groups"),
    [(two_groups, 2.5, [1, 2]), (alike, 0.05, [1, 2, 1])],
    ids=["apart", "together again"],
)
def test_without_delays_it_is_the_method_of_rounds_through_divisions(
    made, sure, groups
):
    federation = made()
    n, options = len(federation), {"steps": 2, "sure": sure}
    run = begun(federation, clock("constant(1)"), **options)
    algorithm = coteries(federation.train.size, **options)
    simulation, x, seen, time = simulate(federation, 4), zeros(federation), [1], 0.0
    for r in run_rounds(algorithm, simulation, x, rounds=12):
        # A gradient takes a second; on probation there are half as many more.
        time += 2 * (2 + (int(run.state.standing.probation[0]) >= 0))
        while run.updates < n * r.t:
            event = run.step()
        assert event.time == time
        assert_same_standing(run.state.standing, r.state.standing, **CLOSE)
        assert_close(run.personal(), in_use(r.state), **CLOSE)
        count = len(r.state.standing.member.unique())
        seen += [count] if count != seen[-1] else []
    assert seen == groups


def test_stragglers_end_in_their_true_group():
    """Two of eight, one of each group, take ten times as long."""
    federation = two_groups(8, noise=0.5)
    paces = clock("lognormal(1, 0.3)", speeds=[10, 10, 1, 1, 1, 1, 1, 1])
    run, waited = begun(federation, paces, steps=4), torch.zeros(8, dtype=torch.bool)
    for event in run.until(250.0):
        waited |= event.state.standing.sibling >= 0
    # They were busy when their group divided, and have chosen since.
    assert waited[:2].all()
    standing = run.state.standing
    assert (standing.sibling < 0).all()
    assert are_found(standing.member, federation.clusters)
    assert error(federation, run.personal()) < error(federation, run.state.own) / 2


def test_who_is_slow_does_not_hold_up_the_others():
    """Groups are found while two of eight have not yet answered once."""
    federation = two_groups(8, noise=0.5)
    run = begun(
        federation, clock("constant(1)", speeds=[1e6, 1e6, 1, 1, 1, 1, 1, 1]), steps=4
    )
    for _ in run.until(80.0):
        pass
    assert run.tasks[:2] == [0, 0]
    assert are_found(run.state.standing.member[2:], federation.clusters[2:])
    assert (run.state.standing.sibling[:2] >= 0).any()


def test_what_is_sent_are_models_and_reports():
    """The group's model down and up, with 43 moments, as long as nothing is tried."""
    federation = two_groups(8)
    run = begun(federation, clock("constant(1)"))
    while run.updates < 8:
        run.step()
    assert run.sent == (8 * (3 + (3 + 43) + 3), 0)  # and the next task


def arrives(flow, state, client, pick):
    """A client ends its task with models that are as they were."""
    own, began = state.own[client], state.began[client]
    report = torch.zeros_like(state.report[client])
    cap, pick = torch.tensor(1.0, dtype=REAL), torch.tensor(pick)
    answers = tuple(row[None].clone() for row in (own, began, cap, pick, report, began))
    flow.arrive(state, Arrivals(1.0, [client], answers, [1], 0, 0, 2, []))


@pytest.mark.parametrize("pick", [0, 1])
def test_who_was_busy_through_two_divisions_goes_to_the_half_that_it_chose(pick):
    flow = coteries(torch.ones(6)).flow
    state = flow.init(torch.zeros(6, 3, dtype=REAL))
    names = torch.tensor([0, 0, 0, 0, 1, 1])
    waits = torch.tensor([-1, -1, -1, 1, -1, -1])
    state.standing = state.standing._replace(member=names, sibling=waits)
    flow.task(state, 3, 0.0)  # offers group 0 and group 1
    names = torch.tensor([0, 0, 2, 0, 1, 1])
    waits = torch.tensor([-1, -1, -1, 2, -1, -1])
    state.standing = state.standing._replace(member=names, sibling=waits)
    arrives(flow, state, 3, pick)
    # Who stays in the group that has divided once more has yet to choose there.
    assert int(state.standing.member[3]) == (1 if pick else 0)
    assert int(state.standing.sibling[3]) == (-1 if pick else 2)


def test_who_was_busy_when_all_became_one_group_again_stays_in_it():
    flow = coteries(torch.ones(6)).flow
    state = flow.init(torch.zeros(6, 3, dtype=REAL))
    waits = torch.tensor([-1, -1, -1, 1, -1, -1])
    names = torch.tensor([0, 0, 0, 0, 1, 1])
    state.standing = state.standing._replace(member=names, sibling=waits)
    flow.task(state, 3, 0.0)
    state.standing = flow.init(state.own).standing
    arrives(flow, state, 3, 1)
    assert state.standing.member.tolist() == [0] * 6
    assert state.standing.sibling.tolist() == [-1] * 6
