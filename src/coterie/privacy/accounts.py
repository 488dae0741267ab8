"""What releases tell of each client: to all others together, and sent to each of them.

Gaussian releases of the same data add in squares (`coterie.privacy.gaussian`). A row
that is sent over several links with the same noise is one release; where every link has
a row of its own (`Release.apart`), each is one. All are upper bounds that hold whatever
receivers know of other clients.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from jaxtyping import Float64
from torch import Tensor

from ..checks import InputError
from ..types import SERVER
from .gaussian import epsilons_of
from .ledger import Event, Input, Release


def _squared(event: Release | Input) -> float:
    if not event.noise:
        return math.inf if event.sensitivity else 0.0
    return (event.sensitivity / event.noise) ** 2


def _refuse_sampled(event: Release) -> None:
    if event.rate != 1.0:
        raise InputError(
            "a release of sampled units needs the accountants of "
            f"`coterie.privacy.subsampled`, got the rate {event.rate:g}."
        )


def totals(events: Iterable[Event], clients: int) -> Float64[Tensor, " n"]:
    """mu^2 of each client in the eyes of all others and the server together.

    Args:
        events: in any order.
        clients: how many there are.
    """
    spent = torch.zeros(clients, dtype=torch.float64)
    for event in events:
        if isinstance(event, Input):
            spent[event.who.cpu()] += _squared(event)
        elif isinstance(event, Release):
            _refuse_sampled(event)
            senders = event.links[:, 0].cpu()
            senders = senders if event.apart else senders.unique()
            one = torch.full((len(senders),), _squared(event), dtype=torch.float64)
            spent.index_add_(0, senders, one)
    return spent


def direct(events: Iterable[Event], clients: int) -> Float64[Tensor, "n m"]:
    """mu^2 of what client u sent to client v, entry (u, v); last column: to a server.

    What others send on of it is not counted here, and may tell v more: never more than
    `totals`, which is the guarantee against everybody. Inputs, whose noise goes on from
    neighbour to neighbour, count for all.

    Args:
        events: in any order.
        clients: how many there are.
    """
    spent = torch.zeros(clients, clients + 1, dtype=torch.float64)
    for event in events:
        if isinstance(event, Release):
            _refuse_sampled(event)
            sender, receiver = event.links.cpu().unbind(1)
            receiver = torch.where(receiver == SERVER, clients, receiver)
            one = torch.full((len(sender),), _squared(event), dtype=torch.float64)
            spent.index_put_((sender, receiver), one, accumulate=True)
        elif isinstance(event, Input):
            spent[event.who.cpu(), :clients] += _squared(event)
    spent[:, :clients].fill_diagonal_(0.0)
    return spent


def epsilons(squares: Tensor, delta: float) -> Tensor:
    """The least epsilon of each mu^2, for this delta."""
    return epsilons_of(squares.double().sqrt(), delta)
