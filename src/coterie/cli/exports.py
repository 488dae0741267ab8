"""Models in one's hands, on the command line: exported, and used on new rows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from ..data.federation import full_name
from ..export import Export, export_model, load, predict
from ..export.predictions import Predictions, about_of
from ..records import Records
from ..records.files import writing
from ..scores.finals import score_named
from .beside import look_beside
from .tables import err, out
from .terminal import plain


def exported(
    folder: Path,
    client: str,
    label: str | None,
    seed: int | None,
    to: Path | None,
    *,
    overwrite: bool,
) -> Export:
    """Exports the model of a client."""
    run = load(folder)
    look_beside(Path.cwd(), [str(run.records.study.get("model", {}).get("name", ""))])
    who = client_of(run.records, client)
    to = Path("exports") / folder_name(client) if to is None else to
    return export_model(run, who, to, label=label, seed=seed, overwrite=overwrite)


def print_export(client: str, found: Export) -> None:
    """Says where a model is and what was left out."""
    for line in found.skipped:
        err.print(line, soft_wrap=True)
    about = f"model of {client}, {found.label}, seed {found.seed}"
    out.print(f"{about}: {found.folder}", soft_wrap=True)


def client_of(records: Records, text: str) -> int | str:
    """A client by its name, or by its number where none is called so."""
    everybody = [*records.clients["client"], *records.newcomers.get("client", [])]
    known = {full_name(records.names, int(k)) for k in everybody}
    return int(text) if text.isdecimal() and text not in known else text


def folder_name(client: str) -> str:
    """What the folder of a client's model is called.

    >>> folder_name("St. Gallen/2"), folder_name("..")
    ('St._Gallen_2', 'client')
    """
    return re.sub(r"[^A-Za-z0-9._-]+", "_", client)[:60].lstrip(".") or "client"


def predictions(folder: Path, file: Path, to: Path | None) -> Predictions:
    """What a model predicts, which is written to a file where one is named."""
    look_beside(Path.cwd(), [about_of(folder)["model"]["name"]])
    found = predict(folder, file)
    if to is not None:
        with writing(to) as new:
            found.table.to_csv(new, index=False)
    return found


def print_predictions(found: Predictions, to: Path | None) -> None:
    """Prints predictions, or where they are, and the score."""
    for note in found.notes:
        err.print(note, soft_wrap=True)
    if to is None:
        text = found.table.to_csv(index=False, lineterminator="\n")
        sys.stdout.write("\n".join(map(plain, text.split("\n"))))
    else:
        out.print(f"predictions of {len(found.table):,} rows: {to}", soft_wrap=True)
    if found.labelled:
        value = score_named(found.measure, True).show(found.score)
        rows = f"{found.labelled:,} row{'s' * (found.labelled != 1)} with a label"
        (err if to is None else out).print(f"{found.measure} on {rows}: {value}")
