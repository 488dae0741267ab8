"""Claims about the simulated clients and their answers."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from coterie import models
from coterie.checks import InputError
from coterie.clients import kernels
from coterie.clients.compiling import can_compile
from coterie.clients.simulation import Simulation
from coterie.data.federation import Table, federate
from coterie.models import OBJECTIVES
from support.plain_clients import EXACT, draws, gradient, mine, twice
from support.simulated import REAL, in_round, rows, simulate, simulated
from support.six_clients import everybody_or_some, who


@everybody_or_some
def test_the_full_gradient_is_that_of_all_training_samples(classification, active):
    oracle, x = in_round(classification, 1, active, batch_size=0)
    assert active is None or torch.equal(oracle.active, active)
    found = oracle.grads(x)
    for i in range(6):
        expected = gradient(classification, x[i], mine(classification, i))
        assert_close(found[i], expected * (i in who(active)), **EXACT)


@pytest.mark.parametrize("loop", [False, True])
def test_gradients_are_those_of_minibatches_that_streams_name(classification, loop):
    simulation, x = simulated(classification, seed=4, loop=loop)
    oracle = simulation.at(7)
    for question in (0, 1):
        found = oracle.grads(x)
        stream = simulation.at(7).key("grads", question)
        for i in range(6):
            batch = draws(classification, i, 3, stream)
            assert_close(found[i], gradient(classification, x[i], batch), **EXACT)


WEIGHTS = {
    "dense": lambda rng: torch.rand(6, 6, generator=rng, dtype=REAL),
    "identity": lambda rng: torch.eye(6, dtype=REAL),
    "uneven": lambda rng: torch.rand(6, 6, generator=rng, dtype=REAL).tril(),
    "sparse": lambda rng: torch.diag(torch.rand(5, generator=rng, dtype=REAL), 1),
    "zero": lambda rng: torch.zeros(6, 6, dtype=REAL),
}


@pytest.mark.parametrize("loop", [False, True])
@pytest.mark.parametrize("batch_size", [0, 3])
@pytest.mark.parametrize("kind", WEIGHTS)
@everybody_or_some
def test_a_blend_is_the_weighted_sum_of_gradients_at_the_reader(
    classification, active, kind, batch_size, loop
):
    """Inactive clients neither read nor contribute."""
    weights = WEIGHTS[kind](torch.Generator().manual_seed(3))
    simulation, x = simulated(classification, batch_size=batch_size, loop=loop)
    found = simulation.at(2, active).blended(x, weights)
    stream = simulation.at(2).key("blended", 0)
    for i in range(6):
        expected = torch.zeros_like(x[i])
        for k in who(active) if i in who(active) else []:
            batch = draws(classification, k, batch_size, stream)
            expected += weights[i, k] * gradient(classification, x[i], batch)
        assert_close(found[i], expected, **EXACT)


def test_a_blend_with_other_weights_in_the_same_round_is_right_too(classification):
    simulation, x = simulated(classification, batch_size=0)
    oracle = simulate(classification, batch_size=0).at(1)
    oracle.blended(x, torch.eye(6, dtype=REAL))
    uniform = torch.full((6, 6), 1 / 6, dtype=REAL)
    assert_close(
        oracle.blended(x, uniform), simulation.at(1).blended(x, uniform), **EXACT
    )


def without_data(federation, client):
    """The federation where nobody can learn anything from a client's features."""
    features = federation.features.clone()
    features[mine(federation, client)] = math.nan
    return replace(federation, features=features)


@pytest.mark.parametrize("kind", ["dense", "uneven"])
def test_data_of_a_client_without_weight_may_even_be_nan(classification, kind):
    weights = WEIGHTS[kind](torch.Generator().manual_seed(3))
    weights[:, 4] = 0
    spoilt, x = in_round(without_data(classification, 4), 1)
    expected = simulate(classification).at(1).blended(x, weights)
    assert_close(spoilt.blended(x, weights), expected, **EXACT)


def test_data_of_an_inactive_client_may_even_be_nan(classification):
    oracle, x = in_round(without_data(classification, 4), 1, torch.arange(6) != 4)
    assert oracle.grads(x).isfinite().all()
    assert oracle.compare(x).cross.isfinite().all()
    assert oracle.blended(x, torch.full((6, 6), 1 / 6, dtype=REAL)).isfinite().all()


