"""Numbers of a study, each computed from its records alone.

Everywhere, "final" means the last recorded round, never the best one, and only seeds
that got as far as the furthest seed of the same algorithm are used. Clients without
test samples are left out. A score that is not a number stays one: it is never skipped.
With [time], rounds are ticks of a virtual clock, see `courses`.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd

from ..checks import InputError
from ..models.objectives import TASKS
from ..records import Records
from .axes import course_of

CROWD = 200
"""Above this number of clients, figures show groups in place of single clients."""

_ROUNDING = 1e-6
"""Differences to training alone below this share of its score count as none."""


class Score(NamedTuple):
    """The measure by which a task compares models, and how it is written."""

    column: str  # of Records.metrics
    words: str
    sign: int  # 1 where higher is better, -1 where lower is
    unit: float  # what a difference is multiplied by before it is shown
    gain: str  # what a positive difference means, with its unit
    ticks: str  # d3 format of an axis

    def show(self, value: float) -> str:
        """The value as text."""
        if not np.isfinite(value):
            return "not finite"
        return f"{100 * value:.1f} %" if self.ticks else f"{value:.4g}"

    def show_gain(self, value: float) -> str:
        """A difference as text."""
        if not np.isfinite(value):
            return "not finite"
        text = f"{self.unit * value:+.1f}" if self.ticks else f"{value:+.3g}"
        return text + (" points" if self.ticks else "")


def score_of(records: Records) -> Score:
    """How the study's task is scored."""
    task = TASKS[records.task]
    words, column = f"test {task.score}", f"test_{task.score}"
    if column not in records.metrics:
        raise InputError(f"the records have no column {column!r}.")
    if task.score == "accuracy":
        gain = "gain (percentage points)"
        return Score(column, words, 1, 100.0, gain, "~%")
    if task.higher_is_better:
        return Score(column, words, 1, 1.0, f"gain in {words}", "")
    return Score(column, words, -1, 1.0, f"reduction of {words}", "")


def labels_of(records: Records) -> list[str]:
    """The algorithms that have results, in the order of the study."""
    there = [str(label) for label in records.metrics["algorithm"].unique()]
    planned = [name for name, _ in planned_algorithms(records)]
    return [a for a in planned if a in there] + [a for a in there if a not in planned]


def planned_algorithms(records: Records) -> list[tuple[str, str]]:
    """Label and name of every algorithm that the study asks for."""
    entries = records.study.get("algorithm", [])
    return [(str(e.get("label", e["name"])), str(e["name"])) for e in entries]


def baseline_of(records: Records) -> str | None:
    """The label of training alone, or None if the study has no results of it."""
    there = labels_of(records)
    planned = planned_algorithms(records)
    return next((a for a, name in planned if name == "local" and a in there), None)


def population(records: Records) -> pd.DataFrame:
    """One row per client, over seeds: sizes are means, a cluster that varies is -1.

    A client is `tested` if it has test samples in every seed.
    """
    groups = records.clients.groupby("client")
    table = groups[["train", "validation", "test"]].mean()
    steady = groups["cluster"].nunique() == 1
    table["cluster"] = groups["cluster"].first().where(steady, -1)
    table["tested"] = groups["test"].min() > 0
    return table.reset_index()


def by_cluster(clients: pd.DataFrame) -> pd.DataFrame:
    """The clients by true cluster, those of unknown cluster last."""
    unknown = clients["cluster"] < 0
    order = np.lexsort((clients["client"], clients["cluster"], unknown))
    return clients.iloc[order].reset_index(drop=True)


def cluster_name(cluster: int) -> str:
    """What a cluster is called."""
    return f"cluster {cluster}" if cluster >= 0 else "cluster unknown"


def is_crowd(records: Records) -> bool:
    """Whether there are too many clients to show each."""
    return records.clients["client"].nunique() > CROWD


def runs_of(records: Records, label: str) -> pd.DataFrame:
    """Metrics of the seeds that got as far as any seed of this algorithm."""
    mine = records.metrics[records.metrics["algorithm"] == label]
    reached = mine.groupby("seed")["round"].transform("max")
    table = population(records)
    tested = table.loc[table["tested"], "client"]
    return mine[(reached == mine["round"].max()) & mine["client"].isin(tested)]


def seed_means(runs: pd.DataFrame, column: str) -> pd.DataFrame:
    """Means over clients of some runs, by round and seed; NaN where not finite.

    Rounds in which nothing was evaluated are left out.
    """
    values = runs.astype({column: float}).groupby(["round", "seed"])[column]
    means = values.agg(lambda some: some.mean(skipna=False)).unstack("seed")
    return means.replace([np.inf, -np.inf], np.nan).dropna(how="all")


