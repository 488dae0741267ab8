"""Linear regression of clients whose best models are given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.data.federation import Federation, Part, Table, federate
from coterie.records import GroupLabels
from coterie.types import Info

REAL = torch.float64


def linear_clients(
    theta: Tensor,
    *,
    train: int | list[int] = 8,
    validation: int = 12,
    noise: float = 0.0,
    alike: bool = False,
    seed: int = 0,
) -> Federation:
    """Clients i with y = <x, theta_i> + noise, who have one sample to test.

    Args:
        theta: (N, D).
        train: samples of each, or of all.
        validation: samples.
        noise: of responses.
        alike: whether all have the features and the noise of the first.
        seed: of features and noise.
    """
    n, d = theta.shape
    rng = torch.Generator().manual_seed(seed)
    sizes = [train] * n if isinstance(train, int) else train
    role = torch.cat(
        [torch.tensor([0] * size + [1] * validation + [2]) for size in sizes]
    )
    owner = torch.arange(n).repeat_interleave(torch.tensor(sizes) + validation + 1)
    m = len(owner)
    x = torch.randn(m, d, generator=rng, dtype=REAL)
    error = noise * torch.randn(m, generator=rng, dtype=REAL)
    if alike:
        x, error = x[: m // n].repeat(n, 1), error[: m // n].repeat(n)
    y = (x * theta[owner]).sum(1) + error
    table = Table("linear", x, y, "regression", 1)
    clusters = torch.unique(theta, dim=0, return_inverse=True)[1]
    return federate(table, owner, role, clusters=clusters, optima=theta)


def four_groups() -> Federation:
    """Sixteen clients in four groups, with models of sixteen columns."""
    best = 3 * torch.eye(16, dtype=REAL)[:4]
    return linear_clients(best.repeat(4, 1), noise=0.5, train=40)


def two_groups(clients: int = 8, d: int = 3, **options) -> Federation:
    """Every other client has the opposite best model."""
    side = 1.0 - 2 * (torch.arange(clients) % 2)
    best = torch.tensor([2.0, 1.0, -1.0], dtype=REAL)[:d]
    return linear_clients(side[:, None].to(REAL) * best, **options)


def strangers(**options) -> Federation:
    """Six clients whose best models are as far from each other as can be."""
    axes = 5 * torch.eye(3, dtype=REAL)
    return linear_clients(torch.cat([axes, -axes]), **options)


def without_validation(federation: Federation, *clients: int) -> Federation:
    """Where these, or all, have no validation data."""
    index, first, size = federation.validation
    left = size.index_fill(0, torch.tensor(clients), 0) if clients else 0 * size
    return replace(federation, validation=Part(index, first, left))


def are_found(member: Tensor, clusters: Tensor) -> bool:
    """Whether groups are the true ones, whatever they are called."""
    return torch.equal(member[:, None] == member, clusters[:, None] == clusters)


def weights_told(info: Info, shares: Tensor) -> Tensor:
    """The collaboration matrix of the groups that a round tells."""
    member = info["member"].numpy()[None]
    uses = info.get("uses", info["member"]).numpy()[None]
    labels = GroupLabels(np.array([1]), member, uses, shares.double().numpy())
    return torch.from_numpy(labels.weights(0))
