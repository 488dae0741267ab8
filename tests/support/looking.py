"""What is found in columns of words."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from coterie.data.looking.findings import Findings, Inspection, findings_of, look_at
from coterie.data.looking.formats import TextFormat
from coterie.data.looking.sources import TableSource

SITE = [f"place {k % 4}" for k in range(80)]
AGE = [f"{k * 37 % 61}.5" for k in range(80)]


def column(words: list[str], name: str = "x") -> pd.Series:
    index = pd.RangeIndex(2, len(words) + 2)
    return pd.Series(words, index=index, name=name, dtype=object)


def inspect_columns(**columns: list[str]) -> Inspection:
    frame = pd.DataFrame({name: column(words) for name, words in columns.items()})
    path = Path("t.csv")
    return look_at(TableSource(path, (path,), (frame,), TextFormat(",", ".", "utf-8")))


def findings(look: Inspection, client: str = "site", target: str = "y") -> Findings:
    return findings_of(look, client, target)


def found_in(target: str = "y", **columns: list[str]) -> Findings:
    """What is found in a table whose clients are in the column `site`."""
    return findings(inspect_columns(**columns), target=target)
