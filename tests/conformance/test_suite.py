"""Every registered algorithm passes every check, and every check catches a culprit."""

from __future__ import annotations

import functools
import itertools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from coterie.algorithms import ALGORITHMS
from coterie.algorithms.adaptive_all_for_one import adaptive_all_for_one
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.local import State, local
from coterie.checks import InputError, integer
from coterie.clients.oracles import SimulatedOracle
from coterie.conformance.cases import Case, NotApplicable, leaves
from coterie.conformance.federations import common_optimum, small_federation
from coterie.conformance.suite import CHECKS, Finding, check_algorithm, faces_of
from coterie.optim.steps import Descent, velocity
from coterie.options import NotNegative, Positive, Sizes, method
from coterie.types import Algorithm, Releases, Rows
from support.refusals import refuses

EXCEPTED = {
    ("cobo", "relabelling"): "pairs of clients are drawn by position.",
    ("fedfomo", "inactive_rows"): "a client stays where no model does better.",
    ("shared_subspace", "inactive_state"): "coordinates turn with the common basis.",
}
"""What a method does not promise, and why: equal in law, or but for coordinates."""


IN_ROUNDS = [name for name, check in CHECKS.items() if "rounds" in check.faces]
TESTED = [
    (name, face, check)
    for name, factory in ALGORITHMS.items()
    for face in faces_of(factory)
    for check in CHECKS
    if face in CHECKS[check].faces
]


FEWER = {name: {"newton": 1, "inner": 5} for name in ("dane", "spag")}
FEWER["preconditioned_gradient"] = FEWER["dane"]
"""Steps of solvers inside a round, on which no check but the optimum's depends."""


@functools.cache
def case_of(name, face, *options):
    """The same case for all checks, so that they share its runs."""
    return Case(ALGORITHMS[name], dict(options), face)


def passes(check, case):
    try:
        CHECKS[check].run(case)
    except NotApplicable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize(("name", "face", "check"), TESTED)
def test_every_algorithm_passes_every_check_in_all_its_faces(name, face, check):
    if (name, check) in EXCEPTED:
        pytest.skip(EXCEPTED[name, check])
    options = {} if check == "known_optimum" else FEWER.get(name, {})
    passes(check, case_of(name, face, *options.items()))


SETTINGS = {"momentum": 0.5, "weight_decay": 0.01, "steps": 2, "schedule": "inverse(9)"}
SENSITIVE = (
    "inputs_untouched",
    "shapes_and_dtype",
    "relabelling",
    "client_by_client",
    "resuming",
    "local_limit",
    "inactive_rows",
    "inactive_state",
    "in_place",
)


@pytest.mark.parametrize("check", SENSITIVE)
@pytest.mark.parametrize("name", sorted({n for n, f, _ in TESTED if f == "rounds"}))
def test_algorithms_pass_with_momentum_and_schedules_too(name, check):
    if (name, check) in EXCEPTED:
        pytest.skip(EXCEPTED[name, check])
    defaults = Case(ALGORITHMS[name]).defaults
    options = {n: v for n, v in SETTINGS.items() if n in defaults} | FEWER.get(name, {})
    passes(check, case_of(name, "rounds", *options.items()))


def estimated_precision(*, lr: float = 0.1) -> Algorithm:
    return adaptive_all_for_one(None, lr=lr)


ESTIMATED = Case(estimated_precision)


@pytest.mark.parametrize("check", IN_ROUNDS)
def test_adaptive_collaboration_passes_when_it_estimates_the_precision(check):
    passes(check, ESTIMATED)


def one_step(clients, x, *, lr: float):
    return x - lr * clients.grad(x)


def around(step) -> Algorithm:
    """Local training with another step, which gets the right one as its first argument.

    That takes nothing but the state, and says what comes after it.
    """
    inner = local()

    def wrong(state, oracle, rng):
        return step(lambda now: inner.step(now, oracle, rng), state, oracle, rng)

    return inner._replace(step=wrong)


def modifies_its_input() -> Algorithm:
    def wrong(right, state, oracle, rng):
        new, info = right(state)
        state.x.copy_(new.x)
        return new, info

    return around(wrong)


