"""At equal times events are rounds; the rest is in the checks of conformance_time."""

from __future__ import annotations

import pytest
import torch

from coterie.asynchronous import IN_TIME, METHODS
from coterie.asynchronous.steps import RULES
from coterie.checks import parameters_of
from coterie.clients.simulation import Simulation
from coterie.conformance.cases import Case, Setting, small_federation, starting_rows
from coterie.conformance.flows import TWINS, TimedCase, begun
from coterie.engine.clocks import clock
from coterie.engine.rounds import run_rounds
from coterie.models import build

# Answers in a round; in pairs there are no rounds, and readers are served in turn.
ANSWERS = {"agraf": 6, "async_all_for_all": 6, "async_ditto": 6, "async_sgd": 6}
ANSWERS |= {"local": 6}
OURS = {**METHODS, **IN_TIME}
# Sums in another order, over a dozen of steps of size .1 in float64.
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def test_every_method_is_here_or_has_no_rounds_of_equal_time():
    assert set(OURS) - set(ANSWERS) == {"async_adaptive_all_for_one", "loss_network"}


@pytest.mark.parametrize("seconds", [0.0, 2.0])
@pytest.mark.parametrize("name", ANSWERS)
def test_at_equal_times_every_so_many_answers_are_a_round(name, seconds):
    federation, setting = small_federation(), Setting()
    twin = TWINS[OURS[name]]
    method = TimedCase(OURS[name], twin.options).build(federation)
    paces = clock(f"constant({seconds})")
    run = begun(method, federation, paces=paces)
    module = build(setting.module, 0, setting.dtype)
    simulation = Simulation(federation, module, batch_size=4, dtype=setting.dtype)
    algorithm, x = (
        Case(twin.factory).build(federation),
        starting_rows(federation, setting),
    )
    for r in run_rounds(algorithm, simulation, x, rounds=8):
        while run.updates < r.t * ANSWERS[name]:
            event = run.step()
        wanted = algorithm.personal(r.state, simulation.at(r.t, purpose="use"))
        torch.testing.assert_close(run.personal(), wanted, **CLOSE)
        work = 2 if name == "async_ditto" else 1
        assert event.time == r.t * work * seconds


RULED = [name for name in METHODS if "rule" in parameters_of(METHODS[name])]


@pytest.mark.parametrize("name", RULED)
def test_every_rule_for_late_answers_has_an_effect_of_its_own(name):
    federation, ends = small_federation(), []
    # The slow client is late by more answers than there are clients.
    paces = clock("lognormal(1, 0.5)", speeds=[9, 1, 1, 1, 1, 1])
    for rule in RULES:
        method = TimedCase(OURS[name], {"rule": rule}).build(federation)
        run = begun(method, federation, paces=paces)
        delays = [tau for _ in range(100) for tau in run.step().delays]
        assert max(delays) > len(federation)
        ends.append(run.personal())
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert float((ends[one] - ends[other]).abs().max()) > 1e-6
