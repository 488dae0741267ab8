"""A server that holds a sample: clients who speak for all, and what goes to and fro.

One client, or a few, hold a reference sample, and do for all what would take messages
otherwise. Everybody sends its row to them, and they send a row back to everybody.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..checks import InputError
from ..types import Message, Oracle, tensor_of


def holders(name: str, value: Tensor, n: int) -> Tensor:
    """Who of n clients holds a reference sample, true for one of them at least.

    Raises:
        InputError: where nobody does, or it is not said of each of n clients.
    """
    if value.dtype != torch.bool or value.shape != (n,):
        raise InputError(
            f"`{name}` must say true or false of each of {n} clients, got "
            f"{value.dtype} of shape {tuple(value.shape)}."
        )
    if not value.any():
        raise InputError(
            f"`{name}` must name a client with a reference sample, got none of {n}."
        )
    return value


Reference = Annotated[Tensor, holders]
"""An ingredient: (N,) who holds a reference sample."""


def at_reference(
    oracle: Oracle,
    reference: Bool[Tensor, " m"],
    shares: Tensor,
    rows: Message,
) -> Float[Tensor, "n d"]:
    """The mean of the rows of all who take part, for holders; zero for the others."""
    present = oracle.present.to(shares.device)
    return _send_mean(oracle, reference.to(present) & present, shares * present, rows)


def from_reference(
    oracle: Oracle,
    reference: Bool[Tensor, " m"],
    shares: Tensor,
    rows: Message,
) -> Float[Tensor, "n d"]:
    """The row of the holder, for everybody; of several, the mean of those present.

    Raises:
        InputError: if no holder takes part.
    """
    here = reference.to(shares.device) & oracle.present.to(shares.device)
    if not here.any():
        raise InputError(
            "a client of `reference` must take part in every round, but none does: use "
            "`run.participation` 1, or name more clients."
        )
    return _send_mean(oracle, torch.ones_like(here), shares * here, rows)


def _send_mean(
    oracle: Oracle, to: Bool[Tensor, " m"], shares: Tensor, rows: Message
) -> Float[Tensor, "n d"]:
    """The mean by shares of rows, sent to some."""
    part = shares.to(tensor_of(rows))
    part = part / part.sum()
    readers, senders = to.nonzero()[:, 0], part.nonzero()[:, 0]
    places = torch.cartesian_prod(readers, senders).T
    values = part[senders].repeat(len(readers))
    n = len(part)
    weights = torch.sparse_coo_tensor(
        places, values, (n, n), check_invariants=False
    ).coalesce()
    return oracle.mix(weights, rows)
