"""Clients that are simulated, with models and rounds of theirs."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie import models
from coterie.clients.groups import Group, block
from coterie.clients.simulation import Simulation
from coterie.data.federation import Federation
from coterie.privacy import PrivateSimulation
from coterie.types import Oracle

REAL = torch.float64


CLIP, NOISE = 0.5, 1.5  # of private clients


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
