"""What is in a file: cells of CSV and Parquet, arrays of npz, checked as they come.

Messages count rows as a person does who opens the file: the header of a CSV file is row
1, rows of other files count from 1.
"""

from __future__ import annotations

import csv
import math
import tokenize
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..checks import InputError, brief

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that single precision holds."""

MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")
"""Cells that say nothing."""

_MOST_DEFLATED = 1040
"""Deflating makes nothing more than so many times smaller."""

_FAULTS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    RuntimeError,  # of an encrypted file
    NotImplementedError,
    MemoryError,
    SyntaxError,
    zipfile.BadZipFile,
    zlib.error,
)


def read_csv(path: Path) -> pd.DataFrame:
    """The cells of a CSV file as text; its index counts rows, the header is row 1."""
    try:
        names = _header(path)
        frame = pd.read_csv(
            path,
            dtype=str,
            header=None,
            keep_default_na=False,
            skip_blank_lines=False,
            encoding="utf-8-sig",
        )
    except InputError:
        raise
    except (ValueError, OverflowError, csv.Error) as error:
        reason = str(error).strip().rstrip(".")
        raise InputError(f"cannot read {path.name} as CSV: {reason[:200]}.") from error
    frame.index += 1
    frame = frame.iloc[1:].set_axis(names, axis=1)
    frame = frame[~(frame == "").all(axis=1)]  # blank lines
    if frame.empty:
        raise InputError(f"{path.name} has a header but no rows.")
    return frame


def _header(path: Path) -> list[str]:
    """The names of the columns, if every row has as many cells."""
    names: list[str] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, row in enumerate(csv.reader(file), 1):
            names = names if number > 1 else row
            # pandas would fill a row that is short, as if its cells were empty.
            if row and len(row) != len(names):
                raise InputError(
                    f"row {number} of {path.name} has {len(row)} cells, but its header "
                    f"has {len(names)}."
                )
    _refuse_header(names, path)
    return names


def read_parquet(path: Path) -> pd.DataFrame:
    """The columns of a Parquet file; its index counts rows from 1."""
    try:
        frame = pd.read_parquet(path, dtype_backend="numpy_nullable")
    except ImportError as error:
        raise InputError(
            f"reading {path.name} needs pyarrow: pip install coterie[parquet]."
        ) from error
    except (OSError, ValueError, TypeError, KeyError, NotImplementedError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(
            f"cannot read {path.name} as Parquet: {reason[:200]}."
        ) from error
    frame = frame.set_axis(range(1, len(frame) + 1), axis=0)
    _refuse_header([str(name) for name in frame.columns], path)
    if frame.empty:
        raise InputError(f"{path.name} has no rows.")
    return frame.set_axis([str(name) for name in frame.columns], axis=1)


FRAMES = {".csv": read_csv, ".parquet": read_parquet}


def _refuse_header(names: list[str], path: Path) -> None:
    """Refuses columns without a name, and names of several columns."""
    if not names:
        raise InputError(f"{path.name} has no columns.")
    for place, name in enumerate(names):
        if not name.strip():
            raise InputError(f"column {place + 1} of {path.name} has no name.")
        if name in names[:place]:
            raise InputError(
                f"columns {names.index(name) + 1} and {place + 1} of {path.name} are "
                f"both called {brief(name)}: give each column a name of its own."
            )


class Cells(NamedTuple):
    """A column of a file."""

    name: str
    text: np.ndarray  # as it is written
    missing: np.ndarray
    numbers: np.ndarray | None  # NaN where there is none; None where there are none
    row: np.ndarray  # as a person counts rows
    truth: bool = False  # whether all are true or false


def cells_of(column: pd.Series, path: Path) -> Cells:
    """A column of text, numbers, or true and false."""
    name, row = str(column.name), column.index.to_numpy()
    missing, kind = column.isna().to_numpy(bool), column.dtype
    if pd.api.types.is_bool_dtype(kind) or pd.api.types.is_numeric_dtype(kind):
        numbers = column.astype("Float64").to_numpy(float, na_value=np.nan)
        shown, is_truth = column.astype(str), pd.api.types.is_bool_dtype(kind)
        return Cells(name, shown.to_numpy(str), missing, numbers, row, is_truth)
    values = column.astype(object).where(~missing, "")
    if not all(isinstance(value, str) for value in values):
        raise InputError(
            f"column {name!r} of {path.name} must hold numbers, words, or true and "
            f"false, got {kind}: change it, or leave it out by `data.drop`."
        )
    text = values.to_numpy(object)
    stripped = np.array([value.strip() for value in text], dtype=object)
    missing = missing | np.isin(stripped, MISSING)
    truth = {"true": 1.0, "false": 0.0}
    lower = [value.lower() for value in stripped[~missing]]
    numbers = np.full(len(text), np.nan)
    if lower and all(value in truth for value in lower):
        numbers[~missing] = [truth[value] for value in lower]
        return Cells(name, text, missing, numbers, row, truth=True)
    found = pd.to_numeric(pd.Series(stripped[~missing], dtype=object), errors="coerce")
    numbers[~missing] = found.to_numpy(float, na_value=np.nan)
    there = bool(missing.all()) or not np.isnan(numbers).all()
    return Cells(name, text, missing, numbers if there else None, row)


def finite_numbers(cells: Cells, path: Path, *, gaps: bool = False) -> np.ndarray:
    """The values of a column, all of them finite in single precision."""
    values = (
        np.full(len(cells.text), np.nan) if cells.numbers is None else cells.numbers
    )
    bad = ~(np.abs(values) <= LARGEST)
    bad = np.flatnonzero(bad & ~cells.missing if gaps else bad)
    if len(bad):
        place = bad[0]
        raise InputError(
            f"column {cells.name!r} of {path.name} must hold finite numbers, but row "
            f"{cells.row[place]} holds {brief(cells.text[place])}."
        )
    return values


def read_npz(
    path: Path, needed: Sequence[str] = ("features", "targets")
) -> dict[str, np.ndarray]:
    """The arrays features, targets, client and is_test, one row per sample."""
    try:
        arrays = _arrays(path)
    except _FAULTS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(f"cannot read {path.name} as npz: {reason[:200]}.") from error
    for name in needed:
        if name not in arrays:
            raise InputError(
                f"{path.name} has no array {name!r}; it has {', '.join(arrays)}."
            )
    _refuse_shapes(path, arrays)
    for name in arrays.keys() & {"features", "targets"}:
        arrays[name] = _finite(name, arrays[name], path)
    if "client" in arrays:
        arrays["client"] = _names(arrays["client"], path)
    return arrays


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file that we know, none larger than what the file holds."""
    known = ("features", "targets", "client", "is_test")
    with zipfile.ZipFile(path) as archive:
        there = {
            info.filename.removesuffix(".npy"): info for info in archive.infolist()
        }
        found = {}
        for name, info in there.items():
            if name not in known:
                continue
            with archive.open(info) as file:
                _refuse_claim(name, file, info)
            with archive.open(info) as file:
                found[name] = np.lib.format.read_array(file, allow_pickle=False)
        return found or dict.fromkeys(there, np.zeros(0))


