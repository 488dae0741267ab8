"""One row per algorithm, what it cost, and which one to look at first."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..checks import InputError
from ..records import Records
from .caching import cached, with_cache
from .failures import failures
from .finals import (
    final_scores,
    labels_of,
    local_label,
    may_be_undefined,
    mean_over_seeds,
    runs_of,
    score_of,
    worst_decile,
)
from .gains import gain_of, score_error

_GAINS = ("gain", "gain_low", "gain_high", "gaining", "losing", "cannot_tell")


def summary(records: Records) -> pd.DataFrame:
    """One row per algorithm: test scores at the last round, and what they cost.

    Clients count by their mean over seeds. `standard_error` is that of the mean over
    clients and counts seeds and test samples (`scores.intervals`). `weighted_mean`
    weighs clients by training samples; `worst_decile` is the mean of the worst
    ceil(N / 10) clients. `gain` is the mean over clients of what they are better than
    with `local`, whichever way the score points, `gain_low` and `gain_high` the ends of
    its 95 per cent interval; `gaining`, `losing` and `cannot_tell` count clients, by
    the intervals of their own (NaN without `local`). `oracle` says who was told true
    clusters or optima, and `failed` whose training failed (`scores.failures`): these
    have no standard error and no gain. `gradients` and `bytes` are totals over clients,
    means over seeds; `seconds` are those of training, the median over seeds. With
    [time], `updates` counts the answers of clients that arrived until the virtual
    `time` of the end, in seconds.
    """
    return summary_of(records, labels_of(records))


def summary_of(records: Records, labels: list[str]) -> pd.DataFrame:
    """The same of some labels, which may also be baselines (`scores.baselines`)."""
    records = with_cache(records)  # until the table is made
    local, rows = local_label(records), {}
    sizes = records.clients.set_index(["seed", "client"])["train"].unstack("client")
    sign = score_of(records).sign
    for label in labels:
        scores, failed = final_scores(records, label), label in failures(records)
        values = mean_over_seeds(records, scores)
        weights = sizes.loc[scores.index, scores.columns]
        weights = weights.div(weights.sum(axis=1), axis=0)
        row = {"mean": float(values.mean(skipna=False))}
        row["standard_error"] = np.nan if failed else score_error(records, label)
        shares = (scores * weights).where(weights.notna(), 0.0)
        weighted = shares.sum(axis=1, skipna=False)
        row["weighted_mean"] = float(weighted.mean(skipna=False))
        row["worst_client"] = float(sign * (sign * values).min(skipna=False))
        row["worst_decile"] = worst_decile(values, sign)
        row |= dict.fromkeys(_GAINS, np.nan)
        if local is not None and label != local:
            gain = gain_of(records, label)
            counts = tuple(gain.counts().values())
            found = (gain.mean, gain.low, gain.high, *counts)
            there = gain.seeds and not np.isnan(gain.low + gain.high)
            row |= dict(zip(_GAINS, found, strict=True)) if there else {}
        row["oracle"], row["failed"] = label in records.oracles, failed
        row |= costs_of(records, label)
        row["round"] = runs_of(records, label)["round"].max()
        row["seeds"] = len(scores)
        rows[label] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("algorithm")


@cached
def costs_of(records: Records, label: str) -> dict[str, float]:
    """Counters at the last round, mean over the seeds that are used, median of seconds.

    Those of [time] are there where they were recorded.
    """
    runs = runs_of(records, label)
    mine = records.rounds[records.rounds["algorithm"] == label]
    used = mine["seed"].isin(runs["seed"].unique())
    mine = mine[used & (mine["round"] <= runs["round"].max())]
    last = mine.sort_values("round").groupby("seed").last()
    timed = [name for name in ("updates", "time") if name in last]
    costs = {
        name: float(last[name].mean()) if name in last else np.nan
        for name in ("gradients", "bytes", *timed)
    }
    # What is compiled is compiled with the first seed alone.
    costs["seconds"] = float(last["seconds"].median()) if "seconds" in last else np.nan
    return costs


def rank_methods(records: Records, column: pd.Series) -> list[tuple[str, float]]:
    """Labels and scores that are numbers, the best last, of those that can be best.

    Oracles cannot, nor those whose training failed.
    """
    out = {*records.oracles, *failures(records)}
    there = column[[label not in out for label in column.index]]
    return ranking(there, score_of(records).sign)


def ranking(column: pd.Series, sign: int) -> list[tuple[str, float]]:
    """Labels and values that are numbers, the best last."""
    pairs = [(str(label), float(v)) for label, v in column.items() if np.isfinite(v)]
    return sorted(pairs, key=lambda pair: sign * pair[1])


def lacks_choice(records: Records) -> bool:
    """Whether several could be looked at first, and no validation data choose."""
    if (records.clients["validation"] > 0).any():
        return False
    others = set(labels_of(records)) - {local_label(records), *records.oracles}
    return len(others) > 1


@cached
def favourite_of(records: Records) -> str:
    """The algorithm to look at first, other than training alone.

    It is the one with the best mean validation score at the last round (test data
    choose nothing), or the last listed where no validation score is a number. One whose
    training failed is looked at first only where all others failed, too.

    Raises:
        InputError: when there is only training alone.
    """
    local = local_label(records)
    others = [label for label in labels_of(records) if label != local]
    # Who is told the truth is looked at first only where there is nobody else.
    others = [a for a in others if a not in records.oracles] or others
    others = [a for a in others if a not in failures(records)] or others
    if not others:
        raise InputError("there is nothing to compare with training alone.")
    score = score_of(records)
    column = score.column.replace("test_", "validation_", 1)
    if column not in records.metrics:
        return others[-1]
    checked = records.clients.groupby("client")["validation"].min() > 0
    means = {}
    for label in others:
        runs = runs_of(records, label)
        last = runs[runs["round"] == runs["round"].max()]
        last = last[last["client"].isin(checked.index[checked])]
        undefined = may_be_undefined(records.score)
        means[label] = last[column].mean(skipna=undefined)
    best = ranking(pd.Series(means, dtype=float), score.sign)
    return best[-1][0] if best else others[-1]
