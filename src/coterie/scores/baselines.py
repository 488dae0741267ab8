"""Scores of baselines next to those of methods, by the same statistics.

Baselines are never ranked or chosen as methods: they are no part of a study's metrics.
Whoever compares a method with one asks records that have both (`with_baselines`).
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
"""Models of scikit-learn that each client trains alone."""


@cached
def baseline_labels(records: Records) -> list[str]:
    """The baselines that have results, a constant first; not one named as a method."""
    if records.baselines.empty:
        return []
    there = set(records.baselines["algorithm"]) - set(labels_of(records))
    return [label for label in (CONSTANT, LINEAR, TREES, POOLED) if label in there]


@cached
def with_baselines(records: Records) -> Records:
    """Records in which baselines stand next to methods, to compare the two."""
    there = baseline_labels(records)
    if not there:
        return records
    mine = records.baselines[records.baselines["algorithm"].isin(there)]
    beside = {k: v for k, v in records.baseline_outcomes.items() if k[0] in there}
    metrics = pd.concat([records.metrics, mine], ignore_index=True)
    outcomes = records.outcomes | beside
    return with_cache(replace(records, metrics=metrics, outcomes=outcomes))


@cached
def baseline_summary(records: Records) -> pd.DataFrame:
    """One row per baseline, with the columns of `summary`; empty without baselines."""
    return summary_of(with_baselines(records), baseline_labels(records))


def gain_over_baseline(records: Records, label: str, baseline: str) -> Gain | None:
    """How much better a method is than a baseline; None where they cannot be compared.

    Positive is better, whichever way the score points.
    """
    if baseline not in baseline_labels(records):
        return None
    gain = gain_of(with_baselines(records), label, over=baseline)
    return gain if gain.seeds and np.isfinite(gain.mean) else None


def is_constant(records: Records, label: str) -> bool:
    """Whether a method is known to be no better than the constant on average."""
    gain = gain_over_baseline(records, label, CONSTANT)
    return gain is not None and gain.mean <= 0


def best_alone(records: Records) -> str | None:
    """The model of scikit-learn with the best mean test score, of those alone."""
    there = [label for label in baseline_labels(records) if label in ALONE]
    if not there:
        return None
    table = baseline_summary(records)
    found = table.loc[there, "mean"] * (1 if records.higher_is_better else -1)
    found = found[np.isfinite(found)]
    return str(found.idxmax()) if len(found) else None


def baseline_words(records: Records, label: str) -> str:
    """What a baseline is, in a sentence."""
    linear = "ridge" if records.task == "regression" else "logistic"
    return {
        CONSTANT: "a constant prediction",
        LINEAR: f"{linear} regression",
        TREES: "gradient-boosted trees",
        POOLED: f"{linear} regression of pooled data",
    }[label]
