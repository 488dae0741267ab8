"""Every method without waiting passes every check, and every check has a culprit."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from coterie.algorithms.local import local
from coterie.asynchronous import IN_TIME, METHODS
from coterie.asynchronous.local import own_pace
from coterie.asynchronous.sgd import async_sgd
from coterie.checks import InputError, number
from coterie.cli.commands import main
from coterie.conformance.flows import (
    EVENTS,
    TIMED_CHECKS,
    TWINS,
    TimedCase,
    Twin,
    begun,
    check_asynchronous,
    is_asynchronous,
    small_federation,
)
from coterie.conformance.suite import Finding, NotApplicable
from coterie.engine.events import Asynchronous, Kind, Task
from coterie.types import Algorithm

OURS = {**METHODS, **IN_TIME}


def passes(check, case):
    try:
        TIMED_CHECKS[check](case)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("check", TIMED_CHECKS)
@pytest.mark.parametrize("name", OURS)
def test_every_method_passes_every_check(name, check):
    passes(check, TimedCase(OURS[name], {}, TWINS.get(OURS[name])))


def test_every_method_has_a_twin_in_rounds():
    assert set(OURS.values()) <= TWINS.keys()


# Where options change what happens: what is held back, who meets, what is compared.
VARIANTS = [
    ("agraf", {"mix": "pairs"}),
    ("agraf", {"mix": "neighbours", "order": "mix_then_step"}),
    ("async_adaptive_all_for_one", {"every": 1, "rule": "adaptive"}),
    ("async_ditto", {"rule": "adaptive", "steps": 3, "weight_decay": 0.1}),
    ("async_sgd", {"wait": 4, "rule": "adaptive"}),
    ("async_sgd", {"average": True}),
    ("async_sgd", {"assign": "random"}),
    ("local", {"steps": 2, "momentum": 0.5}),
]
# Relabelling does not hold where workers are drawn, or readers served, by position.
SENSITIVE = ("one_by_one", "resuming", "without_delays", "work")


@pytest.mark.parametrize("check", SENSITIVE)
@pytest.mark.parametrize(
    ("name", "options"), VARIANTS, ids=[f"{n}-{'-'.join(o)}" for n, o in VARIANTS]
)
def test_methods_pass_with_other_options_too(name, options, check):
    passes(check, TimedCase(OURS[name], options, TWINS[OURS[name]]))


@dataclass
class State:
    x: torch.Tensor
    floats: float = 0.0


def plain(**changes) -> Asynchronous:
    """Local steps of 0.1, with parts replaced."""

    def arrive(state, now):
        state.x[now.clients] -= 0.1 * now.answers[0]
        return now.clients

    method = Asynchronous(
        lambda x: State(x.clone()),
        lambda state, client: Task((state.x[client],)),
        arrive,
        lambda state: state.x,
    )
    return method._replace(**changes)


def steps() -> Algorithm:
    """The same in rounds."""

    def step(state, oracle, rng):
        return State(state.x - 0.1 * oracle.grads(state.x)), {"floats": 0.0}

    return Algorithm(State, step)


def arriving(change) -> Asynchronous:
    """Local steps, before which something is done to the state."""
    inner = plain()

    def arrive(state, now):
        change(state, now)
        return inner.arrive(state, now)

    return plain(arrive=arrive)


def keeps_its_input() -> Asynchronous:
    return plain(init=lambda x: State(x))


def modifies_its_ingredient(sizes) -> Asynchronous:
    return arriving(lambda state, now: sizes.add_(1))


def modifies_answers() -> Asynchronous:
    return arriving(lambda state, now: now.answers[0].mul_(0.5))


def trains_on_when_it_is_asked() -> Asynchronous:
    return plain(personal=lambda state: state.x.sub_(0.01))


def has_one_memory() -> Asynchronous:
    seen = []

    def change(state, now):
        seen.extend(now.clients)
        state.x += 1e-3 * len(seen)

    return arriving(change)


def shakes(draw):
    def change(state, now):
        state.x += 1e-3 * torch.as_tensor(draw(state.x.shape)).to(state.x)

    return arriving(change)


def draws_from_torch() -> Asynchronous:
    return shakes(torch.rand)


def draws_from_numpy() -> Asynchronous:
    return shakes(lambda shape: np.random.rand(*shape))  # noqa: NPY002


def forgets_the_precision() -> Asynchronous:
    return plain(personal=lambda state: state.x.float())


def keeps_half_of_the_precision() -> Asynchronous:
    return plain(init=lambda x: State(x.float()), personal=lambda s: s.x.double())


def has_one_model_for_all() -> Asynchronous:
    return plain(personal=lambda state: state.x.mean(0, keepdim=True))


def says_nothing() -> Asynchronous:
    return plain(info=lambda state: {})


def tells_what_it_sent_just_now() -> Asynchronous:
    def change(state, now):
        state.floats = float(now.clients[0])

    return arriving(change)


def tells_an_infinity() -> Asynchronous:
    return plain(info=lambda state: {"floats": 0.0, "gain": float("inf")})


def prefers_the_first() -> Asynchronous:
    def change(state, now):
        state.x[0] *= 0.99

    return arriving(change)


def mixes_in_its_program() -> Asynchronous:
    def program(clients, x):
        return clients.grad(x.mean(0).expand_as(x))

    return plain(kinds=(Kind(program),))


def hides_its_state() -> Asynchronous:
    counts = {}

    def change(state, now):  # by run, so that two runs do not meet
        count = counts[id(state)] = counts.get(id(state), 0) + 1
        state.x += 1e-3 * count

    return arriving(change)


def grows_its_state() -> Asynchronous:
    def change(state, now):
        state.last = now.time

    return arriving(change)


def keeps_a_function() -> Asynchronous:
    return plain(init=lambda x: State(x.clone(), lambda: 0.0))


def takes_other_steps(*, lr: float = 0.1) -> Asynchronous:
    return own_pace(lr=lr / 2)


def understates_its_work() -> Asynchronous:
    def program(clients, x):
        return (clients.grad(x) + clients.grad(x)) / 2

    return plain(kinds=(Kind(program),))


def overstates_its_work() -> Asynchronous:
    return plain(task=lambda state, client: Task((state.x[client],), work=2))


def waits_for_all() -> Asynchronous:
    return async_sgd(wait=6)


def goes_on_in_order() -> Asynchronous:
    inner = plain()

    def arrive(state, now):
        inner.arrive(state, now)
        return [(client + 1) % len(state.x) for client in now.clients]

    return plain(arrive=arrive)


def checks_nothing(*, lr: float = 0.1) -> Asynchronous:
    return plain()


def takes_any_sizes(sizes, *, lr: float = 0.1) -> Asynchronous:
    number("lr", lr, above=0)
    return plain()


def never_moves() -> Asynchronous:
    return plain(arrive=lambda state, now: now.clients)


def averages_newcomers() -> Asynchronous:
    def welcome(state, oracle):
        g = oracle.grads(state.x[:1].repeat(len(oracle.active), 1))
        return g.mean(0).expand_as(g)

    return plain(welcome=welcome)


def trains_on_while_it_welcomes() -> Asynchronous:
    def welcome(state, oracle):
        state.x.add_(1)
        return state.x[: len(oracle.active)]

    return plain(welcome=welcome)


def welcomes_all_with_one_model() -> Asynchronous:
    return plain(welcome=lambda state, oracle: state.x[:1])


def meets_nobody() -> Asynchronous:
    return plain(meet=lambda state, v, w: None)


CULPRITS = [
    ("inputs_untouched", keeps_its_input),
    ("inputs_untouched", modifies_its_ingredient),
    ("inputs_untouched", modifies_answers),
    ("inputs_untouched", trains_on_when_it_is_asked),
    ("inputs_untouched", meets_nobody),
    ("runs_do_not_meet", has_one_memory),
    ("same_seed_same_result", draws_from_torch),
    ("no_global_randomness", draws_from_torch),
    ("no_global_randomness", draws_from_numpy),
    ("shapes_and_dtype", forgets_the_precision),
    ("shapes_and_dtype", keeps_half_of_the_precision),
    ("shapes_and_dtype", has_one_model_for_all),
    ("info", says_nothing),
    ("info", tells_what_it_sent_just_now),
    ("info", tells_an_infinity),
    ("relabelling", prefers_the_first),
    ("one_by_one", mixes_in_its_program),
    ("resuming", hides_its_state),
    ("resuming", grows_its_state),
    ("without_delays", takes_other_steps),
    ("work", understates_its_work),
    ("work", overstates_its_work),
    ("nobody_waits", waits_for_all),
    ("nobody_waits", goes_on_in_order),
    ("bad_values", checks_nothing),
    ("bad_values", takes_any_sizes),
    ("known_optimum", never_moves),
    ("newcomers", averages_newcomers),
    ("newcomers", trains_on_while_it_welcomes),
    ("newcomers", welcomes_all_with_one_model),
]


@pytest.mark.parametrize(
    ("check", "factory"), CULPRITS, ids=[f"{c}-{f.__name__}" for c, f in CULPRITS]
)
def test_a_wrong_method_is_caught(check, factory):
    with torch.random.fork_rng(devices=[]), pytest.raises(AssertionError):
        TIMED_CHECKS[check](TimedCase(factory, twin=Twin(steps)))


def test_every_check_has_a_culprit():
    assert {check for check, _ in CULPRITS} == TIMED_CHECKS.keys()


def test_what_culprits_are_made_of_passes():
    for check in TIMED_CHECKS.keys() - {"newcomers"}:
        TIMED_CHECKS[check](TimedCase(plain, twin=Twin(steps)))


def test_a_state_that_no_file_can_hold_is_a_finding():
    skip = TIMED_CHECKS.keys() - {"resuming"}
    findings = check_asynchronous(keeps_a_function, skip=skip)
    (found,) = [f for f in findings if f.outcome != "skipped"]
    assert found.outcome == "failed"


def test_findings_come_one_by_one_in_the_order_of_the_checks():
    told: list[Finding] = []
    chosen = ("info", "without_delays", "work")
    skip = TIMED_CHECKS.keys() - set(chosen)
    findings = check_asynchronous(plain, skip=skip, report=told.append)
    assert told == findings
    assert [finding.check for finding in findings] == list(TIMED_CHECKS)
    outcomes = {f.check: f.outcome for f in findings if f.check in chosen}
    assert outcomes == {"info": "passed", "without_delays": "skipped", "work": "passed"}


def test_unknown_checks_ingredients_and_options_are_refused():
    def unusual(temperature, *, lr: float = 0.1) -> Asynchronous:
        return plain()

    with pytest.raises(InputError, match=r"no check 'works'.*Did you mean 'work'"):
        check_asynchronous(plain, skip=["works"])
    with pytest.raises(InputError, match="`temperature` is not known"):
        check_asynchronous(unusual)
    with pytest.raises(InputError, match=r"no option 'lrr'.*Did you mean 'lr'"):
        check_asynchronous(own_pace, options={"lrr": 1.0})


def test_methods_are_told_from_algorithms():
    def breaks() -> Asynchronous:
        raise ZeroDivisionError

    assert is_asynchronous(plain)
    assert not is_asynchronous(local)
    assert not is_asynchronous(breaks)  # which the checks of algorithms will tell
    with pytest.raises(InputError, match="`x` is not known"):
        is_asynchronous(lambda x: plain())


def test_in_runs_of_the_checks_all_answer_at_unequal_pace():
    run = begun(plain(), small_federation())
    for _ in range(EVENTS):
        run.step()
    assert 1 <= run.tasks[0] < min(run.tasks[1:])


MINE = """
from coterie.asynchronous.local import own_pace

def wrong(*, lr: float = 0.1):
    return own_pace(lr=lr / 2)
"""


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["async_all_for_all"], 0, "without_delays passed"),
        (["mine_in_time:wrong", "--twin", "local"], 1, "without_delays failed"),
        (["local", "--twin", "local"], 2, "`--twin` is for asynchronous methods"),
        (["async_ditot"], 2, "Did you mean"),
    ],
)
def test_the_command_check_takes_methods_too(
    tmp_path, monkeypatch, capsys, arguments, code, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine_in_time.py").write_text(MINE)
    monkeypatch.setattr(sys, "argv", ["coterie", "check", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    sys.modules.pop("mine_in_time", None)
    assert stopped.value.code == code
    assert words in " ".join((said.out + said.err).replace("│", " ").split())
