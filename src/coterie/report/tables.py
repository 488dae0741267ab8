"""Tables of a study, computed from its records alone.

`scores.finals` says what "final" means, and which seeds and clients count. With [time],
rounds are ticks of a virtual clock (see `scores.axes`).
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
    measure_names,
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
    """The mean number of partners per client, by algorithm and round.

    A partner of a client is another client with a positive weight in its model. Column
    `all` counts all partners. `inside` counts partners in the client's true cluster,
    and `outside` partners in other clusters. Both are NaN if no cluster is known.
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
    """For each snapshot its round, all partners by client, and those in its cluster.

    If a method reports groups, labels of groups suffice, and no matrix is made.
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
    """(N,) the number of others of a client's kind that add to the model that it uses.

    Args:
        member: (N,) the group that a client trains with, or ALONE.
        uses: (N,) the group whose model it uses, or ALONE or EVERYBODY.
        kind: (N,) the kind of each client, such as its cluster, as a whole number.
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
    """One row per algorithm: test scores of newcomers, who were held out of training.

    Each seed holds out its own clients, and each held-out client counts once. Columns:

    - `mean` with its `standard_error`, for new seeds, newcomers and test samples
      (`scores.intervals`). `worst` is the worst newcomer of any seed.
    - `better_than_local` is the share of newcomers that do strictly better than alone.
      `gain` is the mean gain over `local`, with its 95 % interval from `gain_low` to
      `gain_high`. All are NaN without `local`.
    - `newcomers` and `seeds` are numbers. `samples` is the number of test samples that
      count (0: only seeds count).

    Raises:
        InputError: if no client was held out, or no algorithm has ended.
    """
    labels, local, rows = newcomer_labels(records), local_label(records), {}
    if not labels:
        raise InputError(
            "the records have no newcomers. `run.newcomers` holds out clients that "
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
    """One row per client, by name: its samples, and its score with an algorithm.

    Column `cluster` is -1 if unknown. `train`, `validation` and `test` are numbers of
    samples, and `score` is the final test score, as means over seeds. With results of
    `local`, `gain` is the gain over `local` with its 95 % interval from `low` to `high`
    and its `verdict`.
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
    """The largest cost that all algorithms reached, and mean test scores at this cost.

    The cost is `gradients`, `bytes` or `updates`. For each seed, the score is from the
    last evaluation before the algorithm spent more. Algorithms without this cost do not
    count; for example, training alone sends no bytes.
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
        # Costs of seeds differ a little if sizes do, so we allow a thousandth more.
        within = spent[spent[cost] <= 1.001 * budget]
        last = within.groupby("seed")["round"].max()
        at = runs[runs["round"] == runs["seed"].map(last)]
        by_seed = at.groupby("seed")[column].agg(lambda v: v.mean(skipna=False))
        means[label] = by_seed.mean(skipna=False)
    return budget, pd.Series(means, dtype=float)


def search_spaces(records: Records) -> dict[str, dict[str, Any]]:
    """By label, what was searched: a list or a range for every option."""
    entries = records.study.get("algorithm", [])
    return {str(e.get("label", e["name"])): e.get("tune", {}) for e in entries}


def chosen_options(records: Records) -> pd.DataFrame:
    """The options that validation data chose, one row per algorithm and seed.

    Raises:
        InputError: if no search has ended.
    """
    table = records.trials
    if table.empty or not table["chosen"].any():
        raise InputError(
            "the records have no chosen options, because no search of [tune] has ended."
        )
    table = table[table["status"] == "chosen"].set_index(["algorithm", "seed"])
    return table[tuned_options(records)]


def tuned_options(records: Records) -> list[str]:
    """The options that any algorithm tried values of."""
    names = {key for space in search_spaces(records).values() for key in space}
    return [name for name in records.trials if name in names]


def last_trials(records: Records) -> pd.DataFrame:
    """The last row of every trained setting, for algorithms with results."""
    if records.trials.empty:
        return records.trials
    table = records.trials.sort_values("rounds", kind="stable")
    table = table.drop_duplicates(["algorithm", "seed", "trial"], keep="last")
    shown = np.isfinite(table["score"]) & table["algorithm"].isin(labels_of(records))
    # The first mark of a figure stands in the legend, so put whole trainings first.
    return table[shown].sort_values("status", ascending=False, kind="stable")


def setting_text(setting: pd.Series) -> str:
    """The options and values of a setting in one line."""
    return ", ".join(f"{key} = {value_text(v)}" for key, v in setting.dropna().items())


def value_text(value: object) -> str:
    """A value as text, without needless digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def shortfalls(records: Records) -> tuple[int, list[str]]:
    """The round that all runs should reach, and a text for each run that did not."""
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
    """For each run with a loss that is not finite, the first such loss, in words."""
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


def measure_summary(records: Records) -> pd.DataFrame:
    """Measures of test data at the last round: one row per algorithm.

    The value of a client is its mean over seeds. Clients whose samples leave a measure
    undefined do not count.
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

    All test samples of all clients and seeds have the same weight.
    """
    mine = records.calibration[records.calibration["algorithm"] == label]
    sums = mine.groupby("bin")[["count", "confidence", "right"]].sum()
    means = sums[["confidence", "right"]].div(sums["count"], axis=0)
    means = means.rename(columns={"right": "accuracy"})
    return pd.concat([sums["count"], means], axis=1)


def confusion_of(
    records: Records, label: str, client: int | None = None
) -> pd.DataFrame:
    """The number of test samples by true class (row) and predicted class (column).

    The counts are of the samples of one client, or of all clients, with all seeds.
    """
    table = records.confusion
    classes = range(int(table[["target", "predicted"]].to_numpy().max()) + 1)
    mine = table["algorithm"] == label
    mine &= True if client is None else table["client"] == client
    counts = table[mine].groupby(["target", "predicted"])["count"].sum()
    square = counts.unstack("predicted", fill_value=0)
    return square.reindex(index=classes, columns=classes, fill_value=0).astype(int)
