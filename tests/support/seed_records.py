"""Records whose final scores are given seed by seed, the same for every client."""

from __future__ import annotations

from dataclasses import replace

from coterie.records import Records

from .made_records import make_records


def records_of_seeds(**scores: list[float]) -> Records:
    """Records of four clients, given the score of each algorithm with each seed."""
    seeds = len(next(iter(scores.values())))
    records = make_records(n=4, labels=tuple(scores), seeds=seeds, weights=False)
    metrics = records.metrics.copy()
    last = metrics["round"] == metrics["round"].max()
    for label, values in scores.items():
        for seed, value in enumerate(values):
            mine = last & (metrics["algorithm"] == label) & (metrics["seed"] == seed)
            metrics.loc[mine, "test_accuracy"] = value
    return replace(records, metrics=metrics)
