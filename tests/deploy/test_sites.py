"""Claims about clients that are met only through messages."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
import os
import re
import signal
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.testing import assert_close

from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.data.federation import Table, federate
from coterie.deploy import messages
from coterie.deploy.messages import (
    Answer,
    Holding,
    MessageError,
    Question,
    decode,
    encode,
    find_program,
    program_name,
)
from coterie.deploy.process import ProcessFederation, RemoteOracle, SiteError
from coterie.deploy.sites import Site, hold, unfold
from coterie.engine.rounds import run_rounds
from coterie.optim.steps import sgd
from support.methods import IN_ROUNDS

N, OUTPUTS = 4, 3
SIZES = (5, 7, 8, 12)  # training samples
NAMES = (10, 3, 7, 20)  # identities that are not positions

# The same products are added in another order: every entry differs by a few roundings
# of 1e-16, which a handful of smooth steps does not enlarge a thousandfold.
same = functools.partial(assert_close, rtol=1e-12, atol=1e-12)

claims = settings(max_examples=50, deadline=None, database=None, derandomize=True)


def tiny_federation():
    """Four clients of three classes; the first feature of a sample is its owner."""
    rng = torch.Generator().manual_seed(0)
    owner = torch.cat([torch.full((size + 2,), i) for i, size in enumerate(SIZES)])
    role = torch.cat([torch.tensor([0] * size + [1, 2]) for size in SIZES])
    mixed = torch.randperm(len(owner), generator=rng)
    owner, role = owner[mixed], role[mixed]
    features = torch.randn(len(owner), 3, generator=rng, dtype=torch.float64)
    features[:, 0] = owner
    targets = torch.randint(OUTPUTS, (len(owner),), generator=rng)
    table = Table("tiny", features, targets, "classification", OUTPUTS)
    federation = federate(table, owner, role)
    federation.clients.copy_(torch.tensor(NAMES))
    return federation


FEDERATION = tiny_federation()
SETTINGS = {"batch_size": 3, "seed": 5, "dtype": torch.float64}
D = 3 * OUTPUTS + OUTPUTS


def module():
    return nn.Linear(3, OUTPUTS)


def models(seed=1):
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(N, D, generator=rng, dtype=torch.float64)


def simulation(**changes):
    return Simulation(FEDERATION, module(), **{**SETTINGS, **changes})


@pytest.fixture(scope="module")
def elsewhere():
    with ProcessFederation(FEDERATION, module(), **SETTINGS) as federation:
        yield federation
    assert federation._process.exitcode == 0  # it left by itself, unharmed


def local_oracle(active=None, *, allowed=("coterie.",), t=1, **changes):
    """An oracle whose sites live here, and the positions that it has asked."""
    sites = [
        Site(FEDERATION.only(k), module(), allowed=allowed, **{**SETTINGS, **changes})
        for k in range(N)
    ]
    asked = []

    def ask(client, data):
        asked.append(client)
        return sites[client].answer(data)

    active = torch.ones(N, dtype=torch.bool) if active is None else active
    return RemoteOracle(ask, NAMES, t, active, "step"), asked


def ingredient(name):
    sizes = FEDERATION.train.size
    weights = torch.rand(N, N, generator=torch.Generator().manual_seed(2)).double()
    weights[0, 2] = weights[3, 1] = 0
    return {
        "sizes": sizes,
        "precision": sizes.double(),
        "weights": weights / weights.sum(1, keepdim=True),
        "biases": (weights + weights.T).fill_diagonal_(0),
        "radius": 0.1 * (weights + weights.T).fill_diagonal_(0),
    }[name]


def built(factory):
    """The algorithm with its ingredients, and settings that use all its parts."""
    parameters = inspect.signature(factory).parameters.values()
    given = [ingredient(p.name) for p in parameters if p.kind != p.KEYWORD_ONLY]
    wanted = {"steps": 2, "momentum": 0.5, "weight_decay": 0.01, "every": 2}
    named = {p.name for p in parameters}
    return factory(*given, **{k: v for k, v in wanted.items() if k in named})


def trajectory(algorithm, federated, participation):
    seen = []
    rounds = run_rounds(
        algorithm, federated, models(), rounds=3, participation=participation
    )
    for done in rounds:
        use = federated.at(done.t, purpose="use")
        personal = algorithm.personal(done.state, use)
        seen.append((done.state, done.info, personal, done.gradients, use.gradients))
    return seen


@pytest.mark.parametrize("participation", [1.0, 0.5])
@pytest.mark.parametrize("name", IN_ROUNDS)
def test_every_algorithm_goes_the_same_way_through_messages(
    elsewhere, name, participation
):
    algorithm = built(ALGORITHMS[name])
    here = trajectory(algorithm, simulation(), participation)
    there = trajectory(algorithm, elsewhere, participation)
    for left, right in zip(there, here, strict=True):
        same(left, right)
        for ours, theirs in zip(left[-2:], right[-2:], strict=True):
            assert torch.equal(ours, theirs)  # numbers of gradients
    assert not torch.equal(here[-1][2], models())


ACTIVE = torch.tensor([True, False, True, True])
# Forward differentiation makes torch 2.13 use its own deprecated function once.
hushed = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
VERBS = {
    "grads": lambda oracle, x: oracle.grads(x),
    "blended": lambda oracle, x: oracle.blended(x, ingredient("weights")),
    "compare": lambda oracle, x: oracle.compare(x),
    "compare few": lambda oracle, x: oracle.compare(x, samples=4),
    "each": lambda oracle, x: oracle.each(tour, x, models(3), factor=0.5),
}


def tour(clients, x, y, *, factor):
    """A client program that asks every question."""
    x = x - factor * clients.grad(x) + clients.hvp(x, y)
    return x * clients.loss(x)[:, None]


@hushed
@pytest.mark.parametrize("active", [None, ACTIVE], ids=["all", "some"])
@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_answers_the_same_as_in_a_simulation_question_by_question(
    verb, active
):
    remote, asked = local_oracle(active, allowed=("test_deploy.",), t=4)
    simulated = simulation().at(4, active)
    answers = []
    for x in (models(1), models(1)):
        answers.append(VERBS[verb](simulated, x))
        same(VERBS[verb](remote, x), answers[-1])
    fresh = [not torch.equal(*pair) for pair in zip(*answers, strict=True)]
    assert any(fresh)
    assert torch.equal(remote.gradients, simulated.gradients)
    assert active is None or 1 not in asked


def test_the_whole_training_part_gives_the_same_gradients():
    remote, _ = local_oracle(batch_size=0)
    simulated = simulation(batch_size=0).at(1)
    same(remote.grads(models()), simulated.grads(models()))
    assert remote.gradients.tolist() == list(SIZES)


def test_clients_to_whom_nobody_listens_are_not_asked():
    remote, asked = local_oracle()
    weights = torch.eye(N, dtype=torch.float64)
    weights[1] = weights[0]
    remote.blended(models(), weights)
    assert asked == [0, 2, 3]


@pytest.mark.parametrize("client", range(N))
def test_a_site_is_set_up_with_the_samples_of_its_client_only(client):
    data = encode(hold(FEDERATION, client))
    federation = unfold(decode(data, Holding))
    assert federation.clients.tolist() == [NAMES[client]]
    assert (federation.features[:, 0] == client).all()
    assert len(federation.features) == SIZES[client] + 2
    others = FEDERATION.features[FEDERATION.features[:, 0] != client, 1]
    assert not any(value.numpy().tobytes() in data for value in others)


def test_a_site_of_two_clients_is_refused():
    with pytest.raises(InputError, match="one client, got 4"):
        Site(FEDERATION, module())


scalars = st.one_of(st.booleans(), st.text(), st.integers(), st.floats(allow_nan=False))
dtypes = st.sampled_from(sorted(messages._DTYPES))


@st.composite
def questions(draw):
    tensors = {}
    for name in draw(st.lists(st.text(), unique=True, max_size=3)):
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        seed = draw(st.integers(0, 99))
        values = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
        tensors[name] = (9 * values).to(getattr(torch, draw(dtypes)))
    options = draw(st.dictionaries(st.text(), scalars, max_size=3))
    return Question("each", 3, draw(st.text()), 0, "a:b", options, tensors)


def assert_equal(left, right):
    assert left._replace(tensors={}) == right._replace(tensors={})
    assert list(left.tensors) == list(right.tensors)
    for ours, theirs in zip(left.tensors.values(), right.tensors.values(), strict=True):
        assert ours.dtype == theirs.dtype and ours.shape == theirs.shape
        assert torch.equal(ours, theirs)


@claims
@given(questions())
def test_a_message_comes_back_from_its_bytes(question):
    assert_equal(decode(encode(question), Question), question)


def test_values_that_are_not_laid_out_in_order_are_sent_in_order():
    tensor = torch.arange(6.0).reshape(2, 3).T
    back = decode(encode(Answer("", 1.0, {"g": tensor})), Answer)
    assert torch.equal(back.tensors["g"], tensor)


@claims
@given(questions(), st.floats(0, 1, exclude_max=True))
def test_truncated_or_extended_bytes_are_refused(question, share):
    data = encode(question)
    with pytest.raises(MessageError):
        decode(data[: int(share * len(data))], Question)
    with pytest.raises(MessageError):
        decode(data + b"\0", Question)


@claims
@given(st.data())
def test_damaged_bytes_give_a_message_or_a_message_error_and_nothing_else(data):
    whole = encode(Answer("", 1.0, {"g": torch.ones(2, 2)}))
    place = data.draw(st.integers(0, len(whole) - 1))
    byte = data.draw(st.integers(0, 255))
    try:
        decode(whole[:place] + bytes([byte]) + whole[place + 1 :], Answer)
    except MessageError:
        pass


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"t": 1', b'"t": ""', "`t` of a Question is ''"),
        (b'"t": 1', b'"u": 1', "no Question"),
        (b'"lr": 1', b'"lr": []', r"option `lr` is \[\]"),
        (b"[2, 2]", b"[4,-1]", "side -1"),
        (b"float32", b"complex", "complex"),
        (b"Question", b"Exclaims", "no Question"),
    ],
)
def test_a_header_that_says_something_else_is_refused(old, new, message):
    question = Question("each", 1, "step", 0, "", {"lr": 1}, {"x": torch.ones(2, 2)})
    data = encode(question)
    assert old in data
    length = int.from_bytes(data[8:12], "little") + len(new) - len(old)
    data = data[:8] + length.to_bytes(4, "little") + data[12:].replace(old, new)
    with pytest.raises(MessageError, match=message):
        decode(data, Question)


def test_what_cannot_be_sent_is_refused():
    with pytest.raises(MessageError, match="option `lr` is None"):
        encode(Question("each", 1, "step", 0, "", {"lr": None}, {}))
    with pytest.raises(MessageError, match=r"`z` of torch.complex64"):
        encode(Answer("", 0.0, {"z": torch.zeros(2, dtype=torch.complex64)}))


def test_an_answer_is_no_question():
    with pytest.raises(MessageError, match="no Question"):
        decode(encode(Answer("", 0.0, {})), Question)


def test_programs_travel_by_name():
    assert program_name(sgd) == "coterie.optim.steps:sgd"
    assert find_program("coterie.optim.steps:sgd", ("coterie.",)) is sgd


@pytest.mark.parametrize(
    ("program", "name"),
    [
        (lambda clients, x: x, "<lambda>"),
        (functools.partial(sgd, steps=1), "functools.partial"),
        (nn.Linear.forward, "Linear.forward"),
    ],
    ids=["lambda", "partial", "method"],
)
def test_a_program_that_is_not_at_the_top_of_a_module_is_refused_by_name(program, name):
    remote, asked = local_oracle()
    with pytest.raises(InputError, match=name):
        remote.each(program, models())
    assert not asked


@pytest.mark.parametrize(
    "name",
    [
        "os:system",
        "coterie_else.descent:sgd",
        "coterie.optim.steps",
        "coterie.optim.steps:no_such",
        "coterie.optim.steps:number",  # imported there
        "coterie.optim.steps:Descent",
        "coterie.optim.steps:descend",  # a function, but no client program
        "coterie.optim.steps:sgd:sgd",
        "coterie.__main__:main",
        "",
    ],
)
def test_a_site_runs_nothing_but_programs_of_allowed_modules(name):
    with pytest.raises(InputError, match=re.escape(repr(name))):
        find_program(name, ("coterie.",))


@hushed
def test_a_program_of_another_module_is_refused_unless_allowed(elsewhere):
    with pytest.raises(SiteError, match=r"client 10, round 2.*test_deploy:tour"):
        elsewhere.at(2).each(tour, models(), models(), factor=0.5)
    remote, _ = local_oracle(allowed=("coterie.", "test_deploy."))
    remote.each(tour, models(), models(), factor=0.5)


def test_an_allowed_beginning_without_a_dot_is_refused():
    # It would allow `coterie_else`, too.
    with pytest.raises(InputError, match="dot"):
        Site(FEDERATION.only(0), module(), allowed=("coterie",))


def test_the_failure_of_a_site_names_its_client_and_harms_no_later_question(elsewhere):
    oracle = elsewhere.at(6, torch.tensor([False, False, True, False]))
    with pytest.raises(SiteError, match=r"client 7, round 6: TypeError: .*steps"):
        oracle.each(sgd, models(), models())
    with pytest.raises(SiteError, match=r"client 7, round 6: InputError: .*\(p, 12\)"):
        oracle.grads(models()[:, 1:])
    active = oracle.active
    same(oracle.grads(models()), simulation().at(6, active).grads(models()))


def test_an_answer_of_another_shape_is_refused():
    answer = encode(Answer("", 0.0, {"g": torch.zeros(1, 1)}))
    oracle = RemoteOracle(
        lambda client, data: answer, NAMES, 1, torch.ones(N, dtype=torch.bool), "step"
    )
    with pytest.raises(SiteError, match=r"client 10, round 1: .*\(1, 12\)"):
        oracle.grads(models())


@pytest.mark.parametrize("active", [torch.zeros(N) > 0, torch.ones(N + 1) > 0])
def test_a_round_of_nobody_or_of_strangers_is_refused(elsewhere, active):
    with pytest.raises(InputError, match="at least one of 4 clients"):
        elsewhere.at(1, active)


def test_a_dead_process_is_an_error_and_no_process_is_left():
    before = multiprocessing.active_children()
    with ProcessFederation(FEDERATION, module(), **SETTINGS) as federation:
        (process,) = set(multiprocessing.active_children()) - set(before)
        process.kill()
        with pytest.raises(SiteError, match=r"client 10, round 1: .*exit code -9"):
            federation.at(1).grads(models())
        with pytest.raises(SiteError, match="closed"):
            federation.at(1).grads(models())
    assert multiprocessing.active_children() == before


def test_a_process_that_hangs_is_an_error_and_is_not_left_running():
    before = multiprocessing.active_children()
    federation = ProcessFederation(FEDERATION, module(), timeout=0.5, **SETTINGS)
    (process,) = set(multiprocessing.active_children()) - set(before)
    os.kill(process.pid, signal.SIGSTOP)
    with pytest.raises(SiteError, match=r"client 10, round 1: no answer within 0.5 s"):
        federation.at(1).grads(models())
    assert multiprocessing.active_children() == before


SCRIPT = """
if __name__ == "__main__":
    import torch
    from coterie.data.federation import Table, federate
    from coterie.deploy.process import ProcessFederation

    samples = torch.ones(3, 1), torch.ones(3)
    table = Table("ones", *samples, "regression", 1)
    federation = federate(table, torch.tensor([0, 0, 0]), torch.tensor([0, 1, 2]))
    elsewhere = ProcessFederation(federation, torch.nn.Linear(1, 1))
    print(elsewhere._process.pid, int(elsewhere.at(1).grads(torch.zeros(1, 2))[0, 0]))
"""


def test_nothing_is_left_running_at_exit_when_closing_is_forgotten(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(script)], capture_output=True, text=True
    )
    assert done.stderr == ""
    pid, gradient = map(int, done.stdout.split())
    assert gradient == -2
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
