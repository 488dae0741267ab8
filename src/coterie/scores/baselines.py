"""Scores of baselines, computed in the same way as the scores of methods.

Baselines are not in the metrics of a study, so they are never ranked or chosen as
methods. To compare a method with a baseline, use `with_baselines`.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd

from ..records import Records
from ..records.cells import CONSTANT, LINEAR, POOLED, TREES
from .caching import cached, with_cache
from .finals import labels_of
from .gains import Gain, gain_of
from .summaries import summary_of

ALONE = (LINEAR, TREES)
"""The scikit-learn models that each client trains alone."""


@cached
def baseline_labels(records: Records) -> list[str]:
    """The baselines with results, the constant first, except those named as methods."""
    if records.baselines.empty:
        return []
    there = set(records.baselines["algorithm"]) - set(labels_of(records))
    return [label for label in (CONSTANT, LINEAR, TREES, POOLED) if label in there]


@cached
def with_baselines(records: Records) -> Records:
    """Records with the baselines among the methods, to compare them."""
    labels = baseline_labels(records)
    if not labels:
        return records
    rows = records.baselines[records.baselines["algorithm"].isin(labels)]
    added = {k: v for k, v in records.baseline_outcomes.items() if k[0] in labels}
    metrics = pd.concat([records.metrics, rows], ignore_index=True)
    outcomes = records.outcomes | added
    return with_cache(replace(records, metrics=metrics, outcomes=outcomes))


@cached
def baseline_summary(records: Records) -> pd.DataFrame:
    """One row per baseline, with the columns of `summary`; empty without baselines."""
    return summary_of(with_baselines(records), baseline_labels(records))


def gain_over_baseline(records: Records, label: str, baseline: str) -> Gain | None:
    """How much better a method is than a baseline; None if they cannot be compared.

    Positive is better, whichever way the score points.
    """
    if baseline not in baseline_labels(records):
        return None
    gain = gain_of(with_baselines(records), label, over=baseline)
    return gain if gain.seeds and np.isfinite(gain.mean) else None


def is_constant(records: Records, label: str) -> bool:
    """Whether the mean score of a method is no better than the constant's."""
    gain = gain_over_baseline(records, label, CONSTANT)
    return gain is not None and gain.mean <= 0


def best_alone(records: Records) -> str | None:
    """The scikit-learn model, trained alone, with the best mean test score."""
    there = [label for label in baseline_labels(records) if label in ALONE]
    if not there:
        return None
    table = baseline_summary(records)
    found = table.loc[there, "mean"] * (1 if records.higher_is_better else -1)
    found = found[np.isfinite(found)]
    return str(found.idxmax()) if len(found) else None


def baseline_words(records: Records, label: str) -> str:
    """The name of a baseline in a sentence."""
    linear = "ridge" if records.task == "regression" else "logistic"
    return {
        CONSTANT: "a constant prediction",
        LINEAR: f"{linear} regression",
        TREES: "gradient-boosted trees",
        POOLED: f"{linear} regression of pooled data",
    }[label]