def modifies_its_ingredient(sizes) -> Algorithm:
    def wrong(right, state, oracle, rng):
        sizes.add_(1)
        return right(state)

    return around(wrong)


def moved(move) -> Algorithm:
    """Local training after each round of which models are moved."""

    def wrong(right, state, oracle, rng):
        new, info = right(state)
        return new._replace(x=move(new.x, rng)), info

    return around(wrong)


def hides_its_state() -> Algorithm:
    rounds = itertools.count(1)
    return moved(lambda x, rng: x / next(rounds))


class Growing(NamedTuple):
    x: Tensor
    past: tuple[Tensor, ...]


def grows_its_state() -> Algorithm:
    def step(state, oracle, rng):
        x = oracle.each(one_step, state.x, lr=0.1)[0]
        return Growing(x, (*state.past, x)), {}

    return Algorithm(lambda x, oracle: Growing(x, ()), step)


def averages_the_idle(sizes) -> Algorithm:
    """Counts gradients of zero as if inactive clients had sent them, and moves them."""
    rule = Descent(weight_decay=0.1)

    def step(state, oracle, rng):
        g = oracle.grads(state.x) + 0.1 * state.x
        return State(state.x - 0.1 * g, state.v, state.t + 1), {}

    return Algorithm(lambda x, oracle: State(x, velocity(rule, x), 0), step)


class Scaffold(NamedTuple):
    x: Rows  # (n, D), the same row for everybody
    c: Rows  # (n, D), the mean of all control variates
    c_own: Rows  # (n, D)


def scaffold_round(clients, x, c, c_own):
    """One local step, and the control variate by it (option II of the paper)."""
    y = x - 0.1 * (clients.grad(x) - c_own + c)
    return y, c_own - c + (x - y) / 0.1


def scaffold(absent=lambda old, new, c: old) -> Algorithm:
    """SCAFFOLD; control variates of clients that take no part are made by `absent`.

    Karimireddy et al., "SCAFFOLD: Stochastic controlled averaging for federated
    learning", ICML 2020.
    """

    def init(x, oracle):
        x = oracle.average(x.new_ones(len(x)), x)
        return Scaffold(x, torch.zeros_like(x), torch.zeros_like(x))

    def step(state, oracle, rng):
        x, c, c_own = state
        y, new = oracle.each(scaffold_round, x, c, c_own)
        share = oracle.present.to(x).mean()
        here = oracle.active.to(x)
        c_new = c + share * oracle.average(here, new - c_own)
        own = torch.where(here[:, None] > 0, new, absent(c_own, new, c_new))
        return Scaffold(oracle.average(here, y), c_new, own), {}

    return Algorithm(init, step)


def checks_nothing(*, lr: float = 0.1, steps: int = 1) -> Algorithm:
    return local()


def never_moves() -> Algorithm:
    return Algorithm(
        lambda x, oracle: State(x, x[:, :0], 0), lambda state, o, r: (state, {})
    )


def refuses_without_a_name(*, steps: int = 1) -> Algorithm:
    try:
        integer("steps", steps, at_least=1)
    except InputError:
        raise InputError("something is wrong.") from None
    return local()


def tells(**info) -> Algorithm:
    return around(lambda right, state, oracle, rng: (right(state)[0], info))


def ignores_its_weights(weights, *, lr: float = 0.1) -> Algorithm:
    return fedavg(torch.ones(len(weights)), lr=lr)


def treats_clients_by_their_number(sizes) -> Algorithm:
    """In debug mode a program sees one row at a time, else all."""

    def step(state, oracle, rng):
        x = oracle.each(mixing_program, state.x)[0]
        return State(x, state.v, 0), {}

    return Algorithm(lambda x, oracle: State(x, x[:, :0], 0), step)


def mixing_program(clients, x):
    return x.mean(0) - 0.1 * clients.grad(x)


def sends_as_many_as_there_are_rows() -> Algorithm:
    """The models are right, and a process sends more if it holds more clients."""

    def wrong(right, state, oracle, rng):
        n = len(state.x)
        oracle.average(state.x.new_ones(n), state.x[:, :n])
        return right(state)

    return around(wrong)


