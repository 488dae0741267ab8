"""What files of a run must hold, so that a damaged one is named and not stumbled over.

A shape is a type, a list of one shape for all its entries, or a table of shapes by key;
a table may hold more than is named.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from torch import Tensor

from ..models import OBJECTIVES
from .cells import Cell
from .files import damaged
from .searches import Search

_STUDY = {"algorithm": [{"name": str, "label": str}]}
# Where a study has these.
_TABLES = {
    "name": str,
    "data": dict,
    "split": dict,
    "model": dict,
    "run": dict,
    "time": {"period": float},
    "tune": {"trials": int, "search": str, "halving": int, "folds": int, "rounds": int},
}
_RUN = {"rounds": int, "seeds": [int], "newcomers": int}
_TASK = {"task": str, "note": str}
# Where a task has these.
_NAMES = {"clients": [str], "features": [str], "classes": [str], "oracles": [str]}
_CELL = {
    "label": str,
    "seed": int,
    "t": int,
    "rounds": [{"round": float, "gradients": float}],
    "metrics": [{}],
    "clients": list,
    "snapshot_rounds": [int],
    "snapshots": [Tensor],
    "group_rounds": [int],
    "groups": [Tensor],
    "spans": list,
    "delays": dict,
    "versions": list,
}
# Tables of tensors in a cell, and columns that those that are not empty have.
_COLUMNS = {
    "newcomers": {"client"},
    "outcomes": {"client", "sample"},
    "newcomer_outcomes": {"client", "sample"},
    "confusion": {"client", "target", "predicted", "count"},
    "calibration": {"client", "bin", "count", "confidence", "right"},
    "work": set(),
    "releases": set(),
}
_MODEL = {
    "shape": [int],
    "outputs": int,
    "prepared": bool,
    "parameters": [list],
    "rest": str,
}
_WHOLE = {"dtype": str, "least": int, "most": int}
_KINDS = ("bool", "uint8", "int8", "int16", "int32", "int64")
_COUNTS = ["seed", "cluster", "train", "validation", "test"]


def holds(value: Any, shape: Any) -> bool:
    """Whether a value has a shape.

    >>> holds({"rounds": 3, "seeds": [0]}, {"rounds": int, "seeds": [int]})
    True
    """
    if isinstance(shape, Mapping):
        return isinstance(value, Mapping) and all(
            key in value and holds(value[key], inner) for key, inner in shape.items()
        )
    if isinstance(shape, list):
        return isinstance(value, list) and all(holds(v, shape[0]) for v in value)
    if shape in (int, float):
        kinds = int | float if shape is float else int
        return isinstance(value, kinds) and not isinstance(value, bool)
    return isinstance(value, shape)


def refuse(path: Path, *sound: bool) -> None:
    """Raises InputError that names the file unless everything about it is sound."""
    if not all(sound):
        raise damaged(path, ValueError())


def sound_study(path: Path, study: dict[str, Any]) -> None:
    """Refuses a study that a report could not be made of."""
    refuse(path, holds(study, {**_STUDY, **_of(_TABLES, study)}))
    run = study.get("run", {})
    refuse(path, holds(run, _RUN if "tune" in study else _of(_RUN, run)))
    refuse(path, *(_is_space(entry.get("tune", {})) for entry in study["algorithm"]))


def _of(shapes: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """The shapes of what a table has."""
    return {key: shape for key, shape in shapes.items() if key in table}


def _is_space(space: Any) -> bool:
    """Whether it is a table of lists and ranges."""
    ends = {"from": float, "to": float, "scale": str}
    return isinstance(space, dict) and all(
        isinstance(values, list) or holds(values, ends) for values in space.values()
    )


def sound_task(path: Path, about: dict[str, Any], cells: list[Cell]) -> None:
    """Refuses a task that is not known, or a score that cells do not have."""
    refuse(path, holds(about, {**_TASK, **_of(_NAMES, about)}))
    refuse(path, about["task"] in OBJECTIVES)
    score = about.get("score", OBJECTIVES[about["task"]].score)
    higher = about.get("higher_is_better", True)
    tables = [values for cell in cells for values in [*cell.metrics, cell.newcomers]]
    named = [f"test_{score}" in values for values in tables if values]
    refuse(path, holds(score, str), isinstance(higher, bool), *named)


def sound_cell(path: Path, cell: Cell) -> None:
    """Refuses a cell whose parts do not fit together."""
    refuse(path, holds(vars(cell), _CELL), *map(_columns, cell.metrics))
    for name, needed in _COLUMNS.items():
        table = getattr(cell, name)
        refuse(path, _columns(table) and (not table or needed <= {*table}))
    refuse(path, bool(cell.rounds), len(cell.rounds) == len(cell.metrics))
    refuse(path, len(cell.groups) == len(cell.group_rounds), *_labels(cell))
    refuse(path, *(math.isfinite(values["round"]) for values in cell.rounds))


def _labels(cell: Cell) -> Iterator[bool]:
    """Whether each record of groups has two whole numbers for each client."""
    clients = {len(values) for table in cell.metrics for values in table.values()}
    for labels in cell.groups:
        whole = not labels.is_floating_point() and not labels.is_complex()
        yield whole and labels.dim() == 2 and len(labels) == 2
        yield clients <= {labels.shape[-1]}


def _columns(table: Any) -> bool:
    """Whether it is a table of tensors (N,) of the same length, by name."""
    return (
        isinstance(table, dict)
        and all(isinstance(name, str) for name in table)
        and all(isinstance(v, Tensor) and v.dim() == 1 for v in table.values())
        and len({len(v) for v in table.values()}) <= 1
    )


def sound_rows(path: Path, rows: Any) -> None:
    """Refuses what is not a matrix of rows of numbers that are all in its file."""
    refuse(path, isinstance(rows, Tensor) and rows.dim() == 2)
    # Clients may share one row; one whose stride is 0 may be longer than any memory.
    there = rows.untyped_storage().nbytes() // rows.element_size()
    refuse(path, rows.is_floating_point(), rows.shape[1] <= there)


def sound_clients(path: Path, table: pd.DataFrame, cells: list[Cell]) -> None:
    """Refuses a table of clients that are not those of the cells of its seed."""
    refuse(path, {"client", *_COUNTS} <= {*table}, len(table) > 0)
    numbers = [pd.api.types.is_integer_dtype(table[name]) for name in _COUNTS]
    refuse(path, *numbers, table["seed"].nunique() == 1)
    seed, names = int(table["seed"].iloc[0]), [*map(str, table["client"])]
    # Of an old cell that does not say, the clients are numbered.
    other = [c.clients for c in cells if c.seed == seed and c.clients]
    fits = [sorted(map(str, clients)) == sorted(names) for clients in other]
    refuse(path, path.stem == f"clients-{seed}", len({*names}) == len(names), *fits)


def sound_graph(path: Path, table: pd.DataFrame, clients: pd.DataFrame) -> None:
    """Refuses edges that are not between clients of their seed."""
    refuse(path, {"seed", "v", "w"} <= {*table})
    for seed, part in table.groupby("seed"):
        known = clients.loc[clients["seed"] == seed, "client"]
        refuse(path, path.stem == f"graph-{seed}", bool(part["v"].isin(known).all()))
        refuse(path, bool(part["w"].isin(known).all()))


def sound_model(path: Path, about: dict[str, Any]) -> None:
    """Refuses what does not say how a model is made."""
    whole = about.get("whole")
    refuse(path, holds(about, _MODEL), "whole" in about)
    refuse(path, min([*about["shape"], about["outputs"]]) > 0)
    refuse(path, whole is None or holds(whole, _WHOLE))
    if whole is not None:
        sound = whole["dtype"] in _KINDS and whole["least"] <= whole["most"]
        refuse(path, sound, abs(whole["least"]) < 2**62, abs(whole["most"]) < 2**62)


def sound_search(path: Path, search: Search) -> None:
    """Refuses a search whose steps are not of its trials."""
    trials, steps = range(len(search.settings)), search.steps
    refuse(
        path,
        holds(vars(search), {"label": str, "seed": int, "folds": int}),
        all(isinstance(setting, dict) for setting in search.settings),
        len(search.rungs) > 0 and holds([*map(list, search.rungs)], [[int]]),
        holds([list(step[:3]) for step in steps], [[int]]),
        holds([list(step.scores) for step in steps], [[float]]),
        {len(step.scores) for step in steps} <= {0, search.folds},
        {step.trial for step in steps} <= {*trials},
        search.chosen in (None, *trials) and not isinstance(search.chosen, bool),
    )
