"""One's own data: a table of patients, machines or customers from a file.

A CSV file has a header, one row per sample, a column that names the client, a target
column, optionally a column `is_test` of 0 and 1, and features in all other columns. An
npz file holds the arrays `features`, `targets`, `client` and optionally `is_test`.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from ..checks import InputError, one_of, suggestion
from ..models import OBJECTIVES, outputs_for
from .federation import Table

_IS_TEST = "is_test"


def table(
    path: str | Path,
    *,
    target: str = "target",
    client: str = "client",
    task: str | None = None,
) -> Table:
    """Your own data, from a CSV or npz file.

    Args:
        path: the file, as text in a study.
        target: the column to predict, in a CSV file.
        client: the column that names the client, in a CSV file; "" if there is none.
        task: what to learn; by default "binary" for targets 0 and 1, "regression" for
            targets with a fractional part.
    """
    if not isinstance(path, str | Path):
        raise InputError(f"`path` must be text, got {path!r}.")
    path = Path(path).expanduser()
    if task is not None:
        one_of("task", task, OBJECTIVES)
    if path.is_dir():
        raise InputError(f"`path` must be a file, but {path} is a folder.")
    if not path.is_file():
        raise InputError(f"there is no data file {path}.")
    if path.suffix == ".csv":
        return _from_csv(path, target, client, task)
    if path.suffix == ".npz":
        if (target, client) != ("target", "client"):
            raise InputError(
                "`target` and `client` name columns of a CSV file; in the npz file "
                f"{path.name} the arrays are called 'targets' and 'client'."
            )
        return _from_npz(path, task)
    raise InputError(f"a data file must end in .csv or .npz, got {path.name}.")


def _from_csv(path: Path, target: str, client: str, task: str | None) -> Table:
    """The table in a CSV file."""
    frame = _read_csv(path)
    wanted = {"target": target, "client": client} if client else {"target": target}
    for option, column in wanted.items():
        if column not in frame:
            raise InputError(
                f"{path.name} has no column {column!r} for `{option}`; its columns are "
                f"{', '.join(frame.columns)}.{suggestion(column, frame.columns)}"
            )
    special = {target, client, _IS_TEST}
    names = [column for column in frame.columns if column not in special]
    if not names:
        raise InputError(f"{path.name} has no feature columns.")
    features = np.stack([_numbers(frame[name], path) for name in names], axis=1)
    text = frame[target]
    numeric = pd.to_numeric(text, errors="coerce").notna().all()
    # Classes may be words; anything else must be numbers.
    words = task in OBJECTIVES and OBJECTIVES[task].labelled and not numeric
    targets = text.to_numpy(str) if words else _numbers(text, path)
    clients = frame[client].to_numpy(str) if client else None
    is_test = _numbers(frame[_IS_TEST], path) if _IS_TEST in frame else None
    return _assemble(path, features, targets, clients, is_test, task)


def _read_csv(path: Path) -> pd.DataFrame:
    """The cells of a CSV file, as text."""
    try:
        frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (pd.errors.ParserError, pd.errors.EmptyDataError, UnicodeError) as error:
        reason = str(error).strip()
        raise InputError(f"cannot read {path.name} as CSV: {reason}.") from error
    if not isinstance(frame.index, pd.RangeIndex):
        raise InputError(f"rows of {path.name} have more cells than its header.")
    if frame.empty:
        raise InputError(f"{path.name} has a header but no rows.")
    return frame


def _numbers(column: pd.Series, path: Path) -> np.ndarray:
    """The values of a column of text, all of them finite; rows count from 1."""
    values = pd.to_numeric(column, errors="coerce").to_numpy(float)
    bad = np.flatnonzero(~np.isfinite(values))
    if len(bad):
        raise InputError(
            f"column {str(column.name)!r} of {path.name} must hold finite numbers, but "
            f"row {bad[0] + 1} holds {column.iloc[bad[0]]!r}."
        )
    return values


def _from_npz(path: Path, task: str | None) -> Table:
    """The table in an npz file."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise InputError(f"cannot read {path.name} as npz: {error}.") from error
    for name in ("features", "targets"):
        if name not in arrays:
            raise InputError(
                f"{path.name} has no array {name!r}; it has {', '.join(arrays)}."
            )
    count = len(arrays["targets"])
    for name in ("features", "client", _IS_TEST):
        if name in arrays and len(arrays[name]) != count:
            raise InputError(
                f"array {name!r} of {path.name} must have one row per target, "
                f"{count}, got {len(arrays[name])}."
            )
    for name in ("features", "targets"):
        _finite(name, arrays[name], path)
    return _assemble(
        path,
        arrays["features"],
        arrays["targets"],
        arrays.get("client"),
        arrays.get(_IS_TEST),
        task,
    )


