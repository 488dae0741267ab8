"""Records of studies that were never run, and their pages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import pytest

from coterie import report
from coterie.models import OBJECTIVES
from coterie.records import Outcomes, Records, Snapshots

ALGORITHMS = ("local", "fedavg", "ditto")


def make_records(
    *,
    n: int = 12,
    clusters: int = 2,
    labels: tuple[str, ...] = ALGORITHMS,
    seeds: int = 3,
    rounds: int = 4,
    task: str = "classification",
    weights: bool = True,
    spread: float = 0.05,
) -> Records:
    rng = np.random.default_rng(7)
    client = np.arange(n)
    cluster = client % clusters if clusters else np.full(n, -1)
    # Clients of a bad cluster for averaging lose with the later algorithms.
    level = 0.6 + 0.1 * rng.random(n)
    sizes = rng.integers(20, 80, n)
    metrics, costs, matrices = [], [], {}
    for a, label in enumerate(labels):
        shift = 0.05 * a * np.where(cluster == 0, 1, -0.5)
        for seed in range(seeds):
            for t in range(rounds + 1):
                progress = 1 - 0.6**t
                noise = spread * rng.standard_normal(n)
                score = np.clip((level + shift) * progress + noise, 0, 1)
                table = {"algorithm": label, "seed": seed, "round": t, "client": client}
                table |= {"test_loss": 2 - 1.5 * score, "train_loss": 1.9 - 1.5 * score}
                if task != "regression":
                    table["test_accuracy"] = score
                metrics.append({k: np.broadcast_to(v, n) for k, v in table.items()})
                cost = {"algorithm": label, "seed": seed, "round": t}
                cost |= {"gradients": 160 * n * t, "bytes": 4000 * a * n * t}
                costs.append(cost | {"seconds": 0.1 * t})
            if weights:
                kept = (cluster[:, None] == cluster) | (a < 2)
                start = np.full((n, n), 1 / n)
                end = kept / kept.sum(1, keepdims=True)
                end = np.eye(n) if label == "local" else end
                steps = np.linspace(0, 1, 5)[:, None, None]
                matrix = (1 - steps) * start + steps * end
                when = np.linspace(0, rounds, 5).astype(int)
                matrices[label, seed] = Snapshots(when, matrix)
    study = {
        "name": "A study",
        "data": {"name": "digits", "note": "Handwritten digits, bundled."},
        "split": {"name": "clusters", "clients": n},
        "model": {"name": "mlp", "hidden": [32]},
        "run": {"rounds": rounds, "seeds": list(range(seeds)), "device": None},
        "algorithm": [{"name": x, "label": x, "lr": 0.1} for x in labels],
    }
    clients = pd.DataFrame({"client": client, "cluster": cluster, "train": sizes})
    clients["validation"], clients["test"] = sizes // 4, sizes // 3
    clients = pd.concat([clients.assign(seed=s) for s in range(seeds)])
    return Records(
        study=study,
        versions={"coterie": "0.1.0", "torch": "2.6"},
        task=task,
        score=OBJECTIVES[task].score,
        higher_is_better=OBJECTIVES[task].higher_is_better,
        clients=clients.reset_index(drop=True),
        metrics=pd.DataFrame(
            {k: np.concatenate([table[k] for table in metrics]) for k in metrics[0]}
        ),
        rounds=pd.DataFrame(costs),
        weights=matrices,
    )


def right_samples(*more: int, samples: int, clients: int = 4) -> np.ndarray:
    """So many more, or fewer, of each client's samples are right than half of them."""
    right, half = np.zeros((3, clients, samples)), samples // 2
    right[..., :half] = 1
    for client, count in enumerate(more):
        right[:, client, half : half + max(0, count)] = 1
        right[:, client, : max(0, -count)] = 0
    return right


def with_outcomes(
    records: Records, measured: dict[str, np.ndarray], *, shared: bool = True
) -> Records:
    """The records with these outcomes (seeds, clients, samples) of each algorithm.

    Final scores become their means. Seeds have the same test samples, or each its own.
    """
    metrics, outcomes = records.metrics.copy(), {}
    last = metrics["round"] == metrics["round"].max()
    name = records.score
    for label, values in measured.items():
        seeds, clients, samples = values.shape
        kind = np.uint8 if np.isin(values, (0, 1)).all() else np.float32
        for seed in range(seeds):
            mine = last & (metrics["algorithm"] == label) & (metrics["seed"] == seed)
            metrics.loc[mine, f"test_{name}"] = values[seed].mean(1)
            sample = np.arange(clients * samples)
            outcomes[label, seed] = Outcomes(
                np.arange(clients).repeat(samples),
                sample if shared else sample + seed * clients * samples,
                {name: values[seed].ravel().astype(kind)},
            )
    return replace(records, metrics=metrics, outcomes=outcomes)