def welcomes(made=lambda x: x, meanwhile=lambda state: None) -> Algorithm:
    """Local training; of the right models for newcomers something else is made."""
    inner = local()

    def welcome(state, oracle):
        meanwhile(state)
        return made(inner.welcome(state, oracle))

    return inner._replace(welcome=welcome)


def knows_whom_it_asks() -> Algorithm:
    def wrong(right, state, oracle, rng):
        new, info = right(state)
        plain = isinstance(oracle, SimulatedOracle)
        return (new if plain else new._replace(x=2 * new.x)), info

    return around(wrong)


def says_that_nothing_leaves(sizes: Sizes) -> Algorithm:
    return fedavg(sizes)._replace(releases=Releases())


def noisy(draw):
    """Local training with something small that is added to the models."""
    return lambda: moved(lambda x, rng: x + 1e-3 * torch.as_tensor(draw(x, rng)).to(x))


CULPRITS = {
    "newcomers": {
        "one model": lambda: local()._replace(welcome=lambda state, o: state.x[:1]),
        "rounded": lambda: welcomes(lambda x: x.to(torch.float32)),
        "nothing": lambda: welcomes(lambda x: x / 0),
        "averages": lambda: welcomes(lambda x: x.mean(0).expand_as(x)),
        "trains on": lambda: welcomes(meanwhile=lambda state: state.x.add_(1)),
        "uses up": lambda sizes: welcomes(meanwhile=lambda state: sizes.zero_()),
    },
    "divided": {
        # The mean of the rows at hand is that of all clients only if all are here.
        "averages": lambda sizes: moved(lambda x, rng: x.mean(0).expand_as(x)),
        "sends": sends_as_many_as_there_are_rows,
        # Right where every process has two clients at least.
        "alone": lambda: moved(lambda x, rng: x if len(x) > 1 else x / 2),
    },
    "inputs_untouched": {
        "input": modifies_its_input,
        "ingredient": modifies_its_ingredient,
    },
    "same_seed_same_result": {"torch": noisy(lambda x, rng: torch.rand(x.shape))},
    "no_global_randomness": {
        "torch": noisy(lambda x, rng: torch.rand(x.shape)),
        "numpy": noisy(lambda x, rng: np.random.rand(*x.shape)),  # noqa: NPY002
    },
    "relabelling": {
        "order": noisy(lambda x, rng: torch.arange(len(x))[:, None]),
        "draws": noisy(lambda x, rng: torch.rand(len(x), 1, generator=rng)),
    },
    "identical_clients": {"order": noisy(lambda x, rng: torch.arange(len(x))[:, None])},
    "resuming": {"hides": hides_its_state, "grows": grows_its_state},
    "shapes_and_dtype": {
        "double": lambda: local()._replace(personal=lambda state, o: state.x.double())
    },
    "inactive_rows": {"averages": averages_the_idle, "never moves": never_moves},
    "inactive_state": {
        "averages": averages_the_idle,
        "control variates follow": lambda: scaffold(lambda old, new, c: old + 0.1 * c),
        "no memory": lambda: scaffold(lambda old, new, c: torch.zeros_like(old)),
    },
    "in_place": {"shrinks the idle": lambda: moved(lambda x, rng: 0.9 * x)},
    "bad_options": {"any": checks_nothing, "no name": refuses_without_a_name},
    "bad_ingredients": {"weights": ignores_its_weights},
    "known_optimum": {"never moves": never_moves},
    "info": {
        "no number": lambda: tells(gain=float("nan")),
        "weights of a single client": lambda: tells(weights=torch.ones(6)),
        "no labels": lambda: tells(member=torch.ones(6)),
        "group of one client": lambda: tells(
            member=torch.zeros(6).long(), uses=torch.tensor(0)
        ),
    },
    "one_client": {
        "company": lambda: moved(lambda x, r: (x + (x.sum(0) - x) / (len(x) - 1)) / 2)
    },
    "local_limit": {"weights": ignores_its_weights},
    "client_by_client": {"by number": treats_clients_by_their_number},
    "without_noise": {"knows": knows_whom_it_asks},
    "releases": {"nothing": says_that_nothing_leaves},
}
CASES = [(check, name) for check, culprits in CULPRITS.items() for name in culprits]


