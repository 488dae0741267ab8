"""Clients whose losses are known quadratics.

The loss of client i is (x - theta_i)^T A_i (x - theta_i) / 2, with the eigenvalues of
A_i between 1 and 3, so that optima and proximal points have closed forms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie import seeds
from coterie.data.federation import PARTS, Federation, Table, federate
from support.plain_clients import mine

REAL = torch.float64


# Some hundred steps in double precision, with the operations in another order.
EXACT = {"rtol": 1e-10, "atol": 1e-12}


SAMPLES = torch.tensor([8, 6, 12, 7, 10, 9])  # training samples of the six clients


D = 5


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


def zeros(federation: Federation) -> Tensor:
    """Models of linear regression that are all zero."""
    return torch.zeros(len(federation), federation.features.shape[1], dtype=REAL)


def start(n: int = 6, d: int = D) -> Tensor:
    """Different starting models."""
    rng = torch.Generator().manual_seed(0)
    return torch.randn(n, d, generator=rng, dtype=REAL) / 2
