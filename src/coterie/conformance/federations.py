"""Tiny federations for the checks of algorithms."""

from __future__ import annotations

import torch
from torch import Tensor

from .. import seeds
from ..data.federation import PARTS, Federation, Table, federate

CLIENTS = 6


def small_federation(clients: int = CLIENTS) -> Federation:
    """Data for classification: two clusters give different labels to the same classes.

    A client's data do not depend on the number of clients.
    """
    sizes = torch.tensor([7 + (3 * i) % 5 for i in range(clients)])
    role = torch.cat([torch.arange(int(size)).clamp(max=2) for size in sizes])
    role = torch.where(role == 2, 0, role + 1)  # one for validation, one to test
    owner = torch.arange(clients).repeat_interleave(sizes)
    features = torch.cat([_features(i, n) for i, n in enumerate(sizes.tolist())])
    classes = features[:, :3].argmax(1)
    targets = torch.where(owner % 2 == 0, classes, (classes + 1) % 3)
    table = Table("small", features, targets, "classification", 3)
    return federate(table, owner, role, clusters=torch.arange(clients) % 2)


def _features(client: int, samples: int) -> Tensor:
    rng = seeds.generator("conformance", "data", client)
    return torch.randn(samples, 4, generator=rng, dtype=torch.float64)


def common_optimum(clients: int = CLIENTS) -> Federation:
    """Data for linear regression without noise: clients have the same best model.

    Features differ between clients. The Hessians are diagonal with entries from 2 to 3,
    so that training converges with all usual step sizes.
    """
    rng = seeds.generator("conformance", "optimum")
    real = torch.float64
    best = torch.randn(5, generator=rng, dtype=real)
    samples = 20
    blocks = []
    for _ in range(clients):
        q = torch.linalg.qr(torch.randn(samples, 5, generator=rng, dtype=real))[0]
        curvature = 2 + torch.rand(5, generator=rng, dtype=real)
        blocks.append(q * (samples * curvature / 2).sqrt())
    # Validation and test data repeat the training data; nobody uses them.
    features = torch.cat([torch.cat(blocks)] * len(PARTS))
    owner = torch.arange(clients).repeat_interleave(samples).repeat(len(PARTS))
    role = torch.arange(len(PARTS)).repeat_interleave(clients * samples)
    table = Table("optimum", features, features @ best, "regression", 1)
    return federate(
        table,
        owner,
        role,
        clusters=torch.zeros(clients, dtype=torch.long),
        optima=best.expand(clients, 5).clone(),
    )
