"""Scores of clients, computed from a study's records alone.

"Final" means the last recorded round, never the best round. A seed counts only if it
has as many rounds as the longest seed of this algorithm. Clients are left out if they
have no test samples, or if their test samples leave the score undefined, such as the
AUC of one class. Any other NaN is kept, never skipped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import pandas as pd

from .. import checks
from ..checks import InputError
from ..models import MEASURES, OfClient
from ..models.measures import base_measure, measure_words
from ..records import Records
from .caching import cached
from .words import figure

_Scores = TypeVar("_Scores", pd.DataFrame, pd.Series)

CROWD = 200
"""Above this number of clients, figures show groups instead of single clients."""

ROUNDING = 1e-6
"""Differences below this share of the score count as 0."""

_UNITS = {
    *("g", "kg", "mg", "t", "l", "ml", "m", "cm", "mm", "km", "m2", "m3"),
    *("s", "ms", "min", "h", "hours", "days", "weeks", "months", "years"),
    *("eur", "usd", "chf", "gbp", "euro", "euros", "dollars"),
    *("w", "kw", "mw", "kwh", "mwh", "j", "kj", "mj", "v", "a", "hz", "bar", "pa"),
    *("celsius", "kelvin", "percent", "ppm", "mmhg", "mmol", "bpm"),
}
"""Units that may end the name of a column, such as `weight_kg`."""

_CAPITALS = {"eur", "usd", "chf", "gbp"}


class Score(NamedTuple):
    """The measure by which models are compared, and how its values are written."""

    column: str  # of Records.metrics
    words: str
    sign: int  # 1 if higher is better, -1 if lower is better
    unit: float  # factor of a difference before it is shown
    gain: str  # meaning of a positive difference, with its unit
    ticks: str  # d3 format of an axis
    quantity: str = ""  # unit of the data, such as kg, if it is known

    @property
    def axis(self) -> str:
        """The title of an axis of scores."""
        return f"{self.words} ({self.quantity})" if self.quantity else self.words

    @property
    def heading(self) -> str:
        """The words at the beginning of a sentence."""
        return self.words[:1].upper() + self.words[1:]

    @property
    def hover(self) -> str:
        """The d3 format of one value."""
        return ".1%" if self.ticks else ".4g"

    def show(self, value: float) -> str:
        """The value as text."""
        if not np.isfinite(value):
            return "not finite"
        return f"{100 * value:.1f} %" if self.ticks else figure(value, 4)

    def show_error(self, value: float) -> str:
        """A standard error as text."""
        if not np.isfinite(value):
            return "unknown"
        return self.show(value) if self.ticks else figure(value, 2)

    def show_with_error(self, value: float, error: float) -> str:
        """The value and its standard error, if that is known, as text."""
        if not np.isfinite(error):
            return self.show(value)
        shown = self.show(value).removesuffix(" %")
        return f"{shown} ± {self.show_error(error)}"

    def show_gain(self, value: float) -> str:
        """A difference as text."""
        if not np.isfinite(value):
            return "not finite"
        text = f"{self.unit * value:+.1f}" if self.ticks else figure(value, 3, "+")
        return text + (" points" if self.ticks else "")

    def show_interval(self, low: float, high: float) -> str:
        """The interval of a difference as text."""
        if not np.isfinite(high - low):
            return "unknown"
        return (
            f"{self.show_gain(low).removesuffix(' points')} to {self.show_gain(high)}"
        )


def score_of(records: Records) -> Score:
    """The score of a study."""
    words = measure_words(records.score, records.task, records.classes)
    score = score_named(records.score, records.higher_is_better, words)
    if unit := unit_of(records):
        score = score._replace(quantity=unit, gain=f"{score.gain} ({unit})")
    if score.column not in records.metrics:
        raise InputError(f"the records have no column {score.column!r}.")
    return score


def by_measure(records: Records, measure: str) -> Records:
    """The records with another measure of test data as their score."""
    if measure == records.score:
        return records
    checks.one_of("measure", measure, measure_names(records))
    higher = is_higher_better(records, measure)
    if higher is None:
        raise InputError(
            f"`measure` {measure!r} is a measure of your own, and the records do not "
            "say whether higher is better: only `model.score` may be one."
        )
    return replace(records, score=measure, higher_is_better=higher)


def is_higher_better(records: Records, measure: str) -> bool | None:
    """Whether higher is better; None for a user's own measure, if it is not the score.

    For a measure on pooled test data, the measure from which it is made decides.
    """
    base = base_measure(measure)
    if base == base_measure(records.score):
        return records.higher_is_better
    known = MEASURES.get(base)
    if base == "loss":
        return False
    return None if known is None else known.higher_is_better


def is_measured(records: Records, label: str, measure: str) -> bool:
    """Whether an algorithm has a measure; only global models have pooled measures."""
    mine = records.metrics[records.metrics["algorithm"] == label]
    pooled = base_measure(measure) != measure
    return not pooled or bool(mine[f"test_{measure}"].notna().any())


def measure_names(records: Records) -> list[str]:
    """The measures of test data, the score first and the loss last."""
    columns = [str(column) for column in records.metrics]
    names = [c.removeprefix("test_") for c in columns if c.startswith("test_")]
    ends = {records.score: 0, "loss": 2}
    return sorted(names, key=lambda name: ends.get(name, 1))


def unit_of(records: Records) -> str:
    """The unit of errors, from the study or from the name of the target column."""
    data = records.study.get("data")
    data = data if isinstance(data, dict) else {}
    name = str(data.get("target", ""))
    in_units = base_measure(records.score) in ("rmse", "mae")
    if records.task != "regression" or not in_units:
        return ""
    if data.get("unit"):
        return str(data["unit"])
    bracketed = re.search(r"[\[(]([^\[\]()]{1,12})[\])]\s*$", name)
    if bracketed:
        return bracketed[1].strip()
    end = re.split(r"[_ ]", name.strip())[-1].lower()
    if end not in _UNITS or end == name.lower():
        return ""
    return end.upper() if end in _CAPITALS else end


def score_named(measure: str, higher_is_better: bool, said: str = "") -> Score:
    """The score by a measure. `said` is its name with the class that it is about."""
    words, column = f"test {said or measure}", f"test_{measure}"
    if base_measure(measure) == "accuracy":
        gain = "gain (percentage points)"
        return Score(column, words, 1, 100.0, gain, "~%")
    if higher_is_better:
        return Score(column, words, 1, 1.0, f"gain in {words}", "")
    return Score(column, words, -1, 1.0, f"reduction of {words}", "")


@cached
def labels_of(records: Records) -> list[str]:
    """The algorithms with results, in the order of the study."""
    there = [str(label) for label in records.metrics["algorithm"].unique()]
    planned = [name for name, _ in planned_algorithms(records)]
    return [a for a in planned if a in there] + [a for a in there if a not in planned]


def planned_algorithms(records: Records) -> list[tuple[str, str]]:
    """Label and name of every algorithm in the study."""
    entries = records.study.get("algorithm", [])
    return [(str(e.get("label", e["name"])), str(e["name"])) for e in entries]


def display_label(records: Records, label: str) -> str:
    """The label as tables show it, with a mark if it is an oracle."""
    return annotate_label(label, label in records.oracles)


def annotate_label(label: str, oracle: bool, failed: bool = False) -> str:
    """The label of an algorithm, with a mark for oracles and for failed training.

    >>> annotate_label("all_for_one", True), annotate_label("oracle (clusters)", True)
    ('all_for_one (oracle)', 'oracle (clusters)')
    >>> annotate_label("fedavg", False, failed=True)
    'fedavg (failed)'
    """
    label = f"{label} (oracle)" if oracle and "oracle" not in label.lower() else label
    return f"{label} (failed)" if failed else label


def local_label(records: Records) -> str | None:
    """The label of `local` (training alone), or None if it has no results."""
    there = labels_of(records)
    planned = planned_algorithms(records)
    return next((a for a, name in planned if name == "local" and a in there), None)


def require_local(records: Records) -> str:
    """The label of `local` (training alone).

    Raises:
        InputError: if `local` has no results.
    """
    local = local_label(records)
    if local is None:
        raise InputError("the study has no results of an algorithm named 'local'.")
    return local


@cached
def population(records: Records) -> pd.DataFrame:
    """One row per client: mean sizes over seeds, and its cluster (-1 if it varies).

    A client is `tested` if it has test samples with every seed. It is `scored` if, in
    addition, its score is defined on these samples.
    """
    groups = records.clients.groupby("client")
    table = groups[["train", "validation", "test"]].mean()
    steady = groups["cluster"].nunique() == 1
    table["cluster"] = groups["cluster"].first().where(steady, -1)
    table["tested"] = groups["test"].min() > 0
    table["scored"] = table["tested"] & ~table.index.isin(undefined_for(records))
    return table.reset_index()


def sort_by_cluster(clients: pd.DataFrame) -> pd.DataFrame:
    """The clients sorted by true cluster; clients of unknown cluster are last."""
    unknown = clients["cluster"] < 0
    order = np.lexsort((clients["client"], clients["cluster"], unknown))
    return clients.iloc[order].reset_index(drop=True)


def cluster_name(cluster: int) -> str:
    """The name of a cluster."""
    return f"cluster {cluster}" if cluster >= 0 else "cluster unknown"


def is_crowd(records: Records) -> bool:
    """Whether there are too many clients to show each one."""
    return records.clients["client"].nunique() > CROWD


@cached
def undefined_for(records: Records, measure: str | None = None) -> list[int]:
    """Clients whose test samples leave a measure undefined with any seed.

    For such a client, no algorithm has a value in any round. So the samples are the
    cause, and not the models. By default, the measure is the score.
    """
    measure = measure or records.score
    column = f"test_{measure}"
    if not may_be_undefined(measure) or column not in records.metrics:
        return []
    if not records.metrics[column].isna().any():
        return []
    values = records.metrics.groupby(["seed", "client"])[column].count()
    return sorted({int(client) for _, client in values.index[values == 0]})


def may_be_undefined(measure: str) -> bool:
    """Whether some samples leave the measure undefined, such as one class for AUC."""
    base = base_measure(measure)
    known = MEASURES.get(base)
    of_samples = known is not None and not isinstance(known.measure, OfClient)
    return base != "loss" and not of_samples


@cached
def runs_of(records: Records, label: str) -> pd.DataFrame:
    """Metrics of an algorithm, of the seeds that reached its last recorded round."""
    mine = records.metrics[records.metrics["algorithm"] == label]
    last = mine["round"] == mine["round"].max()
    kept = mine["seed"].isin(mine.loc[last, "seed"].unique())
    untested = records.clients.loc[records.clients["test"] == 0, "client"]
    left_out = [*untested, *undefined_for(records)]
    if left_out:
        kept &= ~mine["client"].isin(left_out)
    return mine[kept]


def seed_means(runs: pd.DataFrame, column: str) -> pd.DataFrame:
    """Means over clients by round and seed, NaN if not finite.

    Rounds without an evaluation are left out.
    """
    values = runs.astype({column: float}).groupby(["round", "seed"])[column]
    means = values.agg(lambda some: some.mean(skipna=False)).unstack("seed")
    return means.replace([np.inf, -np.inf], np.nan).dropna(how="all")


@cached
def mean_scores(records: Records, label: str) -> pd.Series:
    """The mean test score over clients and seeds, by round."""
    means = seed_means(runs_of(records, label), score_of(records).column)
    return means.mean(axis=1, skipna=False)


@cached
def final_scores(records: Records, label: str) -> pd.DataFrame:
    """Test scores at the last round: one row per seed, one column per client."""
    runs = runs_of(records, label)
    last = runs[runs["round"] == runs["round"].max()]
    table = last.set_index(["seed", "client"])[score_of(records).column]
    return table.unstack("client").astype(float)


def difference_of(
    records: Records,
    label: str,
    over: str,
    scores: Callable[[Records, str], _Scores],
) -> _Scores:
    """How much better one algorithm's scores are than another's, for seeds of both.

    A positive entry is better, also for scores where lower is better. Differences below
    a millionth of the score are rounding errors and become 0.
    """
    ours, theirs = scores(records, label), scores(records, over)
    both = ours.index.intersection(theirs.index)
    ours, theirs = ours.loc[both], theirs.loc[both]
    if isinstance(ours, pd.DataFrame) and isinstance(theirs, pd.DataFrame):
        # An algorithm without a seed may lack clients that trained with that seed only.
        clients = ours.columns.intersection(theirs.columns)
        ours, theirs = ours[clients], theirs[clients]
    return without_rounding(score_of(records).sign * (ours - theirs), theirs)


def without_rounding(gains: _Scores, scores: _Scores) -> _Scores:
    """The differences, with 0 for those that are rounding errors of the scores."""
    return gains.mask(gains.abs() <= ROUNDING * scores.abs(), 0.0)


def newcomer_labels(records: Records) -> list[str]:
    """The algorithms that newcomers have joined, in the order of the study."""
    if records.newcomers.empty:
        return []
    there = set(records.newcomers["algorithm"])
    return [label for label in labels_of(records) if label in there]


def newcomer_scores(records: Records, label: str) -> pd.Series:
    """Test scores of newcomers, by seed and client."""
    table, column = records.newcomers, score_of(records).column
    mine = table[table["algorithm"] == label]
    if may_be_undefined(records.score):
        values = table.groupby(["seed", "client"])[column].transform("count")
        mine = mine[values.loc[mine.index] > 0]
    return mine.set_index(["seed", "client"])[column].astype(float)


def newcomer_gains(records: Records, label: str) -> pd.Series:
    """How much better newcomers are than alone, by seed (of both) and client."""
    return difference_of(records, label, require_local(records), newcomer_scores)


def mean_over_seeds(records: Records, table: pd.DataFrame) -> pd.Series:
    """Each client's mean over the seeds (rows of the table) with which it trained.

    A seed that held the client out as a newcomer has no value, and is skipped. Any
    other NaN is kept.
    """
    return _mean_of_trained(records, table, axis=0)


def mean_over_clients(records: Records, table: pd.DataFrame) -> pd.Series:
    """Each seed's mean over the clients that trained (see `mean_over_seeds`)."""
    return _mean_of_trained(records, table, axis=1)


def _mean_of_trained(
    records: Records, table: pd.DataFrame, axis: Literal[0, 1]
) -> pd.Series:
    unknown = table.isna()
    if not unknown.to_numpy().any():
        return table.mean(axis=axis)
    sizes = records.clients.pivot(index="seed", columns="client", values="train")
    trained = sizes.reindex(index=table.index, columns=table.columns).notna()
    return table.mean(axis=axis).mask((unknown & trained).any(axis=axis))


def cluster_means(records: Records, values: pd.Series) -> pd.Series:
    """The mean over each cluster's tested clients, in the order of the clusters."""
    table = sort_by_cluster(population(records)).set_index("client")["cluster"]
    means = {
        # Unlike a group's mean, this one does not skip NaN.
        cluster: values.loc[values.index.isin(members.index)].mean(skipna=False)
        for cluster, members in table.groupby(table, sort=False)
    }
    return pd.Series(means, dtype=float)


def worst_decile(values: pd.Series, sign: int) -> float:
    """The mean of the worst ceil(N / 10) values. `sign` is 1 if higher is better."""
    if values.isna().any() or values.empty:
        return float("nan")
    ranked = np.sort(sign * values.to_numpy())
    return float(sign * ranked[: -(-len(ranked) // 10)].mean())
