"""The cost of waiting in virtual time: numbers of a study with [time].

Clients that wait for each other are idle. Without waiting, answers have delays: other
clients have changed the model in the meantime. `scores.finals` says what "final" means,
and which seeds count.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import pandas as pd

from ..checks import InputError
from ..records import Records
from ..scores.axes import axis_of
from ..scores.finals import labels_of, local_label, mean_scores, runs_of, score_of
from ..scores.summaries import costs_of

SHOWN = 30
"""The most clients in a timeline."""

_TASKS = 3000
"""The most computations of one algorithm in a timeline."""

_TURNS = 4
"""About how often the slowest client begins to compute in a timeline."""

_ROUNDING = 1e-9
"""Relative tolerance for reaching a score. A smaller idle share counts as 0."""


class Timeline(NamedTuple):
    """When clients computed, at the beginning of the runs with the first seed."""

    seed: int
    clients: list[int]  # the ones shown, the slowest first
    total: int  # number of all clients
    until: float  # virtual seconds; the records of all algorithms are complete up to it
    spans: pd.DataFrame  # the rows of `Records.spans` that are shown


def is_timed(records: Records) -> bool:
    """Whether the study ran on a virtual clock."""
    return axis_of(records).has_clock


def wait_summary(records: Records) -> pd.DataFrame:
    """One row per algorithm: the time lost by waiting, or gained without it.

    Columns are means over seeds. `idle` is the share of their time in which clients
    computed nothing. `updates` counts the answers that arrived until the final `time`,
    and `pace` is their number per virtual second. `mean_delay` and `largest_delay` are
    counted in answers (NaN if none can be late). `reached` is the virtual time of the
    first evaluation with a mean test score as good as `common_score`. `speed_up` is the
    largest `reached` of all algorithms, divided by the `reached` of this algorithm.

    Raises:
        InputError: without [time].
    """
    if not is_timed(records):
        raise InputError("the records have no virtual time: a study needs [time].")
    goal, labels = common_score(records), labels_of(records)
    table = pd.DataFrame(index=pd.Index(labels, name="algorithm"))
    table["idle"] = [idle_share(records, label) for label in labels]
    costs = [costs_of(records, label) for label in labels]
    for name in ("updates", "time"):
        table[name] = [cost.get(name, np.nan) for cost in costs]
    table["pace"] = (table["updates"] / table["time"]).where(table["time"] > 0)
    counts = [delay_counts(records, label) for label in labels]
    table["mean_delay"] = [mean_delay(count) for count in counts]
    table["largest_delay"] = [
        float(count.index.max()) if len(count) else np.nan for count in counts
    ]
    table["reached"] = [_time_to_reach(records, label, goal) for label in labels]
    late = table["reached"].max()
    table["speed_up"] = (late / table["reached"]).where(table["reached"] > 0)
    return table


def common_score(records: Records) -> float:
    """The best mean test score that every algorithm reaches at some evaluation.

    Algorithms without a finite score do not count. If no algorithm has a finite score,
    the result is NaN. This score only describes curves. It does not choose a method.
    """
    sign = score_of(records).sign
    curves = [sign * mean_scores(records, label) for label in labels_of(records)]
    bests = [float(curve.max()) for curve in curves if curve.notna().any()]
    return sign * min(bests) if bests else float("nan")


def _time_to_reach(records: Records, label: str, goal: float) -> float:
    """The virtual time of the first evaluation that is as good as the goal."""
    curve, sign = mean_scores(records, label), score_of(records).sign
    there = curve.index[sign * (curve - goal) >= -_ROUNDING * abs(goal)]
    return axis_of(records).place(int(there[0])) if len(there) else float("nan")


def idle_share(records: Records, label: str) -> float:
    """The share of all clients' time in which they computed nothing."""
    mine = _counted_rows(records, records.work, label)
    if mine.empty:
        return float("nan")
    sums = mine.groupby("seed")[["busy", "idle"]].sum()
    total = sums.sum(axis=1)
    share = float((sums["idle"] / total.where(total > 0)).mean())
    return share if abs(share) > _ROUNDING else 0.0


def _counted_rows(records: Records, table: pd.DataFrame, label: str) -> pd.DataFrame:
    """The rows of an algorithm with the seeds that count."""
    if table.empty:
        return table
    seeds = runs_of(records, label)["seed"].unique()
    return table[(table["algorithm"] == label) & table["seed"].isin(seeds)]


