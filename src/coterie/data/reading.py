"""Reads and checks the cells of tables and the arrays of npz and npy files.

Messages count rows as people do: the header of a CSV file is row 1, and the first rows
of Parquet and npz files are row 1.
"""

from __future__ import annotations

import csv
import datetime
import errno
import gzip
import io
import math
import re
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ..checks import InputError, brief, several
from .looking.formats import (
    UNKNOWN_FORMAT,
    TextFormat,
    decode_text,
    points_for_commas,
    separator_of,
)

LARGEST = float(np.finfo(np.float32).max)
"""The largest number that single precision holds."""

MISSING = (
    *("", "NA", "N/A", "n/a", "NaN", "nan", "NaT", "null", "NULL", "?"),
    *("#N/A", "<NA>"),
)
"""Cells that count as empty."""

_MOST_DEFLATED = 1040
"""Compression in an npz file makes data at most this number of times smaller."""

_TESTED_AT_ONCE = 2**18
"""The number of values that are tested in one pass."""

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


def read_text(path: Path, asked: TextFormat) -> tuple[pd.DataFrame, TextFormat]:
    """The cells of a CSV or TSV file as text, and the format of the file.

    The index counts rows; the header is row 1.
    """
    text, encoding = decode_text(_bytes(path), path.name, asked.encoding)
    usual = "\t" if ".tsv" in path.suffixes else ","
    hint = re.match(r"sep=(.)\r?\n", text)  # which some spreadsheets write
    text = text[hint.end() :] if hint else text
    separator = asked.separator or (hint[1] if hint else separator_of(text, usual))
    first = 2 if hint else 1
    try:
        names = _header(path, text, separator, first)
        frame = pd.read_csv(
            io.StringIO(text),
            sep=separator,
            dtype=str,
            header=None,
            keep_default_na=False,
            skip_blank_lines=False,
        )
    except InputError:
        raise
    except (ValueError, OverflowError, csv.Error) as error:
        reason = str(error).strip().rstrip(".")
        raise InputError(f"cannot read {path.name} as CSV: {reason[:200]}.") from error
    frame.index += first
    frame = _nonempty_rows(_name_columns(frame.iloc[1:], names, path), path)
    columns = {str(name): _strip_cells(frame[name]) for name in frame}
    columns, decimal = points_for_commas(columns, separator, asked.decimal)
    found = pd.DataFrame(columns, index=frame.index, dtype=object)
    return found, TextFormat(separator, decimal, encoding)


def _nonempty_rows(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """The rows that are not empty; refuses a table without such rows."""
    frame = frame[~frame.isin(MISSING).all(axis=1)]
    if frame.empty:
        raise InputError(f"{path.name} has a header but no rows.")
    return frame


def _bytes(path: Path) -> bytes:
    """The bytes of a file, decompressed."""
    if path.suffix.lower() != ".gz":
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot read {path.name} as gzip: it is damaged.") from error


def _strip_cells(column: pd.Series) -> np.ndarray:
    return np.array([word.strip() for word in column.to_numpy(object)], dtype=object)


def _header(path: Path, text: str, separator: str, first: int) -> list[str]:
    """The names of the columns; refuses a row with another number of cells."""
    names: list[str] = []
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    for number, row in enumerate(rows, first):
        names = names if number > first else [name.strip() for name in row]
        # pandas would fill a short row, as if its last cells were empty.
        if row and len(row) != len(names):
            raise InputError(
                f"row {number} of {path.name} has {several(len(row), 'cell')}"
                f", but its header has {len(names)}."
            )
    if not names:
        raise InputError(f"{path.name} has no columns: it is empty.")
    return names


def _name_columns(frame: pd.DataFrame, names: list[str], path: Path) -> pd.DataFrame:
    """The cells with the names of the columns.

    Empty columns without a name are left out. So is a first column without a name that
    counts rows, as pandas and R write it.
    """
    if len(names) > 1 and all(map(_is_number, names)):
        raise InputError(
            f"the first row of {path.name} holds numbers, not names: add a row with "
            "the names of the columns."
        )
    used = [
        bool(name) or bool((frame.iloc[:, j] != "").any())
        for j, name in enumerate(names)
    ]
    if not all(used):
        frame = frame.loc[:, used]
        names = [name for name, mine in zip(names, used, strict=True) if mine]
    if names and not names[0] and len(frame):
        counted = pd.to_numeric(frame.iloc[:, 0], errors="coerce").dropna().diff()
        if len(names) > 1 and len(counted) and bool((counted.iloc[1:] == 1).all()):
            frame, names = frame.iloc[:, 1:], names[1:]
    _refuse_header(names, path)
    return frame.set_axis(names, axis=1)


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def read_parquet(path: Path, asked: TextFormat) -> tuple[pd.DataFrame, TextFormat]:
    """The columns of a Parquet file; the index counts rows from 1."""
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
    names = [str(name).strip() for name in frame.columns]
    _refuse_header(names, path)
    if frame.empty:
        raise InputError(f"{path.name} has no rows.")
    frame = frame.set_axis(names, axis=1)
    for name in names:
        if pd.api.types.is_datetime64_any_dtype(frame[name].dtype):
            frame[name] = frame[name].astype(object).map(_as_text)
    return frame, TextFormat()


def read_excel(path: Path, asked: TextFormat) -> tuple[pd.DataFrame, TextFormat]:
    """The cells of the first sheet of an Excel file as text; the header is row 1."""
    try:
        frame = pd.read_excel(path, header=None, dtype=object, engine="openpyxl")
    except ImportError as error:
        raise InputError(
            f"reading {path.name} needs openpyxl: pip install coterie[excel]."
        ) from error
    except _FAULTS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(
            f"cannot read {path.name} as Excel: {reason[:200]}."
        ) from error
    frame = frame.map(_as_text)
    if frame.empty:
        raise InputError(f"{path.name} has no columns: its first sheet is empty.")
    frame.index = pd.RangeIndex(1, len(frame) + 1)
    frame = frame.loc[:, (frame != "").any()]
    names = frame.iloc[0].tolist()
    frame = _nonempty_rows(_name_columns(frame.iloc[1:], names, path), path)
    columns = {str(name): frame[name].to_numpy(object) for name in frame}
    columns, decimal = points_for_commas(columns, ";", asked.decimal)
    return pd.DataFrame(columns, index=frame.index, dtype=object), TextFormat(
        "", decimal
    )


def _as_text(value: Any) -> str:
    """A cell as CSV writes it."""
    if value is None or pd.isna(value):
        return ""
    if isinstance(value, bool | np.bool_):
        return str(bool(value)).lower()
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, datetime.datetime):
        text = value.isoformat(sep=" ")
        return text.removesuffix(" 00:00:00")
    return str(value).strip()


