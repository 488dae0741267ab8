"""Rows that all clients have in common."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float, Real
from torch import Tensor

from ..checks import InputError
from ..types import Message, Oracle, State, tensor_of, without_statistics

_PIECE = {"cpu": 2**16, "cuda": 2**22}
"""A row-wise function computes at most this number of values at once. So they stay in
the processor's cache and take little memory.
"""


_PIECES = 4
"""A row-wise function computes at least this number of pieces, to take less memory."""


def compute_once(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """The result of a row-wise function, computed once if all clients share one row.

    In memory, an average is one row for all clients. Everything that is computed from
    averages is one row, too.

    >>> import torch
    >>> mean = torch.ones(3).expand(1000, 3)
    >>> compute_once(torch.exp, mean).stride()
    (0, 1)
    """
    if all(row.stride(0) == 0 for row in rows):
        n = len(rows[0])
        one = function(*(row[:1] for row in rows))
        return one.expand(n, *one.shape[1:])
    return function(*rows)


def change_rows(
    active: Bool[Tensor, " n"], function: Callable[..., Tensor], *rows: Tensor
) -> Tensor:
    """The first of `rows`; active rows are replaced by a function of all `rows`.

    >>> import torch
    >>> x = torch.tensor([[1.0], [2.0]])
    >>> change_rows(torch.tensor([True, False]), torch.add, x, x)
    tensor([[2.],
            [2.]])
    """
    everybody, here = bool(active.all()), active.nonzero()[:, 0]
    found = rows[0].new_empty(rows[0].shape) if everybody else rows[0].clone()
    piece = _PIECE["cpu" if found.device.type == "cpu" else "cuda"]
    most = piece // max(1, found.shape[1:].numel())
    size = max(1, min(most, -(-len(here) // _PIECES)))
    for first in range(0, len(here), size):
        some = slice(first, first + size) if everybody else here[first : first + size]
        found[some] = function(*(row[some] for row in rows))
    return found


def mean_of_all(oracle: Oracle, rows: Message) -> Float[Tensor, "n d"]:
    """The mean of the rows of all active clients: the same row for everyone."""
    values = tensor_of(rows)
    return oracle.average(values.new_ones(len(values)), rows)


def row_for_each(
    oracle: Oracle, rows: Float[Tensor, "n ..."]
) -> Float[Tensor, "m ..."]:
    """A row that all clients share, repeated for each client that this oracle asks."""
    return rows[:1].expand(len(oracle.active), *rows.shape[1:])


def one_model(state: State, oracle: Oracle) -> Float[Tensor, "m d"]:
    """The shared model for every newcomer; `welcome` of methods with one model."""
    return row_for_each(oracle, state.x)


def without_personal(
    oracle: Oracle, rows: Float[Tensor, "n d"]
) -> Float[Tensor, "n d"]:
    """The rows with zeros in the columns that stay at home, and in running statistics.

    Methods use this for corrections: only columns that clients share need a correction.
    """
    rows = without_statistics(oracle, rows)
    return rows if oracle.home is None else rows.masked_fill(oracle.home, 0.0)


def share_of_present(oracle: Oracle, shares: Real[Tensor, " m"]) -> float:
    """The sum of the shares (N,) of the clients that take part in this round."""
    part = shares.double()
    return float(part[oracle.present.to(part.device)].sum() / part.sum())


def refuse_personal(oracle: Oracle) -> None:
    """Raises InputError if some columns of models must stay at home.

    Methods call this if they send parts or products of rows, because personal columns
    cannot be left out of these.
    """
    if oracle.home is not None:
        raise InputError(
            f"`personal` cannot be used with this method, whose messages are not "
            f"models ({int(oracle.home.sum())} parameters are personal here)."
        )
