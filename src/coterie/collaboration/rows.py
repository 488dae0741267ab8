"""Rows that all clients have in common."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor


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
