"""Who has received what of clients who hide single samples.

What a client sends is made of its private answers, and so is what others make of it and
send on. So whoever receives rows of it, at any time and from anybody, may know all of
them, also answers to other readers (`blended`), which are in the models of these. Who
takes part in products of gradients (`compare`) is told of all. What partners are chosen
by before training is known to all, who may receive nothing else.
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
    """Who received what; kinds of releases are as of `PerSampleState.releases`."""

    common: list[Any]  # of each client, answers that all who receive rows may know
    received: Tensor  # (N, K + 1) whether rows were; K is N, or 1: peers; then a server
    before: list[Any]  # of each client, what everybody was told to choose partners by


def no_receipts(clients: int) -> Receipts:
    """Before anything is sent."""
    readers = clients if clients <= PAIRS else 1
    received = torch.zeros(clients, readers + 1, dtype=torch.bool)
    none: list[Any] = [[] for _ in range(clients)]
    return Receipts(none, received, none)


def add_round(told: Receipts, asked: Ledger, oracle: Oracle) -> Receipts:
    """With what a round has asked and sent.

    Args:
        told: before it.
        asked: its releases.
        oracle: of the round, which knows what was sent.
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
    # Links that are used again are the same tensor.
    used = {id(sent.links): sent.links for sent in oracle.sent if sent.values}
    links = [each.cpu() for each in used.values()]
    if any(event.verb == "compare" for event in rest):
        links.append((present[:, None] & present).nonzero())
    if any(sent.partial for sent in oracle.sent):  # to whom, not all processes know
        links.append(present[:, None].expand(n, n).nonzero())
    if any(sent.verb == "central" for sent in oracle.sent):  # of absent clients too
        links.append(torch.stack([torch.arange(n), torch.full((n,), SERVER)], 1))
    # Rows of those who have answered nothing yet tell nothing.
    tell = torch.tensor([bool(kinds) for kinds in common])
    for some in links:
        some = some[(some[:, 0] >= 0) & (some[:, 0] != some[:, 1])]
        sender, receiver = some[tell[some[:, 0]]].unbind(1)
        received[sender, _column(receiver, received.shape[1])] = True
    return Receipts(common, received, before)


def senders(told: Receipts) -> Bool[Tensor, " n"]:
    """Of whom anybody has received rows."""
    return told.received.any(1)


def reach(told: Receipts) -> Bool[Tensor, "n m"]:
    """[u, v]: whether rows of u came to v, from u or from others who had them."""
    found, n = told.received.clone(), len(told.received)
    if found.shape[1] != n + 1:  # pairs are not kept
        return found
    for between in range(n):
        found[:, :n] |= found[:, between, None] & found[between, :n]
    return found


def as_steps(kinds: Sequence[Any]) -> Counter[Step]:
    """Kinds of releases, which may come from a file, with how often there were any."""
    return Counter({(noise, q, held_out): k for noise, q, held_out, k in kinds})


def add_releases(releases: list[Any], new: Sequence[Counter[Step]]) -> list[Any]:
    """What was released before and what is new, client by client."""
    return [
        [(*kind, count) for kind, count in sorted((as_steps(kinds) + more).items())]
        if more
        else kinds
        for kinds, more in zip(releases, new, strict=True)
    ]


def _column(receiver: Tensor, columns: int) -> Tensor:
    """Of positions, or SERVER, where there may be one column for all clients."""
    peers = receiver if columns > 2 else torch.zeros_like(receiver)
    return torch.where(receiver == SERVER, columns - 1, peers)
