"""Algorithms whose training failed. Their scores are shown but not compared."""

from __future__ import annotations

import numpy as np

from ..records import Records
from .caching import cached
from .finals import labels_of

_ROUNDING = 1e-6
"""Losses that differ by less than this share are equal."""


@cached
def failures(records: Records) -> dict[str, str]:
    """By label, a sentence on why the training of an algorithm failed.

    Training failed if, with any seed, the mean training loss of clients is higher at
    the last evaluation than at the start. It also failed if no round was finished in
    the virtual time of the study.
    """
    found = {}
    for label in labels_of(records):
        reason = _no_round(records, label) or _higher_loss(records, label)
        if reason:
            found[label] = reason
    return found


def _higher_loss(records: Records, label: str) -> str:
    """A sentence if the training loss is higher than at the start, or nothing."""
    if "train_loss" not in records.metrics:
        return ""
    mine = records.metrics[records.metrics["algorithm"] == label]
    for seed, run in mine.groupby("seed"):
        first, last = run["round"].min(), run["round"].max()
        means = run.groupby("round")["train_loss"].mean()
        start, end = float(means[first]), float(means[last])
        if np.isfinite(start) and not end <= start + _ROUNDING * abs(start):
            last = f"{end:.3g}" if np.isfinite(end) else "a value that is not finite"
            return (
                f"Training of {label} failed: with seed {seed}, the mean training loss "
                f"went from {start:.3g} at the start to {last} at the end. A smaller "
                "step size usually helps."
            )
    return ""


def _no_round(records: Records, label: str) -> str:
    """A sentence if no round was finished in virtual time, or nothing."""
    if "updates" not in records.rounds:
        return ""
    mine = records.rounds[records.rounds["algorithm"] == label]
    updates = mine.groupby("seed")["updates"].max()
    if updates.empty or updates.isna().any() or updates.min() > 0:
        return ""
    return (
        f"{label} finished no round in the virtual time of this study, so its models "
        "are those of the start. A longer `time.period` or more rounds would help."
    )
