"""Your own data: a table of patients, machines or customers, read from files.

A CSV file has a header and one row per sample. One column names the client and one is
the target. A column `is_test` is optional, with 1 for test samples and 0 for others.
All other columns are features: numbers, words (which are categories), dates, or true
and false. Features may have gaps. Parquet and Excel files have the same columns.

An npz file holds the arrays `features`, `targets`, `client` and optionally `is_test`.
A folder of npy files holds the same arrays; they are mapped, not read into memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float

from ..checks import InputError, brief, expand_path, one_of, several, suggestion
from ..models import OBJECTIVES, outputs_for
from .federation import Table
from .looking.dates import days, form_of
from .looking.formats import TextFormat, refuse_format
from .looking.sources import TableSource, holds_arrays, read_source
from .looking.spellings import one_spelling, plain_form, spelling_note
from .preparation import SCALES, Column, Preparation, Schema
from .reading import (
    FRAMES,
    MISSING,
    Cells,
    cells_of,
    ending_of,
    finite_numbers,
    read_arrays,
    read_frame,
)

_IS_TEST = "is_test"

MOST_CATEGORIES = 100
"""A column with more different words does not hold categories, but names of samples."""

_ADVICE = (
    "correct it, or list it in `data.missing` if it stands for a gap, or leave the "
    "column out by `data.drop`"
)
"""What the user can do about a feature that is not finite."""

_LONGEST_UNIT = 20

_MOST_CLASSES = 10_000
"""A larger label is a quantity or a name, but not a class."""


def table(
    path: str | Path | Sequence[str] | TableSource,
    *,
    target: str = "target",
    client: str = "client",
    task: str | None = None,
    positive: str = "",
    unit: str = "",
    scale: str | None = None,
    scale_target: bool = True,
    indicators: bool = False,
    categories: Sequence[str] = (),
    dates: Mapping[str, str] | None = None,
    drop: Sequence[str] = (),
    missing: Sequence[str] = (),
    merge_case: bool = True,
    skip_empty: bool = False,
    skip_clients: Sequence[str] = (),
    separator: str = "",
    decimal: str = "",
    encoding: str = "",
) -> Table:
    """Your own data, from CSV, Parquet, Excel, npz or npy files.

    `path` is one of these: a file, a list of files, a folder with a file for each site,
    a folder with `features.npy` and other arrays, or a table that was already read. The
    separator, decimal sign, encoding and task are detected unless they are given.
    docs/data.md explains all options.
    """
    if task is not None:
        one_of("task", task, OBJECTIVES)
    if scale is not None:
        one_of("data.scale", scale, SCALES)
    if isinstance(path, str | Path) and holds_arrays(path):
        npz = expand_path("path", path)
        npz = npz if npz.is_dir() else checked_path(npz, (".npz",))
        named = (target, client) != ("target", "client")
        if named or indicators or categories or drop or dates or missing or positive:
            raise InputError(
                "`target`, `client`, `positive`, `indicators`, `categories`, `dates`, "
                f"`drop` and `missing` are options for columns, but {npz.name} holds "
                "arrays, called 'targets' and 'client'."
            )
        found = _from_npz(npz, task, scale or "none", scale_target)
        refuse_unit(unit, found.task, npz.name)
        return found
    asked = TextFormat(separator, decimal, encoding)
    refuse_format(asked)
    forms = _date_forms(dates)
    roles = ColumnRoles(target, client, tuple(categories), forms, tuple(missing))
    source = path if isinstance(path, TableSource) else read_source(path, asked)
    label, frame, notes = source.label, _used_columns(source, roles, drop), []
    everybody = _clients(frame, label, client)
    if drop:
        notes.append(f"columns that are not used: {', '.join(drop)}")
    if skip_empty:
        frame = _complete_rows(frame, label, roles, notes)
    frame, merged = _merge_spellings(frame, client) if merge_case else (frame, [])
    notes += merged
    if skip_clients and client:
        frame = _without_clients(frame, label, client, skip_clients, everybody)
        notes.append(f"clients left out: {_join_names(list(skip_clients))}")
    schema = Schema((), scale or "agreed", indicators, scale_target)
    found = _table_of_rows(source, (frame, notes), roles, task, positive, schema)
    refuse_unit(unit, found.task, f"column {target!r} of {label.name}")
    return found._replace(merged=tuple(merged))


def refuse_unit(unit: str, task: str, whose: str) -> None:
    """Refuses a unit that is too long for a plot, or if the target is not a quantity.

    Args:
        unit: such as "kg"; "" for none.
        task: the task of the data.
        whose: words for the quantity that has the unit.
    """
    if unit and task != "regression":
        raise InputError(
            f"`data.unit` is the unit of a quantity, but {whose} is for {task}: leave "
            "`unit` out."
        )
    if len(unit) > _LONGEST_UNIT or not unit.isprintable():
        raise InputError(
            f"`data.unit` must be one word of at most {_LONGEST_UNIT} characters, such "
            f"as 'kg', got {brief(unit)}."
        )


def _date_forms(dates: Mapping[str, str] | None) -> dict[str, str]:
    """How each column of dates writes them."""
    forms = {} if dates is None else dates
    if not isinstance(forms, Mapping) or not all(
        isinstance(form, str) for form in forms.values()
    ):
        raise InputError(
            "`data.dates` must say how each column writes dates, as in "
            f'{{day = "%d.%m.%Y"}}, got {brief(dates)}.'
        )
    return dict(forms)


class ColumnRoles(NamedTuple):
    """The roles that a study gives to columns."""

    target: str
    client: str
    categories: tuple[str, ...]
    dates: dict[str, str]
    missing: tuple[str, ...]


def _used_columns(
    source: TableSource, roles: ColumnRoles, drop: Sequence[str]
) -> pd.DataFrame:
    """The columns of all files, without those that are dropped."""
    path, every = source.label, source.columns()
    frame = source.join()
    special = _special(frame, path, roles.target, roles.client)
    _refuse_unknown_columns("drop", drop, every, path, special)
    different = source.differences(drop)
    if different:
        raise InputError(
            f"the files of {path.name} must have the same columns, but {different}: "
            "correct them, or leave these columns out by `data.drop`."
        )
    extra = [name for name in frame if name not in (*every, *special)]
    frame = frame.drop(columns=[*(name for name in drop if name in frame), *extra])
    features = [name for name in roles.categories if name != roles.target]
    _refuse_unknown_columns("categories", features, frame.columns, path, special)
    _refuse_unknown_columns("dates", list(roles.dates), frame.columns, path, special)
    return frame


def _complete_rows(
    frame: pd.DataFrame, path: Path, roles: ColumnRoles, notes: list[str]
) -> pd.DataFrame:
    """The rows with a target and a client; notes how many rows lack one."""
    ends = [name for name in (roles.target, roles.client) if name]
    gaps = {roles.target: roles.missing}
    cells = [cells_of(frame[name], path, gaps.get(name, ())) for name in ends]
    empty = np.any([some.missing for some in cells], axis=0)
    if empty.all():
        raise InputError(
            f"no row of {path.name} has {' and '.join(map(repr, ends))}: choose "
            "another `target` or `client`."
        )
    if empty.any():
        rows = several(int(empty.sum()), "row")
        notes.append(f"{rows} without {' or '.join(ends)} left out")
        everybody = _clients(frame, path, roles.client)
        left = _clients(frame[~empty], path, roles.client)
        gone = in_order(everybody - left)
        notes += [f"clients without a target left out: {_join_names(gone)}"] * bool(
            gone
        )
    return frame[~empty]


def _clients(frame: pd.DataFrame, path: Path, client: str) -> set[str]:
    """The names of the clients in a table."""
    if not client:
        return set()
    cells = cells_of(frame[client], path)
    return {str(name) for name in cells.text[~cells.missing]}


def _without_clients(
    frame: pd.DataFrame,
    path: Path,
    client: str,
    names: Sequence[str],
    everybody: set[str],
) -> pd.DataFrame:
    """The rows without the rows of these clients.

    Args:
        frame: the rows.
        path: the path of the file.
        client: the column of clients.
        names: the names of the clients to leave out.
        everybody: names of all clients in the file, with or without rows here.
    """
    who = cells_of(frame[client], path).text
    for name in names:
        if name not in who and name not in everybody:
            raise InputError(
                f"`data.skip_clients` must name clients, but {path.name} has none "
                f"called {name!r}.{suggestion(str(name), set(who))}"
            )
    return frame[~np.isin(who, list(names))]


def _merge_spellings(
    frame: pd.DataFrame, client: str
) -> tuple[pd.DataFrame, list[str]]:
    """The cells with one spelling of each word, and sentences about other spellings."""
    notes, changed = [], {}
    for name in frame:
        column = frame[name]
        if pd.api.types.is_numeric_dtype(column.dtype) or column.nunique() > 2000:
            continue
        words = [word for word in column.to_numpy(object) if isinstance(word, str)]
        if name != client:
            words = [word for word in words if word.lower() not in _TRUTH]
        other = one_spelling(words)
        if other:
            changed[name] = column.replace(other)
            notes.append(spelling_note(str(name), other))
    return frame.assign(**{str(k): v for k, v in changed.items()}), notes


_TRUTH = ("true", "false", *(word.lower() for word in MISSING))
"""Words that are read in upper and lower case."""


def _table_of_rows(
    source: TableSource,
    kept: tuple[pd.DataFrame, list[str]],
    roles: ColumnRoles,
    task: str | None,
    positive: str,
    schema: Schema,
) -> Table:
    """The table of these rows."""
    (frame, notes), path = kept, source.label
    features, columns = _features(frame, path, roles)
    rows = _from_frame(frame, path, roles, task)
    task = task or _guess(path, rows.targets)
    rows = rows._replace(
        targets=_name_classes(rows.targets, task, positive, path, roles)
    )
    found = _assemble(path, features, rows, task, schema._replace(columns=columns))
    if positive:
        found = _put_positive_last(found, positive, path)
    note = "; ".join([found.note.rstrip("."), *notes]) + "."
    return found._replace(files=source.files, note=note)


def _name_classes(
    targets: np.ndarray, task: str, positive: str, path: Path, roles: ColumnRoles
) -> np.ndarray:
    """The targets, as names if the class 0 is the positive one."""
    if not positive:
        return targets
    words = targets.dtype.kind in "OU"
    names = [str(t) if words else f"{t:g}" for t in np.unique(targets)]
    if not OBJECTIVES[task].labelled or len(names) > 2:
        raise InputError(
            f"`data.positive` is for targets of two classes, but column "
            f"{roles.target!r} of {path.name} has {len(names):,} values."
        )
    if positive not in names:
        raise InputError(
            f"`data.positive` must be one of {', '.join(map(repr, names))}, got "
            f"{positive!r}.{suggestion(positive, names)}"
        )
    if words or positive == names[-1]:
        return targets
    return np.array([f"{t:g}" for t in targets], dtype=object)


def _put_positive_last(found: Table, positive: str, path: Path) -> Table:
    """The table with this class as the second one."""
    if not found.classes or found.classes[-1] == positive:
        return found
    first, second = found.classes
    note = found.note.replace(f"{first}, {second}", f"{second}, {first}")
    return found._replace(targets=1 - found.targets, classes=(second, first), note=note)


def raw_columns(path: str | Path, how: Preparation) -> Float[torch.Tensor, "b c"]:
    """The raw values of a table in a file, for the module of a preparation.

    Columns that the preparation does not have are ignored.
    """
    path = checked_path(path, FRAMES)
    return raw_values(read_frame(path)[0], path, how)


def raw_values(
    frame: pd.DataFrame, path: Path, how: Preparation
) -> Float[torch.Tensor, "b c"]:
    """The raw values of a table that was read from a file."""
    found = []
    for place, column in enumerate(how.columns):
        if column.name not in frame:
            raise InputError(
                f"{path.name} has no column {column.name!r}, which the model needs."
                f"{suggestion(column.name, frame.columns)}"
            )
        cells = cells_of(frame[column.name], path, column.gaps)
        if column.date:
            found.append(torch.tensor(_days(cells, column.date, path)))
        elif column.categories is None:
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
            found.append(how.codes(place, known_words(words, column.categories)))
    return torch.stack(found, dim=1)


def known_words(words: Sequence[str | None], known: Sequence[str]) -> list[str | None]:
    """The words in their known spelling; case and blanks do not matter.

    >>> known_words(["BERN", "Chur", None], ["Bern", "Zug"])
    ['Bern', 'Chur', None]
    """
    plain = {plain_form(word): word for word in known}
    alike = plain if len(plain) == len(known) else {}
    there = set(known)
    return [
        word if word is None or word in there else alike.get(plain_form(word), word)
        for word in words
    ]


def _days(cells: Cells, form: str, path: Path) -> np.ndarray:
    """The dates of a column as days since 1970; NaN for gaps."""
    there = ~cells.missing
    found = np.full(len(cells.text), np.nan)
    found[there] = days(cells.text[there].tolist(), form)
    bad = np.flatnonzero(np.isnan(found) & there)
    if len(bad):
        raise InputError(
            f"column {cells.name!r} of {path.name} must hold dates that are written "
            f"{form}, but row {cells.row[bad[0]]} holds {brief(cells.text[bad[0]])}."
        )
    return found


def checked_path(path: str | Path, kinds: Iterable[str]) -> Path:
    """The path; refuses a path that is not a file with one of these endings."""
    if not isinstance(path, str | Path):
        raise InputError(f"`path` must be text, got {path!r}.")
    path = expand_path("path", path)
    if path.is_dir():
        raise InputError(f"`path` must be a file, but {path} is a folder.")
    if not path.is_file():
        raise InputError(f"there is no data file {path}.")
    *others, last = kinds
    if ending_of(path) not in (*others, last):
        rule = f"{', '.join(others)} or {last}" if others else last
        raise InputError(f"a data file must end in {rule}, got {path.name}.")
    return path


class Rows(NamedTuple):
    """The targets of samples, their clients, and which samples are for testing."""

    targets: np.ndarray  # numbers or words
    clients: np.ndarray | None  # names
    is_test: np.ndarray | None
    number: np.ndarray  # of the row in the file, as a person counts


def _from_frame(
    frame: pd.DataFrame, path: Path, roles: ColumnRoles, task: str | None
) -> Rows:
    """The targets, clients and test samples of a table of cells."""
    target, client = roles.target, roles.client
    cells = cells_of(frame[target], path)
    if cells.missing.any():
        who = cells_of(frame[client], path) if client else None
        raise InputError(_without_target(cells, who, path))
    labelled = task is not None and OBJECTIVES[task].labelled
    no_numbers = cells.numbers is None or target in roles.categories
    some = cells.numbers is not None and bool(np.isnan(cells.numbers).any())
    # Words are classes. Words among numbers may be a slip, unless the task is given.
    words = (no_numbers and (labelled or task is None)) or (some and labelled)
    if words:
        _refuse_names(cells, path)
    advice = (
        "correct it, or list it in `data.missing` and set `data.skip_empty` to leave "
        "such rows out"
    )
    targets = cells.text if words else finite_numbers(cells, path, advice=advice)
    names = None
    if client:
        found = cells_of(frame[client], path)
        names = np.where(found.missing, "", found.text)
    fixed = (
        finite_numbers(
            cells_of(frame[_IS_TEST], path), path, advice="write 0 or 1 in every row"
        )
        if _IS_TEST in frame
        else None
    )
    return Rows(targets, names, fixed, frame.index.to_numpy())


def _without_target(cells: Cells, who: Cells | None, path: Path) -> str:
    """A sentence about missing targets, with advice.

    Args:
        cells: the targets.
        who: the client of each.
        path: the path of the file.
    """
    start, missing = f"column {cells.name!r} of {path.name}", cells.missing
    if missing.all():
        return f"{start} is empty: choose another `target`."
    row = cells.row[np.flatnonzero(missing)[0]]
    start = f"{start} must hold a target in every row, but row {row} holds nothing"
    skip = "or set `data.skip_empty` to leave such rows out"
    if who is None:
        return f"{start}: fill it in, {skip}."
    have = {str(name) for name in who.text[~missing & ~who.missing]}
    lack = in_order({str(name) for name in who.text[~who.missing]} - have)
    if not lack:
        return f"{start}: fill it in, {skip}."
    each = "have" if lack[1:] else "has"
    start = f"{start}, and {_join_names(lack)} {each} no target at all"
    if len(have) < 2:
        return f"{start}: fill it in for two clients, or choose another `target`."
    return f"{start}: fill it in, {skip}, and {_join_names(lack)} with them."


def _refuse_names(cells: Cells, path: Path) -> None:
    """Refuses targets that are dates, or too many different words."""
    words = sorted({str(word) for word in cells.text})
    if form_of(words):
        raise InputError(
            f"column {cells.name!r} of {path.name} holds dates, which cannot be "
            "predicted: choose another `target`, or make it a number of days."
        )
    if len(words) > max(MOST_CATEGORIES, len(cells.text) // 10):
        raise InputError(
            f"column {cells.name!r} of {path.name} holds {len(words):,} different "
            f"words in {len(cells.text):,} rows, too many to be classes: choose "
            "another `target`."
        )


def _special(frame: pd.DataFrame, path: Path, target: str, client: str) -> set[str]:
    """The columns that are not features."""
    wanted = {"target": target, "client": client} if client else {"target": target}
    for option, column in wanted.items():
        if column == _IS_TEST:
            raise InputError(
                f"`{option}` must not be 'is_test', which fixes the test part."
            )
        if column not in frame:
            raise InputError(
                f"{path.name} has no column {column!r} for `{option}`; its columns are "
                f"{_join_names([*frame.columns])}.{suggestion(column, frame.columns)}"
            )
    if target == client:
        raise InputError(f"`target` and `client` must differ, both are {target!r}.")
    return {target, client, _IS_TEST}


def _refuse_unknown_columns(
    option: str,
    names: Sequence[str],
    known: Iterable[str],
    path: Path,
    special: set[str],
) -> None:
    """Refuses names that do not name columns of features."""
    known = list(known)
    for name in names:
        if name not in known or name in special:
            raise InputError(
                f"`data.{option}` must name columns of features, but {path.name} has "
                f"none called {name!r}.{suggestion(str(name), known)}"
            )


def _features(
    frame: pd.DataFrame, path: Path, roles: ColumnRoles
) -> tuple[np.ndarray, tuple[Column, ...]]:
    """The raw values of features and their columns, sorted by name."""
    special = {roles.target, roles.client, _IS_TEST}
    names = sorted(name for name in frame.columns if name not in special)
    if not names:
        raise InputError(f"{path.name} has no feature columns.")
    values, columns, many = [], [], []
    for name in names:
        cells = cells_of(frame[name], path, roles.missing)
        words = in_order({str(word) for word in cells.text[~cells.missing]})
        if name in roles.dates:
            column = Column(name, date=roles.dates[name])
            values.append(_days(cells, column.date, path))
        elif cells.numbers is not None and name not in roles.categories:
            _refuse_mixture(cells, path)
            column = Column(name, truth=cells.truth, gaps=_gaps(cells, roles.missing))
            values.append(finite_numbers(cells, path, gaps=True, advice=_ADVICE))
        elif len(words) > MOST_CATEGORIES:
            many.append(f"column {name!r} of {path.name} holds {len(words):,}")
            continue
        else:
            column = Column(name, tuple(words))
            values.append(_codes(cells, words))
        columns.append(column)
    if many:
        raise InputError(
            f"{'; '.join(many[:9])} different words, but at most {MOST_CATEGORIES} "
            "categories are allowed: leave it out by `data.drop`."
        )
    return np.stack(values, axis=1), tuple(columns)


def _gaps(cells: Cells, missing: Sequence[str]) -> tuple[str, ...]:
    """The words for a missing value that are in a column."""
    return tuple(word for word in missing if word in cells.text)


def _codes(cells: Cells, words: Sequence[str]) -> np.ndarray:
    """The code of each cell: the place of its word in a list, NaN for gaps."""
    code = {word: float(place) for place, word in enumerate(words)}
    pairs = zip(cells.text, cells.missing, strict=True)
    return np.array([np.nan if gap else code[str(word)] for word, gap in pairs])


def _refuse_mixture(cells: Cells, path: Path) -> None:
    """Refuses a column with words among numbers: a word may be a slip or a name."""
    numbers = cells.numbers
    none = np.ones(len(cells.text), bool) if numbers is None else np.isnan(numbers)
    words = np.flatnonzero(none & ~cells.missing)
    if len(words):
        raise InputError(
            f"column {cells.name!r} of {path.name} holds numbers, but row "
            f"{cells.row[words[0]]} holds {brief(cells.text[words[0]])}: correct it, "
            "or list the column in `data.categories` if its numbers are names, or the "
            "word in `data.missing` if it stands for a gap."
        )


def _from_npz(path: Path, task: str | None, scale: str, scale_target: bool) -> Table:
    """The table in an npz file, or in a folder of npy files."""
    arrays = read_arrays(path)
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
    files = tuple(sorted(path.glob("*.npy"))) if path.is_dir() else (path,)
    return found._replace(columns=tuple(c.name for c in columns), files=files)


def _assemble(
    path: Path,
    features: np.ndarray,
    rows: Rows,
    task: str | None,
    schema: Schema | None,
) -> Table:
    """The table of these arrays, with clients and classes in sorted order."""
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
            note.append(f"classes in order: {_join_names(classes)}")
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
        as_tensor(features, torch.float64 if schema else torch.float32),
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
    """The task of the targets, if there is no doubt."""
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
    """Refuses targets whose shape does not fit the task."""
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
    """Class labels 0, 1, ..., and the names of classes if they are words."""
    if targets.dtype.kind in "OU":
        words = in_order({str(word) for word in targets})
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
    """The sorted names of the clients; refuses empty ones."""
    empty = [i for i, name in enumerate(clients) if str(name).strip() in MISSING]
    if empty:
        raise InputError(
            f"row {number[empty[0]]} of {path.name} names no client: fill it in, or "
            "set `data.skip_empty` to leave such rows out."
        )
    return in_order({str(name) for name in clients})


def in_order(words: set[str]) -> list[str]:
    """The words, sorted; if all are whole numbers, by value.

    >>> in_order({"10", "9", "09"})
    ['09', '9', '10']
    """
    if not all(word.isascii() and word.isdigit() for word in words):
        return sorted(words)
    # By value. Text is compared, because a number may have thousands of digits.
    return sorted(words, key=lambda w: (len(w.lstrip("0")), w.lstrip("0"), w))


def _join_names(names: Sequence[str]) -> str:
    """At most twenty of the names, joined by commas."""
    more = f", ... ({len(names)} in all)" if len(names) > 20 else ""
    return ", ".join(str(name)[:40] for name in names[:20]) + more


def as_tensor(array: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """The array as a tensor of this type, without a copy if it has the type."""
    array = np.ascontiguousarray(array, array.dtype.newbyteorder("="))
    with warnings.catch_warnings():
        # A file that is larger than memory is mapped for reading only.
        warnings.filterwarnings("ignore", message=".*not writable")
        return torch.from_numpy(array).to(dtype)