FRAMES: dict[str, Callable[[Path, TextFormat], tuple[pd.DataFrame, TextFormat]]] = {
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz", ".txt"), read_text),
    ".parquet": read_parquet,
    ".xlsx": read_excel,
}
"""Readers of tables, by the ending of the name of a file."""


def ending_of(path: Path) -> str:
    """The ending of a file's name, such as `.csv`, or `.csv.gz` if it is compressed.

    >>> ending_of(Path("a.b.CSV.gz")), ending_of(Path("a.b.csv"))
    ('.csv.gz', '.csv')
    """
    endings = [ending.lower() for ending in path.suffixes[-2:]]
    return "".join(endings if endings[-1:] == [".gz"] else endings[-1:])


def read_frame(
    path: Path, asked: TextFormat = UNKNOWN_FORMAT
) -> tuple[pd.DataFrame, TextFormat]:
    """The cells of a table, with an index that counts rows, and its format."""
    return FRAMES[ending_of(path)](path, asked)


def _refuse_header(names: list[str], path: Path) -> None:
    """Refuses columns without a name or with the same name; one error lists all."""
    if not names:
        raise InputError(f"{path.name} has no columns.")
    bare = [str(place) for place, name in enumerate(names, 1) if not name]
    wrong = []
    if bare:
        one = len(bare) == 1
        wrong.append(
            f"column {bare[0]} of {path.name} has no name"
            if one
            else f"columns {', '.join(bare[:9])} of {path.name} have no name"
        )
    places: dict[str, list[str]] = {}
    for place, name in enumerate(names, 1):
        places.setdefault(name, []).append(str(place))
    for name, some in places.items():
        if name and len(some) > 1:
            both = "both" if len(some) == 2 else "all"
            wrong.append(
                f"columns {' and '.join(some[:9])} of {path.name} are {both} called "
                f"{brief(name)}"
            )
    if wrong:
        advice = "give each column a name of its own"
        raise InputError(f"{'; '.join(wrong[:9])}: {advice}.")


class Cells(NamedTuple):
    """A column of a file."""

    name: str
    text: np.ndarray  # as it is written
    missing: np.ndarray
    numbers: np.ndarray | None  # NaN for other cells; None if no cell is a number
    row: np.ndarray  # numbers of rows, as people count
    truth: bool = False  # whether all are true or false


