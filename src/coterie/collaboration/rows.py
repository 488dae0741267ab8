"""Rows that all clients have in common."""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor

from ..checks import InputError
from ..types import Message, Oracle, State, tensor_of


def compute_once(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """What a row-wise function gives, computed once where all rows are one in memory.

    An average is the same row for everybody, and so is what is made of averages alone.

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


def mean_of_all(oracle: Oracle, rows: Message) -> Float[Tensor, "n d"]:
    """The mean of the rows of all who take part: the same row for everybody."""
    values = tensor_of(rows)
    return oracle.average(values.new_ones(len(values)), rows)


def row_for_each(
    oracle: Oracle, rows: Float[Tensor, "n ..."]
) -> Float[Tensor, "m ..."]:
    """A row that all have in common, for each of those whom the oracle asks now."""
    return rows[:1].expand(len(oracle.active), *rows.shape[1:])


def one_model(state: State, oracle: Oracle) -> Float[Tensor, "m d"]:
    """`welcome` of methods with one model for all: newcomers get it."""
    return row_for_each(oracle, state.x)


def refuse_personal(oracle: Oracle) -> None:
    """Raises InputError where columns of models stay at home.

    For methods whose messages are parts or products of rows, in which nobody could tell
    such columns from others.
    """
    if oracle.home is not None:
        raise InputError(
            f"`personal` cannot be used with this method, whose messages are not "
            f"models ({int(oracle.home.sum())} parameters are personal here)."
        )
