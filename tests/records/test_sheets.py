"""Claims about tables that people open in a spreadsheet."""

from __future__ import annotations

import csv
import io
import itertools
import random

import numpy as np
import pandas as pd
import pytest

from coterie.records.sheets import csv_text, safe_text

FORMULAS = [
    "=cmd|'/c calc'!A0",
    "+1+cmd|'/c calc'!A0",
    "-2+3",
    "@SUM(A1)",
    " =1+1",
    "\t=1+1",
    "\r=1+1",
    "\n=1+1",
    '"=1+1',
    "a;=1+1",
    "a; @b",
    "x\n=1+1",
    "\x00=1",
    "\u200b=1+1",
    "＝1+1",
    '=HYPERLINK("http://x","y")',
]


def cells_by(text: str, separator: str) -> list[str]:
    """All cells of a spreadsheet that uses this separator."""
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    return [cell for row in rows for cell in row]


@pytest.mark.parametrize("text", FORMULAS)
def test_no_cell_begins_as_a_formula_whatever_divides_cells(text):
    table = pd.DataFrame({"name": [text, f"z{text}"], f"p;{text}": [1.0, -2.5]})
    written = csv_text(table)
    for separator in ",;\t":
        for cell in cells_by(written, separator):
            if separator == "," and cell in ("1.0", "-2.5"):
                continue
            signs = ("=", "+", "-", "@", "＝")
            assert not cell.lstrip(' "').startswith(signs), cell
    assert not any(c in written for c in "\x00\t\r\u200b")


def test_numbers_and_plain_words_stay_as_they_are():
    words = ["Chur", "-5", "+3.2e4", "-", "+", "-inf", "St. Gallen", "a-b", "ä=b", ""]
    assert [safe_text(word) for word in words] == words
    table = pd.DataFrame({"a": [-1.5, 2.0], "b": [-1, 3], "c": ["x", None]})
    assert csv_text(table) == "a,b,c\n-1.5,-1,x\n2.0,3,\n"
    many = pd.DataFrame(np.zeros((2, 0)))
    assert csv_text(many).strip() == ""


def test_different_texts_stay_different():
    signs, rng = "='-;\\xa \t\x1b01t", random.Random(0)
    texts = {"".join(c) for n in range(4) for c in itertools.product(signs, repeat=n)}
    texts |= {"".join(rng.choices(signs, k=9)) for _ in range(20_000)}
    assert len({safe_text(text) for text in texts}) == len(texts)
