"""Claims about running statistics: they move as in torch, whichever optimiser steps."""

from __future__ import annotations

import copy
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from coterie import methods, models, seeds
from coterie.checks import InputError
from coterie.clients.simulation import Simulation
from coterie.conformance.cases import ACTIVE
from coterie.conformance.federations import small_federation
from coterie.engine import SERVERS, run_rounds, with_server
from coterie.engine.rounds import participants
from coterie.models.layers import with_batch_statistics
from coterie.optim import sharpness
from coterie.study.settings.optimisers import OPTIMISERS
from support.plain_clients import draws

REAL = torch.float64
N, BATCH, ROUNDS, STEPS, SHARE = 6, 4, 4, 3, 0.5
NEAR = {"rtol": 0.0, "atol": 1e-9}
MOMENTA = 0.1, 0.4  # torch's default, and another one


def network() -> nn.Module:
    """A network of torch with two layers of batch normalisation.

    Biases before such a layer have no gradient but rounding, which Adam would enlarge.
    """
    body = nn.Sequential(
        *(
            nn.Linear(4, 5, bias=False),
            nn.BatchNorm1d(5, momentum=MOMENTA[0]),
            nn.Tanh(),
        ),
        *(
            nn.Linear(5, 3, bias=False),
            nn.BatchNorm1d(3, momentum=MOMENTA[1]),
            nn.Tanh(),
        ),
    )
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(3, 3)))


@pytest.fixture(scope="module")
def federation():
    return small_federation()


def clients_of(federation, **settings):
    """Clients, and a starting model that is the same for everybody."""
    module = models.build(lambda: with_batch_statistics(network()), 0, REAL)
    given = {"batch_size": BATCH, "dtype": REAL, **settings}
    simulation = Simulation(federation, module, **given)
    return simulation, models.ravel(module).expand(len(federation), -1)


def values_of(module: nn.Module) -> list[torch.Tensor]:
    """Parameters and running statistics of torch's layers, in the order of a row."""
    found = []
    for layer in module.modules():
        found += layer.parameters(recurse=False)
        if isinstance(layer, nn.BatchNorm1d):
            found += [layer.running_mean, layer.running_var]
    return found


def load(module: nn.Module, row: torch.Tensor) -> None:
    values = values_of(module)
    with torch.no_grad():
        for value, part in zip(
            values, row.split([value.numel() for value in values]), strict=True
        ):
            value.copy_(part.view_as(value))


def row_of(module: nn.Module) -> torch.Tensor:
    return torch.cat([value.detach().flatten() for value in values_of(module)])


def is_statistic() -> torch.Tensor:
    module = network()
    for value in values_of(module):
        value.data.zero_()
    for layer in module.modules():
        if isinstance(layer, nn.BatchNorm1d):
            layer.running_mean += 1
            layer.running_var += 1
    return row_of(module) > 0


def by_loop(federation, start, make, *, clip=None, pull=0.0, server=None):
    """FedAvg with a module and an optimiser of torch for each client.

    Torch moves the running statistics itself. `pull` is FedProx's, `server` makes the
    next parameters from the last and the mean ones.
    """
    modules = [network().double() for _ in range(N)]
    optimisers = [make([*module.parameters()]) for module in modules]
    w, statistic = start.clone(), is_statistic()
    for t in range(1, ROUNDS + 1):
        here = participants(N, SHARE, 0, t).nonzero()[:, 0].tolist()
        call = seeds.key(0, "step", t, "each", 0)
        for i in here:
            module = modules[i]
            load(module, w)
            before = [part.detach().clone() for part in module.parameters()]
            for s in range(STEPS):
                index = draws(federation, i, BATCH, seeds.key(call, s))
                optimisers[i].zero_grad()
                outputs = module(federation.features[index])
                loss = F.cross_entropy(outputs, federation.targets[index])
                for part, old in zip(module.parameters(), before, strict=True):
                    loss = loss + pull / 2 * (part - old).square().sum()
                loss.backward()
                parts = [*module.parameters()]
                norm = float(sum(p.grad.square().sum() for p in parts) ** 0.5)
                for part in parts if clip is not None else ():
                    part.grad *= min(1.0, clip / norm)
                optimisers[i].step()
        sizes = federation.train.size[here].double()
        rows = torch.stack([row_of(modules[i]) for i in here])
        mean = (sizes[:, None] * rows).sum(0) / sizes.sum()
        if server is not None:
            mean = torch.where(statistic, mean, server(w, mean))
        w = mean
    return w


