"""Clients whose losses are known quadratics, and what loops in tests need.

The loss of client i is (x - theta_i)^T A_i (x - theta_i) / 2, with the eigenvalues of
A_i between 1 and 3, so that optima and proximal points have closed forms.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coterie import models, seeds
from coterie.clients.simulation import Simulation
from coterie.data import synthetic
from coterie.data.federation import PARTS, Federation, Table, federate
from support.federations import of_groups
from support.oracles import begun, told
from support.plain_clients import draws, mine

REAL = torch.float64
# Some hundred steps in double precision, with the operations in another order.
EXACT = {"rtol": 1e-10, "atol": 1e-12}
SAMPLES = torch.tensor([8, 6, 12, 7, 10, 9])  # training samples of the six clients
D = 5
# Who takes part in a round of some, and settings that use every part of a step.
ACTIVE = torch.tensor([True, False, True, True, False, True])
STEPS = {
    "lr": 0.2,
    "steps": 3,
    "momentum": 0.5,
    "weight_decay": 0.01,
    "schedule": "inverse(9)",
}


def quadratics() -> Federation:
    """Six clients with noiseless linear responses and best models of their own."""
    rng = seeds.generator("tests", "quadratics")

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=rng, dtype=REAL)

    blocks, answers = [], []
    for samples in SAMPLES.tolist():
        q, turn = torch.linalg.qr(normal(samples, D))[0], torch.linalg.qr(normal(D, D))
        curvature = 1 + 2 * torch.rand(D, generator=rng, dtype=REAL)
        x = q * (samples * curvature / 2).sqrt() @ turn[0]
        blocks.append(x)
        answers.append(x @ normal(D))
    # Validation and test data are the training data again; nobody looks at them.
    features = torch.cat(blocks * len(PARTS))
    targets = torch.cat(answers * len(PARTS))
    owner = torch.arange(6).repeat_interleave(SAMPLES).repeat(len(PARTS))
    role = torch.arange(len(PARTS)).repeat_interleave(int(SAMPLES.sum()))
    table = Table("quadratics", features, targets, "regression", 1)
    return federate(table, owner, role)


def hessians(federation: Federation) -> tuple[Tensor, Tensor]:
    """A (N, D, D) and A_i theta_i (N, D), from the mean squared errors themselves."""
    a, b = [], []
    for i in range(len(federation)):
        index = mine(federation, i)
        x, y = federation.features[index], federation.targets[index]
        a.append(2 * x.T @ x / len(x))
        b.append(2 * x.T @ y / len(x))
    return torch.stack(a), torch.stack(b)


def solve(a: Tensor, b: Tensor) -> Tensor:
    """The solutions (N, D) of a_i x_i = b_i."""
    return torch.linalg.solve(a, b[..., None])[..., 0]


def similar_clients() -> Federation:
    """Twelve clients that estimate means near a common one from five samples each.

    Both a client's own mean and the common one are off by 1/5 in every coordinate, the
    first by the noise of its samples and the second by what is the client's own, so
    that half the way from one to the other is best. The Hessians are 2 I.
    """
    table = synthetic.mean_estimation(
        clients=12, clusters=1, samples=7, variation=0.2**0.5, noise=1.0, seed=1
    )
    return of_groups(table)


def error(federation: Federation, x: Tensor) -> float:
    """Mean squared distance of a coordinate from the true one."""
    return float((x - federation.optima).square().mean())


def simulate(federation: Federation, batch_size: int = 0) -> Simulation:
    """Clients with a linear model, which has a bias where there are classes."""
    size, outputs = federation.features.shape[1], federation.outputs
    bias = federation.task == "classification"
    module = models.build(lambda: models.linear((size,), outputs, bias=bias), 0, REAL)
    return Simulation(federation, module, batch_size=batch_size, dtype=REAL)


def zeros(federation: Federation) -> Tensor:
    """Models of linear regression that are all zero."""
    return torch.zeros(len(federation), federation.features.shape[1], dtype=REAL)


def start(n: int = 6, d: int = D) -> Tensor:
    """Different starting models."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=rng, dtype=REAL) / 2


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
