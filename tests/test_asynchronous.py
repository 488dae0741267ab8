"""What every asynchronous method must do; a new one needs an entry in `CASES`."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from coterie.algorithms.all_for_all import all_for_all
from coterie.algorithms.ditto import ditto
from coterie.asynchronous import METHODS
from coterie.checks import InputError
from coterie.clocks import clock
from coterie.events import Asynchronous, Run
from coterie.rounds import run_rounds
from coterie.types import Algorithm
from quadratics import REAL, SAMPLES, quadratics, simulate, start

J = torch.full((6, 6), 1 / 6, dtype=REAL)
L = torch.block_diag(J[:3, :3] * 2, J[:3, :3] * 2)
# Sums in another order, over some hundred steps of size .1 in float64.
CLOSE = {"rtol": 1e-11, "atol": 1e-12}


class Case(NamedTuple):
    """A method, and what it is in rounds where nobody is late."""

    method: Asynchronous
    rounds: Algorithm
    models: Callable[[object], torch.Tensor] = lambda state: state.x
    arrivals: int = 1  # in a round
    same_start: bool = False


CASES = {
    "async_sgd": Case(
        METHODS["async_sgd"](lr=0.1, wait=6, rule="adaptive"),
        all_for_all(J, lr=0.1),
        arrivals=6,
        same_start=True,
    ),
    "agraf": Case(METHODS["agraf"](J, lr=0.1), all_for_all(J, lr=0.1), same_start=True),
    "async_all_for_all": Case(
        METHODS["async_all_for_all"](L, lr=0.1, rule="adaptive"),
        all_for_all(L, lr=0.1),
    ),
    "async_ditto": Case(
        METHODS["async_ditto"](SAMPLES, lr=0.1, steps=2, rule="adaptive"),
        ditto(SAMPLES, lr=0.1, steps=2),
        lambda state: state.v,
    ),
}
PACES = clock("lognormal(1, 0.5)", speeds=[1, 2, 1, 1, 3, 20], seed=4)


@pytest.fixture(params=sorted(METHODS))
def case(request) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def simulation():
    return simulate(quadratics(), batch_size=3)


def beginning(case: Case) -> torch.Tensor:
    return start().mean(0).repeat(6, 1) if case.same_start else start()


@pytest.mark.parametrize("law", ["constant(0)", "constant(2)"])
def test_without_delays_events_are_rounds(case, simulation, law):
    run = Run(case.method, simulation, beginning(case), clock=clock(law))
    for r in run_rounds(case.rounds, simulation, beginning(case), rounds=12):
        for _ in range(case.arrivals):
            run.step()
        torch.testing.assert_close(run.personal(), case.models(r.state), **CLOSE)


def test_together_is_one_by_one(case, simulation):
    both = [
        Run(case.method, simulation, beginning(case), clock=PACES, grouped=way)
        for way in (True, False)
    ]
    for _ in range(60):
        a, b = (run.step() for run in both)
        assert a[:4] == b[:4]
    torch.testing.assert_close(both[0].personal(), both[1].personal(), **CLOSE)


def test_the_same_seed_gives_the_same_numbers(case, simulation):
    first, again = (
        Run(case.method, simulation, beginning(case), clock=PACES) for _ in range(2)
    )
    for _ in range(40):
        assert first.step()[:4] == again.step()[:4]
    assert torch.equal(first.personal(), again.personal())


def test_resuming_is_not_having_stopped(case, simulation):
    whole = Run(case.method, simulation, beginning(case), clock=PACES)
    for _ in range(25):
        whole.step()
    rest = Run(
        case.method, simulation, beginning(case), clock=PACES, start=whole.moment()
    )
    for _ in range(25):
        assert whole.step()[:4] == rest.step()[:4]
    assert torch.equal(whole.personal(), rest.personal())
    assert whole.idle == rest.idle


def test_what_a_run_is_given_stays_as_it_was(case, simulation):
    x = beginning(case)
    before = x.clone()
    run = Run(case.method, simulation, x, clock=PACES)
    for _ in range(20):
        run.step()
    assert torch.equal(x, before)


def test_two_runs_of_a_method_do_not_meet(case, simulation):
    """Its state belongs to the run."""
    one = Run(case.method, simulation, beginning(case), clock=PACES)
    expected = Run(case.method, simulation, beginning(case), clock=PACES)
    other = Run(case.method, simulation, 5 + beginning(case), clock=PACES)
    for _ in range(20):
        one.step()
        other.step()
        expected.step()
    assert torch.equal(one.personal(), expected.personal())
    assert not torch.equal(one.personal(), other.personal())


def test_a_client_who_never_starts_again_is_waited_for_only_by_barriers(
    case, simulation
):
    paces = clock("constant(1)", speeds=[1, 1, 1, 1, 1, 1e9])
    run = Run(case.method, simulation, beginning(case), clock=paces)
    answered = [c for _ in range(5) for c in run.step().clients]
    assert 5 not in answered
    assert run.time < 1e9


def test_models_improve_on_the_start(case):
    """On the losses that the method is for: everybody's mean, or that of a group."""
    full = simulate(quadratics())
    run = Run(case.method, full, beginning(case), clock=PACES)
    before = float(full.evaluate(run.personal(), "train")["loss"].mean())
    for _ in range(240):
        run.step()
    after = float(full.evaluate(run.personal(), "train")["loss"].mean())
    assert after < 0.8 * before


def test_every_method_has_a_case():
    assert set(CASES) == set(METHODS)


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"async_sgd"}))
def test_ingredients_of_another_size_are_refused(name, simulation):
    small = torch.eye(4, dtype=REAL) if name != "async_ditto" else torch.ones(4)
    if name == "agraf":
        small = torch.full((4, 4), 0.25, dtype=REAL)
    with pytest.raises(InputError, match=r"\b6\b"):
        Run(METHODS[name](small), simulation, start(), clock=PACES)