RULES = {
    "sgd": (
        {"name": "sgd", "lr": 0.2, "momentum": 0.8, "weight_decay": 0.1},
        lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.8, weight_decay=0.1),
    ),
    "sgd without texts": (
        {"name": "sgd", "lr": 3.0},
        lambda p: torch.optim.SGD(p, lr=3.0),
    ),
    "adam": (
        {"name": "adam", "lr": 0.01, "weight_decay": 0.1},
        lambda p: torch.optim.Adam(p, lr=0.01, weight_decay=0.1),
    ),
    "adamw": (
        {"name": "adamw", "lr": 0.01, "weight_decay": 0.5},
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.5),
    ),
}


def options(table):
    made = OPTIMISERS[table["name"]](**{k: v for k, v in table.items() if k != "name"})
    return made._asdict()


def last(method, federation, **settings):
    simulation, x = clients_of(federation, **settings)
    how = {"rounds": ROUNDS, "participation": SHARE}
    *_, end = run_rounds(method, simulation, x, **how)
    return end.state


@pytest.mark.parametrize("clip", [None, 0.3])
@pytest.mark.parametrize("case", RULES)
def test_statistics_are_those_of_torch_with_every_optimiser(federation, case, clip):
    """Neither weight decay nor clipping nor the step size concerns them."""
    table, make = RULES[case]
    table = table if clip is None else {**table, "clip": clip}
    sizes = federation.train.size
    found = last(methods.fedavg(sizes, steps=STEPS, **options(table)), federation)
    start = clients_of(federation)[1][0]
    expected = by_loop(federation, start, make, clip=clip)
    moved = (expected - start)[is_statistic()].abs()
    assert moved.median() > 1e-2
    assert_close(found.x[0], expected, **NEAR)


def test_the_pull_of_fedprox_does_not_hold_statistics_back(federation):
    table, make = RULES["adam"]
    sizes = federation.train.size
    method = methods.fedprox(sizes, steps=STEPS, lam=0.7, **options(table))
    found = last(method, federation)
    expected = by_loop(federation, clients_of(federation)[1][0], make, pull=0.7)
    assert_close(found.x[0], expected, **NEAR)


def test_a_server_averages_statistics_and_steps_with_the_rest(federation):
    """FedAvgM whose server has momentum: statistics are the clients' plain mean."""
    table, make = RULES["sgd"]
    plain = methods.fedavg(federation.train.size, steps=STEPS, **options(table))
    server = SERVERS["momentum"](lr=0.7, momentum=0.5)
    found = last(with_server(plain, server, "fedavg"), federation)
    m = [0.0]

    def step(w, mean):
        m[0] = 0.5 * m[0] + (mean - w)
        return w + 0.7 * m[0]

    start = clients_of(federation)[1][0]
    expected = by_loop(federation, start, make, server=step)
    assert_close(found.state.x[0], expected, **NEAR)


STILL = {
    "fedprox": lambda sizes: methods.fedprox(sizes, lam=2.0, lr=1e-30, steps=STEPS),
    "feddyn": lambda sizes: methods.feddyn(sizes, alpha=2.0, lr=1e-30, steps=STEPS),
    "ditto": lambda sizes: methods.ditto(sizes, lam=2.0, lr=1e-30, steps=STEPS),
    "aruba": lambda sizes: methods.aruba(sizes, lr=1e-9, steps=STEPS),
}