@pytest.mark.parametrize(("check", "name"), CASES)
def test_a_wrong_algorithm_is_caught(check, name):
    with torch.random.fork_rng(devices=[]), pytest.raises(AssertionError):
        CHECKS[check].run(Case(CULPRITS[check][name]))


def listens_one_way() -> Algorithm:
    """Everybody has a weight for the next client, which has none for it."""

    def wrong(right, state, oracle, rng):
        n = len(oracle.present)
        after = torch.eye(n).roll(1, 1)[oracle.mine]
        new, info = right(state)
        return new._replace(x=new.x + 0.1 * oracle.mix(after, state.x)), info

    return around(wrong)


def test_weights_at_hand_that_are_not_mutual_are_named():
    with pytest.raises(InputError, match="clients at hand must be mutual"):
        CHECKS["divided"].run(Case(listens_one_way))


def test_scaffold_as_printed_passes_every_check():
    findings = check_algorithm(lambda: scaffold())
    assert not [f for f in findings if f.outcome == "failed"]
    outcomes = {f.check: f.outcome for f in findings}
    # Its clients share a model, so `inactive_rows` alone would see nothing.
    assert outcomes["inactive_rows"] == "skipped"
    assert outcomes["inactive_state"] == outcomes["divided"] == "passed"


class Moments(NamedTuple):
    x: Rows
    m: Rows
    v: Rows
    t: int


def beginning(x) -> Moments:
    return Moments(x, torch.zeros_like(x), torch.zeros_like(x), 0)


def followed_moments(state: Moments, g) -> Moments:
    m, v = 0.9 * state.m + 0.1 * g, 0.999 * state.v + 0.001 * g.square()
    return state._replace(m=m, v=v, t=state.t + 1)


def adaptive_step(state: Moments) -> Tensor:
    """Adam's step, with both moments corrected for their start at zero."""
    mean = state.m / (1 - 0.9**state.t)
    return mean / ((state.v / (1 - 0.999**state.t)).sqrt() + 1e-8)


def fedadam(sizes: Sizes, *, lr: Positive = 0.001) -> Algorithm:
    """Reddi et al., "Adaptive federated optimization", ICLR 2021."""

    def init(x, oracle):
        return beginning(oracle.average(sizes[oracle.mine], x))

    def step(state, oracle, rng):
        y = oracle.each(one_step, state.x, lr=0.1)[0]
        g = oracle.average(sizes[oracle.mine], state.x - y)
        state = followed_moments(state, g)
        return state._replace(x=state.x - lr * adaptive_step(state)), {}

    return Algorithm(init, step)


def adamw(*, lr: Positive = 0.001, weight_decay: NotNegative = 0.01) -> Algorithm:
    """Loshchilov, Hutter, "Decoupled weight decay regularization", ICLR 2019."""

    def init(x, oracle):
        return beginning(x)

    def step(state, oracle, rng):
        here = oracle.active[:, None]
        new = followed_moments(state, oracle.grads(state.x))
        x = state.x - lr * (adaptive_step(new) + weight_decay * state.x)
        kept = zip((x, new.m, new.v), state, strict=False)
        return Moments(*(torch.where(here, *pair) for pair in kept), new.t), {}

    return Algorithm(init, step)


SETTINGS_OF = {fedadam: {"lr": 0.1}, adamw: {"lr": 0.1, "weight_decay": 0.0}}


@pytest.mark.parametrize("factory", SETTINGS_OF)
def test_a_method_says_with_which_settings_it_reaches_a_known_optimum(factory):
    with pytest.raises(AssertionError, match="after 240 rounds"):
        CHECKS["known_optimum"].run(Case(method()(factory)))
    declared = method(known_optimum=SETTINGS_OF[factory])(factory)
    assert not [f for f in check_algorithm(declared) if f.outcome == "failed"]
    # What is asked for comes before what is declared.
    with pytest.raises(AssertionError, match="after 240 rounds"):
        CHECKS["known_optimum"].run(Case(declared, {"lr": 1e-5}))


def test_settings_that_a_method_does_not_have_are_a_finding():
    wrong = method(known_optimum={"lrr": 0.1})(adamw)
    refuses(r"no 'lrr'. Did you mean 'lr'", CHECKS["known_optimum"].run, Case(wrong))


