"""The command `pack`: one file with which anybody can repeat a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...export.archives import pack_run
from ..tables import print_json
from ..terminal import err, interruptible, out
from .options import Json, RunFolder


@interruptible(err, "no archive was written.")
def pack(
    folder: RunFolder,
    to: Annotated[
        Path | None,
        typer.Option("--out", help="A new file; default: RUN.zip in this folder."),
    ] = None,
    models: Annotated[
        bool, typer.Option("--models", help="Add the models of all clients.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write one file with study, code, versions and records of a run, without data.

    `coterie run FILE.zip` repeats the run.
    """
    path = pack_run(folder, to, models=models)
    if as_json:
        return print_json({"archive": str(path), "bytes": path.stat().st_size})
    out.print(f"archive: {path} ({path.stat().st_size / 1e6:.1f} MB)", soft_wrap=True)
