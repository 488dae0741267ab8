"""Numbers of a study, each computed from its records alone.

Everywhere, "final" means the last recorded round, never the best one, and only seeds
that got as far as the furthest seed of the same algorithm are used. Which clients count
is said in `scores`. A score that is not a number stays one: it is never skipped.
With [time], rounds are ticks of a virtual clock, see `axes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from ..checks import InputError
from ..data.federation import PARTS
from ..records import Records
from ..scores.axes import axis_of
from ..scores.caching import cached
from ..scores.failures import failures
from ..scores.finals import (
    final_scores,
    labels_of,
    local_label,
    mean_over_seeds,
    newcomer_gains,
    newcomer_labels,
    newcomer_scores,
    planned_algorithms,
    population,
    runs_of,
    score_of,
    sort_by_cluster,
)
from ..scores.gains import gain_of, newcomers_estimate
from ..scores.summaries import costs_of
from ..types import ALONE, EVERYBODY

_GAIN = ("gain", "gain_low", "gain_high")


@cached
def partner_counts(records: Records) -> pd.DataFrame:
    """How many others a client uses, by algorithm and round, over clients and seeds.

    Columns `all`, `inside`, `outside`: contributors k != i with a positive weight, and
    those of the same and of another true cluster (NaN where no cluster is known).
    """
    rows = []
    for label, seed in {**records.weights, **records.groups}:
        clients = records.clients[records.clients["seed"] == seed]
        cluster = clients.sort_values("client")["cluster"].to_numpy()
        known = cluster >= 0
        for t, everybody, same in _partners(records, (label, seed), cluster):
            row = {"algorithm": label, "round": t, "all": everybody.mean()}
            inside, outside = same[known], (everybody - same)[known]
            row["inside"] = inside.mean() if known.any() else np.nan
            row["outside"] = outside.mean() if known.any() else np.nan
            rows.append(row)
    columns = ["algorithm", "round", "all", "inside", "outside"]
    table = pd.DataFrame(rows, columns=columns)
    return table.groupby(["algorithm", "round"], sort=True).mean().reset_index()


def _partners(
    records: Records, key: tuple[str, int], cluster: np.ndarray
) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """Of each record its round, and partners of each client: all, and in its cluster.

    Groups are counted by their labels, which takes no matrix.
    """
    if key in records.weights:
        same = cluster[:, None] == cluster
        snapshots = records.weights[key]
        for t, matrix in zip(snapshots.rounds, snapshots.matrices, strict=True):
            used = (np.asarray(matrix) > 0) & ~np.eye(len(cluster), dtype=bool)
            yield int(t), used.sum(1), (used & same).sum(1)
        return
    found = records.groups[key]
    for t, member, uses in zip(found.rounds, found.member, found.uses, strict=True):
        everybody = _users(member, uses, 0 * cluster)
        yield int(t), everybody, _users(member, uses, cluster)


def _users(member: np.ndarray, uses: np.ndarray, kind: np.ndarray) -> np.ndarray:
    """How many others of its own kind have a part in the model that each client uses.

    Args:
        member: the group that a client trains with, or ALONE.
        uses: whose model it uses.
        kind: whole numbers.
    """
    kind = np.unique(kind, return_inverse=True)[1]
    group = np.arange(int(max(member.max(), uses.max(), 0)) + 1)
    sizes = np.zeros((len(group), int(kind.max()) + 1), dtype=int)
    inside = member >= 0
    np.add.at(sizes, (member[inside], kind[inside]), 1)
    of_group = sizes[uses.clip(min=0), kind] - (member == uses)
    everybody = np.bincount(kind)[kind] - 1
    found = np.where(uses == EVERYBODY, everybody, of_group)
    return np.where(uses == ALONE, 0, found)


def newcomer_summary(records: Records) -> pd.DataFrame:
    """One row per algorithm: test scores of the clients that were held out.

    Other clients are held out with every seed, so each client of each seed counts once;
    `standard_error` is that of the mean and counts seeds, who was held out with them,
    and test samples (`scores.intervals`). `worst` is the worst newcomer of any seed;
    `better_than_local` is the share of newcomers strictly better than those that
    trained alone, `gain` how much they are better on average, and `gain_low` and
    `gain_high` the ends of its 95 per cent interval (NaN without `local`). `samples`
    are the test samples that are counted; 0 means that seeds alone are.

    Raises:
        InputError: when no client was held out, or no algorithm has ended.
    """
    labels, local, rows = newcomer_labels(records), local_label(records), {}
    if not labels:
        raise InputError(
            "the records have no newcomers: `run.newcomers` holds clients out, who "
            "join when an algorithm has ended."
        )
    sign = score_of(records).sign
    for label in labels:
        scores = newcomer_scores(records, label)
        by_seed = scores.groupby("seed").agg(lambda v: v.mean(skipna=False))
        found, samples = newcomers_estimate(records, label)
        row = {"mean": float(by_seed.mean(skipna=False))}
        row["standard_error"] = float(found.error)
        row["worst"] = float(sign * (sign * scores).min(skipna=False))
        row |= dict.fromkeys(("better_than_local", *_GAIN), np.nan)
        if local in labels and label != local:
            gained = newcomer_gains(records, label)
            if not {label, local} & failures(records).keys() and len(gained):
                row["better_than_local"] = (gained > 0).mean()
            found, _ = newcomers_estimate(records, label, local)
            ends = (found.mean, found.low, found.high)
            row |= zip(_GAIN, map(float, ends), strict=True)
        row |= {"newcomers": len(scores), "seeds": len(by_seed), "samples": samples}
        rows[label] = row
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("algorithm")


def client_summary(records: Records, label: str) -> pd.DataFrame:
    """One row per client, by name: its samples, and how it fares with an algorithm.

    Columns: `cluster` (-1: unknown), `train`, `validation` and `test` samples and the
    final test `score`, means over seeds; and with `local`, of the others, the `gain`
    over it with its 95 per cent interval from `low` to `high` and the `verdict`.
    """
    table = sort_by_cluster(population(records)).set_index("client")
    table = table[["cluster", *PARTS]]
    table["score"] = mean_over_seeds(records, final_scores(records, label))
    if local_label(records) not in (None, label):
        gained = gain_of(records, label).clients.rename(columns={"mean": "gain"})
        table = table.join(gained[["gain", "low", "high", "verdict"]])
    names = [records.name_of(int(client)) for client in table.index]
    return table.set_index(pd.Index(names, name="client"))


@cached
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


def search_spaces(records: Records) -> dict[str, dict[str, Any]]:
    """What was searched for each algorithm: a list or a range for every option."""
    entries = records.study.get("algorithm", [])
    return {str(e.get("label", e["name"])): e.get("tune", {}) for e in entries}


def chosen_options(records: Records) -> pd.DataFrame:
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
    names = {key for space in search_spaces(records).values() for key in space}
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
    axis = axis_of(records)
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
                missing.append(f"{label}, seed {seed}: up to {axis.at(int(got))}")
    return goal, missing


def infinite_losses(records: Records) -> list[str]:
    """For each run in which one is, the first loss that is not finite, in words."""
    losses = [f"{part}_loss" for part in PARTS if f"{part}_loss" in records.metrics]
    if np.isfinite(records.metrics[losses].to_numpy()).all():
        return []
    sizes = records.clients.set_index(["seed", "client"])
    axis, found = axis_of(records), []
    for (label, seed), run in records.metrics.groupby(
        ["algorithm", "seed"], sort=False
    ):
        places = pd.MultiIndex.from_frame(run[["seed", "client"]])
        for part in PARTS:
            if f"{part}_loss" not in run or part not in sizes:
                continue
            has = sizes[part].reindex(places).to_numpy() > 0
            bad = run[has & ~np.isfinite(run[f"{part}_loss"].to_numpy())]
            if len(bad):
                first = bad.sort_values("round", kind="stable").iloc[0]
                client = records.name_of(int(first["client"]))
                found.append(
                    f"{label}, seed {seed}: the {part} loss of {client} from "
                    f"{axis.at(int(first['round']))} on"
                )
                break
    return found


def measure_names(records: Records) -> list[str]:
    """The measures that were taken of test data, the score first and the loss last."""
    columns = [str(column) for column in records.metrics]
    names = [c.removeprefix("test_") for c in columns if c.startswith("test_")]
    ends = {records.score: 0, "loss": 2}
    return sorted(names, key=lambda name: ends.get(name, 1))


def measure_summary(records: Records) -> pd.DataFrame:
    """One row per algorithm, one column per measure: test data at the last round.

    Clients count by their mean over seeds; those whose samples leave a measure
    undefined are left out of its mean.
    """
    labels, columns = labels_of(records), {}
    for name in measure_names(records):
        other = replace(records, score=name)
        finals = [
            mean_over_seeds(other, final_scores(other, label)) for label in labels
        ]
        columns[name] = [float(values.mean(skipna=False)) for values in finals]
    return pd.DataFrame(columns, index=labels).rename_axis("algorithm")


def reliability_of(records: Records, label: str) -> pd.DataFrame:
    """By bin of confidence: `count` of samples, their mean `confidence`, `accuracy`.

    All test samples of all clients and seeds count alike.
    """
    mine = records.calibration[records.calibration["algorithm"] == label]
    sums = mine.groupby("bin")[["count", "confidence", "right"]].sum()
    means = sums[["confidence", "right"]].div(sums["count"], axis=0)
    means = means.rename(columns={"right": "accuracy"})
    return pd.concat([sums["count"], means], axis=1)


def confusion_of(
    records: Records, label: str, client: int | None = None
) -> pd.DataFrame:
    """How many test samples of a class (row) were taken for which one (column).

    Args:
        records: of the study.
        label: of the algorithm.
        client: whose samples; None: those of all clients. All seeds count.
    """
    table = records.confusion
    classes = range(int(table[["target", "predicted"]].to_numpy().max()) + 1)
    mine = table["algorithm"] == label
    mine &= True if client is None else table["client"] == client
    counts = table[mine].groupby(["target", "predicted"])["count"].sum()
    square = counts.unstack("predicted", fill_value=0)
    return square.reindex(index=classes, columns=classes, fill_value=0).astype(int)
