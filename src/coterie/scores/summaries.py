"""The summary of all algorithms, their costs, and which one to look at first."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ..checks import InputError
from ..records import Records
from .caching import cached, with_cache
from .failures import failures
from .finals import (
    ROUNDING,
    final_scores,
    labels_of,
    local_label,
    may_be_undefined,
    mean_over_seeds,
    runs_of,
    score_of,
    worst_decile,
)
from .gains import gain_of, score_error, score_estimate

_GAINS = ("gain", "gain_low", "gain_high", "gaining", "losing", "cannot_tell")


def summary(records: Records) -> pd.DataFrame:
    """One row per algorithm: test scores at the last round, and costs.

    The score of a client is its mean over seeds. Columns:

    - `mean` over clients. Its `standard_error` is for new seeds and test samples
      (`scores.intervals`). `weighted_mean` weights clients by training samples, and
      `worst_decile` is the mean of the worst ceil(N / 10) clients.
    - `gain` is the mean improvement over `local`, with its 95 % interval from
      `gain_low` to `gain_high`. `gaining`, `losing` and `cannot_tell` count clients by
      their own intervals. All are NaN without `local`.
    - `oracle` marks methods that know true clusters or optima. `failed` marks
      failed training (`scores.failures`), without a standard error and a gain.
    - `gradients` and `bytes` are totals over clients, and means over seeds. `seconds`
      is the median training time over seeds. With [time], `updates` counts the answers
      of clients that arrived until the final virtual `time` in seconds.
    """
    return summary_of(records, labels_of(records))


def summary_of(records: Records, labels: list[str]) -> pd.DataFrame:
    """The summary of some labels, which may be baselines (`scores.baselines`)."""
    records = with_cache(records)  # only while the table is made
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


def standings(records: Records) -> pd.DataFrame:
    """One row per algorithm: its mean test score at the last round, and its rank.

    - `mean` over clients and seeds, with its 95 % interval from `low` to `high`.
    - `best` marks the best mean. `like_best` marks algorithms that are not
      distinguishable from it: the 95 % interval of the paired difference contains 0.
    - `seeds` and `round` are numbers. `samples` is the number of test samples that
      count for the interval (0: only seeds count).
    - `ranked` is false for oracles, for failed training, and for algorithms that
      stopped earlier than others. None of them is best or like the best.
    """
    records = with_cache(records)  # only while the table is made
    out, rows = failures(records), {}
    for label in labels_of(records):
        found, samples = score_estimate(records, label)
        known = {"low": float(found.low), "high": float(found.high)}
        unknown = {"low": -np.inf, "high": np.inf}
        row = {"mean": float(found.mean), **(unknown if label in out else known)}
        row |= {"best": False, "like_best": False}
        row |= {"oracle": label in records.oracles, "failed": label in out}
        row["round"] = int(runs_of(records, label)["round"].max())
        row |= {"seeds": len(final_scores(records, label)), "samples": samples}
        rows[label] = row
    table = pd.DataFrame.from_dict(rows, orient="index").rename_axis("algorithm")
    late = table["round"] < table["round"].max()
    table["ranked"] = ~(table["oracle"] | table["failed"] | late)
    means = rank_methods(records, table.loc[table["ranked"], "mean"])
    if means:
        first, most = means[-1]
        for label, mean in means:
            same = abs(mean - most) <= ROUNDING * abs(most)
            lead = gain_of(records, first, over=label)
            table.loc[label, "best"] = same
            table.loc[label, "like_best"] = not same and lead.verdict != "gains"
    return table


@cached
def costs_of(records: Records, label: str) -> dict[str, float]:
    """Costs at the last round: means over the seeds that count, the median of seconds.

    `updates` and `time` are there if they were recorded.
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
    # A median, because only the first seed takes time to compile.
    costs["seconds"] = float(last["seconds"].median()) if "seconds" in last else np.nan
    return costs


def rank_methods(records: Records, column: pd.Series) -> list[tuple[str, float]]:
    """Labels and finite scores, the best last, without oracles and failed training."""
    out = {*records.oracles, *failures(records)}
    eligible = column[[label not in out for label in column.index]]
    return ranking(eligible, score_of(records).sign)


def ranking(column: pd.Series, sign: int) -> list[tuple[str, float]]:
    """Labels and finite values, the best last."""
    pairs = [(str(label), float(v)) for label, v in column.items() if np.isfinite(v)]
    return sorted(pairs, key=lambda pair: sign * pair[1])


def lacks_choice(records: Records) -> bool:
    """Whether there are several methods but no validation data to choose by."""
    if (records.clients["validation"] > 0).any():
        return False
    others = set(labels_of(records)) - {local_label(records), *records.oracles}
    return len(others) > 1


@cached
def favourite_of(records: Records) -> str:
    """The algorithm to look at first; training alone is not considered.

    It has the best mean validation score at the last round. If no validation score is
    finite, it is the last algorithm in the study, because test data never choose. An
    oracle, or a method whose training failed, is taken only if there is no other.

    Raises:
        InputError: if there is only training alone.
    """
    local = local_label(records)
    others = [label for label in labels_of(records) if label != local]
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
