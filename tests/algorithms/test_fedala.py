"""Claims about FedALA: a loop in which autograd sees the weights, and limit cases."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.fedala import fedala
from coterie.algorithms.fedavg import fedavg
from coterie.clients.simulation import Simulation
from support.plain_clients import EXACT, draws
from support.rounds import ACTIVE, train

REAL = torch.float64
OTHERS = torch.tensor([True, True, False, False, True, True])
OPTIONS = {"lr": 0.2, "steps": 3, "momentum": 0.5, "weight_decay": 0.01}
RATE = 20.0  # so that some weights come to 0


def net() -> nn.Module:
    return models.build(lambda: models.mlp((12,), 2, hidden=(3,)), 0, REAL)


HEAD = models.columns(net(), ["head"])
START = models.ravel(net()).expand(6, -1).clone()


def simulate(federation, home=None) -> Simulation:
    return Simulation(federation, net(), batch_size=3, dtype=REAL, home=home)


def loss(federation, row, oracle, client, question):
    """The loss of a model on a minibatch of the first program of a round."""
    stream = seeds.key(oracle.key("each", 0), question)
    batch = draws(federation, client, 3, stream)
    module = net()
    named = models.layout(module).unravel(row)
    outputs = torch.func.functional_call(module, named, (federation.features[batch],))
    return nn.functional.cross_entropy(outputs, federation.targets[batch])


def mixed(federation, oracle, i, x, a, w, steps) -> torch.Tensor:
    """The paper's aggregation, where weights `a` are torch's parameters."""
    for question in range(steps):
        a.grad = None
        y = w.clone()
        y[HEAD] = x[HEAD] + (w[HEAD] - x[HEAD]) * a
        loss(federation, y, oracle, i, question).backward()
        a.data = (a.data - RATE * a.grad).clamp(0, 1)
    y = w.clone()
    y[HEAD] = x[HEAD] + (w[HEAD] - x[HEAD]) * a.detach()
    return y


@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_fedala_is_a_loop_with_partial_participation(classification, weighting):
    sizes, simulation = classification.train.size, simulate(classification)
    how = {"weight_steps": 2, "weight_lr": RATE, "weighting": weighting}
    algorithm = fedala(sizes, HEAD, **OPTIONS, **how)
    who = [ACTIVE, OTHERS, ACTIVE, ACTIVE]
    state = train(algorithm, simulation, START, 0)[0][0]
    for t, active in enumerate(who, start=1):
        state, _ = algorithm.step(state, simulation.at(t, active), torch.Generator())
    use = simulation.at(4, purpose="use")
    found = algorithm.personal(state, use)

    p = sizes.double() if weighting == "samples" else torch.ones(6).double()
    w, x = START[0], list(START)
    a = [torch.ones(int(HEAD.sum())).double().requires_grad_() for _ in range(6)]
    rows = [row.clone().requires_grad_() for row in START]
    optimisers = [
        torch.optim.SGD([row], lr=0.2, momentum=0.5, weight_decay=0.01) for row in rows
    ]
    for t, active in enumerate(who, start=1):
        there, oracle = active.nonzero()[:, 0].tolist(), simulation.at(t)
        for i in there:
            rows[i].data = mixed(classification, oracle, i, x[i], a[i], w, 2)
            for question in range(2, 5):
                optimisers[i].zero_grad()
                loss(classification, rows[i], oracle, i, question).backward()
                optimisers[i].step()
            x[i] = rows[i].detach().clone()
        total = float(p[active].sum())
        w = sum(float(p[i]) / total * x[i] for i in there)
    expected = [mixed(classification, use, i, x[i], a[i], w, 2) for i in range(6)]
    assert_close(state.w[0], w, **EXACT)
    assert_close(state.x, torch.stack(x), **EXACT)
    assert_close(found, torch.stack(expected), **EXACT)
    weights = torch.stack([each.detach() for each in a])
    assert ((weights > 0) & (weights < 1)).any() and (weights == 0).any()


def test_without_steps_of_the_weights_it_is_fedavg(classification):
    simulation, sizes = simulate(classification), classification.train.size
    ours = fedala(sizes, HEAD, weight_steps=0, **OPTIONS)
    state = train(ours, simulation, START, 3)[0][-1]
    theirs = train(fedavg(sizes, **OPTIONS), simulation, START, 3)[0][-1]
    assert_close(state.w, theirs.x, **EXACT)
    found = ours.personal(state, simulation.at(3, purpose="use"))
    assert torch.equal(found, state.w)


def test_below_the_upper_layers_all_clients_use_the_global_model(classification):
    simulation = simulate(classification)
    algorithm = fedala(classification.train.size, HEAD, weight_lr=RATE, **OPTIONS)
    states, infos = train(algorithm, simulation, START, 3)
    found = algorithm.personal(states[-1], simulation.at(3, purpose="use"))
    w = algorithm.shared(states[-1])
    assert torch.equal(found[:, ~HEAD], w[:, ~HEAD])
    assert (found[:, HEAD] != w[:, HEAD]).any(1).all()
    between = torch.stack([w, states[-1].x])[..., HEAD]
    assert (found[:, HEAD] >= between.amin(0) - 1e-12).all()
    assert (found[:, HEAD] <= between.amax(0) + 1e-12).all()
    assert all(info["sent"] == 2 * 6 * len(HEAD) for info in infos)


def test_weights_do_not_move_in_the_first_round(classification):
    """All clients begin with the global model, so that nothing depends on weights."""
    states, _ = train(
        fedala(classification.train.size, HEAD, weight_lr=RATE),
        simulate(classification),
        START,
        2,
    )
    assert (states[1].a == 1).all()
    assert (states[2].a[:, ~HEAD] == 1).all() and (states[2].a < 1).any()


def test_a_newcomer_trains_for_a_round_and_mixes(classification):
    simulation = simulate(classification)
    algorithm = fedala(classification.train.size, HEAD, **OPTIONS)
    state = train(algorithm, simulation, START, 2)[0][-1]
    found = algorithm.welcome(state, simulation.at(3, purpose="welcome"))
    assert torch.equal(found[:, ~HEAD], state.w[:, ~HEAD])
    assert (found[:, HEAD] != state.w[:, HEAD]).any(1).all()


def test_personal_parameters_are_those_of_local_training_alone(classification):
    """Where nothing is shared, mixing changes nothing."""
    home = ~HEAD
    simulation = simulate(classification, home)
    state = train(
        fedala(classification.train.size, HEAD, lr=0.2), simulation, START, 2
    )[0][-1]
    assert_close(state.w[:, home], state.x[:, home], rtol=0, atol=0)
