"""Claims about FedBABU: a loop with torch's optimiser, and what is sent and tuned."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.fedbabu import fedbabu
from coterie.algorithms.fedper import fedper
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from support.plain_clients import EXACT, draws
from support.rounds import ACTIVE, train

REAL = torch.float64
OTHERS = torch.tensor([True, True, False, False, True, True])
OPTIONS = {"lr": 0.2, "steps": 3, "momentum": 0.5, "weight_decay": 0.01}
TUNED = {"all": ["body", "head"], "body": ["body"], "head": ["head"]}


def net() -> nn.Module:
    return models.build(lambda: models.mlp((12,), 2, hidden=(3,)), 0, REAL)


HEAD = models.columns(net(), ["head"])
START = models.ravel(net()).expand(6, -1).clone()


def simulate(federation, home=None) -> Simulation:
    return Simulation(federation, net(), batch_size=3, dtype=REAL, home=home)


def parameters(module: nn.Module, names) -> list[nn.Parameter]:
    return [p for name in names for p in getattr(module, name).parameters()]


def step(federation, optimiser, module, oracle, i, question) -> None:
    """One step of torch's optimiser, on a minibatch of client i."""
    batch = draws(federation, i, 3, seeds.key(oracle.key("each", 0), question))
    outputs = module(federation.features[batch])
    optimiser.zero_grad()
    nn.functional.cross_entropy(outputs, federation.targets[batch]).backward()
    optimiser.step()


@pytest.mark.parametrize("tune", TUNED)
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedbabu_is_a_loop_with_partial_participation(classification, tune, weighting):
    sizes, simulation = classification.train.size, simulate(classification)
    how = {"tune": tune, "tune_steps": 4, "tune_lr": 0.3, "weighting": weighting}
    algorithm = fedbabu(sizes, HEAD, **OPTIONS, **how)
    who = [ACTIVE, OTHERS, ACTIVE]
    state = train(algorithm, simulation, START, 0)[0][0]
    for t, active in enumerate(who, start=1):
        state, _ = algorithm.step(state, simulation.at(t, active), torch.Generator())
    use = simulation.at(3, purpose="use")
    found = algorithm.personal(state, use)

    p = sizes.double() if weighting == "samples" else torch.ones(6).double()
    w = START[0].clone()
    modules = [net() for _ in range(6)]
    optimisers = [
        torch.optim.SGD(
            parameters(m, ["body"]), lr=0.2, momentum=0.5, weight_decay=0.01
        )
        for m in modules
    ]
    for t, active in enumerate(who, start=1):
        mean, total = torch.zeros_like(w), float(p[active].sum())
        for i in active.nonzero()[:, 0].tolist():
            nn.utils.vector_to_parameters(w.clone(), modules[i].parameters())
            for question in range(3):
                oracle = simulation.at(t)
                step(classification, optimisers[i], modules[i], oracle, i, question)
            mean += float(p[i]) / total * models.ravel(modules[i])
        w = mean
    assert_close(state.w[0], w, **EXACT)
    for i, module in enumerate(modules):
        nn.utils.vector_to_parameters(w.clone(), module.parameters())
        tuned = parameters(module, TUNED[tune])
        optimiser = torch.optim.SGD(tuned, lr=0.3, weight_decay=0.01)
        for question in range(4):
            step(classification, optimiser, module, use, i, question)
        assert_close(found[i], models.ravel(module), **EXACT)


def test_the_head_is_the_first_one_and_is_never_sent(classification):
    algorithm = fedbabu(classification.train.size, HEAD, lr=0.3, steps=2)
    states, infos = train(algorithm, simulate(classification), START, 3)
    assert torch.equal(states[-1].w[:, HEAD], states[0].w[:, HEAD])
    assert_close(states[0].w, START, **EXACT)
    assert all(info["sent"] == 2 * 6 * int((~HEAD).sum()) for info in infos)


def test_without_tuning_clients_use_the_global_model(classification):
    simulation = simulate(classification)
    algorithm = fedbabu(classification.train.size, HEAD, tune_steps=0)
    state = train(algorithm, simulation, START, 2)[0][-1]
    found = algorithm.personal(state, simulation.at(2, purpose="use"))
    assert torch.equal(found, state.w)
    assert torch.equal(algorithm.shared(state), state.w)


def test_a_newcomer_tunes_the_global_model_as_others_do(classification):
    algorithm = fedbabu(classification.train.size, HEAD, tune="head", tune_steps=2)
    simulation = simulate(classification)
    state = train(algorithm, simulation, START, 2)[0][-1]
    found = algorithm.welcome(state, simulation.at(3, purpose="welcome"))
    assert torch.equal(found[:, ~HEAD], state.w[:, ~HEAD])
    assert (found[:, HEAD] != state.w[:, HEAD]).any(1).all()


def test_the_first_step_of_its_body_is_that_of_fedper(classification):
    """The gradient of the body is at the first head; later, FedPer's heads differ."""
    sizes, options = classification.train.size, {"lr": 0.2, "steps": 1}
    ours = train(fedbabu(sizes, HEAD, **options), simulate(classification), START, 1)
    theirs = train(fedper(sizes, HEAD, **options), simulate(classification), START, 1)
    assert_close(ours[0][-1].w, theirs[0][-1].w, **EXACT)


def test_personal_parameters_and_other_parts_are_refused(classification):
    sizes, simulation = classification.train.size, simulate(classification, HEAD)
    with pytest.raises(InputError, match="`personal` cannot be used"):
        fedbabu(sizes, HEAD).init(START, simulation.at(0))
    with pytest.raises(InputError, match="`tune` must be one of all, body, head, got"):
        fedbabu(sizes, HEAD, tune="tail")
