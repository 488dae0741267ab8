"""Tables from data in memory: frames, tensors and data sets of torch.

A frame may hold the same columns as a CSV or Parquet file, and is read in the same way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.utils.data import Dataset

from ...checks import InputError, brief, one_of, options, parameters_of, several
from ...models import OBJECTIVES, outputs_for
from ..federation import Table
from ..files import refuse_unit
from ..files import table as read_table
from ..looking.formats import UNKNOWN_FORMAT, TextFormat
from ..looking.sources import TableSource
from ..looking.studies import complete_study
from ..preparation import SCALES, Column, Schema

GIVEN = "given from Python"
"""The `name` of data from memory in a study."""

Given = (
    pd.DataFrame
    | Table
    | Dataset[Any]
    | Sequence[pd.DataFrame | tuple[Any, Any] | Dataset[Any]]
    | Mapping[Any, pd.DataFrame | tuple[Any, Any] | Dataset[Any]]
)
"""A frame, `Table` or data set of all clients; or a frame, data set or pair (features,
targets) for each client."""

FRAME = Path("the frame")
"""The name of a frame in messages."""

_KINDS = (
    "a pandas DataFrame, a coterie Table, a torch Dataset, or a list or dictionary of "
    "frames, pairs (features, targets) or datasets, one for each client"
)


def given_table(data: Given, given: Mapping[str, Any]) -> tuple[Table, dict[str, Any]]:
    """The table of data in memory, and the options that made it.

    Args:
        data: the data; see `Given` for the possible types.
        given: options, the same as in [data] of a study for a file.

    Raises:
        InputError: for data that cannot be used.
    """
    if isinstance(data, Table):
        options("data", GIVEN, {}, given)
        return data, {}
    if isinstance(data, Mapping) and not isinstance(data, pd.DataFrame):
        return _of_clients(dict(data), given)
    if isinstance(data, pd.DataFrame):
        return _of_frame(data, given)
    if isinstance(data, Dataset):
        return _of_pairs([_pair(data, "the dataset")], (), given)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        if any(isinstance(one, pd.DataFrame) for one in data):
            return _of_clients(dict(enumerate(data)), given)
        pairs = [_pair(one, f"client {k}") for k, one in enumerate(data)]
        return _of_pairs(pairs, [str(k) for k in range(len(data))], given)
    raise InputError(f"`data` must be {_KINDS}, got {brief(data)}.")


def _of_clients(
    data: dict[Any, Any], given: Mapping[str, Any]
) -> tuple[Table, dict[str, Any]]:
    """The table of a dictionary from clients to data, and its options."""
    named = {str(name): one for name, one in data.items()}
    if len(named) < len(data) or not data:
        raise InputError(f"`data` must name each client once, got {brief(list(data))}.")
    frames = [isinstance(one, pd.DataFrame) for one in named.values()]
    if not all(frames):
        pairs = [_pair(one, name) for name, one in named.items()]
        return _of_pairs(pairs, list(named), given)
    client = str(given.get("client", "client"))
    for name, frame in named.items():
        if client in frame and not (frame[client].astype(str) == name).all():
            raise InputError(
                f"column {client!r} of the frame of {name} must name that client in "
                "every row, or be left out."
            )
    whole = [frame.assign(**{client: name}) for name, frame in named.items()]
    for name, frame in zip(named, whole, strict=True):
        if set(frame.columns) != set(whole[0].columns):
            differ = sorted(map(str, set(frame.columns) ^ set(whole[0].columns)))
            raise InputError(
                f"the frames of all clients must have the same columns, but {name} and "
                f"{next(iter(named))} differ in {differ[0]!r}."
            )
    return _of_frame(pd.concat(whole, ignore_index=True), {**given, "client": client})


def _of_frame(
    frame: pd.DataFrame, given: Mapping[str, Any]
) -> tuple[Table, dict[str, Any]]:
    """The table of a frame, and its options; messages count rows from 1."""
    every = parameters_of(read_table)
    known = {k: v for k, v in every.items() if k not in TextFormat._fields}
    options("data", GIVEN, known, given)
    for key, among in (("task", OBJECTIVES), ("scale", SCALES)):
        if given.get(key) is not None:
            one_of(f"data.{key}", given[key], among)
    cells = cells_of_frame(frame)
    source = TableSource(FRAME, (FRAME,), (cells,), UNKNOWN_FORMAT)
    said, _ = complete_study(given, {}, source)
    table = read_table(source, **said)
    kept = {"target": "target", "client": "client", **said}
    note = table.note.replace(f"own data from {FRAME}", f"data {GIVEN}")
    return table._replace(name="frame", files=(), note=note), kept


def cells_of_frame(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with text as column names, rows from 1, and plain kinds of columns.

    Raises:
        InputError: for a frame without rows, or with a column name twice.
    """
    names = [str(name) for name in frame.columns]
    if len(set(names)) < len(names) or frame.empty:
        raise InputError(
            "the frame must have rows, and columns with different names, got "
            f"{several(len(frame), 'row')} and the columns {brief(names)}."
        )
    cells = frame.set_axis(names, axis=1).set_axis(range(1, len(frame) + 1), axis=0)
    kinds = {
        c: object for c in names if isinstance(cells[c].dtype, pd.CategoricalDtype)
    }
    cells = cells.astype(kinds)
    for name in cells.select_dtypes(["datetime", "datetimetz"]):
        # As in a file; a gap stays a gap.
        cells[name] = cells[name].dt.strftime("%Y-%m-%d %H:%M:%S")
    cells = cells.convert_dtypes()
    for name in cells.select_dtypes("object"):
        cells[name] = _as_written(cells[name])
    for name in cells.select_dtypes("string"):
        cells[name] = cells[name].str.strip()
    return cells


