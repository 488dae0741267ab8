"""Answers for programs: what commands print with --json."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    import pandas as pd

    from ..conformance import Finding
    from ..export.predictions import Predictions
    from ..planning.plans import Plan
    from ..records import Records


def print_json(answer: Mapping[str, Any]) -> None:
    """Prints one object; what is not a finite number is null."""
    typer.echo(json.dumps(_plain(answer), indent=2, allow_nan=False))


def _plain(value: Any) -> Any:
    """The value in types of JSON."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    item = getattr(value, "item", None)  # a number of NumPy
    value = value if item is None else item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if isinstance(value, str | int | None) else str(value)


def rows_of(table: pd.DataFrame, *, index: bool = True) -> list[dict[str, Any]]:
    """A table as one object for each row."""
    rows = (table.reset_index() if index else table).to_dict("records")
    return [{str(key): value for key, value in row.items()} for row in rows]


def run_answer(records: Records, folder: Path) -> dict[str, Any]:
    """What is known of a run: the same numbers as its tables, unrounded."""
    from ..report import chosen, newcomer_summary, summary

    found = not records.trials.empty and records.trials["chosen"].any()
    newcomers = not records.newcomers.empty
    return {
        "folder": str(folder),
        "report": str(folder / "report.html"),
        "study": records.study["name"],
        "measure": records.score,
        "higher_is_better": records.higher_is_better,
        "algorithms": rows_of(summary(records)),
        "newcomers": rows_of(newcomer_summary(records)) if newcomers else [],
        "chosen": rows_of(chosen(records)) if found else [],
        "versions": records.versions,
    }


def plan_answer(plan: Plan, folder: Path, lines: Sequence[str]) -> dict[str, Any]:
    """What a plan says, to all and to each client."""
    return {
        "folder": str(folder),
        "page": str(folder / "plan.html"),
        "weights": str(folder / "weights.csv"),
        "study": plan.study.name,
        "summary": list(lines),
        "clients": rows_of(plan.table(), index=False),
    }


def predict_answer(found: Predictions, file: Path | None) -> dict[str, Any]:
    """What a model says of rows; the rows themselves where no file has them."""
    return {
        "file": None if file is None else str(file),
        "rows": len(found.table),
        "labelled": found.labelled,
        "measure": found.measure,
        "score": found.score,
        "notes": found.notes,
        "predictions": rows_of(found.table, index=False) if file is None else [],
    }


def check_answer(factory: str, findings: Sequence[Finding]) -> dict[str, Any]:
    """What the conformance suite found."""
    return {
        "algorithm": factory,
        "passed": all(finding.outcome != "failed" for finding in findings),
        "findings": [finding._asdict() for finding in findings],
    }