def final_scores(records: Records, label: str) -> pd.DataFrame:
    """Test scores at the last round: one row per seed, one column per client."""
    runs = runs_of(records, label)
    last = runs[runs["round"] == runs["round"].max()]
    table = last.set_index(["seed", "client"])[score_of(records).column]
    return table.unstack("client").astype(float)


def final_gains(records: Records, label: str) -> pd.DataFrame:
    """How much better than training alone, by seed (those of both) and client.

    A positive entry is better, whichever way the score points; differences below a
    millionth of the score are rounding and count as none.
    """
    local = baseline_of(records)
    if local is None:
        raise InputError("the study has no results of an algorithm named 'local'.")
    ours, alone = final_scores(records, label), final_scores(records, local)
    seeds = ours.index.intersection(alone.index)
    ours, alone = ours.loc[seeds], alone.loc[seeds]
    gains = score_of(records).sign * (ours - alone)
    return gains.mask(gains.abs() <= _ROUNDING * alone.abs(), 0.0)


def over_seeds(records: Records, table: pd.DataFrame) -> pd.Series:
    """Each client's mean over the seeds with which it trained.

    Args:
        records: of the study.
        table: one row per seed, one column per client; where a client was held out as a
            newcomer there is no value, which is not the same as one that is no number.
    """
    return _mean_of_trained(records, table, axis=0)


def over_clients(records: Records, table: pd.DataFrame) -> pd.Series:
    """Each seed's mean over the clients that trained; see `over_seeds`."""
    return _mean_of_trained(records, table, axis=1)


def _mean_of_trained(
    records: Records, table: pd.DataFrame, axis: Literal[0, 1]
) -> pd.Series:
    sizes = records.clients.pivot(index="seed", columns="client", values="train")
    trained = sizes.reindex(index=table.index, columns=table.columns).notna()
    return table.mean(axis=axis).mask((table.isna() & trained).any(axis=axis))


def count_gains(mean: pd.Series) -> tuple[int, int, int]:
    """How many clients gain, lose and stay equal, by their mean over seeds."""
    return int((mean > 0).sum()), int((mean < 0).sum()), int((mean == 0).sum())


def cluster_means(records: Records, values: pd.Series) -> pd.Series:
    """The mean over each cluster's tested clients, in the order of the clusters."""
    table = by_cluster(population(records)).set_index("client")["cluster"]
    means = {
        # Unlike a group's mean, this one does not skip what is not a number.
        cluster: values.loc[values.index.isin(members.index)].mean(skipna=False)
        for cluster, members in table.groupby(table, sort=False)
    }
    return pd.Series(means, dtype=float)


