"""CSV tables that a spreadsheet opens without running anything.

A spreadsheet would run a text that begins like a formula: `=cmd|'/c calc'!A0`. Such a
text gets an apostrophe in front. So does a formula after a semicolon, where
spreadsheets of some countries begin a new cell. Control characters, and characters that
reverse the direction of a line, become escapes. Numbers stay as they are. Different
texts stay different.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

_BEGINS = re.compile(r"((?:^|;)[\s\"']*)([=+\-@＝＋－＠])")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?|[+-]?(inf|nan)|.")

_CONTROLS = re.compile(
    "[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)

_WRITTEN = re.compile(r"\\[abfnrtv0-9xuU\\]")
"""What looks like an escaped character."""


def safe_text(text: str) -> str:
    r"""The text in a form that is safe in a cell.

    >>> safe_text("=1+1"), safe_text("-5"), safe_text("a\tb"), safe_text("Chur")
    ("'=1+1", '-5', 'a\\tb', 'Chur')
    """
    if _CONTROLS.search(text) or _WRITTEN.search(text):
        text = text.replace("\\", "\\\\")
        text = _CONTROLS.sub(lambda found: ascii(found[0])[1:-1], text)
    return text if _NUMBER.fullmatch(text) else _BEGINS.sub(r"\1'\2", text)


def safe_cell(value: Any) -> Any:
    """The value in a form that is safe in a cell; only texts change."""
    return safe_text(value) if isinstance(value, str) else value


def safe_table(table: pd.DataFrame) -> pd.DataFrame:
    """The table with column names and texts that a spreadsheet does not run."""
    new = table.rename(columns=safe_cell)
    for place in range(new.shape[1]):
        column = new.iloc[:, place]
        if column.dtype == object or isinstance(column.dtype, pd.StringDtype):
            cells = np.empty(len(column), dtype=object)
            cells[:] = [safe_cell(value) for value in column]
            new.isetitem(place, cells)
    return new


def csv_text(table: pd.DataFrame) -> str:
    """The table as safe CSV."""
    text = io.StringIO()
    safe_table(table).to_csv(text, index=False, lineterminator="\n")
    return text.getvalue()


def write_csv(table: pd.DataFrame, path: Path) -> None:
    """Writes the table as safe CSV."""
    path.write_text(csv_text(table), encoding="utf-8")
