"""Models that several clients share: one row for each model, not for each client."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


class Models(NamedTuple):
    """Models by their numbers, in ascending order.

    >>> known = models_of(torch.tensor([3, 1, 3]), torch.tensor([[0.3], [0.1], [0.3]]))
    >>> known.numbers
    tensor([1, 3])
    >>> known.of(torch.tensor([3, 3]))[:, 0]
    tensor([0.3000, 0.3000])
    """

    numbers: Int[Tensor, " k"]
    rows: Float[Tensor, "k ..."]

    def of(self, numbers: Int[Tensor, " n"]) -> Float[Tensor, "n ..."]:
        """The models with these numbers."""
        return self.rows.index_select(0, torch.searchsorted(self.numbers, numbers))

    def parts_of(
        self, numbers: Int[Tensor, " n"], part: Int[Tensor, " n"]
    ) -> Float[Tensor, "n d"]:
        """One part of each model, if a model has several."""
        place = torch.searchsorted(self.numbers, numbers) * self.rows.shape[1] + part
        return self.rows.flatten(0, 1).index_select(0, place)

    def with_models(self, numbers: Int[Tensor, " m"], rows: Tensor) -> Models:
        """These models, and `rows` in place of those with the same numbers.

        If a number occurs more than once, its first row counts.
        """
        new = models_of(numbers, rows)
        if torch.equal(new.numbers, self.numbers):
            return new
        kept = ~torch.isin(self.numbers, new.numbers)
        numbers = torch.cat([self.numbers[kept], new.numbers])
        order = numbers.argsort()
        return Models(numbers[order], torch.cat([self.rows[kept], new.rows])[order])


def models_of(numbers: Int[Tensor, " n"], rows: Float[Tensor, "n ..."]) -> Models:
    """The models with these numbers; for each number, its first row."""
    found, first = first_of_each(numbers)
    return Models(found, rows[first])


def first_of_each(numbers: Int[Tensor, " n"]) -> tuple[Tensor, Tensor]:
    """The numbers that occur, in ascending order, and where each occurs first.

    >>> first_of_each(torch.tensor([3, 1, 3]))
    (tensor([1, 3]), tensor([1, 0]))
    """
    ordered, places = numbers.sort(stable=True)
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return ordered[first], places[first]
