"""Models in one's hands, on the command line: exported, and used on new rows."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from ...data.federation import full_name
from ...export import export_model, load
from ...export import predict as predict_rows
from ...records import Records
from ...records.files import refuse_target, writing
from ...records.sheets import csv_text, write_csv
from ...scores.finals import score_named
from ..tables import err, out, print_json, rows_of
from ..terminal import interruptible
from .options import Json, RunFolder, Trust


@interruptible(err, "nothing was written.")
def export(
    folder: RunFolder,
    client: Annotated[str, typer.Option(help="Whose model: its name or number.")],
    algorithm: Annotated[
        str | None, typer.Option(help="Its label; else validation data choose.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(help="Else the first that has models.")
    ] = None,
    to: Annotated[
        Path | None, typer.Option(help="A new folder; else exports/CLIENT.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace an earlier export.")
    ] = False,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Write one client's model as files that run elsewhere, each of them checked."""
    run = load(folder, trust=trust or ())
    who = _client_of(run.records, client)
    to = to or Path("exports") / folder_name(client)
    found = export_model(run, who, to, label=algorithm, seed=seed, overwrite=overwrite)
    if as_json:
        return print_json({"client": client, **found._asdict()})
    for line in found.skipped:
        err.print(line, soft_wrap=True)
    about = f"model of {client}, {found.label}, seed {found.seed}"
    out.print(f"{about}: {found.folder}", soft_wrap=True)


def _client_of(records: Records, text: str) -> int | str:
    """A client by its name, or by its number where none is called so."""
    everybody = [*records.clients["client"], *records.newcomers.get("client", [])]
    known = {full_name(records.names, int(k)) for k in everybody}
    is_number = text.isdecimal() and len(text) < 19 and text not in known
    return int(text) if is_number else text


def folder_name(client: str) -> str:
    """What the folder of a client's model is called.

    >>> folder_name("St. Gallen/2"), folder_name("..")
    ('St._Gallen_2', 'client')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", client)[:60].lstrip(".") or "client"


@interruptible(err, "nothing was written.")
def predict(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Of an export.")],
    file: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, Parquet or npz.")],
    to: Annotated[
        Path | None, typer.Option("--out", help="A new CSV file; else the terminal.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Let --out replace a file, not the input.")
    ] = False,
    trust: Trust = None,
    as_json: Json = False,
) -> None:
    """Say what an exported model predicts for new rows, and how right that is."""
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
        out.print(f"predictions of {len(found.table):,} rows: {to}", soft_wrap=True)
    if found.labelled:
        value = score_named(found.measure, True).show(found.score)
        rows = f"{found.labelled:,} row{'s' * (found.labelled != 1)} with a label"
        (err if to is None else out).print(f"{found.words} on {rows}: {value}")
