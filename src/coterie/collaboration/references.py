"""Messages to and from the clients that hold a reference sample (the holders).

One or a few holders compute for all clients, which saves messages. All clients send
their rows to the holders, and the holders send a row back to all.
"""

from __future__ import annotations

from typing import Annotated

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..checks import InputError
from ..types import Message, Oracle, tensor_of


def holders(name: str, value: Tensor, n: int) -> Tensor:
    """Returns `value` if it says for each of n clients whether it is a holder.

    Raises:
        InputError: if it is not n truth values, or all are false.
    """
    if value.dtype != torch.bool or value.shape != (n,):
        raise InputError(
            f"`{name}` must be true or false for each of {n} clients, got "
            f"{value.dtype} of shape {tuple(value.shape)}."
        )
    if not value.any():
        raise InputError(
            f"`{name}` must be true for at least one client, but all {n} are false."
        )
    return value


Reference = Annotated[Tensor, holders]
"""An ingredient: (N,) which clients hold a reference sample."""


def at_reference(
    oracle: Oracle, reference: Bool[Tensor, " m"], shares: Tensor, rows: Message
) -> Float[Tensor, "n d"]:
    """For holders, the mean of all active clients' rows; for the others, zeros."""
    present = oracle.present.to(shares.device)
    return _send_mean(oracle, reference.to(present) & present, shares * present, rows)


def from_reference(
    oracle: Oracle, reference: Bool[Tensor, " m"], shares: Tensor, rows: Message
) -> Float[Tensor, "n d"]:
    """The mean of the rows of all active holders, for every client.

    Raises:
        InputError: if no holder takes part.
    """
    here = reference.to(shares.device) & oracle.present.to(shares.device)
    if not here.any():
        raise InputError(
            "at least one client of `reference` must take part in every round, but "
            "none does now: set `run.participation` to 1, or name more clients."
        )
    return _send_mean(oracle, torch.ones_like(here), shares * here, rows)


def _send_mean(
    oracle: Oracle, to: Bool[Tensor, " m"], shares: Tensor, rows: Message
) -> Float[Tensor, "n d"]:
    """The mean of rows, weighted by shares, for the clients of `to`."""
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