def _as_written(column: pd.Series) -> pd.Series:
    """A column of words and numbers as text; other columns unchanged."""
    there = column.dropna()
    plain = there.map(lambda value: isinstance(value, str | int | float)).all()
    return column.where(column.isna(), column.astype(str)) if plain else column


def _pair(one: Any, whose: str) -> tuple[Tensor, Tensor]:
    """Features (M, ...) and targets (M,) or (M, ...) of one client."""
    if isinstance(one, Dataset):
        one = _stack_samples(one, whose)
    if not isinstance(one, tuple | list) or len(one) != 2:
        raise InputError(
            f"`data` of {whose} must be a frame if all are, a pair (features, targets) "
            f"or a torch Dataset, got {type(one).__name__}."
        )
    try:
        x, y = (torch.as_tensor(values).detach().cpu() for values in one)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"features and targets of {whose} must be tensors or arrays of numbers."
        ) from error
    if x.dim() < 2 or y.dim() < 1 or len(x) != len(y) or not len(x):
        raise InputError(
            f"features and targets of {whose} must have a row for each sample, got the "
            f"shapes {tuple(x.shape)} and {tuple(y.shape)}."
        )
    return x, y


def _stack_samples(one: Dataset[Any], whose: str) -> tuple[Tensor, Tensor]:
    """The features and targets of all samples of a data set."""
    try:
        count = len(one)  # type: ignore[arg-type]
        samples = [one[k] for k in range(count)]
        pairs = [(torch.as_tensor(a), torch.as_tensor(b)) for a, b in samples]
        x, y = zip(*pairs, strict=True)
        return torch.stack(x), torch.stack(y)
    except Exception as error:  # the user's code may raise anything
        raise InputError(
            f"the dataset of {whose} must have a length and return pairs of tensors "
            f"(features, target) of the same shapes: {brief(str(error))}."
        ) from error


def _of_pairs(
    pairs: Sequence[tuple[Tensor, Tensor]],
    names: Sequence[str],
    given: Mapping[str, Any],
) -> tuple[Table, dict[str, Any]]:
    """The table of a pair for each client, or of a single pair, and its options."""
    options("data", GIVEN, parameters_of(table_of_tensors, ingredients=2), given)
    for k, (x, y) in enumerate(pairs):
        first = pairs[0]
        if x.shape[1:] != first[0].shape[1:] or y.shape[1:] != first[1].shape[1:]:
            raise InputError(
                "all clients must have features and targets of the same shapes, but a "
                f"sample of {names[k]} has {tuple(x.shape[1:])} and "
                f"{tuple(y.shape[1:])}, and one of {names[0]} has "
                f"{tuple(first[0].shape[1:])} and {tuple(first[1].shape[1:])}."
            )
    x, y = (torch.cat(values) for values in zip(*pairs, strict=True))
    table = table_of_tensors(x, y, **given)
    if not names:
        return table, dict(given)
    sizes = torch.tensor([len(targets) for _, targets in pairs])
    group = torch.arange(len(pairs)).repeat_interleave(sizes)
    plain = list(names) == [str(k) for k in range(len(names))]
    return table._replace(group=group, names=() if plain else tuple(names)), dict(given)


def table_of_tensors(
    x: Tensor,
    y: Tensor,
    *,
    task: str | None = None,
    scale: str | None = None,
    scale_target: bool = True,
    unit: str = "",
) -> Table:
    """The table of these tensors.

    Targets that are whole numbers are classes, 0 and 1 are binary labels, and other
    numbers are quantities, unless `task` says otherwise.

    Args:
        x: features: real numbers, or whole numbers such as codes of words.
        y: targets.
        task: what to learn.
        scale: the same option as for an npz file.
        scale_target: as for a file; see `files.table`.
        unit: the same option as for a file.
    """
    if task is not None:
        one_of("data.task", task, OBJECTIVES)
    elif y.dim() > 1 or not bool(np.isin(y.numpy(), (0, 1)).all()):
        task = "regression" if y.is_floating_point() else "classification"
    else:
        task = "binary"
    refuse_unit(unit, task, "the data")
    one_of("data.scale", scale or "none", SCALES)
    flat = x.dim() == 2 and x.is_floating_point()
    if scale not in (None, "none") and not flat:
        raise InputError(
            f"`data.scale` must be 'none' for features of shape {tuple(x.shape[1:])} "
            f"and {x.dtype}, got {scale!r}."
        )
    labelled = OBJECTIVES[task].labelled
    scaled = flat and task == "regression" and scale_target
    columns = tuple(Column(f"feature {j}") for j in range(x.shape[1] * flat))
    schema = Schema(columns, scale or "none", targets=scaled)
    raw = scaled or scale not in (None, "none")
    outputs = 1 if y.dim() == 1 else y.shape[1]
    real = torch.float64 if raw else torch.float32
    return Table(
        "tensors",
        x.to(real) if x.is_floating_point() else x,
        y.long() if labelled else y.to(torch.float64 if scaled else torch.float32),
        task,
        outputs_for(task, int(y.max()) + 1) if labelled else outputs,
        note=f"data {GIVEN}.",
        columns=tuple(column.name for column in columns),
        schema=schema if raw else None,
    )
