"""Tables that summarise predictions of labels, client by client.

The tables leave out empty rows. So their size grows with the number of samples, not
with the square of the number of classes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from .measures import calibration, confusion


class Tally(NamedTuple):
    """The columns of two tables, of confusion and of calibration."""

    # client, target, predicted, count: the number of samples of class `target`
    # predicted as class `predicted`
    confusion: dict[str, Tensor]
    # client, bin, count, confidence, right: for the samples in a bin, their number, the
    # sum of their confidences, and how many predictions are right
    calibration: dict[str, Tensor]


def tally(clients: Iterable[int], pairs: Iterable[tuple[Tensor, Tensor]]) -> Tally:
    """The tables for these clients, from the outputs and targets of each client.

    A client has no rows if some of its outputs are NaN.
    """
    confusions, calibrations = [], []
    for client, (outputs, targets) in zip(clients, pairs, strict=True):
        if outputs.isnan().any():
            continue
        table = confusion(outputs, targets)
        places = np.argwhere(table)
        counts = table[tuple(places.T)]
        confusions.append(_rows(client, places, counts))
        bins = calibration(outputs, targets)
        used = np.flatnonzero(bins[:, 0])
        calibrations.append(_rows(client, used, bins[used]))
    return Tally(
        _columns(confusions, ("client", "target", "predicted", "count")),
        _columns(calibrations, ("client", "bin", "count", "confidence", "right")),
    )


def _rows(client: int, *columns: np.ndarray) -> np.ndarray:
    return np.column_stack([np.full(len(columns[0]), client), *columns])


def _columns(rows: list[np.ndarray], names: tuple[str, ...]) -> dict[str, Tensor]:
    """The columns of these rows; all but `confidence` hold whole numbers."""
    table = np.concatenate([np.empty((0, len(names))), *rows])
    columns = zip(names, torch.from_numpy(table.T.copy()), strict=True)
    return {n: c.clone() if n == "confidence" else c.long() for n, c in columns}
