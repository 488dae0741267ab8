"""How good models are when a study gives no settings, against scikit-learn.

Each table is divided among clients, and a study names its file, the client and the
target, and nothing else. `local` is compared with scikit-learn's LogisticRegression or
RidgeCV trained alone at each client on the same training part, and `fedavg` with the
same trained on all training parts together, on each client's own test part. Points of
accuracy, or percent of the root mean squared error: positive is worse than
scikit-learn.

    python benchmarks/settings.py [--seeds 3] [--data FOLDER]

    python benchmarks/settings.py --random 100      # tables of any size and scale
    python benchmarks/settings.py --random 100 --alike      # the same, without groups
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from sklearn import datasets
from sklearn.linear_model import LogisticRegression, RidgeCV

from coterie.checks import InputError
from coterie.study import run_study, study_of
from coterie.study.setup import prepare

HOUSES = "longitude latitude age rooms bedrooms people households income value".split()
HEART = (
    "age sex pain pressure cholesterol sugar ecg rate angina oldpeak slope vessels "
    "thal disease"
).split()


class Data(NamedTuple):
    """A table of rows of several clients."""

    name: str
    frame: pd.DataFrame  # with columns "site" and "target"
    task: str
    alike: bool  # whether all clients have the same distribution


def sites(rng: np.random.Generator, rows: int, clients: int) -> list[str]:
    """Clients of different sizes, whose rows are drawn alike."""
    shares = rng.dirichlet(np.full(clients, 5.0))
    return [f"site {c}" for c in rng.choice(clients, rows, p=shares)]


def bundled(rng: np.random.Generator) -> Iterator[Data]:
    """The tables that come with scikit-learn."""
    for name, clients in {
        "iris": 5,
        "wine": 5,
        "breast_cancer": 6,
        "digits": 12,
    }.items():
        data = getattr(datasets, f"load_{name}")()
        frame = pd.DataFrame(
            data.data, columns=[f"f{j}" for j in range(data.data.shape[1])]
        )
        frame["target"] = [f"class {label}" for label in data.target]
        frame["site"] = sites(rng, len(frame), clients)
        yield Data(name, frame, "classification", alike=True)
    data = datasets.load_diabetes()
    frame = pd.DataFrame(data.data, columns=data.feature_names)
    frame["target"], frame["site"] = data.target, sites(rng, len(frame), 6)
    yield Data("diabetes", frame, "regression", alike=True)


def real(folder: Path) -> Iterator[Data]:
    """Four hospitals, and houses by district, where their files are there."""
    hospitals = sorted(folder.glob("heart_disease/processed.*.data"))
    if hospitals:
        read = [pd.read_csv(f, names=HEART, na_values="?") for f in hospitals]
        frame = pd.concat(read, keys=[f.name.split(".")[1] for f in hospitals])
        frame = frame.reset_index(0, names="site")
        frame["target"] = np.where(frame.pop("disease") > 0, "ill", "healthy")
        yield Data("heart disease", frame, "classification", alike=False)
    houses = folder / "houses" / "cal_housing.data"
    if houses.exists():
        frame = pd.read_csv(houses, names=HOUSES).sample(4000, random_state=0)
        for column in ("rooms", "bedrooms", "people"):
            frame[column] /= frame["households"]
        district = pd.qcut(
            frame["longitude"] + 0.3 * frame["latitude"], 12, labels=False
        )
        frame["site"] = [f"district {d}" for d in district]
        yield Data(
            "houses", frame.rename(columns={"value": "target"}), "regression", False
        )


def made(
    rng: np.random.Generator,
    name: str,
    task: str,
    *,
    clients: int,
    rows: tuple[int, int],
    columns: int,
    groups: int = 1,
    noise: float = 0.5,
    shape: str = "normal",
    scales: tuple[float, float] = (0.0, 0.0),
) -> Data:
    """Linear tables in groups of clients, with columns of several scales."""
    truth, frames = rng.normal(size=(groups, columns)), []
    spread = 10.0 ** rng.uniform(*scales, size=columns)
    unit = 10.0 ** rng.uniform(*scales)
    for client in range(clients):
        count = int(np.exp(rng.uniform(*np.log(rows))))
        x = rng.normal(size=(count, columns))
        x = np.exp(x) if shape == "skewed" else x
        y = x @ truth[client % groups] / np.sqrt(columns)
        y = y + noise * y.std() * rng.normal(size=count)
        frame = pd.DataFrame(x * spread, columns=[f"f{j}" for j in range(columns)])
        frame["target"] = y * unit
        if task == "classification":
            frame["target"] = np.where(y > np.median(y), "high", "low")
        frame["site"] = f"site {client}"
        frames.append(frame)
    return Data(name, pd.concat(frames, ignore_index=True), task, groups == 1)


def generated(rng: np.random.Generator) -> Iterator[Data]:
    """Tables with and without groups, narrow and wide, small and skewed."""
    for task in ("classification", "regression"):
        usual = {"clients": 8, "rows": (20, 400), "columns": 10}
        yield made(rng, "alike", task, **usual)
        yield made(rng, "groups", task, **usual | {"clients": 10}, groups=3)
        yield made(rng, "scales", task, **usual, scales=(-6, 9))
        yield made(rng, "skewed", task, **usual, shape="skewed")
        yield made(rng, "wide", task, clients=6, rows=(30, 80), columns=60)
        yield made(rng, "small", task, clients=20, rows=(12, 30), columns=5, groups=2)
        yield made(rng, "all differ", task, **usual | {"clients": 12}, groups=12)


def drawn(rng: np.random.Generator, number: int, *, alike: bool) -> Data:
    """A table of any size, shape and scale."""
    low = int(np.exp(rng.uniform(np.log(5), np.log(500))))
    high = min(5000, int(low * np.exp(rng.uniform(0.1, 4))))
    clients = int(rng.integers(2, 31))
    columns = int(np.exp(rng.uniform(np.log(2), np.log(200))))
    while clients * high * columns > 4e6:  # what two cores can do in seconds
        high, low = max(5, high // 2), max(5, low // 2)
    task = str(rng.choice(["classification", "regression"]))
    groups = int(rng.integers(1, clients + 1))
    return made(
        rng,
        f"{number}",
        task,
        clients=clients,
        rows=(low, high + 1),
        columns=columns,
        groups=1 if alike else groups,
        noise=float(rng.uniform(0, 3)),
        shape=str(rng.choice(["normal", "skewed"])),
        scales=(-6.0, 9.0),
    )


def tables_of(data: Data, folder: Path, seeds: int) -> dict[str, object]:
    """The shortest study of a table."""
    path = folder / f"{data.task} {data.name}.csv"
    data.frame.to_csv(path, index=False)
    about = {"path": str(path), "client": "site", "target": "target", "task": data.task}
    return {"name": data.name, "data": about, "run": {"seeds": list(range(seeds))}}


def scikit(study: object, seed: int) -> tuple[float, float]:
    """Mean scores of scikit-learn alone and pooled, on clients' own test parts."""
    federation = prepare(study, seed).federation
    x, y = federation.features.double().numpy(), federation.targets.numpy()
    everyone = torch.arange(len(federation))
    parts = {}
    for part in ("train", "test"):
        index, mask = federation.part(part).rows(everyone)
        parts[part] = [row[kept].numpy() for row, kept in zip(index, mask, strict=True)]
    unit = (
        1.0
        if federation.preparations.unit is None
        else federation.preparations.unit.scale[0]
    )

    def fitted(rows: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
        if len(np.unique(y[rows])) == 1:
            return lambda some: np.full(len(some), y[rows][0])
        if federation.task == "regression":
            return RidgeCV(np.logspace(-3, 3, 13)).fit(x[rows], y[rows].ravel()).predict
        return LogisticRegression(max_iter=10_000).fit(x[rows], y[rows]).predict

    def score(model: Callable[[np.ndarray], np.ndarray], rows: np.ndarray) -> float:
        found, truth = model(x[rows]), y[rows].ravel()
        if federation.task == "regression":
            return float(unit * np.sqrt(np.mean((found - truth) ** 2)))
        return float(np.mean(found == truth))

    pooled = fitted(np.concatenate(parts["train"]))
    both = zip(parts["train"], parts["test"], strict=True)
    found = [(score(fitted(a), b), score(pooled, b)) for a, b in both]
    alone, together = np.mean(found, axis=0)
    return float(alone), float(together)


def compared(data: Data, folder: Path, seeds: int) -> dict[str, object]:
    """One line: how far methods are from scikit-learn, and what they cost."""
    study, began = study_of(tables_of(data, folder, seeds)), time.perf_counter()
    result = run_study(study, runs=folder, notice=lambda line: None)
    seconds = time.perf_counter() - began
    last = result.records.metrics
    last = last[last["round"] == last["round"].max()]
    score = "test_rmse" if data.task == "regression" else "test_accuracy"
    ours = last.groupby("algorithm")[score].mean()
    alone, pooled = np.mean([scikit(study, s) for s in range(seeds)], axis=0)

    def gap(mine: float, theirs: float) -> float:
        if data.task == "regression":
            return 100 * (mine / theirs - 1)
        return 100 * (theirs - mine)

    kept = pd.read_json(result.folder / "settings-0.json", typ="series")
    trained = result.records.rounds.groupby("algorithm")["gradients"].max()["local"]
    return {
        "table": data.name,
        "task": data.task,
        "alike": data.alike,
        "local": gap(ours["local"], alone),
        "fedavg": gap(ours["fedavg"], pooled),
        "coteries": gap(ours["coteries"], alone),
        "k": kept["decay"],
        "rounds": int(last["round"].max()),
        "search": kept["gradients"] / trained,
        "reduced": len(kept["reduced"]),
        "seconds": seconds,
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seeds", type=int, default=3)
    arguments.add_argument("--random", type=int, default=0)
    arguments.add_argument(
        "--first", type=int, default=0, help="the seed of all tables"
    )
    arguments.add_argument(
        "--alike", action="store_true", help="random tables have no groups"
    )
    usual = os.environ.get("COTERIE_DATA", "../shared/data")
    arguments.add_argument("--data", type=Path, default=Path(usual))
    given = arguments.parse_args()
    warnings.simplefilter("ignore")  # clients that are too small are many
    rng, rows, refused = np.random.default_rng(given.first), [], []
    tables: Iterator[Data]
    if given.random:
        numbers = range(given.random)
        tables = (drawn(rng, number, alike=given.alike) for number in numbers)
    else:
        tables = iter([*bundled(rng), *real(given.data), *generated(rng)])
    with tempfile.TemporaryDirectory() as folder:
        for data in tables:
            try:
                rows.append(compared(data, Path(folder), given.seeds))
                print(" ".join(f"{k}={v}" for k, v in rows[-1].items()), flush=True)
            except InputError as error:
                refused.append(f"{data.name}: {error}")
                print(refused[-1], flush=True)
    table = pd.DataFrame(rows)
    print(table.round(2).to_string(index=False))
    shown = ["local", "fedavg", "coteries", "search", "rounds", "seconds"]
    print(table.groupby("task")[shown].mean().round(2).to_string())
    print("fedavg where all are alike:")
    print(table[table["alike"]].groupby("task")["fedavg"].mean().round(2).to_string())
    print(f"{len(rows)} tables trained, {len(refused)} refused")


if __name__ == "__main__":
    main()
