"""Who has received what of clients who hide single samples.

What a client sends is made of its private answers. So whoever receives rows of it, at
any time, may know all of them, but for answers to other readers, which have noise of
their own (`blended`): of those it knows what it was answered, and, as it may come to
see the model that is made of it, the client's answer to itself. Products of gradients
(`compare`) are told to everybody who takes part. What partners are chosen by before
training is known to all, who may receive nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from ...types import SERVER, Oracle
from ..ledger import Ledger, Release
from ..partners import PAIRS, PARTNERS
from ..subsampled import Step, steps_of


class Told(NamedTuple):
    """What is needed to say what a pair knows; kinds are as of `Counted.releases`."""

    common: list[Any]  # of each client, answers that all who receive rows may know
    apart: list[Any]  # calls in which every reader was answered by itself
    answered: Tensor  # (N, K) in how many of these each reader was; K is N, or 1: peers
    received: Tensor  # (N, K + 1) whether rows were received; the last is a server
    before: list[Any]  # of each client, what everybody was told to choose partners by


def nothing_told(clients: int) -> Told:
    """Before anything is sent."""
    readers = clients if clients <= PAIRS else 1
    answered = torch.zeros(clients, readers, dtype=torch.int64)
    received = torch.zeros(clients, readers + 1, dtype=torch.bool)
    none: list[Any] = [[] for _ in range(clients)]
    return Told(none, none, answered, received, none)


def told_more(told: Told, asked: Ledger, oracle: Oracle) -> Told:
    """With what a round has asked and sent.

    Args:
        told: before it.
        asked: its releases.
        oracle: of the round, which knows what was sent.
    """
    n, present = asked.clients, oracle.present.cpu()
    events = [event for event in asked if isinstance(event, Release)]
    by_reader = [event for event in events if event.verb == "blended"]
    rest = tuple(e for e in events if e.verb not in ("blended", PARTNERS))
    partners = tuple(event for event in events if event.verb == PARTNERS)
    before = added(told.before, steps_of(Ledger(n, partners)))
    single = tuple(event._replace(apart=False) for event in by_reader)
    common = added(told.common, steps_of(Ledger(n, rest)))
    apart = added(told.apart, steps_of(Ledger(n, single)))
    answered, received = told.answered.clone(), told.received.clone()
    for event in by_reader:
        _count(answered, event.links)
    # Links that are used again are the same tensor.
    used = {id(sent.links): sent.links for sent in oracle.sent if sent.values}
    links = [each.cpu() for each in used.values()]
    if any(event.verb == "compare" for event in rest):
        links.append((present[:, None] & present).nonzero())
    if any(sent.verb == "central" for sent in oracle.sent):  # of absent clients too
        links.append(torch.stack([torch.arange(n), torch.full((n,), SERVER)], 1))
    # Rows of those who have answered nothing yet tell nothing.
    tell = torch.tensor([bool(a or b) for a, b in zip(common, apart, strict=True)])
    for some in links:
        some = some[(some[:, 0] >= 0) & (some[:, 0] != some[:, 1])]
        sender, receiver = some[tell[some[:, 0]]].unbind(1)
        received[sender, _column(receiver, received.shape[1])] = True
    return Told(common, apart, answered, received, before)


def senders(told: Told) -> Bool[Tensor, " n"]:
    """Of whom anybody has received rows."""
    return told.received.any(1)


def known_to(told: Told, client: int, reader: int) -> Counter[Step]:
    """What a reader may know of a client, in columns of `received`; the last: a server.

    Answers to the reader and to the client itself are of one minibatch, so that both
    are one release of sqrt(2) times the size.
    """
    found, left = as_steps(told.common[client]) + as_steps(told.before[client]), 0
    if reader < told.answered.shape[1]:
        left = int(told.answered[client, reader])
    for (noise, rate, held_out), count in as_steps(told.apart[client]).items():
        both = min(left, count)
        found[noise / math.sqrt(2), rate, held_out] += both
        found[noise, rate, held_out] += count - both
        left -= both
    return +found


def as_steps(kinds: Sequence[Any]) -> Counter[Step]:
    """Kinds of releases, which may come from a file, with how often there were any."""
    return Counter({(noise, q, held_out): k for noise, q, held_out, k in kinds})


def added(releases: list[Any], new: Sequence[Counter[Step]]) -> list[Any]:
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


def _count(answered: Tensor, links: Tensor) -> None:
    client, reader = links[links[:, 1] != SERVER].unbind(1)
    if answered.shape[1] > 1:
        once = torch.ones_like(client)
        answered.index_put_((client, reader), once, accumulate=True)
