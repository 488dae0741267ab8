"""Reads links from a CSV file: pairs of nodes, and a number for each pair."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from ..checks import InputError, suggestion


class FileLinks(NamedTuple):
    """The links of a file, in its order."""

    pairs: list[tuple[int, int]]
    values: list[float]  # () where no column was asked for


def read_links(
    path: Path, names: Sequence[str] = (), column: str | None = None
) -> FileLinks:
    """The links of a CSV file with the columns v and w.

    If all nodes in the file are in `names`, they are names; otherwise they are numbers.

    Args:
        path: the path of the file.
        names: the names of nodes 0, 1, ..., if they have names.
        column: a column with a positive number for each link.

    Raises:
        InputError: if the file cannot be read, or names an unknown node.
    """
    rows = _rows(path)
    try:
        ends = [(row["v"], row["w"]) for _, row in rows]
        given = [] if column is None else [row[column] for _, row in rows]
    except KeyError as error:
        raise InputError(f"the graph {path} has no column {error}.") from None
    place = {name: node for node, name in enumerate(names)}
    if place and not all(end in place for pair in ends for end in pair):
        place = {} if all(_is_number(end) for pair in ends for end in pair) else place
    pairs = [
        (_node(path, row, pair[0], pair, place), _node(path, row, pair[1], pair, place))
        for (row, _), pair in zip(rows, ends, strict=True)
    ]
    values = zip(rows, given, strict=False)
    return FileLinks(pairs, [_positive(path, row, text) for (row, _), text in values])


def nodes_in(path: Path) -> tuple[tuple[str, ...], set[str]]:
    """The names of the nodes in a file, in order, and the columns of the file.

    If all names are numbers, the nodes are 0, 1, ... up to the largest number.
    """
    rows = _rows(path)
    ends = [row.get(side) or "" for _, row in rows for side in ("v", "w")]
    if all(_is_number(end) for end in ends):
        most = max(map(int, ends), default=0)
        return tuple(map(str, range(most + 1))), {*rows[0][1]} if rows else set()
    return tuple(dict.fromkeys(ends)), {*rows[0][1]}


def numbered_rows(file: Iterable[str]) -> list[tuple[int, dict[str, str]]]:
    """The rows of a CSV file by column, each with its number.

    The header is row 1, and blank rows count, as in an editor.
    """
    rows = list(enumerate(csv.reader(file), 1))
    filled = [(number, row) for number, row in rows if row]
    header = filled[0][1] if filled else []
    return [
        (number, dict(zip_longest(header, row[: len(header)])))
        for number, row in filled[1:]
    ]


def _rows(path: Path) -> list[tuple[int, dict[str, str]]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            return numbered_rows(file)
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"cannot read the graph {path}: {error}.") from error


def _is_number(text: str | None) -> bool:
    try:
        int(text or "")
        return True
    except ValueError:
        return False


def _node(
    path: Path, row: int, end: str | None, pair: object, place: dict[str, int]
) -> int:
    if place:
        if end not in place:
            raise InputError(
                f"row {row} of the graph {path} names {end!r}, which is not a client."
                f"{suggestion(str(end), list(place))}"
            )
        return place[end]
    if not _is_number(end):
        raise InputError(
            f"row {row} of the graph {path} must have two nodes, got {pair}."
        )
    return int(str(end))


def _positive(path: Path, row: int, text: str | None) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise InputError(
            f"row {row} of the graph {path} must have a positive number, got {text!r}."
        )
    return value
