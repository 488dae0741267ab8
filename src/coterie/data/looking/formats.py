"""How a file of text is written: its encoding, separator and decimal sign.

Each is found where the file leaves no doubt, and can be said in a study.
"""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ...checks import InputError, brief

SEPARATORS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar", " ": "blank"}
"""What may stand between cells, and what it is called; a blank must be said."""

DECIMALS = {".": "point", ",": "comma"}

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_LOOKED_AT = 200
"""Rows by which the separator is found."""

_WITH_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)")
_PLAIN = re.compile(r"[+-]?\d*\.?\d+([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")


class TextFormat(NamedTuple):
    """How a file of text is written; what is empty is to be found."""

    separator: str = ""
    decimal: str = ""
    encoding: str = ""

    def words(self) -> str:
        """The same as a person says it, where it is not the usual.

        >>> TextFormat(";", ",", "cp1252").words()
        'separator semicolon, decimal comma, encoding cp1252'
        """
        usual = TextFormat(",", ".", "utf-8")
        shown = TextFormat(
            SEPARATORS.get(self.separator, repr(self.separator)),
            DECIMALS.get(self.decimal, ""),
            self.encoding,
        )
        return ", ".join(
            f"{name} {word}"
            for name, word in shown._asdict().items()
            if getattr(self, name) not in ("", getattr(usual, name), "utf-8-sig")
        )


UNKNOWN_FORMAT = TextFormat()
"""All of it is to be found."""


def refuse_format(asked: TextFormat) -> None:
    """Refuses separators, decimal signs and encodings that there are not."""
    if len(asked.separator) > 1 or asked.separator in ('"', "\n", "\r"):
        raise InputError(
            f"`data.separator` must be one character, got {brief(asked.separator)}."
        )
    if asked.decimal not in ("", *DECIMALS):
        raise InputError(
            f"`data.decimal` must be '.' or ',', got {brief(asked.decimal)}."
        )
    try:
        codecs.lookup(asked.encoding or "utf-8")
    except (LookupError, ValueError):
        raise InputError(
            "`data.encoding` must be one that Python knows, such as 'utf-8' or "
            f"'latin-1', got {brief(asked.encoding)}."
        ) from None


def decode_text(raw: bytes, name: str, encoding: str = "") -> tuple[str, str]:
    """The text of a file, and its encoding.

    Args:
        raw: what the file holds.
        name: of the file.
        encoding: as it was said; by default the mark at its beginning, UTF-8, or the
            one that most programs of Western Europe and America write.
    """
    marked = next((word for mark, word in _MARKS.items() if raw.startswith(mark)), "")
    if encoding or marked:
        word = encoding or marked
        word = "utf-8-sig" if marked == "utf-8-sig" and "8" in word else word
        try:
            return raw.decode(word), word
        except (UnicodeError, LookupError) as error:
            reason = getattr(error, "reason", "") or "it holds other bytes"
            raise InputError(
                f"{name} is not written in {word} ({reason}): set `data.encoding`."
            ) from None
    try:
        return raw.decode(), "utf-8"
    except UnicodeDecodeError as error:
        bad = raw.count(b"\n", 0, error.start) + 1
    if b"\0" in raw:
        raise InputError(f"{name} is not a file of text: save it again as CSV.")
    for number, line in enumerate(raw.split(b"\n"), 1):
        if not line.isascii() and number != bad and _is_unicode(line):
            raise InputError(
                f"{name} has two encodings: row {number} is UTF-8 and row {bad} is "
                "not: save it again as UTF-8, or set `data.encoding`."
            )
    try:
        return raw.decode("cp1252"), "cp1252"
    except UnicodeDecodeError:
        raise InputError(
            f"row {bad} of {name} is neither UTF-8 nor cp1252: save it again as "
            "UTF-8, or set `data.encoding`."
        ) from None


def _is_unicode(line: bytes) -> bool:
    try:
        line.decode()
    except UnicodeDecodeError:
        return False
    return True


def separator_of(text: str, usual: str) -> str:
    """What stands between cells: most rows have as many cells as the header."""
    best, found = (0.5, 1), usual
    for sign in dict.fromkeys([usual, *SEPARATORS]):
        rows = csv.reader(io.StringIO(text), delimiter=sign)
        try:
            counts = [len(r) for r in itertools.islice(rows, _LOOKED_AT) if r]
        except csv.Error:
            continue
        if sign == " " or not counts or counts[0] < 2:
            continue
        alike = Counter(counts)[counts[0]] / len(counts)
        # One broken row among many is no reason for another separator.
        score = (round(alike, 1), counts[0])
        if len(counts) > 1 and alike >= 0.5 and score > best:
            best, found = score, sign
    return found


def points_for_commas(
    columns: dict[str, np.ndarray], separator: str, decimal: str = ""
) -> tuple[dict[str, np.ndarray], str]:
    """Columns of text whose numbers have a point, and the decimal sign that they had.

    Thousands that are apart (1.234,5 or "1,234.5") are put together.

    Args:
        columns: stripped cells by name.
        separator: of the file; between commas, 1,234 in quotes is a thousand.
        decimal: as it was said; by default that of each column.
    """
    if decimal == ".":
        return columns, "."
    found = {}
    for name, cells in columns.items():
        if any("," in word for word in cells):
            changed = _with_points(cells, separator, decimal)
            if changed is not None:
                found[name] = changed
    sign = decimal or next((sign for _, sign in found.values() if sign == ","), ".")
    return columns | {name: cells for name, (cells, _) in found.items()}, sign


def _with_points(
    cells: np.ndarray, separator: str, decimal: str
) -> tuple[np.ndarray, str] | None:
    """Cells of which most are numbers with a comma, without it; None: others."""
    there = [word for word in cells if word]
    with_comma = [word for word in there if _WITH_COMMA.fullmatch(word)]
    grouped = [word for word in there if _THOUSANDS.fullmatch(word)]
    whole = separator == "," and not decimal and len(grouped) >= len(with_comma)
    form, other = (_THOUSANDS, _PLAIN) if whole else (_WITH_COMMA, _WHOLE)
    numbers = [bool(form.fullmatch(w) or other.fullmatch(w)) for w in cells]
    if not (grouped if whole else with_comma) or 2 * sum(numbers) < len(there):
        return None
    if whole:
        return _each(cells, numbers, lambda word: word.replace(",", "")), "."

    def with_point(word: str) -> str:
        return word.replace(".", "").replace(",", ".")

    return _each(cells, numbers, with_point), ","


def _each(
    cells: np.ndarray, chosen: list[bool], change: Callable[[str], str]
) -> np.ndarray:
    pairs = zip(cells, chosen, strict=True)
    return np.array([change(w) if mine else w for w, mine in pairs], dtype=object)
