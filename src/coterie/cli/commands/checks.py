"""The commands `check` and `reproduce`: whether a method, and we, keep a promise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ...conformance import Finding
from ...conformance.suite import check_algorithm
from ...study import algorithm_factory
from ..beside import look_beside
from ..reproductions import reproduce_items
from ..tables import print_json
from ..terminal import err, interruptible, out
from .options import Json, Overrides


@interruptible(err, "not all checks were run.")
def check(
    factory: Annotated[str, typer.Argument(help="module:factory, or a name of ours.")],
    skip: Annotated[
        list[str] | None, typer.Option(help="Leave out this check (repeatable).")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the conformance suite on an algorithm, ours or your own."""
    look_beside(Path.cwd(), [factory])
    findings = check_algorithm(algorithm_factory(factory), skip=skip or ())
    passed = all(finding.outcome != "failed" for finding in findings)
    if as_json:
        found = [finding._asdict() for finding in findings]
        print_json({"algorithm": factory, "passed": passed, "findings": found})
    else:
        _print(factory, findings)
    if not passed:
        raise typer.Exit(1)


def _print(factory: str, findings: Sequence[Finding]) -> None:
    """Prints what the conformance suite found of an algorithm, check by check."""
    table = Table(title=f"conformance of {factory}")
    for column in ("check", "in", "result"):
        table.add_column(column, no_wrap=True)
    table.add_column("what was found", overflow="fold")
    for finding in findings:
        table.add_row(finding.check, finding.face, finding.outcome, finding.message)
    out.print(table)


@interruptible(err, "run the same command again to go on.")
def reproduce(
    paper: Annotated[str, typer.Argument(help="For example philippenko2025.")] = "",
    item: Annotated[str, typer.Argument(help="A figure or table.")] = "",
    overrides: Overrides = None,
) -> None:
    """Run a published experiment and print ours next to the published value."""
    if not reproduce_items(paper, item, overrides or [], out):
        raise typer.Exit(1)
