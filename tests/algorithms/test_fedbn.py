"""Claims about FedBN: a loop with torch's BatchNorm, and which columns stay at home."""

from __future__ import annotations

from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from coterie import models, seeds
from coterie.algorithms.fedavg import fedavg
from coterie.algorithms.fedbn import fedbn
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.study.ingredients import RECIPES, Context
from support.plain_clients import EXACT, draws
from support.rounds import ACTIVE, train

REAL = torch.float64
OTHERS = torch.tensor([True, True, False, False, True, True])
LR = 0.2
AT_HOME = ["bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"]


def torch_net() -> nn.Module:
    layers = OrderedDict(
        body=nn.Linear(12, 3),
        bn=nn.BatchNorm1d(3),
        act=nn.Tanh(),
        head=nn.Linear(3, 2),
    )
    return nn.Sequential(layers)


def net() -> nn.Module:
    return models.build(lambda: models.with_batch_statistics(torch_net()), 0, REAL)


LAYOUT = models.layout(net())
START = models.ravel(net()).expand(6, -1).clone()


def norm_of(federation, choice="batch", layout=LAYOUT) -> torch.Tensor:
    """The ingredient of a study."""
    return RECIPES["norm"][0](choice, Context(federation, layout, 0))


def simulate(federation, home=None) -> Simulation:
    return Simulation(federation, net(), batch_size=3, dtype=REAL, home=home)


def after(algorithm, simulation, who):
    """The models that clients use after rounds with these clients."""
    state = train(algorithm, simulation, START, 0)[0][0]
    for t, active in enumerate(who, start=1):
        state, _ = algorithm.step(state, simulation.at(t, active), torch.Generator())
    return algorithm.personal(state, simulation.at(len(who), purpose="use"))


def test_fedbn_is_a_loop_with_batch_normalisation_of_torch(classification):
    """With partial participation; torch moves statistics by 0.1, not by LR."""
    sizes, simulation = classification.train.size, simulate(classification)
    who = [ACTIVE, OTHERS, ACTIVE]
    algorithm = fedbn(sizes, norm_of(classification), lr=LR, steps=3)
    found = LAYOUT.unravel(after(algorithm, simulation, who))

    first = {name: value.clone() for name, value in net().state_dict().items()}
    modules = [torch_net().double().train() for _ in range(6)]
    for module in modules:
        module.load_state_dict(first, strict=False)  # but the counts of batches
    shared = [name for name in LAYOUT.names if name not in AT_HOME]
    w = {name: first[name] for name in shared}
    for t, active in enumerate(who, start=1):
        there = active.nonzero()[:, 0].tolist()
        for i in there:
            modules[i].load_state_dict(w, strict=False)
            optimiser = torch.optim.SGD(modules[i].parameters(), lr=LR)
            for question in range(3):
                stream = seeds.key(simulation.at(t).key("each", 0), question)
                batch = draws(classification, i, 3, stream)
                outputs = modules[i](classification.features[batch])
                targets = classification.targets[batch]
                optimiser.zero_grad()
                nn.functional.cross_entropy(outputs, targets).backward()
                optimiser.step()
        states = [{k: v.clone() for k, v in m.state_dict().items()} for m in modules]
        total = sum(int(sizes[i]) for i in there)
        w = {
            name: sum(int(sizes[i]) / total * states[i][name] for i in there)
            for name in shared
        }
    for name in AT_HOME:
        expected = torch.stack([module.state_dict()[name] for module in modules])
        assert_close(found[name], expected, **EXACT)
    for name in shared:
        assert_close(found[name], w[name].expand_as(found[name]), **EXACT)


def test_it_is_fedavg_with_personal_normalisation(classification):
    sizes, who = classification.train.size, [ACTIVE, OTHERS, None]
    home, options = norm_of(classification), {"lr": 0.2, "steps": 3, "momentum": 0.5}
    ours = after(fedbn(sizes, home, **options), simulate(classification), who)
    theirs = after(fedavg(sizes, **options), simulate(classification, home), who)
    assert_close(ours, theirs, **EXACT)


def test_normalisation_is_never_sent(classification):
    home = norm_of(classification)
    algorithm = fedbn(classification.train.size, home)
    _, infos = train(algorithm, simulate(classification), START, 2)
    assert all(info["sent"] == 2 * 6 * int((~home).sum()) for info in infos)
    assert torch.equal(algorithm.home, home)


def test_normalisation_is_found_by_its_running_statistics(classification):
    for choice, names in {"batch": AT_HOME, "running_*": AT_HOME[2:]}.items():
        found = LAYOUT.unravel(norm_of(classification, choice).double())
        for name, part in found.items():
            assert torch.equal(part, torch.full_like(part, name in names)), name


def test_a_model_without_batch_normalisation_is_refused(classification):
    plain = models.layout(models.build(lambda: models.mlp((12,), 2), 0))
    with pytest.raises(InputError, match="`norm` batch needs batch normalisation"):
        norm_of(classification, layout=plain)
