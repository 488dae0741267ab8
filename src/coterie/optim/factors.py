"""Personal low-rank corrections: a product A_l B_l for each matrix of a model.

For each matrix (o, i) in turn, a row of factors holds A_l (o, k) and then B_l (k, i),
where k = min(rank, o, i). The products change only the matrices of a model. Let G_l be
the gradient with respect to matrix l. Then the gradients with respect to its factors
are

    grad A_l = G_l B_l',    grad B_l = A_l' G_l.

A `shape` is a list: the rank, and then three numbers for every matrix: its first column
in the model, its rows, and its columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import InputError


def refuse_layers(layers: Int[Tensor, "l 3"], columns: int) -> None:
    """Refuses matrices that do not fit into models with this number of columns."""
    whole = layers.dim() == 2 and layers.shape[1] == 3 and len(layers) > 0
    if not whole or layers.dtype != torch.long:
        raise InputError(
            "`layers` must be whole numbers of shape (matrices, 3), for begin, rows "
            f"and columns, got {layers.dtype} of shape {tuple(layers.shape)}."
        )
    end = int((layers[:, 0] + layers[:, 1] * layers[:, 2]).max())
    if end > columns or int(layers.min()) < 0:
        raise InputError(
            f"`layers` must lie in the {columns} columns of a model, but end at {end}."
        )


def _matrices(
    shape: Sequence[int],
) -> Iterator[tuple[slice, slice, slice, tuple[int, int, int]]]:
    """For each matrix: its columns, the columns of both factors, and (o, k, i)."""
    (rank, *layers), at = shape, 0
    for begin, o, i in zip(layers[::3], layers[1::3], layers[2::3], strict=True):
        k = min(rank, o, i)
        a, b = slice(at, at + o * k), slice(at + o * k, at + o * k + k * i)
        yield slice(begin, begin + o * i), a, b, (o, k, i)
        at = b.stop


def factor_columns(shape: Sequence[int]) -> int:
    """The length of a row of factors."""
    return sum(k * (o + i) for *_, (o, k, i) in _matrices(shape))


def expand(
    factors: Float[Tensor, "n f"], shape: Sequence[int], columns: int
) -> Float[Tensor, "n d"]:
    """Rows of parameters: A_l B_l in the matrices, 0 elsewhere."""
    rows = factors.new_zeros(len(factors), columns)
    for where, a, b, (o, k, i) in _matrices(shape):
        left, right = factors[:, a].view(-1, o, k), factors[:, b].view(-1, k, i)
        rows[:, where] = (left @ right).flatten(1)
    return rows


def factor_gradient(
    g: Float[Tensor, "n d"], factors: Float[Tensor, "n f"], shape: Sequence[int]
) -> Float[Tensor, "n f"]:
    """The gradient by the factors, from the gradient by the parameters."""
    parts = []
    for where, a, b, (o, k, i) in _matrices(shape):
        left, right = factors[:, a].view(-1, o, k), factors[:, b].view(-1, k, i)
        slope = g[:, where].reshape(-1, o, i)
        parts += [(slope @ right.mT).flatten(1), (left.mT @ slope).flatten(1)]
    return torch.cat(parts, 1)


def first_factors(
    shape: Sequence[int], rng: torch.Generator, like: Tensor
) -> Float[Tensor, " f"]:
    """First factors: A_l is 0, so that corrections begin at 0; B_l has variance 1/i."""
    factors = torch.zeros(factor_columns(shape), dtype=like.dtype)
    for _, _, b, (_, k, i) in _matrices(shape):
        noise = torch.randn(k * i, generator=rng, dtype=like.dtype, device=rng.device)
        factors[b] = noise.cpu() / i**0.5
    return factors.to(like.device)
