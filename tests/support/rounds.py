"""Rounds of simulated clients, and what loops over them need."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie import models, seeds
from coterie.clients.simulation import Simulation
from coterie.data.federation import Federation
from support.oracles import begun, told
from support.plain_clients import draws
from support.quadratics import REAL

# Who takes part in a round of some, and settings that use every part of a step.
ACTIVE = torch.tensor([True, False, True, True, False, True])
STEPS = {
    "lr": 0.2,
    "steps": 3,
    "momentum": 0.5,
    "weight_decay": 0.01,
    "schedule": "inverse(9)",
}


def simulate(federation: Federation, batch_size: int = 0) -> Simulation:
    """Clients with a linear model, which has a bias where there are classes."""
    size, outputs = federation.features.shape[1], federation.outputs
    bias = federation.task == "classification"
    module = models.build(lambda: models.linear((size,), outputs, bias=bias), 0, REAL)
    return Simulation(federation, module, batch_size=batch_size, dtype=REAL)


def train(algorithm, simulation, x, rounds=4, active=None):
    """States before the first round and after each, and the infos."""
    states, infos = [begun(algorithm, x)], []
    for t in range(1, rounds + 1):
        oracle = simulation.at(t, active)
        state, info = algorithm.step(states[-1], oracle, seeds.generator(0, t))
        states.append(state)
        infos.append(told(info, oracle))
    return states, infos


def drawn(
    simulation: Simulation, t: int, client: int, question: int, program: int = 0
) -> Tensor:
    """The samples of a client's minibatch number `question` in a program of round t."""
    stream = seeds.key(simulation.at(t).key("each", program), question)
    return draws(simulation.federation, client, simulation.batch_size, stream)


def loss(federation: Federation, row: Tensor, index: Tensor) -> Tensor:
    """Cross-entropy of a linear model, written out for autograd."""
    size, outputs = federation.features.shape[1], federation.outputs
    weight, bias = row[: size * outputs].view(outputs, size), row[size * outputs :]
    scores = federation.features[index] @ weight.T + bias
    return nn.functional.cross_entropy(scores, federation.targets[index])


def gradient(federation: Federation, row: Tensor, index: Tensor) -> Tensor:
    """The gradient of that loss."""
    return torch.func.grad(loss, argnums=1)(federation, row, index)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """The solutions (N, D) of a_i x_i = b_i."""
    return torch.linalg.solve(a, b[..., None])[..., 0]
