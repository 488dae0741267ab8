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


def samples(sizes=SIZES) -> int:
    return sum(sizes) + 3 * len(sizes)
