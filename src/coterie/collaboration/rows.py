"""Rows that all clients have in common."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import InputError
from ..types import Oracle, State


def alike(function: Callable[..., Tensor], *rows: Tensor) -> Tensor:
    """What a row-wise function gives, computed once where all rows are one in memory.

    An average is the same row for everybody, and so is what is made of averages alone.

    >>> import torch
    >>> mean = torch.ones(3).expand(1000, 3)
    >>> alike(torch.exp, mean).stride()
    (0, 1)
    """
    if all(row.stride(0) == 0 for row in rows):
        n = len(rows[0])
        one = function(*(row[:1] for row in rows))
        return one.expand(n, *one.shape[1:])
    return function(*rows)


def common(oracle: Oracle, rows: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The mean of the rows of all who take part: the same row for everybody."""
    return oracle.average(rows.new_ones(len(rows)), rows)


def handed(oracle: Oracle, rows: Float[Tensor, "n ..."]) -> Float[Tensor, "m ..."]:
    """A row that all have in common, for each of those whom the oracle asks now."""
    return rows[:1].expand(len(oracle.active), *rows.shape[1:])


def one_model(state: State, oracle: Oracle) -> Float[Tensor, "m d"]:
    """`welcome` of methods with one model for all: newcomers get it."""
    return handed(oracle, state.x)


def refuse_personal(oracle: Oracle, x: Float[Tensor, "n d"]) -> None:
    """Raises InputError where columns of models stay at home, by what an average keeps.

    For methods whose messages are parts or products of rows, in which nobody could tell
    such columns from others.
    """
    places = torch.arange(len(oracle.present), device=x.device)[oracle.mine]
    # Half of all say 1 and the others 0: the mean, a half to two thirds, is nobody's.
    probe = (2 * places < len(oracle.present)).to(x)[:, None].expand_as(x)
    kept = (common(oracle, probe) - probe).abs() < 0.25
    if len(oracle.present) > 1 and bool(kept.any()):
        raise InputError(
            "`personal` must name no parameters for this method, whose messages are "
            "not models."
        )
