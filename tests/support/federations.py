"""Small federations from a table."""

from __future__ import annotations

import torch

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
