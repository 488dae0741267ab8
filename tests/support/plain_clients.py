"""Simulated clients, and the same ones asked plainly, one after the other."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import Tensor, nn

from coterie import models, seeds
from coterie.clients.groups import Group, block
from coterie.clients.simulation import Simulation
from coterie.data.federation import Federation
from coterie.privacy import PrivateSimulation
from coterie.types import Oracle, Transfer

REAL = torch.float64
# Sums of at most some hundred products in double precision, in another order.
EXACT = {"rtol": 1e-9, "atol": 1e-11}
CLIP, NOISE = 0.5, 1.5  # of private clients

# The six clients with classes, their models, and how an average weighs them.
N, D = 6, 47
SHARES = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], dtype=REAL)
# Of the threads that hold two clients each, the last has nobody who takes part.
SOME = torch.tensor([True, False, True, True, False, False])
everybody_or_some = pytest.mark.parametrize("active", [None, SOME], ids=["all", "some"])


def who(active: Tensor | None) -> list[int]:
    """Positions of those who take part."""
    return list(range(N)) if active is None else active.nonzero()[:, 0].tolist()


def over_links(sent: list[Transfer]) -> Counter:
    """How many values each verb sent from whom to whom."""
    total: Counter = Counter()
    for one in sent:
        for source, target in one.links.tolist():
            total[one.verb, source, target] += one.values
    return total


def module(federation: Federation) -> nn.Module:
    """A linear model of real targets, or a small network of classes."""
    shape = tuple(federation.features.shape[1:])
    if federation.task == "regression":
        return models.build(lambda: models.linear(shape, 1, bias=False), 0, REAL)
    return models.build(
        lambda: models.mlp(shape, federation.outputs, hidden=(3,), activation="tanh"),
        0,
        REAL,
    )


def simulate(federation: Federation, **settings: object) -> Simulation:
    """The clients of a federation, with minibatches of three unless told otherwise."""
    return Simulation(
        federation, module(federation), **{"dtype": REAL, "batch_size": 3, **settings}
    )


def rows(simulation: Simulation) -> Tensor:
    """Different models of all clients."""
    rng = torch.Generator().manual_seed(1)
    size = simulation.kernel.parameters
    return torch.randn(len(simulation), size, generator=rng, dtype=REAL) / 2


def simulated(federation: Federation, **settings: object) -> tuple[Simulation, Tensor]:
    """Both: the clients, and different models of theirs."""
    simulation = simulate(federation, **settings)
    return simulation, rows(simulation)


def in_round(
    federation: Federation, t: int, active: Tensor | None = None, **settings: object
) -> tuple[Oracle, Tensor]:
    """The oracle of a round of such clients, and different models of theirs."""
    simulation, x = simulated(federation, **settings)
    return simulation.at(t, active), x


def share_of(federation: Federation, group: Group) -> tuple[Federation, slice]:
    """The clients that a process holds, and where they stand among all."""
    here = block(len(federation), group)
    return federation.select(torch.arange(len(federation))[here]), here


def private(
    federation: Federation,
    *,
    clip: float = CLIP,
    noise: float = NOISE,
    loss_clip: float | None = None,
    held_out_noise: float | None = None,
    **settings: object,
) -> PrivateSimulation:
    """The same clients, whose every gradient and loss hides every single sample."""
    losses = {"loss_clip": loss_clip, "held_out_noise": held_out_noise}
    plain = simulate(federation, **settings)
    return PrivateSimulation(plain, clip=clip, noise=noise, **losses)


def mine(federation: Federation, client: int, name: str = "train") -> Tensor:
    """Where the samples of a client lie."""
    index, start, size = federation.part(name)
    return index[start[client] : start[client] + size[client]]


def gradient(federation: Federation, row: Tensor, index: Tensor) -> Tensor:
    """The gradient of the mean loss of these samples, on an nn.Module of its own."""
    twin = module(federation)
    nn.utils.vector_to_parameters(row, twin.parameters())
    outputs = twin(federation.features[index])
    if federation.task == "regression":
        loss = nn.functional.mse_loss(outputs[:, 0], federation.targets[index])
    else:
        loss = nn.functional.cross_entropy(outputs, federation.targets[index])
    loss.backward()
    return torch.cat([p.grad.flatten() for p in twin.parameters()])


def draws(federation: Federation, client: int, size: int, stream: int) -> Tensor:
    """The minibatch of a client in a stream, or all of its samples if `size` is 0."""
    here = mine(federation, client)
    if size == 0:
        return here
    limit = torch.tensor([len(here)])
    return here[
        seeds.integers_below(limit, stream, federation.clients[[client]], size)[0]
    ]


def twice(clients, x, y):
    """A program that asks all three questions and changes both of its rows."""
    g = clients.grad(x)
    loss = clients.loss(x - g)
    turned = clients.hvp(x, g)
    return x - 0.1 * g, y + loss[:, None] * turned


def losses_of_all(clients, training, held_out, x):
    """A client program: mean losses of both parts, that of validation samples twice."""
    held = clients.validation()
    means = [held.losses(x).nanmean(1), held.loss(x)]
    return clients.whole().loss(x)[:, None], torch.stack(means, 1)


def losses_told(oracle, x):
    """What clients tell by that program."""
    nothing = x.new_zeros(len(x), 1), x.new_zeros(len(x), 2)
    return oracle.each(losses_of_all, *nothing, x)
