"""Data in, models out: a study in one call, for notebooks and scripts."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ...checks import InputError, parameters_of, suggestion
from ...data import files
from ...data.given import Given
from ..config import TABLES, options_of, study_of
from ..experiment import Progress, Result, run_study
from ..tables import RunTable


def train(
    data: Given | Path | str,
    client: str | None = None,
    target: str | None = None,
    method: str | Sequence[str] = "coteries",
    *,
    runs: Path | str | None = "runs",
    progress: Callable[[Progress], None] | None = None,
    notice: Callable[[str], None] | None = None,
    **settings: Any,
) -> Result:
    """Trains a model for each client, and returns scores, models and a report.

    If you repeat a call, it trains nothing, and reads the results in its folder.

    Args:
        data: the path of a file, or what `study_of` takes as `data`: a pandas frame, a
            dictionary of frames by client, a `Table`, pairs of tensors, or datasets.
        client: the column that names the client.
        target: the column to predict.
        method: a single name is compared with `local`, which trains each client alone.
            With a list, exactly these methods are trained, and `result.model` gives
            models of the last one.
        runs: where the run folder is made; None: in a new temporary folder.
        progress: a function that is called after every round.
        notice: a function that gets each line for the user.
        settings: tables of a study (`model="mlp"`, `split={"test": 0.3}`), options of
            its tables [data] (`task="regression"`, `drop=["id"]`) and [run]
            (`rounds=20`, `seeds=[0, 1]`), or options of methods (`lr=0.1`), which apply
            to all methods that have them. The defaults are those of a study file.
    """
    named = {"client": client, "target": target}
    own = {key: value for key, value in named.items() if value is not None}
    tables = {key: settings.pop(key) for key in TABLES if key in settings}
    tables = {k: _table(k, value) for k, value in tables.items()}
    more = {key: settings.pop(key) for key in _of_data() if key in settings}
    tables["data"] = {**own, **more}
    run = {f.name: settings.pop(f.name) for f in fields(RunTable) if f.name in settings}
    tables["run"] = {**tables.get("run", {}), **run}
    if "algorithm" not in tables:
        tables["algorithm"] = [{"name": name} for name in _methods(method)]
    _set_options(tables["algorithm"], settings)
    if isinstance(data, str | Path):
        tables["data"]["path"] = str(data)
        study = study_of({"name": Path(data).stem, **tables})
    else:
        study = study_of(tables, data)
    runs = tempfile.mkdtemp(prefix="coterie-") if runs is None else runs
    return run_study(study, runs=runs, progress=progress, notice=notice)


def _of_data() -> list[str]:
    """The options of [data] for a user's own table."""
    return list(parameters_of(files.table, ingredients=1))


def _table(key: str, value: Any) -> Any:
    """A table from a name alone, or as it is."""
    return {"name": value} if isinstance(value, str) and key != "name" else value


def _methods(method: str | Sequence[str]) -> list[str]:
    """The methods to compare: a single one with training alone, several as they are."""
    if isinstance(method, str):
        return list(dict.fromkeys(["local", method]))
    if not method or not all(isinstance(name, str) for name in method):
        raise InputError(f"`method` must be a name or a list of names, got {method!r}.")
    return list(method)


def _set_options(entries: Any, settings: dict[str, Any]) -> None:
    """Gives each method the options that it has."""
    known = {entry["name"]: options_of(entry["name"]) for entry in entries}
    for key, value in settings.items():
        names = [name for name, options in known.items() if key in options]
        if not names:
            every = [*(key for some in known.values() for key in some), *TABLES]
            every += [*_of_data(), *(field.name for field in fields(RunTable))]
            raise InputError(
                f"`train` has no setting {key!r}: it is not a table of a study, nor an "
                f"option of [data], [run] or {', '.join(known)}."
                f"{suggestion(key, every)}"
            )
        for entry in entries:
            if entry["name"] in names:
                entry[key] = value
