"""Small federations from a table."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.data import synthetic
from coterie.data.federation import Federation, Table, federate

SIZES = (7, 4, 9, 5, 8, 6)  # training samples of the six clients


def divided(
    table: Table, sizes=SIZES, clusters: torch.Tensor | None = None
) -> Federation:
    """Gives client i sizes[i] training samples, two for validation and one to test."""
    owner, role = [], []
    for client, size in enumerate(sizes):
        owner += [client] * (size + 3)
        role += [0] * size + [1, 1, 2]
    return federate(table, torch.tensor(owner), torch.tensor(role), clusters=clusters)


def of_groups(table: Table) -> Federation:
    """The groups of a synthetic table are clients: two samples to validate and test."""
    clients = int(table.group.max()) + 1
    each = len(table.group) // clients
    role = torch.tensor([0] * (each - 2) + [1, 2]).repeat(clients)
    clusters, optima = table.clusters, table.optima
    return federate(table, table.group, role, clusters=clusters, optima=optima)


def samples(sizes=SIZES) -> int:
    return sum(sizes) + 3 * len(sizes)


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
