"""What a ledger tells of each client: to all others together, and to each of them.

Gaussian releases of the same data add in squares (`coterie.privacy.gaussian`). A row
that is sent over several links with the same noise is one release; where every link has
a row of its own (`Release.apart`), each is one. `totals` is the guarantee: it holds
against all others and the server together, whatever they know of each other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from ..checks import InputError
from ..types import SERVER
from .coefficients import links_of
from .gaussian import epsilons_of
from .joint import joint_losses
from .ledger import Event, Exchange, Input, Ledger, Meetings, Release, refuse_sizes

_INPUTS = 1000
"""Inputs of all clients and rounds, up to which pairs have exact accounts: the matrices
of every observer have so many columns."""


def _squared(event: Release | Input) -> float:
    refuse_sizes(event)
    if not event.noise:
        return math.inf if event.sensitivity else 0.0
    mu = event.sensitivity / event.noise
    return mu * mu  # infinite where it is too large, of which `mu**2` is an error


def _refuse_sampled(event: Release) -> None:
    if event.rate != 1.0:
        raise InputError(
            "a release of sampled units needs the accountants of "
            f"`coterie.privacy.subsampled`, got the rate {event.rate:g}."
        )


def _refuse_unknown(event: Event) -> None:
    if not isinstance(event, Release | Input | Exchange | Meetings):
        raise InputError(f"there is no account of {type(event).__name__} here.")


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
        else:
            _refuse_unknown(event)
    return spent


def by_pairs(events: Sequence[Event], clients: int) -> Float64[Tensor, "n m"]:
    """mu^2 of client u for client v, entry (u, v); the last column is for a server.

    Of releases, what u sent to v itself: what others send on of it is not counted here,
    and tells v never more than `totals`. Of inputs that are gossiped, a bound on all
    that v learns of u over all rounds and from neighbour to neighbour: where all inputs
    were made before anybody sent anything, `joint_losses`; where later inputs may
    depend on what was received, as in Muffliato-SGD, the total of u, or nothing where
    no chain of messages leads from u to v (docs/privacy_gossip.md).

    Args:
        events: in their order.
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
        else:
            _refuse_unknown(event)
    inputs = [event for event in events if isinstance(event, Input)]
    if inputs:
        gossip = [event for event in events if not isinstance(event, Release)]
        spent[:, :clients] += _gossiped(inputs, gossip, clients)
    spent[:, :clients].fill_diagonal_(0.0)
    return spent


def _gossiped(
    inputs: Sequence[Input], events: Sequence[Event], clients: int
) -> Float64[Tensor, "n n"]:
    everything = totals(inputs, clients)[:, None]
    bound = torch.where(_reached(events, clients), everything, 0.0)
    few = sum(int(event.who.sum()) for event in inputs) <= _INPUTS
    noisy = all(event.noise for event in inputs)
    if not (few and noisy and _fixed(events)):
        return bound
    losses = joint_losses(Ledger(clients, tuple(events)))
    return losses.share * losses.unit.square()[:, None]


def _fixed(events: Sequence[Event]) -> bool:
    """Whether all inputs were made before anybody received anything."""
    kinds = [isinstance(event, Input) for event in events]
    return all(kinds[: sum(kinds)])


def _reached(events: Sequence[Event], clients: int) -> Bool[Tensor, "n n"]:
    """[u, v]: whether a chain of messages leads from u to v."""
    reached = torch.eye(clients, dtype=torch.bool)
    for event in events:
        if isinstance(event, Input) or bool(reached.all()):
            continue
        sender, receiver = links_of(event, clients).cpu().unbind(1)
        told = torch.zeros(clients, clients, dtype=torch.int32)
        told.index_add_(1, receiver, reached[:, sender].int())
        reached |= told > 0
    return reached


def unsummed(events: Iterable[Event], sensitivity: float) -> list[Event]:
    """The same events, if receivers saw every row in place of sums (local accounts).

    Args:
        events: of sums to which m senders added noise s / sqrt(m) each.
        sensitivity: of a row.
    """
    return [
        event._replace(
            sensitivity=sensitivity,
            noise=event.noise / math.sqrt(len(event.links)),
            summed=False,
        )
        if isinstance(event, Release) and event.summed
        else event
        for event in events
    ]


def epsilons(squares: Tensor, delta: float) -> Tensor:
    """The least epsilon of each mu^2, for this delta."""
    return epsilons_of(squares.double().sqrt(), delta)