def shares_but_for_rounding(sizes) -> Algorithm:
    """FedAvg on a machine that rounds the mean of every client in another way."""
    inner = fedavg(sizes)

    def step(state, oracle, rng):
        new, info = inner.step(state, oracle, rng)
        place = torch.arange(len(new.x), dtype=new.x.dtype)
        last_digit = torch.finfo(new.x.dtype).eps * place
        return new._replace(x=new.x * (1 + last_digit[:, None])), info

    return inner._replace(step=step)


def test_models_that_differ_by_rounding_are_shared():
    # As where a product of equal rows of weights is rounded row by row.
    with pytest.raises(NotApplicable, match="clients share models"):
        CHECKS["inactive_rows"].run(Case(shares_but_for_rounding))


def test_every_check_has_a_culprit_but_that_of_the_data_of_others():
    # An algorithm cannot reach data, so only an oracle could fail `inactive_data`.
    assert set(CULPRITS) == set(IN_ROUNDS) - {"inactive_data"}


def test_findings_come_one_by_one_in_the_order_of_the_checks():
    told: list[Finding] = []
    findings = check_algorithm(local, report=told.append)
    assert told == findings
    assert [(f.face, f.check) for f in findings] == [
        (face, check) for name, face, check in TESTED if name == "local"
    ]
    outcomes = {(f.face, f.check): f.outcome for f in findings}
    assert outcomes.pop(("rounds", "local_limit")) == "skipped"
    assert set(outcomes.values()) == {"passed"}


def test_a_crash_is_a_finding_and_the_other_checks_go_on():
    def broken(*, lr: float = 0.1) -> Algorithm:
        raise ZeroDivisionError("no luck")

    findings = check_algorithm(broken)
    assert [finding.check for finding in findings] == IN_ROUNDS
    outcome = {finding.check: finding for finding in findings}
    assert outcome["info"] == Finding("info", "failed", "ZeroDivisionError: no luck")


def test_checks_can_be_skipped_by_name():
    findings = check_algorithm(local, skip=[name for name in CHECKS if name != "info"])
    assert {f.check for f in findings if f.outcome != "skipped"} == {"info"}
    with pytest.raises(InputError, match=r"no check 'infos'.*Did you mean 'info'"):
        check_algorithm(local, skip=["infos"])


def test_unknown_ingredients_and_options_are_refused():
    def unusual(temperature, *, lr: float = 0.1) -> Algorithm:
        return local()

    message = r"`temperature` is not known.*radius, reference, sizes, weights"
    refuses(message, check_algorithm, unusual)
    with pytest.raises(InputError, match=r"no option 'lrr'.*Did you mean 'lr'"):
        check_algorithm(local, options={"lrr": 1.0})


def test_relabelled_clients_keep_identity_and_data():
    federation = small_federation()
    order = torch.tensor([3, 0, 5, 1, 4, 2])
    other = federation.select(order)
    assert torch.equal(other.clients, order)
    for j, i in enumerate(order.tolist()):
        for name in ("train", "validation", "test"):
            here, there = federation.only(i), other.only(j)
            assert torch.equal(here.features, there.features), name
            assert torch.equal(here.part(name).size, there.part(name).size), name


def test_the_common_optimum_is_one():
    federation = common_optimum()
    for i in range(len(federation)):
        index = federation.only(i).train.index
        features = federation.only(i).features[index]
        error = features @ federation.optima[i] - federation.only(i).targets[index]
        # Rounding of a product of five numbers.
        assert_close(error, torch.zeros_like(error), rtol=0, atol=1e-13)
        # The Hessian 2 X'X / m is diagonal with entries from 2 to 3.
        hessian = 2 * features.T @ features / len(features)
        off = hessian - hessian.diag().diag()
        assert_close(off, torch.zeros_like(off), rtol=0, atol=1e-13)
        assert (hessian.diag() >= 2 - 1e-12).all()
        assert (hessian.diag() <= 3 + 1e-12).all()


def test_leaves_are_named_by_their_paths():
    inner = State(torch.ones(1, 1), torch.ones(1, 0), 4)
    assert list(leaves((inner, 2))) == ["0.x", "0.v", "0.t", "1"]