@pytest.mark.parametrize("budget", [1, 2000])
def test_answers_do_not_depend_on_sizes_of_chunks(classification, monkeypatch, budget):
    def ask() -> list[torch.Tensor]:
        simulation, x = simulated(classification)
        oracle = simulation.at(1)
        weights = WEIGHTS["uneven"](torch.Generator().manual_seed(3))
        values = [oracle.grads(x), oracle.blended(x, weights), *oracle.compare(x)]
        return [*values, *simulation.evaluate(x, "train").values()]

    at_once = ask()
    monkeypatch.setitem(kernels._BUDGET, "cpu", budget)
    for one, other in zip(at_once, ask(), strict=True):
        assert_close(one, other, **EXACT)


class Largest(TorchDispatchMode):
    """Remembers the largest number of values that any operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.values = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else [out]:
            if isinstance(value, torch.Tensor):
                self.values = max(self.values, value.untyped_storage().nbytes() // 8)
        return out


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_no_question_makes_a_tensor_of_all_pairs_of_models(monkeypatch, kind):
    n, width = 16, 100
    rng = torch.Generator().manual_seed(0)
    owner = torch.arange(n).repeat_interleave(6)
    role = torch.tensor([0, 0, 0, 0, 1, 2]).repeat(n)
    features = torch.randn(len(owner), width, generator=rng, dtype=REAL)
    table = Table("wide", features, features[:, 0], "regression", 1)
    simulation, x = simulated(federate(table, owner, role), batch_size=1)
    weights = torch.rand(n, n, generator=rng, dtype=REAL)
    if kind == "sparse":
        weights = weights * (torch.arange(n) % 4 == 0)
    # Room for a few rows at a time; the true budget would hold this tiny federation.
    monkeypatch.setitem(kernels._BUDGET, "cpu", 200 * width)
    oracle = simulation.at(1)
    with Largest() as largest:
        oracle.blended(x, weights)
        oracle.compare(x)
    assert largest.values < n * n * width / 2
    assert largest.values >= n * width  # it did watch


def test_by_default_a_chunk_of_pairs_is_bounded_whatever_the_number_of_clients():
    features = torch.zeros(6, 1000, dtype=REAL)
    table = Table("wide", features, torch.zeros(6), "regression", 1)
    role = torch.tensor([0, 0, 0, 0, 1, 2])
    simulation = simulate(federate(table, torch.zeros(6, dtype=torch.long), role))
    # A pair keeps two gradients, their differences and products: 9 rows of D at most.
    assert simulation.kernel.chunk(2, extra=6) * 9 * 1000 <= 2**25


@pytest.mark.parametrize("verb", ["grads", "blended", "compare"])
def test_answers_do_not_depend_on_what_else_was_asked(classification, verb):
    simulation, x = simulated(classification)
    weights = torch.full((6, 6), 1 / 6, dtype=REAL)
    questions = {
        "grads": lambda oracle: oracle.grads(x),
        "blended": lambda oracle: oracle.blended(x, weights),
        "compare": lambda oracle: oracle.compare(x).cross,
    }
    alone = questions[verb](simulation.at(6))
    oracle = simulation.at(6)
    for other in questions.keys() - {verb}:
        questions[other](oracle)
    oracle.each(twice, x, x)
    simulation.at(5).grads(x)
    assert torch.equal(questions[verb](oracle), alone)


def test_rounds_purposes_and_seeds_have_streams_of_their_own(classification):
    x = rows(simulate(classification))
    answers = [
        simulate(classification).at(1).grads(x),
        simulate(classification).at(2).grads(x),
        simulate(classification).at(1, purpose="use").grads(x),
        simulate(classification, seed=1).at(1).grads(x),
    ]
    for i, one in enumerate(answers):
        for other in answers[i + 1 :]:
            assert not torch.equal(one, other)


@pytest.mark.parametrize("batch_size", [0, 3])
def test_a_client_asked_alone_gives_exactly_its_row(classification, batch_size):
    simulation, x = simulated(classification, batch_size=batch_size)
    everybody = simulation.at(2).grads(x)
    for k in range(6):
        site = simulate(classification.only(k), batch_size=batch_size)
        assert_close(site.at(2).grads(x[k, None])[0], everybody[k], **EXACT)


SIZES = torch.tensor([7.0, 4, 9, 5, 8, 6], dtype=REAL)


@pytest.mark.parametrize("batch_size", [0, 3])
def test_gradients_are_counted_sample_by_sample(classification, batch_size):
    simulation, x = simulated(classification, batch_size=batch_size)
    batch = SIZES if batch_size == 0 else torch.full((6,), 3.0, dtype=REAL)
    active = torch.tensor([True, True, False, True, False, True])
    oracle = simulation.at(1, active)
    oracle.grads(x)
    assert_close(oracle.gradients, batch * active)
    oracle = simulation.at(1)
    oracle.blended(x, torch.ones(6, 6, dtype=REAL).tril())
    # Client k is asked by the readers i >= k.
    readers = torch.tensor([6.0, 5, 4, 3, 2, 1], dtype=REAL)
    assert_close(oracle.gradients, readers * batch)
    oracle = simulation.at(1, active)
    oracle.each(twice, x, x)
    # One gradient, one loss that costs none, and a Hessian product that costs two.
    assert_close(oracle.gradients, 3 * batch * active)


def test_a_comparison_counts_every_gradient_it_evaluates(classification, monkeypatch):
    simulation = simulate(classification)
    evaluated = 0
    grad = simulation.kernel.grad

    def counting(points, batch):
        nonlocal evaluated
        evaluated += int((batch.weight != 0).sum())
        return grad(points, batch)

    monkeypatch.setattr(simulation.kernel, "grad", counting)
    oracle = simulation.at(1)
    oracle.compare(rows(simulation))
    assert float(oracle.gradients.sum()) == evaluated


def test_a_simulation_leaves_module_and_data_alone(classification):
    net = models.build(lambda: models.linear((12,), 2), 0, torch.float32)
    before = models.ravel(net)
    features = classification.features.clone()
    simulation = Simulation(classification, net, dtype=REAL)
    simulation.at(1).grads(torch.zeros(6, 26, dtype=REAL))
    assert torch.equal(classification.features, features)
    assert torch.equal(models.ravel(net), before)


def test_questions_do_not_modify_their_arguments(classification):
    simulation, x = simulated(classification)
    weights = torch.rand(6, 6, dtype=REAL, generator=torch.Generator().manual_seed(0))
    before = x.clone(), weights.clone()
    oracle = simulation.at(1)
    oracle.grads(x)
    oracle.blended(x, weights)
    oracle.compare(x)
    oracle.each(twice, x, x)
    assert torch.equal(x, before[0]) and torch.equal(weights, before[1])


def check_precision(simulation, x):
    """All answers have the precision of the models."""
    oracle = simulation.at(1)
    weights = torch.full((len(x), len(x)), 1 / len(x), dtype=x.dtype)
    answers = oracle.grads(x), oracle.blended(x, weights), oracle.compare(x).cross
    for answer in (*answers, simulation.evaluate(x, "test")["loss"]):
        assert answer.dtype == x.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_answers_have_the_precision_of_the_models(classification, dtype):
    simulation = simulate(classification, dtype=dtype)
    check_precision(simulation, rows(simulation).to(dtype))


def test_images_give_the_same_gradients_in_debug_mode(images):
    net = models.build(lambda: models.cnn((1, 10, 10), 3, width=2), 0, REAL)
    weights = torch.full((3, 3), 1 / 3, dtype=REAL)
    x = models.ravel(net).expand(3, -1).clone()
    answers = []
    for loop in (False, True):
        # 3 clients of 30 samples: blends are longer than a short row of images.
        simulation = Simulation(images, net, batch_size=30, dtype=REAL, loop=loop)
        oracle = simulation.at(1)
        answers.append((oracle.blended(x, weights), oracle.grads(x)))
    for one, other in zip(*answers, strict=True):
        assert_close(one, other, **EXACT)


def test_bad_settings_are_refused_by_name(classification):
    with pytest.raises(InputError, match="`batch_size` must be at least 0, got -1"):
        simulate(classification, batch_size=-1)
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="`device` cuda"):
            simulate(classification, device="cuda")


def test_every_task_can_be_asked():
    rng = torch.Generator().manual_seed(0)
    features = torch.randn(12, 3, generator=rng, dtype=REAL)
    targets = {
        "regression": features.sum(1),
        "binary": (features[:, 0] > 0).long(),
        "classification": features.argmax(1),
        "segmentation": (features > 0).to(torch.uint8),
    }
    outputs = {"classification": 3, "segmentation": 3}
    owner = torch.arange(2).repeat_interleave(6)
    role = torch.tensor([0, 0, 0, 0, 1, 2]).repeat(2)
    assert targets.keys() == OBJECTIVES.keys()
    for task, truth in targets.items():
        table = Table(task, features, truth, task, outputs.get(task, 1))
        net = models.build(lambda t=table: models.linear((3,), t.outputs), 0, REAL)
        simulation = Simulation(federate(table, owner, role), net, dtype=REAL)
        x = models.ravel(net).expand(2, -1).clone()
        g = simulation.at(1).grads(x)
        assert g.shape == x.shape and g.isfinite().all() and (g != 0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_whole_features_are_answered_in_the_precision_asked_for(dtype):
    rng = torch.Generator().manual_seed(0)
    words = torch.randint(0, 5, (12, 3), generator=rng)
    table = Table("words", words, words[:, 0] % 2, "binary", 1)
    owner = torch.arange(2).repeat_interleave(6)
    federation = federate(table, owner, torch.tensor([0, 0, 0, 0, 1, 2]).repeat(2))
    net = models.build(
        lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 1)), 0
    )
    simulation = Simulation(federation, net, dtype=dtype, batch_size=2)
    check_precision(simulation, models.ravel(net).to(dtype).repeat(2, 1))


@pytest.mark.parametrize("verb", ["grads", "blended", "compare", "each"])
def test_debug_mode_names_the_client_in_errors_of_every_verb(verb, regression):
    simulation, x = simulated(regression, loop=True)

    def fail_at_client_2(points, batch, original=simulation.kernel.grad):
        mine = regression.train.index[regression.train.start[2] :]
        mine = set(mine[: int(regression.train.size[2])].tolist())
        if mine & set(batch.index.flatten().tolist()):
            raise ValueError("bad sample")
        return original(points, batch)

    simulation.kernel.grad = fail_at_client_2
    oracle = simulation.at(7)
    everyone = torch.full((len(x), len(x)), 1 / len(x), dtype=x.dtype)
    ask = {
        "grads": lambda: oracle.grads(x),
        "blended": lambda: oracle.blended(x, everyone),
        "compare": lambda: oracle.compare(x),
        "each": lambda: oracle.each(gradient_step, x),
    }
    with pytest.raises(RuntimeError, match=r"client 2, round 7: bad sample"):
        ask[verb]()


def gradient_step(clients, x):
    return x - clients.grad(x)


@pytest.mark.skipif(
    not can_compile(torch.device("cpu")), reason="compiling needs a C++ compiler"
)
def test_compiled_gradients_equal_the_others_to_rounding(regression):
    plain, compiled = simulate(regression), simulate(regression, compiled=True)
    x = rows(plain)
    n = len(x)
    weights = torch.eye(n, dtype=x.dtype)
    weights[0] = 1 / n  # uneven: one client reads all, the rest themselves
    active = torch.arange(n) != 1
    for some in (None, active):
        ours, theirs = compiled.at(3, some), plain.at(3, some)
        # Sums in another order: some ulps of float64.
        close = {"rtol": 1e-12, "atol": 1e-12}
        torch.testing.assert_close(ours.grads(x), theirs.grads(x), **close)
        for matrix in (weights, torch.full_like(weights, 1 / n)):
            torch.testing.assert_close(
                ours.blended(x, matrix), theirs.blended(x, matrix), **close
            )
    # One model for all, as a server sends it, has rows without a stride of their own.
    same, ours, theirs = x[:1].expand_as(x), compiled.at(3), plain.at(3)
    torch.testing.assert_close(ours.grads(same), theirs.grads(same), **close)
