"""Runs the study of an archive, after asking whether its code may run."""

from __future__ import annotations

import contextlib
import io
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import typer

from .. import __version__
from ..checks import InputError, several
from ..export.archives import Archive, code_of, read_archive, record_in, unpack_study
from ..models.trust import is_trusted, named_modules
from .terminal import err, notice, plain

NO_LOG = "run.log=[]"
"""The override with which a study by somebody else sends no numbers to anybody."""


@contextlib.contextmanager
def study_of_archive(
    path: Path, trust: Sequence[str]
) -> Iterator[tuple[Path, Archive]]:
    """A context with the study of an archive and its modules in a temporary folder.

    If the study names code, the function first asks the user. It imports nothing.
    """
    archive = read_archive(path)
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder:
        study = unpack_study(archive, Path(folder))
        try:
            tables = tomllib.loads(study.read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise InputError(f"the study in {path} is not valid TOML.") from None
        _ask(archive, tables, trust)
        _say_versions(archive)
        yield study, archive


def _ask(archive: Archive, tables: dict[str, Any], trust: Sequence[str]) -> None:
    """Ends the command unless the user trusts the modules that the study names."""
    unknown = [m for m in named_modules(tables) if not is_trusted(m, trust)]
    if not unknown:
        return
    files = {name: len(text.splitlines()) for name, text in code_of(archive).items()}
    listed = ", ".join(f"{name} ({several(n, 'line')})" for name, n in files.items())
    listed = listed or "none, so they come from this machine"
    if not sys.stdin.isatty():
        words = " ".join(f"--trust {module}" for module in unknown)
        raise InputError(
            f"{archive.path} runs code of {', '.join(unknown)} (files in it: {listed}):"
            f" if you trust all of it, say {words}."
        )
    err.print(
        f"{archive.path} runs code of {', '.join(unknown)}. Files in it: {listed}. "
        "This code can do anything that you can do on this machine.",
        soft_wrap=True,
    )
    if not typer.confirm(plain("Do you trust it?"), err=True):
        raise InputError(f"nothing of {archive.path} was run.")


def _say_versions(archive: Archive) -> None:
    """Says which versions differ from those that made the archive."""
    here = {"coterie": __version__, "torch": str(torch.__version__)}
    here["numpy"] = np.__version__
    different = [
        f"{name} {archive.versions[name]} (here {version})"
        for name, version in here.items()
        if archive.versions.get(name, version) != version
    ]
    if different:
        notice(
            f"{archive.path} was made with {', '.join(different)}, so numbers may "
            "differ."
        )


def say_agreement(archive: Archive, folder: Path, reused: int = 0) -> None:
    """Says whether the scores of a run equal the scores in the archive.

    Results of `reused` cells were there before this run, so they do not count as
    repeated.
    """
    before = record_in(archive, "metrics.csv")
    now = folder / "metrics.csv"
    if before is None or not now.exists():
        return
    notice(_agreement(before, now))
    if reused:
        were = "result was" if reused == 1 else "results were"
        notice(
            f"{reused} {were} not trained again, because {folder.parent} has them: to "
            "repeat everything, name an empty folder with --runs."
        )


def _agreement(before: bytes, now: Path) -> str:
    """The sentence that compares the scores of an archive with a run's scores."""
    if before == now.read_bytes():
        return "All scores are those in the archive, digit by digit."
    where = ["algorithm", "seed", "round", "client"]
    try:
        old, new = (
            pd.read_csv(source).set_index(where).select_dtypes("number")
            for source in (io.BytesIO(before), now)
        )
        both = old.index.intersection(new.index)
        gaps = old.loc[both] - new.loc[both][old.columns]
    except (KeyError, TypeError, ValueError):
        return "The scores cannot be compared with those in the archive."
    largest = float(np.nanmax(gaps.abs().to_numpy(), initial=0.0))
    missing = len(old.index.union(new.index)) - len(both)
    text = f"Scores differ from those in the archive by at most {largest:.3g}"
    return f"{text}, and {several(missing, 'row')} are only in one of them."
