"""The commands `export` and `predict`: models as files, and their use on new rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from ...checks import InputError, several
from ...data.federation import full_name
from ...export import export_all, export_model, load
from ...export import predict as predict_rows
from ...export.folders import folder_names
from ...records import Records
from ...records.files import refuse_target, writing
from ...records.sheets import csv_text, write_csv
from ...scores.finals import score_named
from ..progress import plain_progress
from ..tables import print_json, rows_of
from ..terminal import err, interruptible, out
from .options import Json, Quiet, RunFolder, Trust


@interruptible(err, "every model that was written is complete.")
def export(
    folder: RunFolder,
    client: Annotated[
        str | None,
        typer.Option(help="Its name or number; not needed for a run of one client."),
    ] = None,
    everybody: Annotated[
        bool, typer.Option("--all", help="The models of all clients.")
    ] = False,
    algorithm: Annotated[
        str | None,
        typer.Option(help="A label of the study; default: the best on validation."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Default: the first seed that has models.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option(help="A new folder; default: exports/CLIENT, or exports."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", "--overwrite", help="Replace earlier exports.")
    ] = False,
    trust: Trust = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Write one client's model as files that run elsewhere, and check each file.

    With --all, write the models of all clients, each into a folder of its own.
    """
    run = load(folder, trust=trust or ())
    if client is None and not everybody:
        client = _only_client(run.records)
    if (client is None) != everybody:
        raise InputError("`export` needs either --client or --all.")
    how: dict[str, Any] = {"label": algorithm, "seed": seed, "overwrite": force}
    if client is None:
        with plain_progress(err, "export", quiet=quiet, unit="models") as show:
            every = export_all(run, to or Path("exports"), **how, progress=show)
    else:
        who = _client_of(run.records, client)
        to = to or Path("exports") / folder_names([client])[0]
        every = {client: export_model(run, who, to, **how)}
    if as_json:
        answers = [{"client": name, **one._asdict()} for name, one in every.items()]
        return print_json({"models": answers} if everybody else answers[0])
    for line in dict.fromkeys(line for one in every.values() for line in one.skipped):
        err.print(line, soft_wrap=True)
    for name, one in every.items():
        about = f"model of {name}, {one.label}, seed {one.seed}"
        out.print(f"{about}: {one.folder}", soft_wrap=True)


def _only_client(records: Records) -> str | None:
    """The name of the client of a run that has one, such as that of a site."""
    known = set(records.clients["client"])
    return full_name(records.names, int(known.pop())) if len(known) == 1 else None


def _client_of(records: Records, text: str) -> int | str:
    """The client's name, or its number if no client has that name."""
    everybody = [*records.clients["client"], *records.newcomers.get("client", [])]
    known = {full_name(records.names, int(k)) for k in everybody}
    is_number = text.isdecimal() and len(text) < 19 and text not in known
    return int(text) if is_number else text


@interruptible(err, "nothing was written.")
def predict(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder of an exported model.")
    ],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="New rows: CSV, Parquet or npz.")
    ],
    to: Annotated[
        Path | None,
        typer.Option("--out", help="A new CSV file; default: print to the terminal."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Let --out replace a file, not the input.")
    ] = False,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Say what an exported model predicts for new rows, with a score if labelled."""
    if to is not None:
        refuse_target(to, [file, *folder.glob("*")], force=force)
    found = predict_rows(folder, file, trust=trust or ())
    if to is not None:
        with writing(to) as new:
            write_csv(found.table, new)
    if as_json:
        return print_json(
            {
                "file": None if to is None else str(to),
                "rows": len(found.table),
                "labelled": found.labelled,
                "measure": found.measure,
                "score": found.score,
                "notes": found.notes,
                "predictions": rows_of(found.table, index=False) if to is None else [],
            }
        )
    for note in found.notes:
        err.print(note, soft_wrap=True)
    if to is None:
        sys.stdout.write(csv_text(found.table))
    else:
        rows = several(len(found.table), "row")
        out.print(f"predictions of {rows}: {to}", soft_wrap=True)
    if found.labelled:
        value = score_named(found.measure, True).show(found.score)
        rows = f"{several(found.labelled, 'row')} with a label"
        (err if to is None else out).print(f"{found.words} on {rows}: {value}")
