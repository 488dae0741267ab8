"""Private simulations: the promised noise, whose it is, and what the ledger says."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from coterie.checks import InputError
from coterie.conformance.cases import trace_rounds
from coterie.conformance.divided import run_divided as in_threads
from coterie.engine.clocks import clock
from coterie.engine.events import EventLoop
from coterie.privacy import PrivateSimulation
from coterie.privacy.accounting.subsampled import steps_of
from coterie.privacy.mechanisms.per_sample.clipping import ClippedKernel
from coterie.types import SERVER
from support.federations import SIZES
from support.plain_clients import EXACT, losses_told
from support.private_runs import method as a_method
from support.refusals import refuses
from support.simulated import CLIP, NOISE, private, rows, share_of, simulate

METHODS: dict[str, dict] = {
    "local": {"steps": 2},
    "fedavg": {"steps": 2},
    "fedavg_finetune": {"steps": 2, "tune_steps": 2},
    "ditto": {"steps": 2},
    "apfl": {"steps": 2},
    "pfedme": {"steps": 1},
    "per_fedavg": {"variant": "hf"},
    "aruba": {"steps": 2},
    "all_for_all": {},
    "coteries": {},
    "ifca": {},
    "neighbours": {},
}


def method(name: str, federation, **options):
    return a_method(name, federation, **{**METHODS[name], **options})


def models_after(algorithm, clients, x, rounds: int = 2):
    return trace_rounds(algorithm, clients, x, rounds).personal


@pytest.mark.parametrize("name", METHODS)
def test_without_noise_and_bound_any_method_is_what_it_is(classification, name) -> None:
    """With whole batches; minibatches of private runs are drawn in another way."""
    plain = simulate(classification, batch_size=0)
    algorithm, x = method(name, classification), rows(plain)
    clients, rounds = PrivateSimulation(plain, clip=math.inf, noise=0), 6
    found = models_after(algorithm, clients, x, rounds)
    assert_close(found, models_after(algorithm, plain, x, rounds), **EXACT)


def assert_noise(federation, ask, scale) -> None:
    """Answers have s C times the scale of noise, and rows do not vary together."""
    clients, quiet = (private(federation, batch_size=6, noise=s) for s in (NOISE, 0.0))
    x = rows(clients._simulation)
    drawn = [ask(clients.at(t), x) - ask(quiet.at(t), x) for t in range(40)]
    numbers = torch.stack(drawn, 1).flatten(1)
    # The standard error of a deviation from m draws is 1 / sqrt(2 m) of it.
    tolerance = 4 / math.sqrt(2 * numbers.shape[1])
    assert_close(numbers.std(1), NOISE * CLIP * scale, rtol=tolerance, atol=0)
    between = torch.corrcoef(numbers)
    assert_close(between, torch.eye(6).double(), rtol=0, atol=2 * tolerance)


def test_noise_has_the_promised_size_and_is_each_clients_own(classification) -> None:
    """s C / B for client i, where B is at most its number of samples."""
    expected = torch.tensor(SIZES).clamp(max=6).double()
    assert_noise(classification, lambda oracle, x: oracle.grads(x), 1 / expected)


def test_no_two_questions_have_the_same_noise(classification) -> None:
    clients = private(classification, batch_size=0)
    x = rows(clients._simulation)

    def program(asked, x, *_):
        held = asked.same_batch()
        return asked.grad(x), held.grad(x), held.grad(x)

    drawn = []
    for t in (1, 2):
        for purpose in ("step", "use"):
            oracle = clients.at(t, purpose=purpose)
            drawn += [oracle.grads(x), oracle.grads(x)]
            for _ in range(2):
                drawn += oracle.each(program, x, x, x)
    noisy = torch.stack(drawn)  # all of the same gradients
    gaps = (noisy[:, None] - noisy).abs().amin((2, 3))
    assert (gaps + torch.eye(len(noisy)) > 0).all()


def program_of_two(clients, x):
    return x - 0.1 * clients.grad(x) - 0.1 * clients.whole().grad(x)


def two_steps(oracle, x):
    (y,) = oracle.each(program_of_two, x)
    return oracle.grads(y)


def losses(oracle, x):
    return torch.cat(losses_told(oracle, x), 1)


def blends(oracle, x):
    return oracle.blended(x, readers())


EVERYBODY = torch.ones(6, dtype=torch.bool)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    ("ask", "active"),
    [(two_steps, torch.arange(6) != 2), (losses, EVERYBODY), (blends, EVERYBODY)],
)
def test_a_divided_run_draws_the_same_minibatches_and_the_same_noise(
    classification, size, ask, active
) -> None:
    def work(group):
        some, here = share_of(classification, group)
        clients = private(some, group=group)
        return ask(clients.at(4, active), x[here]), steps_of(clients.ledger)

    x, whole = rows(simulate(classification)), private(classification)
    expected = ask(whole.at(4, active), x)
    parts = in_threads(work, size)
    assert_close(torch.cat([g for g, _ in parts]), expected, **EXACT)
    steps = steps_of(whole.ledger)
    assert all(said == steps for _, said in parts)
    assert [bool(kinds) for kinds in steps] == active.tolist()


def test_debugging_client_by_client_changes_nothing(classification) -> None:
    clients, looped = private(classification), private(classification, loop=True)
    algorithm, x = method("pfedme", classification), rows(clients._simulation)
    found = models_after(algorithm, looped, x)
    assert_close(found, models_after(algorithm, clients, x), **EXACT)
    assert [e[3:] for e in looped.ledger] == [e[3:] for e in clients.ledger]


@pytest.mark.parametrize("name", ["local", "all_for_all"])
def test_without_delays_noise_in_time_is_that_of_rounds(classification, name) -> None:
    clients, x = private(classification), rows(simulate(classification))
    algorithm = method(name, classification)
    wanted = models_after(algorithm, clients, x, rounds=3)
    timed = private(classification)
    run = EventLoop(algorithm, timed, x, clock=clock("constant(0)"))
    while not torch.allclose(run.personal(), wanted, **EXACT):
        run.step()
        assert run.updates <= 3 * 6  # answers of three rounds
    assert steps_of(timed.ledger) == steps_of(clients.ledger)


# Gradients at others' models.


def readers() -> torch.Tensor:
    rng = torch.Generator().manual_seed(0)
    weights = torch.rand(6, 6, generator=rng, dtype=torch.float64)
    weights[0, 3] = weights[4, 4] = 0
    return weights


def test_without_noise_blends_and_comparisons_are_what_they_are(classification) -> None:
    plain = simulate(classification, batch_size=0)
    clients, x = PrivateSimulation(plain, clip=math.inf, noise=0), rows(plain)
    weights = readers()
    found, wanted = (one.at(1).blended(x, weights) for one in (clients, plain))
    assert_close(found, wanted, **EXACT)
    # The order in which halves are drawn does not depend on how minibatches are.
    found, wanted = (one.at(1).compare(x, samples=4) for one in (clients, plain))
    for one, other in zip(found, wanted, strict=True):
        assert_close(one, other, **EXACT)


def test_every_reader_s_answer_has_noise_of_its_own(classification) -> None:
    """Row i varies by (s C)^2 sum_k (w_ik / B_k)^2, and rows do not vary together."""
    weights = readers()
    expected = torch.tensor(SIZES).clamp(max=6).double()
    wanted = (weights / expected).norm(dim=1)
    assert_noise(classification, lambda oracle, x: oracle.blended(x, weights), wanted)


def test_a_client_pays_for_every_reader_of_one_minibatch(classification) -> None:
    clients = private(classification, batch_size=4)
    x, weights = rows(clients._simulation), readers()
    clients.at(1).blended(x, weights)
    for k, size in enumerate(SIZES):
        asking = int((weights[:, k] != 0).sum())
        ((noise, rate, held_out), times), *more = steps_of(clients.ledger)[k].items()
        assert noise == pytest.approx(NOISE / math.sqrt(asking))
        assert rate == pytest.approx(min(1.0, 4 / size))
        assert (held_out, times, more) == (False, 1, [])


@pytest.mark.parametrize("size", [2, 3])
def test_divided_comparisons_draw_the_same_noise(classification, size) -> None:
    def work(group):
        some, here = share_of(classification, group)
        return private(some, group=group).at(4).compare(x[here], samples=4)

    x = rows(simulate(classification))
    comparison = private(classification).at(4).compare(x, samples=4)
    for said in in_threads(work, size):
        for one, other in zip(said, comparison, strict=True):
            assert_close(one, other, **EXACT)


def test_personal_columns_stay_at_home_and_never_go_with_blends(classification) -> None:
    x = rows(simulate(classification))
    home = torch.arange(x.shape[1]) < 4
    clients = private(classification, home=home)
    shares = torch.ones(6, dtype=x.dtype)
    mean = clients.at(1).average(shares, x)
    assert_close(mean[:, home], x[:, home])
    assert_close(clients.at(1).grads(x), private(classification).at(1).grads(x))
    refuses("others' models with columns at home", clients.at(1).blended, x, readers())


# What the ledger says.


def test_every_local_step_is_one_release_of_a_minibatch(classification) -> None:
    clients = private(classification, batch_size=6)
    x = rows(clients._simulation)
    models_after(method("fedavg", classification, steps=4), clients, x, rounds=3)
    for i, size in enumerate(SIZES):
        ((noise, rate, held_out), times), *more = steps_of(clients.ledger)[i].items()
        assert (noise, rate) == pytest.approx((NOISE, min(1.0, 6 / size)))
        assert (held_out, times, more) == (False, 12, [])
    assert {int(to) for event in clients.ledger for to in event.links[:, 1]} == {SERVER}


def test_questions_about_one_held_minibatch_are_one_larger_release(
    classification,
) -> None:
    clients = private(classification, batch_size=4)

    def program(asked, x):
        held = asked.same_batch()
        return sum(held.grad(x) for _ in range(4)) + asked.grad(x)

    clients.at(1).each(program, rows(clients._simulation))
    found = {(e.sensitivity, e.noise) for e in clients.ledger}
    assert found == {(2 * CLIP, NOISE * CLIP), (CLIP, NOISE * CLIP)}


def test_all_data_are_asked_without_sampling(classification) -> None:
    clients = private(classification)

    def program(asked, x):
        return asked.whole().grad(x)

    clients.at(1).each(program, rows(clients._simulation))
    assert [event.rate for event in clients.ledger] == [1.0]


def test_what_a_client_computes_for_its_own_use_does_not_enter(classification) -> None:
    clients = private(classification)
    x = rows(clients._simulation)
    clients.at(1, purpose="use").grads(x)
    assert len(clients.ledger) == 0
    clients.at(1, purpose="init").grads(x)
    assert len(clients.ledger) > 0


def test_absent_clients_release_nothing(classification) -> None:
    clients = private(classification, batch_size=0)
    active = torch.tensor([True, False, True, False, False, False])
    g = clients.at(1, active).grads(rows(clients._simulation))
    assert [e.links[:, 0].tolist() for e in clients.ledger] == [[0, 2]]
    assert (g[~active] == 0).all() and (g[active] != 0).all()


# What is refused.


def test_methods_that_ask_for_more_than_gradients_are_refused_by_name(
    classification,
) -> None:
    clients = private(classification)
    algorithm = method("per_fedavg", classification, variant="exact")
    hessian = "meta_sgd of per_fedavg asks for Hessian-vector products"
    with pytest.raises(InputError, match=hessian):
        models_after(algorithm, clients, rows(clients._simulation), rounds=1)


def test_gradients_of_validation_data_and_losses_of_minibatches_are_refused(
    classification,
) -> None:
    clients = private(classification)
    x = rows(clients._simulation)
    for ask, what in (
        (lambda asked, x: asked.validation().grad(x), "gradients of validation data"),
        (lambda asked, x: asked.losses(x), "losses of a minibatch"),
        (lambda asked, x: asked.same_batch().loss(x), "losses of a minibatch"),
    ):
        refuses(what, clients.at(1).each, ask, x)


def test_noise_needs_a_bound_and_is_not_negative(classification) -> None:
    plain = simulate(classification)
    with pytest.raises(InputError, match="`noise` must be at least 0, got -1"):
        PrivateSimulation(plain, clip=1.0, noise=-1.0)
    for noise in (1e-300, 1e300):
        with pytest.raises(InputError, match="`noise` must be 0, or between 1e-06 and"):
            PrivateSimulation(plain, clip=1.0, noise=noise)
    with pytest.raises(InputError, match="`clip` must be finite if there is noise"):
        PrivateSimulation(plain, clip=math.inf, noise=1.0)


def test_clients_that_take_epochs_are_refused(classification) -> None:
    """In an epoch, minibatches are not independent, and the last one is smaller."""
    for size in (0, 5):
        plain = simulate(classification, batch_size=size).in_epochs()
        with pytest.raises(InputError, match="`epochs` cannot hide single samples"):
            PrivateSimulation(plain, clip=1.0, noise=1.0)


def test_a_client_without_samples_is_refused(classification) -> None:
    part = classification.train
    size = part.size.clone()
    size[2] = 0
    empty = replace(classification, train=part._replace(size=size))
    name = classification.name_of(2)
    message = f"must have training samples .* but {name} has"
    refuses(message, private, empty)


def test_the_clipped_kernel_refuses_what_it_cannot_bound(classification) -> None:
    plain = simulate(classification)
    clipped = ClippedKernel(plain.kernel, 1.0)
    batch = plain.samples.minibatch(torch.tensor([0]), 0)
    with pytest.raises(InputError, match="asks for Hessian-vector products"):
        clipped.hvp(torch.zeros(1, 1), torch.zeros(1, 1), batch)


# Poisson minibatches.


def test_every_sample_takes_part_on_its_own_with_its_rate(classification) -> None:
    samples = private(classification, batch_size=5)._held.samples
    who, rounds = torch.arange(6), 400
    taken = torch.zeros(len(classification.features))
    pairs = 0.0
    for stream in range(rounds):
        batch = samples.minibatch(who, stream)
        used = batch.weight > 0
        taken.index_add_(0, batch.index[used], torch.ones(int(used.sum())))
        pairs += float((used[0].sum() ** 2).double())
        rates = torch.tensor([min(5, size) for size in SIZES], dtype=torch.float64)
        assert_close(batch.weight.amax(1)[used.any(1)], (1 / rates)[used.any(1)])
    train = classification.train
    for i, size in enumerate(SIZES):
        mine = train.index[train.start[i] : train.start[i] + size]
        rate = min(1.0, 5 / size)
        deviation = math.sqrt(rate * (1 - rate) / rounds)
        assert ((taken[mine] / rounds - rate).abs() <= 4.5 * deviation).all()
    # Of a number with the binomial law, E[k^2] = n q (1 - q) + (n q)^2.
    rate = 5 / SIZES[0]
    wanted = SIZES[0] * rate * (1 - rate) + 25
    assert pairs / rounds == pytest.approx(wanted, rel=0.1)
