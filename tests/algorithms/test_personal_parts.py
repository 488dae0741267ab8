"""Claims about FedPer and LG-FedAvg: loops, and FedAvg with a part at home.

Both are the same code with head and body exchanged.
"""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.fedper import fedper
from coterie.algorithms.lg_fedavg import lg_fedavg
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from support.plain_clients import draws
from support.rounds import ACTIVE, train

REAL = torch.float64
EXACT = {"rtol": 1e-9, "atol": 1e-11}
OTHERS = torch.tensor([True, True, False, False, True, True])
OPTIONS = {"lr": 0.2, "steps": 3, "momentum": 0.5, "weight_decay": 0.01}


def net() -> nn.Module:
    return models.build(lambda: models.mlp((12,), 2, hidden=(3,)), 0, REAL)


HEAD = models.columns(net(), ["head"])
START = models.ravel(net()).expand(6, -1).clone()
METHODS = [(fedper, HEAD), (lg_fedavg, ~HEAD)]

for_methods = pytest.mark.parametrize(("make", "home"), METHODS, ids=["per", "lg"])


def simulate(federation, home=None) -> Simulation:
    return Simulation(federation, net(), batch_size=3, dtype=REAL, home=home)


def after(algorithm, simulation, who):
    """The models that clients use after rounds with these clients."""
    state = train(algorithm, simulation, START, 0)[0][0]
    for t, active in enumerate(who, start=1):
        state, _ = algorithm.step(state, simulation.at(t, active), torch.Generator())
    return algorithm.personal(state, simulation.at(len(who), purpose="use"))


@for_methods
@pytest.mark.parametrize("weighting", ["samples", "uniform"])
def test_they_are_loops_over_clients_with_partial_participation(
    classification, make, home, weighting
):
    sizes, simulation = classification.train.size, simulate(classification)
    who = [ACTIVE, OTHERS, ACTIVE]
    algorithm = make(sizes, HEAD, weighting=weighting, **OPTIONS)

    p = sizes.double() if weighting == "samples" else torch.ones(6).double()
    rows = list(START)
    modules = [net() for _ in range(6)]
    optimisers = [
        torch.optim.SGD(m.parameters(), lr=0.2, momentum=0.5, weight_decay=0.01)
        for m in modules
    ]
    for t, active in enumerate(who, start=1):
        there = active.nonzero()[:, 0].tolist()
        for i in there:
            nn.utils.vector_to_parameters(rows[i].clone(), modules[i].parameters())
            for question in range(3):
                stream = seeds.key(simulation.at(t).key("each", 0), question)
                batch = draws(classification, i, 3, stream)
                outputs = modules[i](classification.features[batch])
                optimisers[i].zero_grad()
                nn.functional.cross_entropy(
                    outputs, classification.targets[batch]
                ).backward()
                optimisers[i].step()
            rows[i] = nn.utils.parameters_to_vector(modules[i].parameters()).detach()
        total = sum(float(p[i]) for i in there)
        mean = sum(float(p[i]) / total * rows[i] for i in there)
        rows = [torch.where(home, row, mean) for row in rows]
    assert_close(after(algorithm, simulation, who), torch.stack(rows), **EXACT)


@for_methods
def test_they_are_fedavg_with_a_part_at_home(classification, make, home):
    sizes, who = classification.train.size, [ACTIVE, OTHERS, None]
    ours = after(make(sizes, HEAD, **OPTIONS), simulate(classification), who)
    at_home = simulate(classification, home)
    theirs = after(fedavg(sizes, **OPTIONS), at_home, who)
    assert_close(ours, theirs, **EXACT)


@for_methods
def test_the_part_at_home_is_never_sent(classification, make, home):
    algorithm = make(classification.train.size, HEAD)
    _, infos = train(algorithm, simulate(classification), START, 2)
    assert all(info["sent"] == 2 * 6 * int((~home).sum()) for info in infos)
    assert torch.equal(algorithm.home, home)


@for_methods
def test_a_newcomer_trains_its_part_and_no_other(classification, make, home):
    algorithm = make(classification.train.size, HEAD, lr=0.2, steps=2)
    simulation = simulate(classification)
    states, _ = train(algorithm, simulation, START, 3)
    found = algorithm.welcome(states[-1], simulation.at(4, purpose="welcome"))
    assert_close(found[:, ~home], states[-1].w[:, ~home], **EXACT)
    assert not torch.equal(found[0, home], states[-1].w[0, home])


@for_methods
def test_personal_parameters_beside_their_own_are_refused(classification, make, home):
    simulation = simulate(classification, home)
    with pytest.raises(InputError, match="`personal` cannot be used"):
        make(classification.train.size, HEAD).init(START, simulation.at(0))