def _finite(name: str, array: np.ndarray, path: Path) -> None:
    """Refuses an array with values that are not finite; rows count from 1."""
    if array.dtype.kind not in "biuf" and (name, array.dtype.kind) != ("targets", "U"):
        raise InputError(
            f"array {name!r} of {path.name} must hold numbers, got {array.dtype}."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = np.argwhere(~np.isfinite(array))[0][0] + 1
        raise InputError(
            f"array {name!r} of {path.name} must be finite, but row {row} is not."
        )


def _assemble(
    path: Path,
    features: np.ndarray,
    targets: np.ndarray,
    clients: np.ndarray | None,
    is_test: np.ndarray | None,
    task: str | None,
) -> Table:
    """The table of these arrays, clients and classes numbered in sorted order."""
    task = task or _guess(path, targets)
    note = [f"own data from {path.name}"]
    outputs = 1 if targets.ndim == 1 else targets.shape[1]
    labelled = OBJECTIVES[task].labelled
    if labelled:
        if targets.dtype.kind == "U":
            classes, targets = np.unique(targets, return_inverse=True)
            note.append(f"classes in order: {_listed(classes)}")
        targets = _whole(path, targets)
        outputs = outputs_for(task, int(targets.max()) + 1)
    group = None
    if clients is not None:
        names, numbers = _numbered(path, clients)
        group = torch.from_numpy(numbers)
        note.append(f"clients in order: {_listed(names)}")
    if is_test is not None and not np.isin(is_test, (0, 1)).all():
        row = np.flatnonzero(~np.isin(is_test, (0, 1)))[0] + 1
        raise InputError(f"`is_test` of {path.name} must be 0 or 1, see row {row}.")
    label = torch.int64 if labelled else torch.float32
    return Table(
        path.stem,
        torch.tensor(features, dtype=torch.float32),
        torch.tensor(targets, dtype=label),
        task,
        outputs,
        group=group,
        is_test=None if is_test is None else torch.tensor(is_test.astype(bool)),
        note="; ".join(note) + ".",
        files=(path,),
    )


def _guess(path: Path, targets: np.ndarray) -> str:
    """The task, where the targets leave no doubt."""
    if targets.dtype.kind != "U" and targets.ndim == 1:
        if np.isin(targets, (0, 1)).all():
            return "binary"
        if (targets % 1 != 0).any():
            return "regression"
    raise InputError(
        f"the targets of {path.name} may be classes or quantities: set `task` to "
        f"one of {', '.join(sorted(OBJECTIVES))}."
    )


def _whole(path: Path, targets: np.ndarray) -> np.ndarray:
    """Class labels as whole numbers from 0; rows count from 1."""
    bad = np.flatnonzero((targets % 1 != 0) | (targets < 0))
    if len(bad):
        raise InputError(
            f"class labels of {path.name} must be 0, 1, 2, ..., but row {bad[0] + 1} "
            f"holds {targets[bad[0]]:g}."
        )
    return targets.astype(np.int64)


def _numbered(path: Path, clients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sorted names of the clients, and for each sample the number of its own."""
    text = clients.astype(str)
    empty = np.flatnonzero(np.char.strip(text) == "")
    if len(empty):
        raise InputError(f"row {empty[0] + 1} of {path.name} names no client.")
    whole = np.char.isdigit(text).all()
    # So that client 10 follows client 9.
    names, numbers = np.unique(text.astype(int) if whole else text, return_inverse=True)
    return names, numbers.astype(np.int64)


def _listed(names: np.ndarray) -> str:
    """The names, at most twenty of them."""
    more = f", ... ({len(names)} in all)" if len(names) > 20 else ""
    return ", ".join(str(name) for name in names[:20]) + more