def worst_decile(values: pd.Series, sign: int) -> float:
    """The mean of the worst ceil(N / 10) values; sign is 1 where higher is better."""
    if values.isna().any() or values.empty:
        return float("nan")
    ranked = np.sort(sign * values.to_numpy())
    return float(sign * ranked[: -(-len(ranked) // 10)].mean())


def partner_counts(records: Records) -> pd.DataFrame:
    """How many others a client uses, by algorithm and round, over clients and seeds.

    Columns `all`, `inside`, `outside`: contributors k != i with a positive weight, and
    those of the same and of another true cluster (NaN where no cluster is known).
    """
    rows = []
    for (label, seed), snapshots in records.weights.items():
        clients = records.clients[records.clients["seed"] == seed]
        cluster = clients.sort_values("client")["cluster"].to_numpy()
        known = cluster >= 0
        same = (cluster[:, None] == cluster[None, :]) & known[:, None]
        for t, matrix in zip(snapshots.rounds, snapshots.matrices, strict=True):
            used = (np.asarray(matrix) > 0) & ~np.eye(len(cluster), dtype=bool)
            row = {"algorithm": label, "round": int(t), "all": used.sum(1).mean()}
            inside, outside = (used & same)[known], (used & ~same)[known]
            row["inside"] = inside.sum(1).mean() if known.any() else np.nan
            row["outside"] = outside.sum(1).mean() if known.any() else np.nan
            rows.append(row)
    columns = ["algorithm", "round", "all", "inside", "outside"]
    table = pd.DataFrame(rows, columns=columns)
    return table.groupby(["algorithm", "round"], sort=True).mean().reset_index()


def lead_of(records: Records, first: str, second: str) -> pd.Series:
    """By how much the first beats the second in mean score, by seed that both have."""
    ours = over_clients(records, final_scores(records, first))
    theirs = over_clients(records, final_scores(records, second))
    return (score_of(records).sign * (ours - theirs)).dropna()


def summary(records: Records) -> pd.DataFrame:
    """One row per algorithm: test scores at the last round, and what they cost.

    Clients count by their mean over seeds, save for `standard_error`, which is that of
    the mean over clients and comes from its spread over seeds (NaN with one seed).
    `weighted_mean` weighs clients by training samples; `worst_decile` is the mean of
    the worst ceil(N / 10) clients; `better_than_local` is the share of clients strictly
    better than `local` (NaN without it); `gradients` and `bytes` are totals over
    clients, means over seeds. With [time], `updates` counts the answers of clients that
    arrived until the virtual `time` of the end, in seconds.
    """
    local, rows = baseline_of(records), {}
    sizes = records.clients.set_index(["seed", "client"])["train"].unstack("client")
    sign = score_of(records).sign
    for label in labels_of(records):
        scores = final_scores(records, label)
        values = over_seeds(records, scores)
        weights = sizes.loc[scores.index, scores.columns]
        weights = weights.div(weights.sum(axis=1), axis=0)
        row = {"mean": float(values.mean(skipna=False))}
        row["standard_error"] = standard_error(over_clients(records, scores))
        shares = (scores * weights).where(weights.notna(), 0.0)
        weighted = shares.sum(axis=1, skipna=False)
        row["weighted_mean"] = float(weighted.mean(skipna=False))
        row["worst_client"] = float(sign * (sign * values).min(skipna=False))
        row["worst_decile"] = worst_decile(values, sign)
        row["better_than_local"] = np.nan
        if local is not None and label != local:
            gained = final_gains(records, label)
            more, _, _ = count_gains(over_seeds(records, gained))
            row["better_than_local"] = more / len(values) if len(gained) else np.nan
        row |= costs_of(records, label)
        row["round"] = runs_of(records, label)["round"].max()
        row["seeds"] = len(scores)
        rows[label] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("algorithm")


def newcomer_scores(records: Records, label: str) -> pd.Series:
    """Test scores of those held out of training, by seed and client."""
    mine = records.newcomers[records.newcomers["algorithm"] == label]
    return mine.set_index(["seed", "client"])[score_of(records).column].astype(float)


def newcomer_gains(records: Records, label: str) -> pd.Series:
    """How much better than alone newcomers are, by seed (those of both) and client."""
    local = baseline_of(records)
    if local is None:
        raise InputError("the study has no results of an algorithm named 'local'.")
    ours, alone = newcomer_scores(records, label), newcomer_scores(records, local)
    both = ours.index.intersection(alone.index)
    alone = alone.loc[both]
    gains = score_of(records).sign * (ours.loc[both] - alone)
    return gains.mask(gains.abs() <= _ROUNDING * alone.abs(), 0.0)


def newcomer_labels(records: Records) -> list[str]:
    """The algorithms that newcomers have joined, in the order of the study."""
    if records.newcomers.empty:
        return []
    there = set(records.newcomers["algorithm"])
    return [label for label in labels_of(records) if label in there]


def newcomer_summary(records: Records) -> pd.DataFrame:
    """One row per algorithm: test scores of the clients that were held out.

    Other clients are held out with every seed, so each client of each seed counts once;
    `standard_error` is that of the mean and comes from its spread over seeds (NaN with
    one). `worst` is the worst newcomer of any seed; `better_than_local` is the share of
    newcomers strictly better than those that trained alone (NaN without `local`).

    Raises:
        InputError: when no client was held out, or no algorithm has ended.
    """
    labels, local, rows = newcomer_labels(records), baseline_of(records), {}
    if not labels:
        raise InputError(
            "the records have no newcomers: `run.newcomers` holds clients out, who "
            "join when an algorithm has ended."
        )
    sign = score_of(records).sign
    for label in labels:
        scores = newcomer_scores(records, label)
        by_seed = scores.groupby("seed").agg(lambda v: v.mean(skipna=False))
        row = {"mean": float(by_seed.mean(skipna=False))}
        row["standard_error"] = standard_error(by_seed)
        row["worst"] = float(sign * (sign * scores).min(skipna=False))
        row["better_than_local"] = np.nan
        if local in labels and label != local:
            gained = newcomer_gains(records, label)
            row["better_than_local"] = (gained > 0).mean() if len(gained) else np.nan
        row |= {"newcomers": len(scores), "seeds": len(by_seed)}
        rows[label] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("algorithm")


def standard_error(values: pd.Series) -> float:
    """Of the mean of the values; not known from a single one."""
    if len(values) < 2:
        return float("nan")
    return float(np.std(values.to_numpy(), ddof=1)) / len(values) ** 0.5


def costs_of(records: Records, label: str) -> dict[str, float]:
    """Counters at the last round, mean over the seeds that are used.

    Those of [time] are there where they were recorded.
    """
    runs = runs_of(records, label)
    mine = records.rounds[records.rounds["algorithm"] == label]
    used = mine["seed"].isin(runs["seed"].unique())
    mine = mine[used & (mine["round"] <= runs["round"].max())]
    last = mine.sort_values("round").groupby("seed").last()
    timed = [name for name in ("updates", "time") if name in last]
    return {
        name: float(last[name].mean()) if name in last else np.nan
        for name in ("gradients", "bytes", *timed)
    }


def at_equal_cost(records: Records, cost: str) -> tuple[float, pd.Series]:
    """The largest cost that every algorithm paid, and mean test scores at that cost.

    Each algorithm counts with its last evaluation before it had spent more, seed by
    seed. Algorithms that pay nothing (training alone sends no bytes) set no limit.

    Args:
        records: of a study.
        cost: `gradients`, `bytes` or `updates`, a column of `records.rounds`.
    """
    finals = {label: costs_of(records, label)[cost] for label in labels_of(records)}
    paid = [value for value in finals.values() if value > 0]
    if not paid:
        return 0.0, pd.Series(dtype=float)
    budget, column = min(paid), score_of(records).column
    means = {}
    for label in finals:
        runs = runs_of(records, label)
        spent = records.rounds[records.rounds["algorithm"] == label]
        # Costs of seeds differ a little where sizes do: equal up to a thousandth.
        within = spent[spent[cost] <= 1.001 * budget]
        last = within.groupby("seed")["round"].max()
        at = runs[runs["round"] == runs["seed"].map(last)]
        by_seed = at.groupby("seed")[column].agg(lambda v: v.mean(skipna=False))
        means[label] = by_seed.mean(skipna=False)
    return budget, pd.Series(means, dtype=float)


def ranking(column: pd.Series, sign: int) -> list[tuple[str, float]]:
    """Labels and values that are numbers, the best last."""
    pairs = [(str(label), float(v)) for label, v in column.items() if np.isfinite(v)]
    return sorted(pairs, key=lambda pair: sign * pair[1])


def favourite_of(records: Records) -> str:
    """The algorithm to look at first, other than training alone.

    It is the one with the best mean validation score at the last round (test data
    choose nothing), or the last listed where no validation score is a number.

    Raises:
        InputError: when there is only training alone.
    """
    local = baseline_of(records)
    others = [label for label in labels_of(records) if label != local]
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
        means[label] = last[column].mean(skipna=False)
    ranked = ranking(pd.Series(means, dtype=float), score.sign)
    return ranked[-1][0] if ranked else others[-1]


def searched(records: Records) -> dict[str, dict[str, Any]]:
    """What was searched for each algorithm: a list or a range for every option."""
    entries = records.study.get("algorithm", [])
    return {str(e.get("label", e["name"])): e.get("tune", {}) for e in entries}


def chosen(records: Records) -> pd.DataFrame:
    """The options that validation data chose, one row for each algorithm and seed.

    Raises:
        InputError: when no search has ended.
    """
    table = records.trials
    if table.empty or not table["chosen"].any():
        raise InputError(
            "the records have no choice: [tune] searches options until one is best."
        )
    table = table[table["status"] == "chosen"].set_index(["algorithm", "seed"])
    return table[tuned_options(records)]


def tuned_options(records: Records) -> list[str]:
    """The options that any algorithm has tried values of."""
    names = {key for space in searched(records).values() for key in space}
    return [name for name in records.trials if name in names]


def last_trials(records: Records) -> pd.DataFrame:
    """Every setting that could be trained, one row each, as far as it came.

    Algorithms count that have results.
    """
    if records.trials.empty:
        return records.trials
    table = records.trials.sort_values("rounds", kind="stable")
    table = table.drop_duplicates(["algorithm", "seed", "trial"], keep="last")
    shown = np.isfinite(table["score"]) & table["algorithm"].isin(labels_of(records))
    # Of a figure's marks the first stands in the legend: that of a whole training.
    return table[shown].sort_values("status", ascending=False, kind="stable")


def setting_text(setting: pd.Series) -> str:
    """The options of a setting and their values in one line."""
    return ", ".join(f"{key} = {value_text(v)}" for key, v in setting.dropna().items())


def value_text(value: object) -> str:
    """A value as people write it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def shortfalls(records: Records) -> tuple[int, list[str]]:
    """The round that all runs should reach, and what is missing of those that do not.

    A run of the study that left nothing is missing too.
    """
    course = course_of(records)
    reached = records.metrics.groupby(["algorithm", "seed"])["round"].max()
    seeds = set(records.metrics["seed"])
    run = records.study.get("run", {})
    if isinstance(run.get("seeds"), list):
        seeds |= set(run["seeds"])
    rounds = run.get("rounds")
    goal = max(int(reached.max()), rounds if isinstance(rounds, int) else 0)
    labels = dict.fromkeys([a for a, _ in planned_algorithms(records)])
    missing = []
    for label in [*labels, *(a for a in labels_of(records) if a not in labels)]:
        for seed in sorted(seeds):
            got = reached.get((label, seed))
            if got is None:
                missing.append(f"{label}, seed {seed}: not there")
            elif got < goal:
                missing.append(f"{label}, seed {seed}: up to {course.at(int(got))}")
    return goal, missing
