"""The suite in time: other options pass too, and every check has a culprit."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from coterie.algorithms import ALGORITHMS
from coterie.algorithms.local import local
from coterie.algorithms.server_sgd import server_sgd
from coterie.checks import number
from coterie.cli.commands import main
from coterie.conformance.cases import EVENTS, Case, NotApplicable, event_loop
from coterie.conformance.federations import small_federation
from coterie.conformance.suite import CHECKS, check_algorithm, faces_of
from coterie.types import Algorithm, Flow, Task, TaskKind

IN_TIME = [name for name, check in CHECKS.items() if "time" in check.faces]


# Where options change what happens: what is held back, who meets, what is compared.
VARIANTS = [
    ("agraf", {"mix": "pairs"}),
    ("agraf", {"mix": "neighbours", "order": "mix_then_step"}),
    ("adaptive_all_for_one", {"every": 1, "late": "adaptive"}),
    ("all_for_all", {"late": "heterogeneous"}),
    ("all_for_all", {"form": "factored"}),
    ("neighbours", {"steps": 2, "momentum": 0.5}),
    ("ditto", {"late": "adaptive", "steps": 3, "weight_decay": 0.1}),
    ("server_sgd", {"wait": 4, "late": "adaptive"}),
    ("server_sgd", {"average": True}),
    ("server_sgd", {"assign": "random"}),
    ("local", {"steps": 2, "momentum": 0.5}),
]
# Relabelling does not hold where workers are drawn, or readers served, by position.
SENSITIVE = ("client_by_client", "resuming", "without_delays", "work")


@pytest.fixture(
    scope="module", params=VARIANTS, ids=lambda v: f"{v[0]}-{'-'.join(v[1])}"
)
def variant(request):
    name, options = request.param
    return Case(ALGORITHMS[name], options, "time")


@pytest.mark.parametrize("check", SENSITIVE)
def test_methods_pass_with_other_options_too(variant, check):
    if variant.options.get("late") == "heterogeneous" and check == "without_delays":
        pytest.skip("answers count less from the fourth on.")
    try:
        CHECKS[check].run(variant)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@dataclass
class State:
    x: torch.Tensor
    last: object = 0.0


def plain(**changes) -> Algorithm:
    """Local steps of 0.1 in both faces, with parts of the flow replaced."""

    def arrive(state, now):
        state.x[now.clients] -= 0.1 * now.answers[0]
        return now.clients

    def step(state, oracle, rng):
        return State(state.x - 0.1 * oracle.grads(state.x)), {}

    flow = Flow(
        lambda x: State(x.clone()),
        lambda state, client, time: Task((state.x[client],)),
        arrive,
        lambda state: state.x,
    )
    return Algorithm(lambda x, oracle: State(x), step, flow=flow._replace(**changes))


def arriving(change) -> Algorithm:
    """Local steps, before which something is done to the state."""
    inner = plain().flow

    def arrive(state, now):
        change(state, now)
        return inner.arrive(state, now)

    return plain(arrive=arrive)


def has_one_memory() -> Algorithm:
    seen = []

    def change(state, now):
        seen.extend(now.clients)
        state.x += 1e-3 * len(seen)

    return arriving(change)


def prefers_the_first() -> Algorithm:
    def change(state, now):
        state.x[0] *= 0.99

    return arriving(change)


def mixes_in_its_program() -> Algorithm:
    def program(clients, x):
        return clients.grad(x.mean(0).expand_as(x))

    return plain(kinds=(TaskKind(program),))


def hides_its_state() -> Algorithm:
    counts = {}

    def change(state, now):  # by run, so that two runs do not meet
        count = counts[id(state)] = counts.get(id(state), 0) + 1
        state.x += 1e-3 * count

    return arriving(change)


def grows_its_state() -> Algorithm:
    def change(state, now):
        state.since = now.time

    return arriving(change)


def understates_its_work() -> Algorithm:
    def program(clients, x):
        return (clients.grad(x) + clients.grad(x)) / 2

    return plain(kinds=(TaskKind(program),))


def goes_on_in_order() -> Algorithm:
    inner = plain().flow

    def arrive(state, now):
        inner.arrive(state, now)
        return [(client + 1) % len(state.x) for client in now.clients]

    return plain(arrive=arrive)


def checks_nothing(*, lr: float = 0.1) -> Algorithm:
    return plain()


def takes_any_sizes(sizes, *, lr: float = 0.1) -> Algorithm:
    number("lr", lr, above=0)
    return plain()


def averages_newcomers() -> Algorithm:
    def welcome(state, oracle):
        g = oracle.grads(state.x[:1].repeat(len(oracle.active), 1))
        return g.mean(0).expand_as(g)

    return plain(welcome=welcome)


def trains_on_while_it_welcomes() -> Algorithm:
    def welcome(state, oracle):
        state.x.add_(1)
        return state.x[: len(oracle.active)]

    return plain(welcome=welcome)


def shakes(draw):
    def change(state, now):
        state.x += 1e-3 * torch.as_tensor(draw(state.x.shape)).to(state.x)

    return lambda: arriving(change)


def takes_other_steps(*, lr: float = 0.1) -> Algorithm:
    return local(lr=lr)._replace(flow=local(lr=lr / 2).flow)


CULPRITS = {
    "inputs_untouched": {
        "input": lambda: plain(init=lambda x: State(x)),
        "ingredient": lambda sizes: arriving(lambda state, now: sizes.add_(1)),
        "answers": lambda: arriving(lambda state, now: now.answers[0].mul_(0.5)),
        "models": lambda: plain(personal=lambda state: state.x.sub_(0.01)),
        "meets nobody": lambda: plain(
            meet=lambda state, now: None, send=lambda state, client, time: state.x
        ),
    },
    "runs_do_not_meet": {"one memory": has_one_memory},
    "same_seed_same_result": {"torch": shakes(torch.rand)},
    "no_global_randomness": {
        "torch": shakes(torch.rand),
        "numpy": shakes(lambda shape: np.random.rand(*shape)),  # noqa: NPY002
    },
    "shapes_and_dtype": {
        "single": lambda: plain(personal=lambda state: state.x.float()),
        "single and back": lambda: plain(
            init=lambda x: State(x.float()), personal=lambda state: state.x.double()
        ),
        "one model": lambda: plain(personal=lambda state: state.x.mean(0, True)),
    },
    "info": {
        "infinity": lambda: plain(info=lambda state: {"gain": float("inf")}),
        "too few": lambda: plain(info=lambda state: {"weights": torch.eye(2)}),
    },
    "one_client": {
        "company": lambda: plain(personal=lambda state: state.x[:1] - state.x[1])
    },
    "relabelling": {"first": prefers_the_first},
    "client_by_client": {"mixes": mixes_in_its_program},
    "resuming": {"hides": hides_its_state, "grows": grows_its_state},
    "without_delays": {"other steps": takes_other_steps},
    "work": {
        "too little": understates_its_work,
        "too much": lambda: plain(
            task=lambda state, client, time: Task((state.x[client],), work=2)
        ),
    },
    "nobody_waits": {"all": lambda: server_sgd(wait=6), "in order": goes_on_in_order},
    "bad_options": {"any": checks_nothing},
    "bad_ingredients": {"sizes": takes_any_sizes},
    "known_optimum": {
        "never moves": lambda: plain(arrive=lambda state, now: now.clients)
    },
    "newcomers": {
        "averages": averages_newcomers,
        "trains on": trains_on_while_it_welcomes,
        "one model": lambda: plain(welcome=lambda state, oracle: state.x[:1]),
    },
}
CASES = [(check, name) for check, culprits in CULPRITS.items() for name in culprits]


@pytest.mark.parametrize(("check", "name"), CASES)
def test_a_wrong_method_is_caught(check, name):
    with torch.random.fork_rng(devices=[]):
        with pytest.raises((AssertionError, IndexError)):
            CHECKS[check].run(Case(CULPRITS[check][name], face="time"))


def test_every_check_has_a_culprit():
    assert set(CULPRITS) == set(IN_TIME)


def test_what_culprits_are_made_of_passes():
    case = Case(plain, face="time")
    for check in set(IN_TIME) - {"newcomers"}:
        CHECKS[check].run(case)


def test_a_state_that_no_file_can_hold_is_a_finding():
    def keeps_a_function() -> Algorithm:
        return plain(init=lambda x: State(x.clone(), lambda: 0.0))

    findings = check_algorithm(keeps_a_function, skip=CHECKS.keys() - {"resuming"})
    found = [f for f in findings if f.outcome != "skipped"]
    assert [(f.face, f.outcome) for f in found][-1] == ("time", "failed")


def test_a_method_without_rounds_skips_what_compares_with_them():
    skip = CHECKS.keys() - {"without_delays", "work"}
    findings = check_algorithm(server_sgd, skip=skip)
    assert {f.face for f in findings} == {"time"}
    outcomes = {f.check: f.outcome for f in findings}
    assert (outcomes["without_delays"], outcomes["work"]) == ("skipped", "passed")


def test_faces_are_read_from_what_a_factory_makes():
    def breaks() -> Algorithm:
        raise ZeroDivisionError

    assert faces_of(plain) == ("rounds", "time")
    assert faces_of(server_sgd) == ("time",)
    assert faces_of(breaks) == ("rounds",)  # whose checks will tell


def test_in_runs_of_the_checks_all_answer_at_unequal_pace():
    run = event_loop(plain(), small_federation())
    for _ in range(EVENTS):
        run.step()
    assert 1 <= run.tasks[0] < min(run.tasks[1:])


MINE = """
from coterie.algorithms.local import local

def wrong(*, lr: float = 0.1):
    return local(lr=lr)._replace(flow=local(lr=lr / 2).flow)
"""

FEW = [
    word
    for name in CHECKS.keys() - {"info", "resuming", "without_delays"}
    for word in ("--skip", name)
]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["local", *FEW], 0, "without_delays time passed"),
        (["mine_in_time:wrong", *FEW], 1, "without_delays time failed"),
        (["server_sdg"], 2, "Did you mean"),
    ],
)
def test_the_command_check_looks_at_all_faces(
    tmp_path, monkeypatch, capsys, arguments, code, words
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "mine_in_time.py").write_text(MINE)
    monkeypatch.setattr(sys, "argv", ["coterie", "check", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    said = capsys.readouterr()
    sys.modules.pop("mine_in_time", None)
    assert stopped.value.code == code
    assert words in " ".join((said.out + said.err).replace("│", " ").split())
    assert ("failed" in said.out) == (code == 1)
    assert code == 2 or ("rounds" in said.out and "info" in said.out)
