"""The command `init`: looks at the user's file, and writes a study of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from ...checks import InputError, several
from ...data.looking.findings import (
    ColumnFinding,
    Findings,
    Inspection,
    findings_of,
    look_at,
)
from ...data.looking.roles import Guess, client_guess, target_guess
from ...data.looking.sources import read_source
from ...data.looking.studies import doubt, named_column, relative, study_text
from ...records.files import write
from ..terminal import err, interruptible, notice, out

_SHOWN = 40
"""The most columns that are shown one by one; if there are more, some share a line."""

_QUESTIONS = {
    "client": "Which column names the clients (hospitals, plants, ...)?",
    "target": "Which column should be predicted?",
}


@interruptible(err, "nothing was written.")
def init(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Tables (CSV, TSV, .gz, Parquet, Excel), or a folder of them.",
        ),
    ],
    client: Annotated[
        str | None, typer.Option(help="The column that names the client.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="The column to predict.")] = None,
    unit: Annotated[
        str, typer.Option(help="The unit of the predicted quantity, such as kg.")
    ] = "",
    study: Annotated[
        Path, typer.Option("--out", help="The file for the new study.")
    ] = Path("study.toml"),
    force: Annotated[
        bool, typer.Option("--force", help="Replace the file of --out if it exists.")
    ] = False,
) -> None:
    """Look at a file of your own, and write a study of it.

    It finds out how the file is written, what its columns hold, which column names the
    client and which one to predict. It prints what it assumed, and writes a study.
    """
    _refuse_out(study, force=force)
    look = look_at(read_source(files))
    names = _client_and_target(look, client, target)
    found = findings_of(look, *names)
    _refuse_problems(found.problems)
    if unit and found.data["task"] != "regression":
        raise InputError(
            f"`--unit` must be left out, because column {names[1]!r} holds classes and "
            "not a quantity."
        )
    found = found._replace(data=found.data | ({"unit": unit} if unit else {}))
    _show(found, look)
    paths = relative([path for path in files], study.resolve().parent)
    write(study, study_text(found, look, paths, study.name))
    out.print(f"study: {study}", soft_wrap=True)
    out.print(f"next:  coterie run {study}", soft_wrap=True)


def _refuse_out(study: Path, *, force: bool) -> None:
    """Refuses a path where something exists, or that is not right for a study."""
    if study.suffix != ".toml":
        raise InputError(f"`--out` must end in .toml, got {study.name}.")
    if not study.resolve().parent.is_dir():
        raise InputError(
            f"`--out` must be in a folder that exists, but {study.parent} does not."
        )
    if (study.resolve().parent / "cells").exists():
        raise InputError(f"`--out` must not be in a run folder, got {study}.")
    if study.exists() and not study.is_file():
        raise InputError(f"`--out` must be a plain file, but {study} is not.")
    if os.path.lexists(study) and not force:
        raise InputError(
            f"{study} exists: name another file with --out, or replace it with --force."
        )


def _client_and_target(
    look: Inspection, client: str | None, target: str | None
) -> tuple[str, str]:
    """The columns of client and target, as given, guessed, or answered by the user."""
    wrong = []
    if client is not None:
        named_column(look, "client", client)
    if target is not None:
        named_column(look, "target", target)
    if client is None:
        likely = target or target_guess(look.profiles).name
        guess = client_guess(look.profiles, likely)
        client = guess.name if guess.sure else _ask(look, guess, "client")
        if not client:
            wrong.append(doubt(look, guess, "client", "--client"))
    if target is None:
        guess = target_guess(look.profiles, client)
        target = guess.name if guess.sure else _ask(look, guess, "target")
        if not target:
            wrong.append(doubt(look, guess, "target", "--target"))
    _refuse_problems(wrong)
    if client == target:
        raise InputError(f"--client and --target must differ, both are {client!r}.")
    return client, target


def _ask(look: Inspection, guess: Guess, role: str) -> str:
    """The answer of the person at the terminal; empty if nobody is there."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or os.environ.get("CI"):
        return ""
    columns = [profile.name for profile in look.profiles]
    out.print(_QUESTIONS[role])
    out.print(f"  {', '.join(guess.others or columns)}", soft_wrap=True)
    while True:
        answer = str(typer.prompt("column", default=(guess.others or columns)[0]))
        if answer in columns:
            return answer
        out.print(f"There is no column {answer!r}.")


def _refuse_problems(problems: Sequence[str]) -> None:
    """Raises the problem; several problems are printed first."""
    if len(problems) == 1:
        raise InputError(f"{problems[0]}.")
    for problem in problems:
        notice(f"- {problem}.")
    if problems:
        raise InputError(
            f"no study was written, because of the {len(problems)} problems above."
        )


def _show(found: Findings, look: Inspection) -> None:
    """Prints what was found, and what was assumed."""
    source = look.source
    count = sum(len(frame) for frame in source.frames)
    files = f" in {len(source.files)} files" if len(source.files) > 1 else ""
    how = source.writing.words()
    columns = several(len(source.shared_columns()), "column")
    size = f"{several(count, 'row')}{files}, {columns}"
    out.print(f"{source.label.name}: {size}{'; ' * bool(how)}{how}", soft_wrap=True)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("column", "holds", "what happens to it"):
        table.add_column(heading, overflow="fold")
    for finding in _group_alike(found.columns):
        table.add_row(*finding)
    out.print(table)
    for note in found.notes:
        out.print(f"- {note}.", soft_wrap=True)


def _group_alike(columns: Sequence[ColumnFinding]) -> list[ColumnFinding]:
    """The lines to show: one per column.

    With more than `_SHOWN` columns, columns of the same kind and use share a line.
    """
    if len(columns) <= _SHOWN:
        return list(columns)
    groups: dict[tuple[str, str], list[ColumnFinding]] = {}
    for column in columns:
        kind = column.kind.partition(",")[0].partition(":")[0].lstrip("0123456789 ")
        groups.setdefault((kind, column.use), []).append(column)
    return [
        some[0]
        if len(some) == 1
        else ColumnFinding(
            f"{', '.join(c.name for c in some[:3])}{_more(len(some) - 3)}", kind, use
        )
        for (kind, use), some in groups.items()
    ]


def _more(count: int) -> str:
    return f" and {count:,} more" if count > 0 else ""
