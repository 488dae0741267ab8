"""Simulated clients, and the same ones asked plainly, one after the other."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie import models, seeds
from coterie.clients.simulation import Simulation
from coterie.data.federation import Federation

REAL = torch.float64
# Sums of at most some hundred products in double precision, in another order.
EXACT = {"rtol": 1e-9, "atol": 1e-11}


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
    return here[seeds.below(limit, stream, federation.clients[[client]], size)[0]]


def twice(clients, x, y):
    """A program that asks all three questions and changes both of its rows."""
    g = clients.grad(x)
    loss = clients.loss(x - g)
    turned = clients.hvp(x, g)
    return x - 0.1 * g, y + loss[:, None] * turned
