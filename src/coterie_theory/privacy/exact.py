"""Exact privacy losses of gossip, if each client has one input.

The share S(u, v) and its projection are defined in
`coterie.privacy.accounting.projection`. For several inputs of a client,
`coterie.privacy.accounting.joint` has a bound.

References:
    Even, PhD thesis, 2024, 6.3, tel-04877971.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from coterie import checks
from coterie.checks import InputError
from coterie.privacy.accounting.coefficients import Columns, columns_of, links_of
from coterie.privacy.accounting.ledger import Input, Ledger
from coterie.privacy.accounting.losses import Losses
from coterie.privacy.accounting.projection import (
    ROWS,
    RTOL,
    Knowledge,
    Observer,
    seen_by_each,
)

_NUMBERS = 250_000_000
"""The largest size of the views of a block of observers, in numbers: two gigabytes."""


def exact_losses(
    ledger: Ledger,
    observers: Sequence[Observer] | None = None,
    *,
    rtol: float = RTOL,
    tau: float = 0.0,
) -> Losses:
    """What every observer learns about every client; each client must have one input.

    The computation treats observers in blocks, and reads the ledger once per block.

    Args:
        ledger: the ledger of inputs, exchanges and meetings.
        observers: groups of clients; by default every client alone.
        rtol: the relative tolerance of singular values.
        tau: the standard deviation of the noise on messages when they are read.
    """
    columns = columns_of(ledger)
    secret = (columns.mu > 0).nonzero()[:, 0]
    client = columns.client[secret]
    if len(client.unique()) != len(client):
        twice = int(client.mode().values)
        raise InputError(f"client {twice} has several inputs: use `joint_losses`.")
    n = ledger.clients
    if observers is None:
        observers = [Observer((v,)) for v in range(n)]
    share = torch.zeros(n, len(observers), dtype=torch.float64)
    rows = min(len(columns.client) + ROWS, _most_read(ledger))
    block = max(1, _NUMBERS // (rows * len(columns.client)))
    for start in range(0, len(observers), block):
        some = observers[start : start + block]
        each = seen_by_each(ledger, some, rtol=rtol, tau=tau)
        for place, seen in enumerate(each, start):
            share[client, place] = seen.shares[secret]
    unit = torch.zeros(n, dtype=torch.float64)
    unit[client] = columns.mu[secret]
    return Losses(share.clamp(0, 1), unit)


def group_share(
    seen: Knowledge, clients: Sequence[int], *, each: bool = False
) -> float:
    """The loss S of a group of clients, if their inputs may change together.

    Suppose that the inputs of the group, as one vector, change by at most the
    sensitivity D. Then S is the largest eigenvalue of the group's block of the
    projection. If each of k inputs may change by D, S is k times as large. This also
    holds for inputs that are vectors.

    Args:
        seen: what an observer knows.
        clients: the group; its inputs must have the same noise and sensitivity.
        each: whether each input may change by D, instead of all together.
    """
    place = _inputs_of(seen.columns, clients)
    part = seen.basis[:, place] * seen.clear.sqrt()[:, None]
    largest = float(torch.linalg.matrix_norm(part, 2)) ** 2 if len(part) else 0.0
    return largest * (len(place) if each else 1)


def _inputs_of(columns: Columns, clients: Sequence[int]) -> Tensor:
    wanted = torch.tensor(list(clients))
    secret = columns.mu > 0
    place = (torch.isin(columns.client, wanted) & secret).nonzero()[:, 0]
    if len(place) != len(set(clients)) or len(columns.mu[place].unique()) != 1:
        raise InputError(
            "`clients` of a group must have one input each, all of the same noise and "
            f"sensitivity, got {checks.brief(list(clients))}."
        )
    return place


def _most_read(ledger: Ledger) -> int:
    """The largest number of messages to one client; a group may receive more."""
    count = torch.zeros(ledger.clients, dtype=torch.long)
    for event in ledger:
        if not isinstance(event, Input):
            links = links_of(event, len(count))
            count += links[:, 1].bincount(minlength=len(count))
    return max(1, int(count.max()))