def with_baselines(records: Records, measured: dict[str, np.ndarray]) -> Records:
    """The records with these outcomes (seeds, clients, samples) of baselines.

    Methods have outcomes of the same samples.
    """
    tables, outcomes = [], {}
    for label, values in measured.items():
        seeds, clients, samples = values.shape
        kind = np.uint8 if np.isin(values, (0, 1)).all() else np.float32
        for seed in range(seeds):
            table = {"algorithm": label, "seed": seed, "round": 0}
            table |= {"client": np.arange(clients)}
            table[f"test_{records.score}"] = values[seed].mean(1)
            tables.append(pd.DataFrame(table))
            outcomes[label, seed] = Outcomes(
                np.arange(clients).repeat(samples),
                np.arange(clients * samples),
                {records.score: values[seed].ravel().astype(kind)},
            )
    found = pd.concat(tables, ignore_index=True)
    return replace(records, baselines=found, baseline_outcomes=outcomes)


def make_timed(
    *,
    durations: Sequence[float] = (1.0,) * 11 + (4.0,),
    waiting: tuple[str, ...] = ("fedavg", "ditto"),
    period: float = 4.0,
    most: int = 5000,
    **options: Any,
) -> Records:
    """Records of a study on a virtual clock: client i always takes durations[i].

    Clients of `waiting` algorithms begin together, when the slowest of them is done;
    others never wait. Delays are those of all but `local`, whose clients share nothing.
    """
    records = make_records(n=len(durations), **options)
    study = records.study | {"time": {"period": period, "law": "constant(1)"}}
    end = records.study["run"]["rounds"] * period
    tables: dict[str, list[pd.DataFrame]] = {"delays": [], "spans": [], "work": []}
    updates = {}
    for label, seed in records.metrics.groupby(["algorithm", "seed"]).groups:
        waits = max(durations) if label in waiting else 0.0
        # Where nobody waits, a task begins exactly when the one before it ends.
        tasks = [
            (k * waits, i, k * waits + seconds)
            if waits
            else (k * seconds, i, (k + 1) * seconds)
            for i, seconds in enumerate(durations)
            for k in range(math.ceil(end / max(seconds, waits)))
        ]
        spans = pd.DataFrame(sorted(tasks), columns=["begin", "client", "end"])
        groups = spans.assign(end=spans["end"].clip(upper=end)).groupby("client")
        busy = groups["end"].sum() - groups["begin"].sum()
        work = pd.DataFrame({"busy": busy, "idle": end - busy}).reset_index()
        # What waits arrives together, when a round ends, and is recorded then.
        spans["arrived"] = spans["begin"] + waits if waits else spans["end"]
        done = spans[spans["arrived"] <= end].sort_values(["end", "client"])
        work["tasks"] = done.groupby("client").size().reindex(work.index, fill_value=0)
        kept = (done.sort_index() if waits else spans)[["client", "begin", "end"]]
        found: dict[str, pd.DataFrame] = {"spans": kept[:most], "work": work}
        if not waits and label != "local":
            ended = np.searchsorted(done["end"], done["begin"], side="right")
            late = Counter((np.arange(1, len(done) + 1) - ended).tolist())
            columns = {"delay": list(late), "count": list(late.values())}
            found["delays"] = pd.DataFrame(columns)
        for name, table in found.items():
            tables[name].append(table.assign(algorithm=label, seed=seed))
        updates[label, seed] = done["arrived"].to_numpy()
    rounds = records.rounds.assign(time=period * records.rounds["round"])
    rounds["updates"] = [
        int((updates[row.algorithm, row.seed] <= row.time).sum())
        for row in rounds.itertuples()
    ]
    joined = {
        name: pd.concat(some, ignore_index=True) if some else pd.DataFrame()
        for name, some in tables.items()
    }
    return replace(records, study=study, rounds=rounds, **joined)


def written(records: Records, folder: Path) -> str:
    """The page without plotly.js, which names addresses that it does not fetch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.report.pages.get_plotlyjs", lambda: "plotly")
        path = report.write_report(records, folder / "report.html")
    return path.read_text("utf-8")


@cache
def usual_page() -> str:
    """The page of the usual records."""
    with TemporaryDirectory() as folder:
        return written(make_records(), Path(folder))


class Fetches(HTMLParser):
    """Everything that a browser would load or follow by itself."""

    def __init__(self) -> None:
        HTMLParser.__init__(self)
        self.found: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.found += [v or "" for k, v in attrs if k in ("src", "href", "srcset")]


def tags_of(page: str) -> list[str]:
    """The tags of a page, one after the other."""
    parser = Fetches()
    parser.feed(page)
    return parser.tags


def make_trials(values: dict[str, dict[str, list[Any]]]) -> Records:
    """Records of searches: the values of each option that every algorithm tried."""
    records = make_records(labels=tuple(values), seeds=1, weights=False)
    tables = []
    for label, options in values.items():
        count = max(len(tried) for tried in options.values())
        table = pd.DataFrame(options).assign(algorithm=label, seed=0, rounds=4, spent=4)
        table["trial"], table["score"] = range(count), np.linspace(0.5, 0.6, count)
        table["chosen"] = table["trial"] == count - 1
        table["status"] = np.where(table["chosen"], "chosen", "finished")
        tables.append(table)
    entries = [
        {"name": label, "tune": {option: list(v) for option, v in options.items()}}
        for label, options in values.items()
    ]
    tune = {"trials": 8, "search": "grid", "halving": 1, "folds": 0, "rounds": 0}
    study = records.study | {"algorithm": entries, "tune": tune}
    found = pd.concat(tables, ignore_index=True)
    return replace(records, study=study, trials=found)
