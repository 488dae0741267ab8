"""When a study without `run.rounds` ends: at the round where no method improves."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...records import Cell

PATIENCE = 10
"""Evaluations without an improvement after which a method need not go on."""

_IMPROVED = 1e-3
"""The share of a loss by which it must fall to count as improved."""


def last_round(cell: Cell) -> int | None:
    """The round after which a cell no longer improved; None if it may still improve.

    It depends on the cell's records alone, so that a run that was stopped ends at the
    same round.
    """
    held_out = [found.get("validation_loss") for found in cell.metrics]
    losses = [math.nan if each is None else float(each.nanmean()) for each in held_out]
    place = plateau(losses)
    return None if place is None else int(cell.rounds[place]["round"])


def plateau(losses: Sequence[float]) -> int | None:
    """The first place where the best loss is no better than `PATIENCE` places before.

    >>> plateau([1.0] * 20)
    10
    >>> plateau([0.9**t for t in range(20)]) is None
    True
    """
    best: list[float] = []
    for loss in losses:
        known = math.inf if math.isnan(loss) else loss
        best.append(min([known, *best[-1:]]))
    for place in range(PATIENCE, len(best)):
        before, now = best[place - PATIENCE], best[place]
        if math.isfinite(before) and before - now <= _IMPROVED * abs(before):
            return place
    return None
