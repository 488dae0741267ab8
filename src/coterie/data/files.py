"""One's own data: a table of patients, machines or customers from a file.

A CSV file has a header, one row per sample, a column that names the client, a target
column, optionally a column `is_test` of 0 and 1, and features in all other columns:
numbers, words (which are categories), or true and false, with gaps. A Parquet file has
the same columns. An npz file holds the arrays `features`, `targets`, `client` and
optionally `is_test`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from ..checks import InputError, brief, expanded, one_of, suggestion
from ..models import OBJECTIVES, outputs_for
from .federation import Table
from .preparation import SCALES, Column, Preparation, Schema
from .reading import FRAMES, MISSING, Cells, cells_of, finite_numbers, read_npz

_IS_TEST = "is_test"

_MOST_CATEGORIES = 100
"""A column of more words than that names samples."""

_MOST_CLASSES = 10_000
"""A larger label is no class but a quantity, or a name."""


def table(
    path: str | Path,
    *,
    target: str = "target",
    client: str = "client",
    task: str | None = None,
    scale: str | None = None,
    scale_target: bool = True,
    indicators: bool = False,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> Table:
    """Your own data, from a CSV, Parquet or npz file.

    Args:
        path: the file, as text in a study.
        target: the column to predict.
        client: the column that names the client; "" if there is none.
        task: what to learn; by default "binary" for targets 0 and 1 or two words,
            "classification" for more words, "regression" for targets with a
            fractional part.
        scale: features have mean 0 and deviation 1 by the training numbers of all
            clients, "agreed", of each client alone, "client", or are as they are,
            "none"; by default "agreed", and "none" for arrays of an npz file.
        scale_target: whether models predict quantities in deviations from their mean
            over the training data of all clients. Scores, losses and predictions are in
            the unit of the data all the same.
        indicators: whether features say which values were missing.
        categories: columns whose numbers are names.
        drop: columns that are not used.
    """
    path = checked_path(path, (*FRAMES, ".npz"))
    if task is not None:
        one_of("task", task, OBJECTIVES)
    if scale is not None:
        one_of("data.scale", scale, SCALES)
    if path.suffix in FRAMES:
        return table_of_frame(
            FRAMES[path.suffix](path),
            path,
            target=target,
            client=client,
            task=task,
            scale=scale,
            scale_target=scale_target,
            indicators=indicators,
            categories=categories,
            drop=drop,
        )
    if (target, client) != ("target", "client") or indicators or categories or drop:
        raise InputError(
            "`target`, `client`, `indicators`, `categories` and `drop` are about "
            f"columns of a CSV or Parquet file; in the npz file {path.name} the arrays "
            "are called 'targets' and 'client'."
        )
    return _from_npz(path, task, scale or "none", scale_target)


def table_of_frame(
    frame: pd.DataFrame,
    path: Path,
    *,
    target: str = "target",
    client: str = "client",
    task: str | None = None,
    scale: str | None = None,
    scale_target: bool = True,
    indicators: bool = False,
    categories: Sequence[str] = (),
    drop: Sequence[str] = (),
) -> Table:
    """The same of cells that were read already; messages name the path."""
    special = _special(frame, path, target, client)
    frame = frame.drop(columns=_there("drop", drop, frame, path, special))
    named = _there("categories", categories, frame, path, special)
    features, columns = _features(frame, path, special, named)
    schema = Schema(columns, scale or "agreed", indicators, scale_target)
    rows = _from_frame(frame, path, target, client, task)
    return _assemble(path, features, rows, task, schema)


def raw_columns(path: str | Path, how: Preparation) -> Float[torch.Tensor, "b c"]:
    """The raw values of a CSV or Parquet file, for the module of a preparation.

    Columns that the preparation does not have are left alone.
    """
    path = checked_path(path, FRAMES)
    return raw_values(FRAMES[path.suffix](path), path, how)


def raw_values(
    frame: pd.DataFrame, path: Path, how: Preparation
) -> Float[torch.Tensor, "b c"]:
    """The same of a table that was read from the file."""
    found = []
    for place, column in enumerate(how.columns):
        if column.name not in frame:
            raise InputError(
                f"{path.name} has no column {column.name!r}, which the model needs."
                f"{suggestion(column.name, frame.columns)}"
            )
        cells = cells_of(frame[column.name], path)
        if column.categories is None:
            _refuse_mixture(cells, path)
            numbers = finite_numbers(cells, path, gaps=True)
            bad = np.flatnonzero(~np.isin(numbers, (0, 1)) & ~cells.missing)
            if column.truth and len(bad):
                raise InputError(
                    f"column {column.name!r} of {path.name} must hold true or false (1 "
                    f"or 0), as in training, but row {cells.row[bad[0]]} holds "
                    f"{brief(cells.text[bad[0]])}."
                )
            found.append(torch.tensor(numbers))
        else:
            pairs = zip(cells.text, cells.missing, strict=True)
            words = [None if gap else str(word) for word, gap in pairs]
            found.append(how.codes(place, words))
    return torch.stack(found, dim=1)


def checked_path(path: str | Path, kinds: Iterable[str]) -> Path:
    """The path of a file that is there and that we can read."""
    if not isinstance(path, str | Path):
        raise InputError(f"`path` must be text, got {path!r}.")
    path = expanded("path", path)
    if path.is_dir():
        raise InputError(f"`path` must be a file, but {path} is a folder.")
    if not path.is_file():
        raise InputError(f"there is no data file {path}.")
    *others, last = kinds
    if path.suffix not in (*others, last):
        raise InputError(
            f"a data file must end in {', '.join(others)} or {last}, got {path.name}."
        )
    return path


class Rows(NamedTuple):
    """What is known of each sample besides its features."""

    targets: np.ndarray  # numbers or words
    clients: np.ndarray | None  # names
    is_test: np.ndarray | None
    number: np.ndarray  # as a person counts the rows of the file


def _from_frame(
    frame: pd.DataFrame, path: Path, target: str, client: str, task: str | None
) -> Rows:
    """Targets, clients and test samples of a table of cells."""
    cells = cells_of(frame[target], path)
    gap = np.flatnonzero(cells.missing)
    if len(gap):
        raise InputError(
            f"column {target!r} of {path.name} must say what to predict, but row "
            f"{frame.index[gap[0]]} holds nothing."
        )
    labelled = task is not None and OBJECTIVES[task].labelled
    no_numbers = cells.numbers is None
    some = cells.numbers is not None and bool(np.isnan(cells.numbers).any())
    # Words are classes; among numbers they may be a slip, unless the task is said.
    words = (no_numbers and (labelled or task is None)) or (some and labelled)
    targets = cells.text if words else finite_numbers(cells, path)
    names = None
    if client:
        found = cells_of(frame[client], path)
        names = np.where(found.missing, "", found.text)
    fixed = (
        finite_numbers(cells_of(frame[_IS_TEST], path), path)
        if _IS_TEST in frame
        else None
    )
    return Rows(targets, names, fixed, frame.index.to_numpy())


def _special(frame: pd.DataFrame, path: Path, target: str, client: str) -> set[str]:
    """The columns that are no features."""
    wanted = {"target": target, "client": client} if client else {"target": target}
    for option, column in wanted.items():
        if column == _IS_TEST:
            raise InputError(
                f"`{option}` must not be 'is_test', which fixes the test part."
            )
        if column not in frame:
            raise InputError(
                f"{path.name} has no column {column!r} for `{option}`; its columns are "
                f"{_listed(list(frame.columns))}.{suggestion(column, frame.columns)}"
            )
    if target == client:
        raise InputError(f"`target` and `client` must differ, both are {target!r}.")
    return {target, client, _IS_TEST}


def _there(
    option: str,
    names: Sequence[str],
    frame: pd.DataFrame,
    path: Path,
    special: set[str],
) -> list[str]:
    """The names, if all of them are columns of features."""
    for name in names:
        if name not in frame or name in special:
            raise InputError(
                f"`data.{option}` must name columns of features, but {path.name} has "
                f"none called {name!r}.{suggestion(str(name), frame.columns)}"
            )
    return list(names)


def _features(
    frame: pd.DataFrame, path: Path, special: set[str], named: list[str]
) -> tuple[np.ndarray, tuple[Column, ...]]:
    """The raw values of all columns of features, sorted by name, and what they are."""
    names = sorted(name for name in frame.columns if name not in special)
    if not names:
        raise InputError(f"{path.name} has no feature columns.")
    values, columns = [], []
    for name in names:
        cells = cells_of(frame[name], path)
        if cells.numbers is not None and name not in named:
            _refuse_mixture(cells, path)
            values.append(finite_numbers(cells, path, gaps=True))
            columns.append(Column(name, truth=cells.truth))
            continue
        words = _in_order({str(word) for word in cells.text[~cells.missing]})
        if len(words) > _MOST_CATEGORIES:
            raise InputError(
                f"column {name!r} of {path.name} holds {len(words):,} different words, "
                f"more than the {_MOST_CATEGORIES} that categories may have: leave it "
                "out by `data.drop`."
            )
        code = {word: float(place) for place, word in enumerate(words)}
        values.append(
            np.array(
                [
                    np.nan if gap else code[str(word)]
                    for word, gap in zip(cells.text, cells.missing, strict=True)
                ]
            )
        )
        columns.append(Column(name, tuple(words)))
    return np.stack(values, axis=1), tuple(columns)


def _refuse_mixture(cells: Cells, path: Path) -> None:
    """Refuses words among numbers, which may be a slip or names."""
    numbers = cells.numbers
    none = np.ones(len(cells.text), bool) if numbers is None else np.isnan(numbers)
    words = np.flatnonzero(none & ~cells.missing)
    if len(words):
        raise InputError(
            f"column {cells.name!r} of {path.name} holds numbers, but row "
            f"{cells.row[words[0]]} holds {brief(cells.text[words[0]])}: correct it, "
            "or name the column in `data.categories` if its numbers are names."
        )


def _from_npz(path: Path, task: str | None, scale: str, scale_target: bool) -> Table:
    """The table in an npz file."""
    arrays = read_npz(path)
    features = arrays["features"]
    flat = features.ndim == 2
    if scale != "none" and not flat:
        raise InputError(
            f"`data.scale` must be 'none' for features of shape {features.shape[1:]}, "
            f"got {scale!r}."
        )
    number = np.arange(1, len(features) + 1)
    rows = Rows(arrays["targets"], arrays.get("client"), arrays.get(_IS_TEST), number)
    columns = tuple(Column(f"feature {j}") for j in range(features.shape[1] * flat))
    task = task or _guess(path, rows.targets)
    unit = flat and task == "regression" and scale_target
    schema = Schema(columns, scale, targets=unit) if scale != "none" or unit else None
    found = _assemble(path, features, rows, task, schema)
    return found._replace(columns=tuple(column.name for column in columns))


def _assemble(
    path: Path,
    features: np.ndarray,
    rows: Rows,
    task: str | None,
    schema: Schema | None,
) -> Table:
    """The table of these arrays, clients and classes numbered in sorted order."""
    targets, clients, is_test, number = rows
    task = task or _guess(path, targets)
    note = [f"own data from {path.name}"]
    _refuse_target_shape(path, task, features, targets)
    outputs = 1 if targets.ndim == 1 else targets.shape[1]
    labelled = OBJECTIVES[task].labelled
    classes: tuple[str, ...] = ()
    if labelled:
        targets, classes = _labels(path, targets, number)
        if classes:
            note.append(f"classes in order: {_listed(classes)}")
        outputs = outputs_for(task, int(targets.max()) + 1)
    unit = schema is not None and schema.targets and task == "regression"
    schema = schema if schema is None else schema._replace(targets=unit)
    real = torch.float64 if unit else torch.float32
    names: list[str] = []
    if clients is not None:
        names = _client_names(path, clients, number)
        place = {name: numeral for numeral, name in enumerate(names)}
        group = torch.tensor([place[str(client)] for client in clients])
    if is_test is not None and not np.isin(is_test, (0, 1)).all():
        row = number[np.flatnonzero(~np.isin(is_test, (0, 1)))[0]]
        raise InputError(f"`is_test` of {path.name} must be 0 or 1, see row {row}.")
    return Table(
        path.stem,
        torch.tensor(features, dtype=torch.float64 if schema else torch.float32),
        torch.tensor(targets, dtype=torch.int64 if labelled else real),
        task,
        outputs,
        group=group if names else None,
        is_test=None if is_test is None else torch.tensor(is_test.astype(bool)),
        note="; ".join(note) + ".",
        files=(path,),
        names=tuple(names),
        classes=classes,
        schema=schema,
    )


def _guess(path: Path, targets: np.ndarray) -> str:
    """The task, where the targets leave no doubt."""
    if targets.ndim == 1 and targets.dtype.kind in "OU":
        return "binary" if len(set(targets.tolist())) == 2 else "classification"
    if targets.ndim == 1:
        if np.isin(targets, (0, 1)).all():
            return "binary"
        if (targets % 1 != 0).any():
            return "regression"
    raise InputError(
        f"the targets of {path.name} may be classes or quantities: set `task` to "
        f"one of {', '.join(sorted(OBJECTIVES))}."
    )


def _refuse_target_shape(
    path: Path, task: str, features: np.ndarray, targets: np.ndarray
) -> None:
    """Refuses targets whose shape is not that of the task."""
    shape = targets.shape[1:]
    fits = len(shape) == 0
    rule = "one label per row"
    if task == "segmentation":
        fits = len(shape) == features.ndim - 1 and shape[1:] == features.shape[2:]
        rule = f"masks of the size of the features, {features.shape[2:]}"
    elif not OBJECTIVES[task].labelled:
        fits, rule = len(shape) <= 1 and 0 not in shape, "one number per row, or a few"
    if not fits:
        raise InputError(
            f"the targets of {path.name} must be {rule} for the task {task}, got shape "
            f"{targets.shape}."
        )


def _labels(
    path: Path, targets: np.ndarray, number: np.ndarray
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class labels as whole numbers from 0, and the names of classes that are words."""
    if targets.dtype.kind in "OU":
        words = _in_order({str(word) for word in targets})
        place = {word: label for label, word in enumerate(words)}
        return np.array([place[str(word)] for word in targets]), tuple(words)
    bad = np.flatnonzero(
        (targets % 1 != 0) | (targets < 0) | (targets >= _MOST_CLASSES)
    )
    if len(bad):
        raise InputError(
            f"class labels of {path.name} must be 0, 1, 2, ... and less than "
            f"{_MOST_CLASSES:,}, but row {number[bad[0]]} holds {targets[bad[0]]:g}."
        )
    return targets.astype(np.int64), ()


def _client_names(path: Path, clients: np.ndarray, number: np.ndarray) -> list[str]:
    """The sorted names of the clients, none of them empty."""
    empty = [i for i, name in enumerate(clients) if str(name).strip() in MISSING]
    if empty:
        raise InputError(f"row {number[empty[0]]} of {path.name} names no client.")
    return _in_order({str(name) for name in clients})


def _in_order(words: set[str]) -> list[str]:
    """Words in sorted order; where all are whole numbers, 10 follows 9.

    >>> _in_order({"10", "9", "09"})
    ['09', '9', '10']
    """
    if not all(word.isascii() and word.isdigit() for word in words):
        return sorted(words)
    # By value without reading it, which may have thousands of digits.
    return sorted(words, key=lambda w: (len(w.lstrip("0")), w.lstrip("0"), w))


def _listed(names: Sequence[str]) -> str:
    """The names, at most twenty of them."""
    more = f", ... ({len(names)} in all)" if len(names) > 20 else ""
    return ", ".join(str(name)[:40] for name in names[:20]) + more
