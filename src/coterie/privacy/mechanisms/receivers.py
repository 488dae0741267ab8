"""Which clients have received whose rows, if clients hide single samples.

A client u sends rows computed from its private answers. Others compute rows from the
rows of u, and send them on. So a client that receives such rows, at any time and from
anybody, may know all answers of u. This includes answers of u to other readers
(`blended`), because the models of the readers contain them. In `compare`, which
multiplies gradients of clients, every client sees all gradients. Before training, all
clients release means to choose partners. Everybody knows these means, and some clients
receive nothing more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ...types import SERVER, Oracle
from ..accounting.ledger import Ledger, Release
from ..accounting.subsampled import Step, steps_of
from .partners import PAIRS, PARTNERS


class Receipts(NamedTuple):
    """What readers received; see `PerSampleState.releases` for kinds of releases."""

    common: list[Any]  # by client, answers that all receivers of its rows may know
    received: Tensor  # (N, K + 1) whether rows came; K is N or 1: peers; then a server
    before: list[Any]  # by client, what it told everybody for the choice of partners


def no_receipts(clients: int) -> Receipts:
    """The receipts before anything is sent."""
    readers = clients if clients <= PAIRS else 1
    received = torch.zeros(clients, readers + 1, dtype=torch.bool)
    none: list[Any] = [[] for _ in range(clients)]
    return Receipts(none, received, none)


def add_round(told: Receipts, asked: Ledger, oracle: Oracle) -> Receipts:
    """What each client has received from the others, after one more round.

    Args:
        told: the receipts before the round.
        asked: the releases of the round.
        oracle: the oracle of the round, which knows the messages.
    """
    n, present = asked.clients, oracle.present.cpu()
    events = [event for event in asked if isinstance(event, Release)]
    rest = tuple(event for event in events if event.verb != PARTNERS)
    partners = tuple(event for event in events if event.verb == PARTNERS)
    before = add_releases(told.before, steps_of(Ledger(n, partners)))
    common, received = (
        add_releases(told.common, steps_of(Ledger(n, rest))),
        told.received,
    )
    received = received.clone()
    # Links that are reused are the same tensor.
    used = {id(sent.links): sent.links for sent in oracle.sent if sent.values}
    links = [each.cpu() for each in used.values()]
    if any(event.verb == "compare" for event in rest):
        links.append((present[:, None] & present).nonzero())
    if any(
        sent.partial for sent in oracle.sent
    ):  # not all processes know the receivers
        links.append(present[:, None].expand(n, n).nonzero())
    if any(sent.verb == "central" for sent in oracle.sent):  # also from absent clients
        links.append(torch.stack([torch.arange(n), torch.full((n,), SERVER)], 1))
    # Rows of clients that have answered nothing yet reveal nothing.
    tell = torch.tensor([bool(kinds) for kinds in common])
    for some in links:
        some = some[(some[:, 0] >= 0) & (some[:, 0] != some[:, 1])]
        sender, receiver = some[tell[some[:, 0]]].unbind(1)
        received[sender, _column(receiver, received.shape[1])] = True
    return Receipts(common, received, before)


def senders(told: Receipts) -> Bool[Tensor, " n"]:
    """(N,) from which clients anybody has received rows."""
    return told.received.any(1)


def reach(told: Receipts) -> Bool[Tensor, "n m"]:
    """[u, v]: whether rows of u came to v, from u or through others."""
    found, n = told.received.clone(), len(told.received)
    if found.shape[1] != n + 1:  # pairs are not kept
        return found
    for between in range(n):
        found[:, :n] |= found[:, between, None] & found[between, :n]
    return found


def as_steps(kinds: Sequence[Any]) -> Counter[Step]:
    """Counts of steps, from kinds of releases that may come from a file."""
    return Counter({(noise, q, held_out): k for noise, q, held_out, k in kinds})


def add_releases(releases: list[Any], new: Sequence[Counter[Step]]) -> list[Any]:
    """Old and new releases together, client by client."""
    return [
        [(*kind, count) for kind, count in sorted((as_steps(kinds) + more).items())]
        if more
        else kinds
        for kinds, more in zip(releases, new, strict=True)
    ]


def _column(receiver: Tensor, columns: int) -> Tensor:
    """The column of each receiver; all clients may share one column."""
    peers = receiver if columns > 2 else torch.zeros_like(receiver)
    return torch.where(receiver == SERVER, columns - 1, peers)
