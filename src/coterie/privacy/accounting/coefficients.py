"""The messages of a linear protocol as rows of coefficients.

Inputs are numbered in the order of the ledger: each `Input` has one column for each of
its clients. Let s_c be the noise of input c. The vector that a client holds contains a
share of input c, and column c in the client's row is s_c times this share. A message is
such a row times a vector of unit Gaussian noise, plus a shift that depends on the data.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float64, Int
from torch import Tensor

from ...checks import InputError
from .gaussian import mu_from
from .ledger import Event, Exchange, Input, Ledger, Meetings, Release


class Columns(NamedTuple):
    """Inputs of a ledger: the owner and noise of each, and mu if sent unmixed."""

    client: Int[Tensor, " c"]
    mu: Float64[Tensor, " c"]
    noise: Float64[Tensor, " c"]


class SentRows(NamedTuple):
    """Rows that went over links at the same time."""

    links: Int[Tensor, "l 2"]  # from whom, to whom
    rows: Float64[Tensor, "n c"]  # of all clients; row links[j, 0] is message j
    newest: slice  # the columns of the last input


def columns_of(ledger: Ledger) -> Columns:
    """The inputs of a ledger; refuses an input without noise."""
    client, mu, noise = [], [], []
    for event in ledger:
        if isinstance(event, Input):
            _refuse_input(event, ledger.clients)
            who = event.who.nonzero()[:, 0]
            client.append(who)
            mu += [mu_from(event.sensitivity, event.noise)] * len(who)
            noise += [event.noise] * len(who)
    if not client:
        raise InputError(
            "the ledger must have an `Input`, because we account for its noise."
        )
    return Columns(
        torch.cat(client),
        torch.tensor(mu, dtype=torch.float64),
        torch.tensor(noise, dtype=torch.float64),
    )


def links_of(event: Event, clients: int) -> Int[Tensor, "l 2"]:
    """From whom to whom rows went; refuses events that no linear protocol has."""
    if isinstance(event, Exchange):
        links = event.links
    elif isinstance(event, Meetings):
        links = torch.cat([event.pairs, event.pairs.flip(1)])
    else:
        verb = f" of `{event.verb}`" if isinstance(event, Release) else ""
        raise InputError(
            "a ledger of a linear protocol must hold inputs, exchanges and meetings "
            f"only, got a {type(event).__name__}{verb} in round {event.round}."
        )
    wrong = ((links < 0) | (links >= clients)).any(1)
    if wrong.any():
        raise InputError(
            f"links of {type(event).__name__} must be between clients 0 to "
            f"{clients - 1}, but one of round {event.round} is "
            f"{links[wrong][0].tolist()}."
        )
    return links


def sent_rows(ledger: Ledger) -> Iterator[SentRows]:
    """The rows that were sent, event by event.

    Later events change the tensors of earlier events in place, so copy tensors that you
    keep.

    Raises:
        InputError: if the protocol is not linear, or an exchange mixes rows that its
            links did not carry.
    """
    columns, newest = columns_of(ledger), slice(0, 0)
    x = torch.zeros(ledger.clients, len(columns.client), dtype=torch.float64)
    z, before, last = x, x, None
    for event in ledger:
        if isinstance(event, Input):
            who = event.who.nonzero()[:, 0]
            newest = slice(newest.stop, newest.stop + len(who))
            place = torch.arange(newest.start, newest.stop)
            apart = z is not x
            x = x.index_put((who, place), columns.noise[place])
            z = z.index_put((who, place), columns.noise[place]) if apart else x
            last = None
            continue
        links = links_of(event, ledger.clients)
        if isinstance(event, Exchange):
            _refuse_exchange(event, ledger.clients, first=event.round != last)
            if z is not x:
                raise InputError(
                    f"an Exchange cannot follow Meetings with second rows, got one in "
                    f"round {event.round}: it does not say what happens to these rows."
                )
            yield SentRows(links, x, newest)
            mixed = event.weights.double() @ x
            if event.gamma != 1:
                mixed = event.gamma * mixed + (1 - event.gamma) * before
            before, x, z, last = x, mixed, mixed, event.round
        elif isinstance(event, Meetings):
            _refuse_meetings(event)
            last = None
            if event.gamma or bool(event.moved.any()):
                z = z.clone() if z is x else z
                _move(x, z, event)
            yield SentRows(links, x, newest)
            _meet(x, z, event)


def _move(x: Tensor, z: Tensor, event: Meetings) -> None:
    """Moves rows x and z of each client in a meeting towards each other, by `moved`."""
    here = event.pairs.flatten()
    way = event.moved.reshape(-1, 1) * (z[here] - x[here])
    x[here] += way
    z[here] -= way


def _meet(x: Tensor, z: Tensor, event: Meetings) -> None:
    v, w = event.pairs.unbind(1)
    one, other = x[v], x[w]
    mean = (one + other) / 2
    x[v] = x[w] = mean
    if event.gamma:
        step = event.gamma * (other - one)
        z[v] += step
        z[w] -= step


def _refuse_input(event: Input, clients: int) -> None:
    if event.who.shape != (clients,):
        raise InputError(
            f"`who` of an Input must have an entry for each of {clients} clients, got "
            f"{tuple(event.who.shape)}."
        )
    if not event.noise > 0:
        raise InputError(
            f"`noise` of the Input in round {event.round} must be greater than 0, got "
            f"{event.noise}."
        )


def _refuse_exchange(event: Exchange, clients: int, *, first: bool) -> None:
    if event.gamma != 1 and first:
        raise InputError(
            f"the first Exchange of round {event.round} must have gamma = 1, got "
            f"{event.gamma}: Chebyshev's recursion needs rows from before it."
        )
    entries = event.weights.to_sparse().coalesce()
    reader, sender = entries.indices()[:, entries.values() != 0]
    used = reader != sender
    carried = event.links[:, 0] * clients + event.links[:, 1]
    missing = ~torch.isin(sender[used] * clients + reader[used], carried)
    if missing.any():
        pair = [int(sender[used][missing][0]), int(reader[used][missing][0])]
        raise InputError(
            f"the links of the Exchange in round {event.round} must carry the row of "
            f"client {pair[0]} to client {pair[1]}, because `weights` mix it in."
        )


def _refuse_meetings(event: Meetings) -> None:
    if len(event.pairs.unique()) != event.pairs.numel():
        raise InputError(
            f"pairs of Meetings in round {event.round} must not share a client."
        )
