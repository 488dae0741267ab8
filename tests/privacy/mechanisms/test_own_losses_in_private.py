"""Claims about private training of methods with losses of their own."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from coterie import seeds
from coterie.checks import InputError
from coterie.conformance.federations import small_federation
from coterie.privacy import PrivateSimulation
from coterie.privacy.mechanisms import Mechanism, make_private, plan_calls
from coterie.privacy.mechanisms.dry_run import Refusal
from coterie.types import Algorithm, Numbers, Rows
from support.documented import modules_of
from support.simulated import simulated

PAGE = modules_of("extending_losses.md")
EVERYBODY = torch.ones(6, dtype=torch.bool)


class State(NamedTuple):
    x: Rows


def proximal(at, w, *, lam):
    return at.losses + lam / 2 * (at.x - w).square().sum()


def gradient_of_own(clients, out, x):
    return clients.grad(x, out, loss=proximal, lam=0.1)


def outputs(clients, out, x):
    return out + clients.evaluate(x).outputs.mean((1, 2))[:, None]


def features(clients, out, x):
    return out + clients.evaluate(x).features.mean((1, 2))[:, None]


def labels(clients, out, x):
    return out + clients.evaluate(x).labels.to(x).mean(1)[:, None]


def counts(clients, out, x):
    return out + clients.class_counts().sum(1)[:, None]


def randomness(clients, out, x):
    return out + clients.stream("mask").uniform(1)


PROGRAMS = {
    program.__name__: program
    for program in (gradient_of_own, outputs, features, labels, counts, randomness)
}
OF_DATA = [name for name in PROGRAMS if name != "randomness"]


def sends(name: str, *, numbers: bool) -> Algorithm:
    """A method whose clients send what a program makes, as numbers or as a model."""

    def step(state, oracle, rng):
        x = state.x
        (out,) = oracle.each(PROGRAMS[name], torch.zeros_like(x), x)
        rows = Numbers(out[:, :2]) if numbers else out
        mean = oracle.average(x.new_ones(len(x)), rows)
        return State(x + mean.mean(1)[:, None]), {}

    return Algorithm(lambda x, oracle: State(x), step)


def plan(algorithm, columns):
    return plan_calls(algorithm, [EVERYBODY] * 3, seed=0, label="it", columns=columns)


@pytest.mark.parametrize("name", OF_DATA)
def test_what_is_made_of_samples_leaves_as_a_model_with_noise_or_not_at_all(name):
    _, x = simulated(small_federation())
    assert plan(sends(name, numbers=False), x.shape[1]).releases.average == 1
    with pytest.raises(Refusal, match="send numbers that depend on their data"):
        plan(sends(name, numbers=True), x.shape[1])


@pytest.mark.parametrize("numbers", [False, True])
def test_numbers_of_a_random_stream_are_not_data(numbers):
    _, x = simulated(small_federation())
    found = plan(sends("randomness", numbers=numbers), x.shape[1])
    assert not any(found.releases)


@pytest.mark.parametrize("name", [*OF_DATA, "randomness"])
def test_training_stops_before_an_answer_leaves_that_the_plan_did_not_have(name):
    """The dry run saw only random numbers; in training the method sends answers."""
    simulation, x = simulated(small_federation())
    planned = plan(sends("randomness", numbers=False), x.shape[1])
    given = planned, Mechanism(1.0, 0.5), simulation.names
    private = make_private(sends(name, numbers=False), *given)
    state = private.init(x, simulation.at(0, purpose="init"))
    oracle, rng = simulation.at(1), seeds.generator(1)
    if name == "randomness":
        private.step(state, oracle, rng)
        return
    with pytest.raises(InputError, match="depend on clients' data"):
        private.step(state, oracle, rng)


def test_prototypes_are_refused_and_other_methods_release_one_model():
    sizes = small_federation().train.size.double()
    for name in ("moon", "fedntd"):
        algorithm = getattr(PAGE[name], name)(sizes)
        assert plan(algorithm, 26).releases == algorithm.releases
    with pytest.raises(Refusal, match="send numbers that depend on their data"):
        plan(PAGE["fedproto"].fedproto()._replace(releases=None), 26)


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("gradient_of_own", "gradients of the method's own loss"),
        ("outputs", "outputs, features or labels of samples"),
        ("counts", "class counts"),
    ],
)
def test_what_cannot_hide_a_sample_is_refused_in_one_sentence(name, asked):
    simulation, x = simulated(small_federation())
    clients = PrivateSimulation(simulation, clip=1.0, noise=1.0)
    with pytest.raises(InputError) as refusal:
        clients.at(1).each(PROGRAMS[name], torch.zeros_like(x), x)
    text = str(refusal.value)
    assert f"{name} of test_own_losses_in_private asks for {asked}, which" in text
    assert text.count(". ") == 0


def test_streams_work_where_clients_hide_samples():
    simulation, x = simulated(small_federation())
    clients = PrivateSimulation(simulation, clip=1.0, noise=1.0)
    (found,) = clients.at(1).each(randomness, torch.zeros_like(x), x)
    assert len(found[:, 0].unique()) == 6 and len(clients.ledger.take()) == 0
