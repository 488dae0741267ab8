"""Identifies calls of verbs, and finds the nearest references of their rows.

A verb is a call by which clients exchange rows. A row leaves clipped around a reference
that is known already: zero (`ZERO`), the last row that was released in this call
(`OWN`), or the last result of this call (`RESULT`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set

import torch
from torch import Tensor

from ....types import Comparison, Message, Numbers
from .doubles import SeenCall

ZERO, OWN, RESULT = range(3)

Key = tuple[str, int]
"""A sort of call, and its number among calls of this sort in a round."""


def sort_of(
    verb: str,
    rows: Sequence[Message],
    others: Sequence[Tensor],
    program: str,
    columns: int,
) -> str:
    """The sort of a call, which does not depend on earlier calls of the round.

    Args:
        verb: the verb of the call.
        rows: the rows that clients give to the verb.
        others: shares or weights, and groups or pairs.
        program: the program of a coordinator.
        columns: the number of columns of a model.
    """
    models = "".join("x" if is_model(row, columns) else "." for row in rows)
    several = "".join(str(other.dim()) for other in others)
    return f"{verb} {program}({models}) {several}"


def is_model(row: Message, columns: int) -> bool:
    """Whether these rows are models with this number of columns."""
    return not isinstance(row, Numbers) and row.shape[1:] == (columns,)


def keys_of(seen: Sequence[SeenCall], columns: int) -> list[Key]:
    """The keys of the calls in a round."""
    counts: Counter[str] = Counter()
    keys = []
    for one in seen:
        sort = sort_of(one.verb, one.rows, one.others, one.program, columns)
        keys.append((sort, counts[sort]))
        counts[sort] += 1
    return keys


class NearestRefs:
    """The nearest reference for the rows of each call, on average over rounds."""

    def __init__(self, known: Tensor) -> None:
        """Starts from the first models, which everybody knows."""
        self._known = known
        self._away: dict[tuple[Key, int], list[float]] = {}
        self._average: set[tuple[Key, int]] = set()
        self.begin()

    def begin(self) -> None:
        """Begins the method again."""
        self._last: dict[tuple[Key, int], tuple[Tensor, Tensor]] = {}

    def look(self, seen: Sequence[SeenCall]) -> None:
        """Adds a round."""
        keys = keys_of(seen, self._known.shape[1])
        for key, one in zip(keys, seen, strict=True):
            for j, row in enumerate(one.rows):
                if isinstance(row, Numbers) or row.shape != self._known.shape:
                    continue
                place = key, j
                own, result = self._last.get(place, (self._known, self._known))
                sums = self._away.setdefault(place, [0.0, 0.0, 0.0])
                for kind, ref in ((ZERO, 0.0), (OWN, own), (RESULT, result)):
                    sums[kind] += float((row - ref).norm(dim=1).mean())
                self._last[place] = row, _result(one, j, result)
                if one.verb == "average":
                    self._average.add(place)

    def choose(self, secret: Set[Key] = frozenset()) -> dict[tuple[Key, int], int]:
        """The nearest reference of each row of each call; left out where it is zero.

        Args:
            secret: calls with weights that depend on data. Their results stay secret.
        """

        def kinds_of(place: tuple[Key, int]) -> tuple[int, ...]:
            if place[0] in secret:
                return OWN, ZERO
            # A result wins if both are as near, because others have it. Nobody else
            # knows a client's own part of a sum.
            return (RESULT, ZERO) if place in self._average else (RESULT, OWN, ZERO)

        kinds = {
            place: min(kinds_of(place), key=sums.__getitem__)
            for place, sums in self._away.items()
        }
        return {place: kind for place, kind in kinds.items() if kind != ZERO}


def _result(seen: SeenCall, j: int, before: Tensor) -> Tensor:
    """The result for a row if it is a model, and otherwise `before`."""
    if isinstance(seen.answer, Comparison) or seen.verb == "blended":
        return before
    answers = seen.answer if isinstance(seen.answer, tuple) else (seen.answer,)
    answer = answers[j] if j < len(answers) else before
    if seen.verb == "average":
        answer = of_own_share(seen.others[0], answer)
    return answer if answer.shape == before.shape else before


def of_own_share(shares: Tensor, means: Tensor) -> Tensor:
    """(n, D) for each client, the one of C averages where its share is largest."""
    if shares.dim() == 1:
        return means
    return means[torch.arange(len(means), device=means.device), shares.argmax(0)]