def delay_counts(records: Records, label: str) -> pd.Series:
    """The number of answers by delay, over seeds; empty if none can be late."""
    mine = _counted_rows(records, records.delays, label)
    # With training alone, others do not change a client's model in the meantime.
    if mine.empty or label == local_label(records):
        return pd.Series(dtype=float)
    counts = mine.groupby("delay")["count"].sum()
    return counts[counts > 0].astype(float)


def mean_delay(counts: pd.Series) -> float:
    """The mean over answers, NaN without any."""
    if counts.empty:
        return float("nan")
    return float(np.average(counts.index.to_numpy(float), weights=counts))


def delayed_labels(records: Records) -> list[str]:
    """The algorithms that take late answers."""
    return [a for a in labels_of(records) if len(delay_counts(records, a))]


def timeline_of(records: Records) -> Timeline | None:
    """The contents of a timeline, or None if too little was recorded.

    All algorithms have the same clients and seconds. The timeline ends when the slowest
    client has begun to compute about four times. It ends earlier if less was recorded,
    or if there are too many computations to show. With more than SHOWN clients, some
    are left out, evenly between the slowest and the fastest.
    """
    spans = records.spans
    if spans.empty:
        return None
    labels = [a for a in labels_of(records) if a in set(spans["algorithm"])]
    seed = int(spans["seed"].min())
    spans = spans[(spans["seed"] == seed) & spans["algorithm"].isin(labels)]
    by_label = spans.groupby("algorithm")
    turn = max((_longest_turn(mine) for _, mine in by_label), default=0.0)
    known = [_known_until(records, str(a), mine) for a, mine in by_label]
    until = min([_TURNS * turn, *known])
    order = _slowest_first(records, spans, seed)
    kept = np.linspace(0, len(order) - 1, min(len(order), SHOWN)).round().astype(int)
    clients = [order[place] for place in kept]
    shown = spans[spans["client"].isin(clients)]
    for _, mine in shown.groupby("algorithm"):
        begins = np.sort(mine["begin"].to_numpy())
        if len(begins) > _TASKS and begins[_TASKS] > 0:
            until = min(until, float(begins[_TASKS]))
    if until <= 0:
        return None
    # A round number of seconds, and no more than what is known.
    unit = 10.0 ** (math.floor(math.log10(until)) - 2)
    until = unit * math.floor(until / unit * (1 + _ROUNDING))
    return Timeline(seed, clients, len(order), until, shown[shown["begin"] < until])


def _longest_turn(spans: pd.DataFrame) -> float:
    """The longest mean time of any client from one computation's start to the next."""
    groups = spans.groupby("client")
    first, last, count = (groups["begin"].agg(f) for f in ("min", "max", "count"))
    once = (groups["end"].max() - first)[count == 1]
    turns = ((last - first) / (count - 1))[count > 1]
    return float(pd.concat([once, turns]).max())


def _known_until(records: Records, label: str, spans: pd.DataFrame) -> float:
    """The time until which the spans hold all computations of a cell.

    Spans are recorded computations. If they add up to all the time in which clients
    were busy, the result is the end of the run. Otherwise it is the time at which the
    last span begins. If clients wait for each other and the spans hold all tasks, it is
    the time at which the last span ends.
    """
    work, seed = records.work, spans["seed"].iloc[0]
    if len(work):
        work = work[(work["algorithm"] == label) & (work["seed"] == seed)]
    if work.empty:
        return float(spans["begin"].max())
    end = float((work["busy"] + work["idle"]).max())
    found = (spans["end"].clip(upper=end) - spans["begin"]).clip(lower=0).sum()
    if work["busy"].sum() - found <= 1e-6 * end:
        return end
    waits = _counted_rows(records, records.delays, label).empty
    whole = waits and len(spans) >= work["tasks"].sum()
    return float(spans["end" if whole else "begin"].max())


def _slowest_first(records: Records, spans: pd.DataFrame, seed: int) -> list[int]:
    """The clients of a seed, slowest first; those without computations come last."""
    mean = (spans["end"] - spans["begin"]).groupby(spans["client"]).mean()
    clients = np.sort(records.clients.loc[records.clients["seed"] == seed, "client"])
    known = mean.reindex(clients).fillna(-1.0).to_numpy()
    return [int(clients[place]) for place in np.argsort(-known, kind="stable")]
