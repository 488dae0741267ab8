"""Claims of Even's thesis, as an item of its reproduction writes them."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from pathlib import Path

from coterie.cli.reproductions import Claim, papers


def rows_of(path: Path) -> list[dict[str, str]]:
    """All claims of a table."""
    with path.open() as file:
        return list(csv.DictReader(file))


def recorded(chapter: str) -> list[dict[str, str]]:
    """The claims that were recorded of a chapter, with all sizes and runs."""
    return rows_of(papers() / "even2024" / "results" / f"{chapter}.csv")


def check_written(claims: Sequence[Claim], chapter: str, picture: str) -> None:
    """Raises unless claims stand in the folder of a run, with a picture."""
    for claim in claims:
        assert all(isinstance(text, str) for text in (*claim[:3], claim.note))
        assert isinstance(claim.agrees, bool | None)
    folder = Path("runs") / f"even2024-{chapter}"
    written = [row["what"] for row in rows_of(folder / f"{chapter}.csv")]
    assert written == [claim.what for claim in claims]
    assert "plotly" in (folder / picture).read_text()
