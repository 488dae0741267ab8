"""The commands `table` and `figures`: results of runs in the form of a paper."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...checks import InputError
from ...records.files import refuse_target, writing
from ...records.sheets import csv_text
from ..completion import run_folders
from ..tables import print_json, print_paper_table, rows_of
from ..terminal import out, plain
from .options import Json, RunFolder

if TYPE_CHECKING:
    from ...report.paper import PaperColumn


def table(
    folders: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN",
            help="Run folders; each is a column, such as a data set.",
            autocompletion=run_folders,
        ),
    ],
    latex: Annotated[
        bool, typer.Option("--latex", help="Print LaTeX with booktabs.")
    ] = False,
    markdown: Annotated[
        bool, typer.Option("--markdown", help="Print Markdown.")
    ] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print the numbers.")] = False,
    measures: Annotated[
        list[str] | None,
        typer.Option(
            "--measure",
            metavar="MEASURE",
            help="A measure of test data; default: the score (repeatable).",
        ),
    ] = None,
    names: Annotated[
        list[str] | None,
        typer.Option(
            "--name",
            metavar="NAME",
            help="The name of a run; default: of its study (once for each run).",
        ),
    ] = None,
    to: Annotated[
        Path | None, typer.Option("--out", help="A new file; default: the terminal.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Let --out replace a file.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Print the scores of runs as a table for a paper, with intervals and ranks."""
    if sum((latex, markdown, as_csv, as_json)) > 1:
        raise InputError(
            "`table` needs at most one of --latex, --markdown, --csv and --json."
        )
    if to is not None and not (latex or markdown or as_csv):
        raise InputError("`--out` needs --latex, --markdown or --csv.")
    if to is not None:
        refuse_target(to, [], force=force)
    columns = _columns(folders, names or (), measures or ())
    from ...report.paper import as_frame, as_latex, as_markdown

    if as_json:
        return print_json({"table": rows_of(as_frame(columns), index=False)})
    if as_csv:
        text = csv_text(as_frame(columns))
    elif latex:
        text = as_latex(columns, columns[0].run)
    elif markdown:
        text = as_markdown(columns)
    else:
        return print_paper_table(columns)
    if to is None:
        return typer.echo(plain(text), nl=False)
    with writing(to) as new:
        new.write_text(text, encoding="utf-8")
    out.print(f"table: {to}", soft_wrap=True)


def _columns(
    folders: Sequence[Path], names: Sequence[str], measures: Sequence[str]
) -> list[PaperColumn]:
    """The columns for these run folders; refuses two runs with the same name."""
    from ...records import load_records
    from ...report.paper import paper_columns

    if names and len(names) != len(folders):
        raise InputError(
            f"`--name` must be given once for each run, {len(folders)}, got "
            f"{len(names)}."
        )
    found = [load_records(folder) for folder in folders]
    said = list(names) or [str(records.study.get("name", "")) for records in found]
    if len(set(said)) < len(said):
        raise InputError(
            f"`--name` must tell the runs apart, but two are called "
            f"{next(name for name in said if said.count(name) > 1)!r}."
        )
    return paper_columns(dict(zip(said, found, strict=True)), measures)


def figures(
    folder: RunFolder,
    to: Annotated[
        Path, typer.Option("--to", help="A folder for the files; it may exist.")
    ] = Path("figures"),
    width: Annotated[
        float, typer.Option(help="In inches; a column of a paper is 3.25 or more.")
    ] = 3.25,
    force: Annotated[bool, typer.Option("--force", help="Replace old files.")] = False,
    as_json: Json = False,
) -> None:
    """Write the main figures of a report as PDF files for a paper."""
    from ...records import load_records
    from ...report.paper import write_figures

    written = write_figures(load_records(folder), to, width=width, overwrite=force)
    if as_json:
        return print_json({"files": [str(path) for path in written]})
    for path in written:
        out.print(str(path), soft_wrap=True)
