"""Formats of text files: encoding, separator and decimal sign.

Each is detected if there is no doubt; a study may also name it.
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
"""Separators between cells, and their names; a blank is never detected."""

DECIMALS = {".": "point", ",": "comma"}

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_LOOKED_AT = 200
"""The number of rows that are read to detect the separator."""

_WITH_COMMA = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][+-]?\d+)?")
_WHOLE = re.compile(r"[+-]?(\d+|\d{1,3}(\.\d{3})+)")
_PLAIN = re.compile(r"[+-]?\d*\.?\d+([eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?\d{1,3}(,\d{3})+(\.\d+)?")


class TextFormat(NamedTuple):
    """The format of a text file; an empty field is to be detected."""

    separator: str = ""
    decimal: str = ""
    encoding: str = ""

    def words(self) -> str:
        """The format in words; only what differs from the usual format.

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
"""Every field is to be detected."""


def refuse_format(asked: TextFormat) -> None:
    """Refuses separators, decimal signs and encodings that do not exist."""
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
        raw: the bytes of the file.
        name: the name of the file.
        encoding: the encoding of the file. With "", it is found: by the mark at the
            start of the file, otherwise UTF-8, otherwise cp1252, which many programs
            write in Europe and America.
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
                f"{name} has two encodings, since row {number} is UTF-8 and row {bad} "
                "is not: save it again as UTF-8, or set `data.encoding`."
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
    """The separator with which most rows have as many cells as the header."""
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
        # One broken row among many does not change the separator.
        score = (round(alike, 1), counts[0])
        if len(counts) > 1 and alike >= 0.5 and score > best:
            best, found = score, sign
    return found


def points_for_commas(
    columns: dict[str, np.ndarray], separator: str, decimal: str = ""
) -> tuple[dict[str, np.ndarray], str]:
    """Columns of text whose numbers have decimal points, and their old decimal sign.

    Signs between thousands are removed, as in 1.234,5 or "1,234.5".

    Args:
        columns: stripped cells by name.
        separator: the separator of the file. If it is a comma, 1,234 in quotes has
            thousands.
        decimal: the decimal sign; by default it is detected in each column.
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
    """The cells without commas in numbers, and the sign; None for other columns."""
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
    """The cells, with the chosen ones changed."""
    pairs = zip(cells, chosen, strict=True)
    return np.array([change(w) if mine else w for w, mine in pairs], dtype=object)