def _refuse_claim(name: str, file: Any, info: zipfile.ZipInfo) -> None:
    """Refuses an array whose header claims more than the file can hold."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0
    if version != (1, 0):
        read = np.lib.format.read_array_header_2_0
    try:
        shape, _, dtype = read(file)
    except (SyntaxError, tokenize.TokenError, RecursionError) as error:
        raise ValueError(f"the header of array {name!r} is damaged") from error
    claimed = dtype.itemsize * math.prod(shape)
    if claimed > min(info.file_size, _MOST_DEFLATED * info.compress_size):
        raise ValueError(
            f"array {name!r} claims {claimed:,} bytes, more than the file holds"
        )


def _refuse_shapes(path: Path, arrays: dict[str, np.ndarray]) -> None:
    """Refuses arrays that do not have one row per sample, of the right dimensions."""
    rules = {
        "features": (2, 99, "rows and columns or more"),
        "targets": (1, 99, "one row per sample"),
        "client": (1, 1, "one name per sample"),
        "is_test": (1, 1, "one value per sample"),
    }
    for name, (least, most, rule) in rules.items():
        shape = arrays[name].shape if name in arrays else None
        if shape is not None and not least <= len(shape) <= most:
            raise InputError(
                f"array {name!r} of {path.name} must have {rule}, got shape {shape}."
            )
    count = len(arrays.get("targets", arrays["features"]))
    if count == 0:
        raise InputError(f"the arrays of {path.name} have no rows.")
    for name in rules:
        if name in arrays and len(arrays[name]) != count:
            raise InputError(
                f"array {name!r} of {path.name} must have one row per target, "
                f"{count}, got {len(arrays[name])}."
            )
    if 0 in arrays["features"].shape:
        raise InputError(
            f"array 'features' of {path.name} must have features, got shape "
            f"{arrays['features'].shape}."
        )


def _finite(name: str, array: np.ndarray, path: Path) -> np.ndarray:
    """The array, if it holds numbers of single precision, or words as targets."""
    if name == "targets" and array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind not in "biuf" and (name, array.dtype.kind) != ("targets", "U"):
        raise InputError(
            f"array {name!r} of {path.name} must hold numbers, got {array.dtype}."
        )
    if array.dtype.kind != "f":
        return array
    bad = ~(np.abs(array) <= LARGEST)
    if bad.any():
        row = np.argwhere(bad)[0][0] + 1
        raise InputError(
            f"array {name!r} of {path.name} must be finite, but row {row} is not, in "
            "single precision."
        )
    return array.astype(np.float64) if array.dtype.itemsize > 8 else array


def _names(clients: np.ndarray, path: Path) -> np.ndarray:
    """The clients as text."""
    if clients.dtype.kind not in "biufUS":
        raise InputError(
            f"array 'client' of {path.name} must hold names or whole numbers, got "
            f"{clients.dtype}."
        )
    if clients.dtype.kind == "S":
        return np.char.decode(clients, "utf-8", "replace")
    if clients.dtype.kind == "f":
        bad = np.flatnonzero(~np.isfinite(clients))
        if len(bad):
            raise InputError(
                f"row {bad[0] + 1} of {path.name} names no client: it holds "
                f"{clients[bad[0]]}."
            )
    return clients.astype(str)
