"""What a ledger reveals of each client: to all others together, and to each of them.

Gaussian releases of the same data add in squares (`gaussian`). A row that goes over
several links with the same noise is one release. If every link has its own row
(`Release.apart`), each row counts. `totals` is the guarantee: it holds against the
server and all other clients, even if they share everything.

In a secure sum, sum_k p_k (x_k + noise_k), others see no single row. But a client in
the sum knows its own noise and can subtract it. Let A be c clients that help the
server. The clients in A and the server together learn as much as from a release with

    mu_i^2 = (p_i D)^2 / (s^2 sum_{k not in A} p_k^2)

where D is the sensitivity of a row and s the noise that each client adds. So mu depends
on the observer: the server (c = 0), the server with one participant (c = 1), or the
server with all other clients. Against all others, only the client's own noise remains.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float64, Num
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from ...checks import InputError
from ...types import SERVER
from .coefficients import links_of
from .gaussian import epsilons_of
from .joint import joint_losses
from .ledger import Event, Exchange, Input, Ledger, Meetings, Release, refuse_sizes

_INPUTS = 1000
"""The most inputs, over all clients and rounds, for which pairs get exact accounts. For
every observer there are matrices with one column for each input."""


def _mu_squared(event: Release | Input) -> float:
    refuse_sizes(event)
    if not event.noise:
        return math.inf if event.sensitivity else 0.0
    mu = event.sensitivity / event.noise
    return mu * mu  # `mu**2` raises an error where this is infinite


def _refuse_sampled(event: Release) -> None:
    if event.rate != 1.0:
        raise InputError(
            "a release with a sampling rate below 1 needs the accountants of "
            f"`coterie.privacy.accounting.subsampled`, got the rate {event.rate:g}."
        )


def _refuse_unknown(event: Event) -> None:
    if not isinstance(event, Release | Input | Exchange | Meetings):
        raise InputError(f"these accounts do not know {type(event).__name__} events.")


def totals(
    events: Iterable[Event], clients: int, *, colluders: int | None = None
) -> Float64[Tensor, " n"]:
    """mu^2 of each client towards the server and the other clients together.

    Args:
        events: the events of a ledger, in any order.
        clients: how many there are.
        colluders: how many of the other clients share their knowledge of sums with the
            server; None: all of them. In each sum, we take the clients with the largest
            shares. We assume that everybody sees every release outside of sums.
    """
    spent = torch.zeros(clients, dtype=torch.float64)
    for event in events:
        if isinstance(event, Input):
            spent[event.who.cpu()] += _mu_squared(event)
        elif isinstance(event, Release):
            _refuse_sampled(event)
            senders = event.links[:, 0].cpu()
            senders = senders if event.apart or event.summed else senders.unique()
            spent.index_add_(0, senders, _costs_of_senders(event, senders, colluders))
        else:
            _refuse_unknown(event)
    return spent


def _costs_of_senders(event: Release, senders: Tensor, colluders: int | None) -> Tensor:
    """mu^2 of each sender of a release."""
    one = torch.full((len(senders),), _mu_squared(event), dtype=torch.float64)
    if not event.summed:
        return one
    if event.shares is None:
        raise InputError(
            f"the sum of `{event.verb}` in round {event.round} must have `shares`, got "
            "None."
        )
    part = remaining(event.shares, colluders)
    return torch.where(part > 0, one * part, 0.0)


def remaining(
    shares: Num[Tensor, " l"], colluders: int | None = 0
) -> Float64[Tensor, " l"]:
    """mu^2 of each sender in a sum, relative to its row with only its own noise.

    This is `p_i^2 / sum_{k not in A} p_k^2`. A holds the `colluders` other clients with
    the largest shares. With None, A holds all others, which know all noise except the
    noise of i.

    >>> remaining(torch.ones(4).double(), 1).tolist()
    [0.3333333333333333, 0.3333333333333333, 0.3333333333333333, 0.3333333333333333]
    """
    square, count = shares.double().cpu().square(), len(shares)
    left = 0 if colluders is None else max(0, count - 1 - colluders)  # besides i
    small, place = square.sort()
    # The sum of i and of the smallest others: no differences, which would round.
    first = torch.cat([small.new_zeros(1), small.cumsum(0)])
    is_small = torch.arange(count) < left
    noise = torch.where(is_small, first[min(left + 1, count)], first[left] + small)
    found = torch.where(small > 0, small / noise, 0.0)
    return torch.zeros_like(square).index_put((place,), found)


def at_most(events: Iterable[Event], colluders: int) -> list[Event]:
    """The events, if all clients in a sum pay as much as the client that pays most.

    Plans use these events, because the share of a client grows when others refuse.

    Args:
        events: the events of a ledger, in any order.
        colluders: how many clients share their knowledge of sums with the server.
    """

    def one(event: Event) -> Event:
        if not isinstance(event, Release) or event.shares is None:
            return event
        most = math.sqrt(float(remaining(event.shares, colluders).max()))
        sensitivity = most * event.sensitivity
        return event._replace(sensitivity=sensitivity, summed=False, shares=None)

    return [one(event) for event in events]


ROLES = ("server", "participant", "others")
"""The observers of a secure sum: the server alone, with one client, or with all."""


def by_role(events: Sequence[Event], clients: int) -> dict[str, Float64[Tensor, " n"]]:
    """mu^2 of each client towards each of `ROLES`."""
    known = dict(zip(ROLES, (0, 1, None), strict=True))
    return {
        role: totals(events, clients, colluders=count) for role, count in known.items()
    }


def by_pairs(events: Sequence[Event], clients: int) -> Float64[Tensor, "n m"]:
    """mu^2 of client u for client v, entry (u, v); the last column is for a server.

    For a server, we count all rows that u sent to it. For a client v, we bound all that
    v learns of u over all rounds. We count the rows that u sent to everybody. v also
    learns of u through others, because their rows depend on the rows that they
    received. So if any chain of links joins u and v, we also count all rows that u sent
    to anybody (docs/privacy_gossip.md). If all inputs of gossip are made before the
    first message, `joint_losses` gives their cost. We do not count answers of a server:
    they reveal no more than `totals`.

    Args:
        events: the events of a ledger, in their order.
        clients: how many there are.
    """
    spent = torch.zeros(clients, clients + 1, dtype=torch.float64)
    some, joined = list[Release](), list[Tensor]()
    for event in events:
        if not isinstance(event, Release):
            _refuse_unknown(event)
            if not isinstance(event, Input):
                joined.append(links_of(event, clients).cpu())
            continue
        _refuse_sampled(event)
        links, paid = (
            event.links.cpu(),
            _costs_of_senders(event, event.links[:, 0].cpu(), 0),
        )
        up = links[:, 1] == SERVER
        spent[:, clients].index_add_(0, links[up, 0], paid[up])
        if _is_for_all(event, clients):
            spent[*links[~up].T] += paid[~up]
            joined += [links[~up]] * bool(some)  # or nobody had anything to send on
        elif not bool(up.all()):
            some.append(event)
            joined.append(links[~up])
    if some:
        told = torch.where(
            _together(joined, clients), totals(some, clients)[:, None], 0
        )
        spent[:, :clients] += told
    inputs = [event for event in events if isinstance(event, Input)]
    if inputs:
        gossip = [event for event in events if not isinstance(event, Release)]
        spent[:, :clients] += _gossip_costs(inputs, gossip, clients)
    spent[:, :clients].fill_diagonal_(0.0)
    return spent


def _is_for_all(event: Release, clients: int) -> bool:
    """Whether every sender sent the same row to all other clients."""
    links = event.links[event.links[:, 1] != SERVER].unique(dim=0)
    if event.apart or event.summed or not len(links):
        return False
    return len(links) == len(links[:, 0].unique()) * (clients - 1)


def _together(joined: Sequence[Tensor], clients: int) -> Bool[Tensor, "n n"]:
    """[u, v]: whether a chain of these links, in any direction, connects u and v."""
    links = torch.cat(list(joined)).numpy()
    graph = coo_array((links[:, 0] >= 0, links.T), shape=(clients, clients))
    _, part = connected_components(graph, directed=False)
    found = torch.from_numpy(part)
    return found[:, None] == found


def _gossip_costs(
    inputs: Sequence[Input], events: Sequence[Event], clients: int
) -> Float64[Tensor, "n n"]:
    everything = totals(inputs, clients)[:, None]
    bound = torch.where(_reachable(events, clients), everything, 0.0)
    few = sum(int(event.who.sum()) for event in inputs) <= _INPUTS
    noisy = all(event.noise for event in inputs)
    if not (few and noisy and _inputs_come_first(events)):
        return bound
    losses = joint_losses(Ledger(clients, tuple(events)))
    return losses.share * losses.unit.square()[:, None]


def _inputs_come_first(events: Sequence[Event]) -> bool:
    """Whether all inputs come before the first message."""
    kinds = [isinstance(event, Input) for event in events]
    return all(kinds[: sum(kinds)])


def _reachable(events: Sequence[Event], clients: int) -> Bool[Tensor, "n n"]:
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


def epsilons(squares: Tensor, delta: float) -> Tensor:
    """The smallest epsilon of each mu^2, for this delta."""
    return epsilons_of(squares.double().sqrt(), delta)