def cells_of(column: pd.Series, path: Path, gaps: Sequence[str] = ()) -> Cells:
    """A column of text, numbers, or true and false.

    Args:
        column: the column of a table that was read.
        path: the path of its file.
        gaps: words that mean a missing value among numbers.
    """
    name, row = str(column.name), column.index.to_numpy()
    missing, kind = column.isna().to_numpy(bool), column.dtype
    if pd.api.types.is_bool_dtype(kind) or pd.api.types.is_numeric_dtype(kind):
        numbers = column.astype("Float64").to_numpy(float, na_value=np.nan)
        shown, is_truth = column.astype(str), pd.api.types.is_bool_dtype(kind)
        text = shown.to_numpy(object)
        for word in filter(_is_number, gaps):
            text[numbers == float(word)] = word
        missing = missing | np.isin(text, list(gaps))
        numbers[missing] = np.nan
        return Cells(name, text.astype(str), missing, numbers, row, is_truth)
    values = np.where(missing, "", column.to_numpy(object))
    if not all(isinstance(value, str) for value in values):
        raise InputError(
            f"column {name!r} of {path.name} must hold numbers, words, or true and "
            f"false, got {kind}: change it, or leave it out by `data.drop`."
        )
    text = np.array([value.strip() for value in values], dtype=object)
    missing = missing | np.isin(text, MISSING)
    truth = {"true": 1.0, "false": 0.0}
    lower = [value.lower() for value in text[~missing]]
    numbers = np.full(len(text), np.nan)
    if lower and all(value in truth for value in lower):
        numbers[~missing] = [truth[value] for value in lower]
        return Cells(name, text, missing, numbers, row, truth=True)
    found = pd.to_numeric(pd.Series(text[~missing], dtype=object), errors="coerce")
    numbers[~missing] = found.to_numpy(float, na_value=np.nan)
    there = bool(missing.all()) or not np.isnan(numbers).all()
    if gaps and there:
        missing = missing | np.isin(text, list(gaps))
        numbers[missing] = np.nan  # also if a number means a gap
    return Cells(name, text, missing, numbers if there else None, row)


def finite_numbers(
    cells: Cells,
    path: Path,
    *,
    gaps: bool = False,
    advice: str = "correct it, or leave the cell empty",
) -> np.ndarray:
    """The values of a column; refuses values that are not finite in single precision.

    Args:
        cells: the cells of the column.
        path: the path of its file.
        gaps: whether cells may be missing.
        advice: what to do about a value that is not finite.
    """
    values = (
        np.full(len(cells.text), np.nan) if cells.numbers is None else cells.numbers
    )
    bad = ~(np.abs(values) <= LARGEST)
    bad = np.flatnonzero(bad & ~cells.missing if gaps else bad)
    if len(bad):
        place = bad[0]
        raise InputError(
            f"column {cells.name!r} of {path.name} must hold finite numbers, but row "
            f"{cells.row[place]} holds {brief(cells.text[place])}: {advice}."
        )
    return values


def read_arrays(
    path: Path, needed: Sequence[str] = ("features", "targets")
) -> dict[str, np.ndarray]:
    """The arrays features, targets, client and is_test, with a row per sample.

    They are in an npz file, or in a folder of npy files. Npy files are mapped, not
    read into memory.
    """
    folder = path.is_dir()
    try:
        arrays = _map_arrays(path) if folder else _arrays(path)
    except _FAULTS as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        kind = "npy files" if folder else "npz"
        raise InputError(
            f"cannot read {path.name} as {kind}: {reason[:200]}."
        ) from error
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


_KNOWN = ("features", "targets", "client", "is_test")


def _map_arrays(folder: Path) -> dict[str, np.ndarray]:
    """The known arrays in a folder, mapped; changes to them stay in this process."""
    files = {path.stem: path for path in sorted(folder.glob("*.npy"))}
    return {name: _map_array(files[name]) for name in _KNOWN if name in files}


def _map_array(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="c", allow_pickle=False)
    except OSError as error:
        if error.errno != errno.ENOMEM:
            raise
        # A mapping that could be changed would need as much memory as the file.
        return np.load(path, mmap_mode="r", allow_pickle=False)


def _arrays(path: Path) -> dict[str, np.ndarray]:
    """The known arrays of a file; refuses an array larger than the file can hold."""
    with zipfile.ZipFile(path) as archive:
        there = {
            info.filename.removesuffix(".npy"): info for info in archive.infolist()
        }
        found = {}
        for name, info in there.items():
            if name not in _KNOWN:
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
    """Refuses arrays with wrong dimensions or without one row per sample."""
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
    """The array; refuses numbers that are not finite, and words except as targets."""
    if name == "targets" and array.dtype.kind == "S":
        array = np.char.decode(array, "utf-8", "replace")
    if array.dtype.kind not in "biuf" and (name, array.dtype.kind) != ("targets", "U"):
        raise InputError(
            f"array {name!r} of {path.name} must hold numbers, got {array.dtype}."
        )
    if array.dtype.kind != "f":
        return array
    # In pieces, because the test of a piece needs as much memory as the piece.
    rows = max(1, _TESTED_AT_ONCE * len(array) // max(1, array.size))
    for first in range(0, len(array), rows):
        bad = ~(np.abs(array[first : first + rows]) <= LARGEST)
        if bad.any():
            row = first + np.argwhere(bad)[0][0] + 1
            raise InputError(
                f"array {name!r} of {path.name} must be finite in single precision, "
                f"but row {row} is not."
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
