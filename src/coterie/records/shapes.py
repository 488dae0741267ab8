"""Checks of what files of a run hold, so that an error names a damaged file.

A shape is a type, a list with the shape of its entries, or a table of shapes by key. A
table may hold more keys than its shape names.
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
from .files import damage_error
from .searches import Search

_STUDY = {"algorithm": [{"name": str, "label": str}]}
# The shapes of tables that a study may have.
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
# The shapes of names that a task may have.
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
# Tables of tensors in a cell -> the columns that they need if they are not empty.
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


def require(path: Path, *sound: bool) -> None:
    """Raises an InputError that names the file unless all conditions are true."""
    if not all(sound):
        raise damage_error(path, ValueError())


def check_study(path: Path, study: dict[str, Any]) -> None:
    """Refuses a study that cannot have a report."""
    require(path, holds(study, {**_STUDY, **_of(_TABLES, study)}))
    run = study.get("run", {})
    require(path, holds(run, _RUN if "tune" in study else _of(_RUN, run)))
    require(path, *(_is_space(entry.get("tune", {})) for entry in study["algorithm"]))


def _of(shapes: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """The shapes of the keys that a table has."""
    return {key: shape for key, shape in shapes.items() if key in table}


def _is_space(space: Any) -> bool:
    """Whether a search space is a table of lists and ranges."""
    ends = {"from": float, "to": float, "scale": str}
    return isinstance(space, dict) and all(
        isinstance(values, list) or holds(values, ends) for values in space.values()
    )


def check_task(path: Path, about: dict[str, Any], cells: list[Cell]) -> None:
    """Refuses an unknown task, or a score that cells do not have."""
    require(path, holds(about, {**_TASK, **_of(_NAMES, about)}))
    require(path, about["task"] in OBJECTIVES)
    score = about.get("score", OBJECTIVES[about["task"]].score)
    higher = about.get("higher_is_better", True)
    tables = [values for cell in cells for values in [*cell.metrics, cell.newcomers]]
    named = [f"test_{score}" in values for values in tables if values]
    require(path, holds(score, str), isinstance(higher, bool), *named)


def check_cell(path: Path, cell: Cell) -> None:
    """Refuses a cell whose parts do not fit together."""
    require(path, holds(vars(cell), _CELL), *map(_columns, cell.metrics))
    for name, needed in _COLUMNS.items():
        table = getattr(cell, name)
        require(path, _columns(table) and (not table or needed <= {*table}))
    require(path, bool(cell.rounds), len(cell.rounds) == len(cell.metrics))
    require(path, len(cell.groups) == len(cell.group_rounds), *_labels(cell))
    require(path, *(math.isfinite(values["round"]) for values in cell.rounds))


def _labels(cell: Cell) -> Iterator[bool]:
    """Whether records of groups have two whole numbers for each client."""
    clients = {len(values) for table in cell.metrics for values in table.values()}
    for labels in cell.groups:
        whole = not labels.is_floating_point() and not labels.is_complex()
        yield whole and labels.dim() == 2 and len(labels) == 2
        yield clients <= {labels.shape[-1]}


def _columns(table: Any) -> bool:
    """Whether a table maps names to tensors (N,) of the same length."""
    return (
        isinstance(table, dict)
        and all(isinstance(name, str) for name in table)
        and all(isinstance(v, Tensor) and v.dim() == 1 for v in table.values())
        and len({len(v) for v in table.values()}) <= 1
    )


def check_rows(path: Path, rows: Any) -> None:
    """Refuses anything except a matrix of numbers, with all columns in the file."""
    require(path, isinstance(rows, Tensor) and rows.dim() == 2)
    # Clients may share one row, with stride 0; a long row of stride 0 fills any memory.
    there = rows.untyped_storage().nbytes() // rows.element_size()
    require(path, rows.is_floating_point(), rows.shape[1] <= there)


def check_clients(path: Path, table: pd.DataFrame, cells: list[Cell]) -> None:
    """Refuses a table if the cells of its seed have other clients."""
    require(path, {"client", *_COUNTS} <= {*table}, len(table) > 0)
    numbers = [pd.api.types.is_integer_dtype(table[name]) for name in _COUNTS]
    require(path, *numbers, table["seed"].nunique() == 1)
    seed, names = int(table["seed"].iloc[0]), [*map(str, table["client"])]
    # Old cells do not list their clients, which are then numbered.
    other = [c.clients for c in cells if c.seed == seed and c.clients]
    fits = [sorted(map(str, clients)) == sorted(names) for clients in other]
    require(path, path.stem == f"clients-{seed}", len({*names}) == len(names), *fits)


def check_graph(path: Path, table: pd.DataFrame, clients: pd.DataFrame) -> None:
    """Refuses edges that are not between clients of their seed."""
    require(path, {"seed", "v", "w"} <= {*table})
    for seed, part in table.groupby("seed"):
        known = clients.loc[clients["seed"] == seed, "client"]
        require(path, path.stem == f"graph-{seed}", bool(part["v"].isin(known).all()))
        require(path, bool(part["w"].isin(known).all()))


def check_model(path: Path, about: dict[str, Any]) -> None:
    """Refuses a description that does not say how to make a model."""
    whole = about.get("whole")
    require(path, holds(about, _MODEL), "whole" in about)
    require(path, min([*about["shape"], about["outputs"]]) > 0)
    require(path, whole is None or holds(whole, _WHOLE))
    if whole is not None:
        sound = whole["dtype"] in _KINDS and whole["least"] <= whole["most"]
        require(path, sound, abs(whole["least"]) < 2**62, abs(whole["most"]) < 2**62)


def check_search(path: Path, search: Search) -> None:
    """Refuses a search whose steps do not belong to its trials."""
    trials, steps = range(len(search.settings)), search.steps
    require(
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
