"""Clients that are held out of training and join afterwards.

New clients join a federation after its models are trained. They bring a little data,
and want a model that uses what the others have learned. To test this, a study can hold
clients out. These clients take no part in training, in ingredients or in any choice.
When an algorithm has finished, its `welcome` gives each of them a model, which is
evaluated on the client's data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import seeds
from ..checks import InputError
from ..clients.simulation import Simulation
from ..collaboration.best_fit import best_fit
from ..data.federation import Federation
from ..types import Oracle, State


class Newcomers(NamedTuple):
    """The clients that were held out, and what is needed to welcome them."""

    everybody: Federation  # the training clients, then the newcomers
    simulation: Simulation  # of the newcomers alone

    @property
    def federation(self) -> Federation:
        """The newcomers."""
        return self.simulation.federation


def hold_out(
    federation: Federation, count: int, seed: int
) -> tuple[Int[Tensor, " n"], Int[Tensor, " m"]]:
    """Positions of the clients that train and of `count` newcomers, in ascending order.

    The choice depends on the seed alone. A larger count holds out these clients and
    more.

    Raises:
        InputError: when fewer than two clients would be left to train.
    """
    n = len(federation)
    if n - count < 2:
        raise InputError(
            "`run.newcomers` must leave at least two clients to train, but "
            f"`{federation.name}` has {n} clients, and `run.newcomers` is {count}."
        )
    order = torch.randperm(n, generator=seeds.generator(seed, "newcomers"))
    return order[count:].sort().values, order[:count].sort().values


def on_the_device_of(trained: Simulation, newcomers: Federation) -> Federation:
    """The newcomers, with the samples that training clients already hold in memory."""
    there = trained.federation
    return replace(newcomers, features=there.features, targets=there.targets)


def models_for(
    welcome: Callable[[State, Oracle], Tensor] | None,
    state: State,
    personal: Float[Tensor, "n d"],
    oracle: Oracle,
) -> Float[Tensor, "m d"]:
    """A model for every newcomer, from the `welcome` of an algorithm.

    The algorithm has all clients, and the newcomers are the last ones. Without
    `welcome`, a newcomer takes the personal model with the least loss on its training
    data.
    """
    if welcome is None:
        candidates = personal.expand(len(oracle.active), -1, -1)
        return personal[best_fit(oracle, candidates)]
    x = welcome(state, oracle)
    wanted = (len(oracle.active), personal.shape[1])
    if x.shape != wanted:
        raise InputError(
            f"`welcome` must give models of shape {wanted}, got {tuple(x.shape)}."
        )
    return x


def newcomer_table(federation: Federation) -> dict[str, Tensor]:
    """Identity, true cluster (-1: unknown) and training samples of each newcomer."""
    clients, clusters = federation.clients, federation.clusters
    return {
        "client": clients,
        "cluster": torch.full_like(clients, -1) if clusters is None else clusters,
        "train": federation.train.size,
    }
