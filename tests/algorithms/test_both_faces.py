"""At equal times events are rounds; the rest is in the checks of the suite."""

from __future__ import annotations

from typing import NamedTuple, get_args

import pytest
import torch

from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError, parameters_of
from coterie.conformance.cases import Case, Setting, event_loop, simulation_of
from coterie.conformance.cases import starting_rows as starts
from coterie.conformance.federations import small_federation
from coterie.conformance.suite import faces_of
from coterie.engine.clocks import clock
from coterie.engine.events import EventLoop
from coterie.engine.rounds import run_rounds
from coterie.graphs import edges_of, gossip_matrix
from coterie.optim.delays import Late
from coterie.types import Algorithm
from support.methods import TIME_ONLY

FACES = {name: faces_of(factory) for name, factory in ALGORITHMS.items()}
BOTH = {name for name, faces in FACES.items() if len(faces) == 2}
# Sums in another order, over a dozen of steps of size .1 in float64.
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


def test_which_methods_have_which_faces():
    both = {"adaptive_all_for_one", "all_for_all", "coteries", "ditto", "local"}
    both |= {"neighbours"}
    assert both == BOTH
    in_time = {name for name, faces in FACES.items() if faces == ("time",)}
    assert in_time == TIME_ONLY


class Models(NamedTuple):
    x: torch.Tensor  # (N, D)


def decentralised(mixing: torch.Tensor, *, lr: float = 0.1) -> Algorithm:
    """AGRAF if nobody is late: x <- W (x - lr g(x))."""

    def step(state, oracle, rng):
        moved = state.x - lr * oracle.grads(state.x)
        return Models(oracle.mix(mixing, moved)), {}

    return Algorithm(lambda x, oracle: Models(x), step)


def minibatch(sizes: torch.Tensor, *, lr: float = 0.1) -> Algorithm:
    """SGD with a server that waits for all: x <- x - lr mean_i g_i(x)."""
    n = len(sizes)
    return ALGORITHMS["all_for_all"](
        torch.full((n, n), 1 / n, dtype=torch.float64), lr=lr
    )


# Readers are served in turn, and in pairs there are no rounds.
IN_STEP = sorted(BOTH - {"adaptive_all_for_one"})
ROUNDS = {name: (ALGORITHMS[name], ALGORITHMS[name], {}) for name in IN_STEP}
for option, value in (("form", "factored"), ("late", "adaptive")):
    same = ALGORITHMS["all_for_all"]
    ROUNDS[value] = same, same, {option: value}
ROUNDS["agraf"] = ALGORITHMS["agraf"], decentralised, {}
ROUNDS["server_sgd"] = ALGORITHMS["server_sgd"], minibatch, {"wait": 6}


@pytest.mark.parametrize("seconds", [0.0, 2.0])
@pytest.mark.parametrize("name", ROUNDS)
def test_at_equal_times_an_answer_of_everybody_is_a_round(name, seconds):
    """`neighbours` has two answers in a round: it trains, and compares models."""
    federation, setting = small_federation(), Setting()
    factory, twin, options = ROUNDS[name]
    answers = 12 if name == "neighbours" else 6
    paces = clock(f"constant({seconds})")
    run = event_loop(Case(factory, options).build(federation), federation, paces=paces)
    simulation = simulation_of(federation, setting)
    algorithm, x = Case(twin).build(federation), starts(federation, setting)
    for r in run_rounds(algorithm, simulation, x, rounds=6):
        while run.updates < r.t * answers:
            event = run.step()
        wanted = algorithm.personal(r.state, simulation.at(r.t, purpose="use"))
        torch.testing.assert_close(run.personal(), wanted, **CLOSE)
        work = 2 if name in ("coteries", "ditto", "neighbours") else 1
        assert event.time == r.t * work * seconds


def test_all_for_all_in_time_sends_as_in_rounds_also_with_neighbours_only():
    """On a ring Lambda Lambda^T joins neighbours of neighbours; Lambda does not."""
    federation, setting = small_federation(), Setting()
    ring = gossip_matrix(edges_of("ring", 6), 6).to_dense()
    x, simulation = starts(federation, setting), simulation_of(federation, setting)
    messages = {"direct": 4 * 6, "factored": 2 * 2 * 6}
    for form, graph in (("direct", None), ("factored", ring)):
        algorithm = ALGORITHMS["all_for_all"](ring, graph, form=form)
        run = event_loop(algorithm, federation, paces=clock("constant(1)"))
        for r in run_rounds(algorithm, simulation, x, rounds=3):
            while run.updates < r.t * 6:
                run.step()
            assert run.sent == (0, r.t * r.traffic.peers)
            assert r.traffic.peers == messages[form] * x.shape[1]
    with pytest.raises(InputError, match="`form` must be factored on this graph"):
        ALGORITHMS["all_for_all"](ring, ring)


def test_two_who_exchange_models_without_delay_take_the_mean_and_a_step():
    """x_v <- (x_v + x_w) / 2 - lr g_v(x_v), whatever the ring."""
    federation, setting = small_federation(2), Setting()
    run = event_loop(Case(ALGORITHMS["loss_network"]).build(federation), federation)
    x, simulation = starts(federation, setting), simulation_of(federation, setting)
    for t in range(1, 6):
        run.step()
        x = x.mean(0) - 0.1 * simulation.at(t).grads(x)
        torch.testing.assert_close(run.personal(), x, **CLOSE)


def test_a_method_of_one_face_is_refused_by_the_other_loop():
    federation = small_federation()
    x, simulation = (
        starts(federation, Setting()),
        simulation_of(federation, Setting()),
    )
    in_time, in_rounds = (
        Case(ALGORITHMS[name]).build(federation) for name in ("server_sgd", "fedavg")
    )
    with pytest.raises(InputError, match="the method has no rounds"):
        next(run_rounds(in_time, simulation, x, rounds=1))
    with pytest.raises(InputError, match="the method has rounds only"):
        EventLoop(in_rounds, simulation, x, clock=clock("constant(1)"))


LATE = sorted(name for name in ALGORITHMS if "late" in parameters_of(ALGORITHMS[name]))


@pytest.mark.parametrize("name", LATE)
def test_every_rule_for_late_answers_has_an_effect_of_its_own(name):
    federation, ends = small_federation(), []
    # The slow client is late by more answers than there are clients.
    paces = clock("lognormal(1, 0.5)", speeds=[9, 1, 1, 1, 1, 1])
    for late in get_args(Late):
        method = Case(ALGORITHMS[name], {"late": late}).build(federation)
        run = event_loop(method, federation, paces=paces)
        delays = [tau for _ in range(50) for tau in run.step().delays]
        assert max(delays) > len(federation)
        ends.append(run.personal())
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert float((ends[one] - ends[other]).abs().max()) > 1e-6
