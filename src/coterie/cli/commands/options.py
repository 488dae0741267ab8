"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..completion import run_folders

Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="SETTING",
        help="Override a setting: table.key=value (repeatable).",
    ),
]
Json = Annotated[
    bool, typer.Option("--json", help="Print one JSON object instead of tables.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
STUDY = typer.Argument(metavar="STUDY", help="A TOML file.")
RunFolder = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="A run folder.", autocompletion=run_folders),
]
Trust = Annotated[
    list[str] | None,
    typer.Option(
        "--trust",
        metavar="MODULE",
        help="Let code of this module run, if the folder names it (repeatable).",
    ),
]
