"""The commands `check` and `reproduce`: tests of a method and of published results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ...conformance import Finding
from ...conformance.suite import check_algorithm
from ...study import algorithm_factory
from ..own_modules import find_own_modules
from ..reproductions import reproduce_items
from ..tables import print_json
from ..terminal import err, interruptible, out
from .options import Json, Overrides


@interruptible(err, "not all checks were run.")
def check(
    factory: Annotated[
        str, typer.Argument(help="module:factory, or a name from `coterie list`.")
    ],
    skip: Annotated[
        list[str] | None,
        typer.Option(metavar="CHECK", help="Leave out this check (repeatable)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Run the conformance suite on an algorithm of coterie or your own."""
    find_own_modules(Path.cwd(), [factory])
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
    """Prints the result of each check of the conformance suite."""
    table = Table(title=f"conformance of {factory}")
    for column in ("check", "in", "result"):
        table.add_column(column, no_wrap=True)
    table.add_column("what was found", overflow="fold")
    for finding in findings:
        table.add_row(finding.check, finding.face, finding.outcome, finding.message)
    out.print(table)


@interruptible(err, "run the same command again to continue.")
def reproduce(
    paper: Annotated[
        str,
        typer.Argument(
            help="Such as philippenko2025, or `all` papers; without it, lists all."
        ),
    ] = "",
    item: Annotated[
        str,
        typer.Argument(help="A figure or table, or `all` that are not long."),
    ] = "",
    overrides: Overrides = None,
) -> None:
    """Run a published experiment, and print our values next to the published ones."""
    if not reproduce_items(paper, item, overrides or [], out):
        raise typer.Exit(1)