@pytest.mark.parametrize("name", STILL)
def test_where_weights_stand_still_statistics_are_those_of_torch(federation, name):
    """No term of a method, and no step size, concerns statistics."""
    sizes = federation.train.size
    simulation, x = clients_of(federation, batch_size=0)
    how = {"rounds": ROUNDS, "participation": SHARE}
    *_, end = run_rounds(STILL[name](sizes), simulation, x, **how)
    expected, module = x[0].clone(), network().double()
    for t in range(1, ROUNDS + 1):
        here, rows = participants(N, SHARE, 0, t).nonzero()[:, 0], []
        for i in here.tolist():
            load(module, expected)
            for _ in range(STEPS):
                module(federation.features[draws(federation, i, 0, 0)])
            rows.append(row_of(module))
        shares = sizes[here].double() / sizes[here].sum()
        expected = (shares[:, None] * torch.stack(rows)).sum(0)
    # ARUBA's smallest step size moves weights by at most 1e-8 of a gradient's size.
    near = {"rtol": 0.0, "atol": 1e-6 if name == "aruba" else 1e-9}
    statistic = is_statistic()
    w = end.state.x if name == "fedprox" else end.state.w
    assert_close(w[0, statistic], expected[statistic], **near)


@pytest.mark.parametrize("variant", ["fo", "hf", "exact"])
def test_statistics_of_per_fedavg_are_those_at_the_tuned_model(federation, variant):
    """Its gradient is taken after one step of size alpha, whatever the variant is."""
    simulation, x = clients_of(federation, batch_size=0)
    given = {"alpha": 0.3, "variant": variant, "lr": 1e-30, "weighting": "samples"}
    method = methods.per_fedavg(federation.train.size, **given)
    (end,) = run_rounds(method, simulation, x, rounds=1)
    expected = torch.zeros_like(x[0])
    for i, share in enumerate(federation.train.size.double()):
        module, index = network().double(), draws(federation, i, 0, 0)
        load(module, x[0])
        outputs = module(federation.features[index])
        F.cross_entropy(outputs, federation.targets[index]).backward()
        tuned = network().double()
        load(tuned, x[0])
        with torch.no_grad():
            for part, old in zip(tuned.parameters(), module.parameters(), strict=True):
                part -= 0.3 * old.grad
            tuned(federation.features[index])
        expected += share / federation.train.size.sum() * row_of(tuned)
    statistic = is_statistic()
    assert_close(end.state.x[0, statistic], expected[statistic], **NEAR)


def pulled(at, w, *, lam):
    return at.losses + lam / 2 * (at.x - w).square().sum()


def own_loss(clients, x, w):
    batch = clients.same_batch()
    return batch.grad(x, w, loss=pulled, lam=3.0), batch.grad(x)


def test_a_loss_of_a_method_does_not_pull_statistics(federation):
    simulation, x = clients_of(federation)
    with_pull, plain = simulation.at(1, ACTIVE).each(own_loss, x + 1, x)
    here, statistic = ACTIVE.nonzero()[:, 0], is_statistic()
    assert torch.equal(with_pull[here][:, statistic], plain[here][:, statistic])
    gap = (with_pull - plain)[here][:, ~statistic]
    assert_close(gap, torch.full_like(gap, 3.0), **NEAR)


def test_statistics_have_no_curvature(federation):
    """Losses of minibatches do not depend on them, so that no step size does."""
    simulation, x = clients_of(federation, batch_size=0)
    found = simulation.at(1).each(
        lambda clients, x, u: clients.hvp(x, u), x, torch.ones_like(x)
    )[0]
    assert not found[:, is_statistic()].any()
    assert found[:, ~is_statistic()].any()
    (largest,) = simulation.at(1).each(sharpness, x[:, :1], x / 100, iterations=4)
    assert (largest < 1).all()  # of the statistics alone it would be 1


def test_a_layer_without_momentum_is_refused():
    with pytest.raises(InputError, match=r"must be a number from 0 to 1, got None"):
        with_batch_statistics(nn.BatchNorm1d(3, momentum=None))
    frozen = with_batch_statistics(nn.BatchNorm1d(3, momentum=None), frozen=True)
    assert copy.deepcopy(frozen).frozen
