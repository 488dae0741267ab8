"""The tables that people read, made from the cells of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from ..checks import InputError
from ..models import OBJECTIVES
from .cells import Cell, load_cell
from .files import damaged, read_json, read_toml
from .searches import COLUMNS, Search, load_search


class Snapshots(NamedTuple):
    """Collaboration matrices over time."""

    rounds: np.ndarray  # (S,)
    matrices: np.ndarray  # (S, N, N)


@dataclass(frozen=True)
class Records:
    """Everything that is known of a finished or interrupted study, as tables.

    `algorithm` columns hold the labels of the study's algorithms.
    """

    study: dict[str, Any]  # the resolved configuration
    versions: dict[str, str]  # of all cells; several of one kind are joined by "and"
    task: str  # a name in coterie.models.OBJECTIVES
    score: str  # the measure that compares models
    higher_is_better: bool  # of the score
    clients: pd.DataFrame  # seed, client, cluster (-1 unknown), train, validation, test
    metrics: pd.DataFrame  # algorithm, seed, round, client, <part>_<measure> ...
    rounds: pd.DataFrame  # algorithm, seed, round, gradients, bytes, seconds, ...
    weights: dict[tuple[str, int], Snapshots]  # by (algorithm, seed)
    # algorithm, seed, client, cluster, train, <part>_<measure> of those held out
    newcomers: pd.DataFrame = field(default_factory=pd.DataFrame)
    # of labels, at the end on test data: algorithm, seed, client, target, predicted,
    # count of the samples of a class that were taken for one
    confusion: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, client, bin of confidence (0 to 9), count of its samples, sum of
    # their confidence, how many were predicted right
    calibration: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, trial, rounds, score, status, ..., one column for each option
    trials: pd.DataFrame = field(default_factory=pd.DataFrame)
    # with [time], whose rounds are ticks; `rounds` then has time and updates as well:
    # algorithm, seed, delay, count of the answers that arrived with this delay
    delays: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, client, begin, end of each computation, of the start of a run
    spans: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, client, busy, idle (virtual seconds), tasks
    work: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, round after which it was made with: coterie, source, torch, ...
    made_by: pd.DataFrame = field(default_factory=pd.DataFrame)


def load_records(path: Path | str) -> Records:
    """Reads the records of a run folder, finished or not."""
    path = Path(path)
    cells = sorted((path / "cells").glob("*.pt"))
    tables = list(path.glob("clients-*.csv"))
    needed = [path / name for name in ("study.toml", "task.json")]
    if not cells or not tables or not all(file.exists() for file in needed):
        raise InputError(
            f"{str(path)!r} is not the folder of a run that has begun: it needs "
            "study.toml, task.json, clients-*.csv and cells/*.pt."
        )
    study, about = read_toml(needed[0]), read_json(needed[1])
    order = [entry["label"] for entry in study["algorithm"]]
    loaded = [load_cell(cell) for cell in cells]
    for cell, file in zip(loaded, cells, strict=True):
        if cell.label not in order:
            raise InputError(
                f"{file} is of an algorithm {cell.label!r}, which the study does not "
                "have: move it elsewhere."
            )
    loaded.sort(key=lambda cell: (order.index(cell.label), cell.seed))
    clients = pd.concat([_read_csv(table) for table in tables], ignore_index=True)
    if about["note"]:
        study.setdefault("data", {})["note"] = about["note"]
    usual = OBJECTIVES[about["task"]]  # where an old folder does not say
    return Records(
        study=study,
        versions=_versions(loaded),
        task=about["task"],
        score=about.get("score", usual.score),
        higher_is_better=about.get("higher_is_better", usual.higher_is_better),
        clients=clients.sort_values(["seed", "client"], ignore_index=True),
        metrics=_concatenated([_metrics(cell) for cell in loaded]),
        rounds=_concatenated([_rounds(cell) for cell in loaded]),
        weights={
            (cell.label, cell.seed): Snapshots(
                np.array(cell.snapshot_rounds), torch.stack(cell.snapshots).numpy()
            )
            for cell in loaded
            if cell.snapshots
        },
        newcomers=_tables([(cell, cell.newcomers) for cell in loaded]),
        confusion=_tables([(cell, cell.confusion) for cell in loaded]),
        calibration=_tables([(cell, cell.calibration) for cell in loaded]),
        trials=_trials([load_search(f) for f in path.glob("tuning/*.json")], order),
        delays=_joined([_delays(cell) for cell in loaded if cell.delays]),
        spans=_joined([_spans(cell) for cell in loaded if cell.spans]),
        work=_joined([_work(cell) for cell in loaded if cell.work]),
        made_by=_joined([_made_by(cell) for cell in loaded if cell.versions]),
    )


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except ValueError as error:
        raise damaged(path, error) from error


def _metrics(cell: Cell) -> pd.DataFrame:
    """Rows for each evaluated round and client."""
    tables = []
    for about, values in zip(cell.rounds, cell.metrics, strict=True):
        table = pd.DataFrame({name: v.numpy() for name, v in values.items()})
        table.insert(0, "client", cell.clients or range(len(table)))
        table.insert(0, "round", int(about["round"]))
        tables.append(table)
    return _with_cell(_concatenated(tables), cell)


def _tables(found: list[tuple[Cell, dict[str, Tensor]]]) -> pd.DataFrame:
    """Rows for each cell that has columns, which come when its training ends."""
    tables = []
    for cell, columns in found:
        if columns:
            values = {name: v.numpy() for name, v in columns.items()}
            tables.append(_with_cell(pd.DataFrame(values), cell))
    return _joined(tables)


def _delays(cell: Cell) -> pd.DataFrame:
    """Rows for each delay of an answer that was seen."""
    rows = sorted(cell.delays.items())
    return _with_cell(pd.DataFrame(rows, columns=["delay", "count"]), cell)


def _spans(cell: Cell) -> pd.DataFrame:
    """Rows for each time that a client computed, as far as they are kept."""
    table = pd.DataFrame(cell.spans, columns=["client", "begin", "end"])
    table["client"] = np.array(cell.clients)[table["client"]]
    return _with_cell(table.sort_values("begin", ignore_index=True), cell)


def _work(cell: Cell) -> pd.DataFrame:
    """Rows for each client: how long it computed and waited, and how many tasks."""
    table = pd.DataFrame({name: v.numpy() for name, v in cell.work.items()})
    table.insert(0, "client", cell.clients)
    return _with_cell(table, cell)


def _made_by(cell: Cell) -> pd.DataFrame:
    """Rows for each change of software and hardware under which a cell was made."""
    rows = [{"round": t, **versions} for t, versions in cell.versions]
    return _with_cell(pd.DataFrame(rows), cell)


def _versions(cells: list[Cell]) -> dict[str, str]:
    """The software and hardware of all cells, for people: without digests of source."""
    found: dict[str, dict[str, None]] = {}
    for _, versions in [pair for cell in cells for pair in cell.versions]:
        for name, text in versions.items():
            found.setdefault(name, {})[text] = None
    return {k: " and ".join(texts) for k, texts in found.items() if k != "source"}


def _trials(searches: list[Search], order: list[str]) -> pd.DataFrame:
    """Rows for each trial and rung, as far as it came."""
    rows: list[dict[str, Any]] = []
    searches = [search for search in searches if search.label in order]
    for search in sorted(searches, key=lambda s: (order.index(s.label), s.seed)):
        for step in sorted(search.steps):
            about = (search.label, search.seed, step.trial, step.rounds, step.score)
            fate = (search.status(step), step.spent, step.trial == search.chosen)
            row = dict(zip(COLUMNS, about + fate, strict=True))
            if search.folds > 1:
                scores = step.scores or (np.nan,) * search.folds
                row |= {f"fold_{j}": score for j, score in enumerate(scores)}
            rows.append(row | search.settings[step.trial])
    whole = dict.fromkeys(("seed", "trial", "rounds", "spent"), int)
    table = pd.DataFrame(rows, dtype=object)  # so that whole numbers stay whole
    return table.astype({**whole, "score": float, "chosen": bool}) if rows else table


def _rounds(cell: Cell) -> pd.DataFrame:
    return _with_cell(pd.DataFrame(cell.rounds).astype({"round": int}), cell)


def _with_cell(table: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    table.insert(0, "seed", cell.seed)
    table.insert(0, "algorithm", cell.label)
    return table


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The tables one below the other; an empty one where there are none."""
    return _concatenated(tables) if tables else pd.DataFrame()


def _concatenated(tables: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True)
