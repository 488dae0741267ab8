"""Clients that are asked plainly, one after the other, as simulated ones are."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie import seeds
from coterie.data.federation import Federation
from support.simulated import module

# Sums of at most some hundred products in double precision, in another order.
EXACT = {"rtol": 1e-9, "atol": 1e-11}


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
