"""What a study leaves behind in runs/<id>/, and how it is read again.

Every algorithm and seed is a cell with one file, which holds its state and all that was
recorded so far. It is replaced as a whole, so that it is never half written and a run
that was killed goes on from a consistent point; the tables that people read are made
from the cells.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
from torch import Tensor

from ..checks import InputError
from ..data.federation import PARTS, Federation
from ..models import Objective
from ..types import State
from .cells import Cell, load_cell, pack
from .files import (
    file_name,
    load,
    read_json,
    read_toml,
    save,
    unwritable,
    write,
    writing,
)
from .searches import Search, load_search
from .tables import Records, load_records


class Folder:
    """The folder of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, study: dict[str, Any], read: dict[str, str]) -> None:
        """Makes the folder, or checks that an old one is of this study and content.

        Args:
            study: all settings.
            read: digests of what the study reads.
        """
        old, content = self.path / "study.toml", self.path / "read.json"
        try:
            if old.exists():
                _refuse_another_study(study, read_toml(old), self.path)
                kept = read_json(content) if content.exists() else {}
                _refuse_other_content(read, kept, self.path)
            (self.path / "cells").mkdir(parents=True, exist_ok=True)
            (self.path / "models").mkdir(exist_ok=True)
            if "tune" in study:
                (self.path / "tuning").mkdir(exist_ok=True)
            if not old.exists():
                write(content, json.dumps(read, indent=2) + "\n")
                write(old, tomli_w.dumps(study))
        except OSError as error:
            raise unwritable(self.path, error) from None

    def describe(self, seed: int, federation: Federation, objective: Objective) -> None:
        """Keeps the sizes and clusters of the clients of one seed, and the score."""
        clusters = federation.clusters
        table = pd.DataFrame({"client": federation.clients.cpu().numpy()})
        table.insert(0, "seed", seed)
        table["cluster"] = -1 if clusters is None else clusters.cpu().numpy()
        for part in PARTS:
            table[part] = federation.part(part).size.cpu().numpy()
        with writing(self.path / f"clients-{seed}.csv") as file:
            table.to_csv(file, index=False)
        about = {
            "task": federation.task,
            "note": federation.note,
            "score": objective.score,
            "higher_is_better": objective.higher_is_better,
        }
        write(self.path / "task.json", json.dumps(about) + "\n")

    def save(self, cell: Cell) -> None:
        """Replaces the cell's file."""
        path = self.path / "cells" / f"{file_name(cell.label, cell.seed)}.pt"
        save(path, vars(cell) | {"state": pack(cell.state)})

    def cell(self, label: str, seed: int) -> Cell | None:
        """The cell as it was saved last, if ever."""
        path = self.path / "cells" / f"{file_name(label, seed)}.pt"
        return load_cell(path) if path.exists() else None

    def save_models(
        self, label: str, seed: int, x: Tensor, *, of: str = "clients"
    ) -> None:
        """Keeps the models of `clients` or of `newcomers`, one row for each."""
        save(self._models_file(label, seed, of), x.detach().cpu())

    def _models_file(self, label: str, seed: int, of: str) -> Path:
        end = "pt" if of == "clients" else f"{of}.pt"
        return self.path / "models" / f"{file_name(label, seed)}.{end}"

    def models(self, label: str, seed: int, *, of: str = "clients") -> Tensor:
        """The models of a finished cell: (N, D) of `clients`, (M, D) of `newcomers`."""
        path = self._models_file(label, seed, of)
        if not path.exists():
            raise InputError(
                f"{self.path} has no models of {label!r} with seed {seed}: the run did "
                "not finish."
            )
        return load(path)

    def has_models(self, label: str, seed: int, *, of: str = "clients") -> bool:
        """Whether the models of a cell are there and intact."""
        try:
            self.models(label, seed, of=of)
        except InputError:
            return False
        return True

    def save_search(self, search: Search) -> None:
        """Replaces the file of a search."""
        text = json.dumps(asdict(search), indent=1) + "\n"
        write(self._tuning_file(search.label, search.seed, "json"), text)

    def search(self, label: str, seed: int) -> Search | None:
        """The search as it was saved last, if ever."""
        path = self._tuning_file(label, seed, "json")
        return load_search(path) if path.exists() else None

    def save_trial(
        self, label: str, seed: int, trial: int, t: int, states: list[State]
    ) -> None:
        """Keeps where a trial stands, the state of each fold, to train it on later."""
        packed = [pack(state) for state in states]
        save(self._tuning_file(label, seed, f"{trial}.pt"), (t, packed))

    def trial(self, label: str, seed: int, trial: int) -> tuple[int, list[Any]] | None:
        """The round and the packed states of a trial, if it was saved."""
        path = self._tuning_file(label, seed, f"{trial}.pt")
        return load(path) if path.exists() else None

    def drop_trial(self, label: str, seed: int, trial: int) -> None:
        """Deletes the states of a trial that does not train on."""
        self._tuning_file(label, seed, f"{trial}.pt").unlink(missing_ok=True)

    def _tuning_file(self, label: str, seed: int, end: str) -> Path:
        return self.path / "tuning" / f"{file_name(label, seed)}.{end}"

    def export(self) -> Records:
        """Writes the tables for people and returns them."""
        records = load_records(self.path)
        tables = {"tuning": records.trials, "versions": records.made_by}
        names = ["metrics", "rounds", "clients", "newcomers", "delays", "spans", "work"]
        names += ["confusion", "calibration"]
        tables |= {name: getattr(records, name) for name in names}
        for name, table in tables.items():
            if not table.empty:
                with writing(self.path / f"{name}.csv") as file:
                    table.to_csv(file, index=False)
        if records.weights:
            arrays: dict[str, Any] = {}
            for (label, seed), snapshots in records.weights.items():
                key = file_name(label, seed)
                arrays[f"{key}-rounds"] = snapshots.rounds
                arrays[f"{key}-weights"] = snapshots.matrices
            with writing(self.path / "weights.npz") as path, path.open("wb") as file:
                np.savez_compressed(file, **arrays)
        return records


def _refuse_another_study(new: dict[str, Any], old: dict[str, Any], path: Path) -> None:
    """Raises InputError that names the first setting in which two studies differ."""
    for where, mine in _leaves(new).items():
        theirs = _leaves(old).get(where)
        if theirs != mine:
            raise InputError(
                f"{path} belongs to another study: `{where}` is {mine!r} here and "
                f"{theirs!r} there; resume with the same study or use a new folder."
            )
    extra = _leaves(old).keys() - _leaves(new).keys()
    if extra:
        raise InputError(f"{path} belongs to another study: it sets `{min(extra)}`.")


def _refuse_other_content(new: dict[str, str], old: dict[str, str], path: Path) -> None:
    """Raises InputError that names the first piece of content that has changed."""
    for what in sorted(new.keys() | old.keys()):
        if new.get(what) != old.get(what):
            raise InputError(
                f"{path} was made from other content of {what}: bring that back or use "
                "a new folder."
            )


def _leaves(tables: Any, where: str = "") -> dict[str, Any]:
    """All settings of nested tables by their dotted names."""
    items: dict[str, Any] = {}
    if isinstance(tables, dict):
        pairs = [(str(key), value) for key, value in tables.items()]
    elif isinstance(tables, list | tuple) and any(isinstance(v, dict) for v in tables):
        pairs = [(str(n), value) for n, value in enumerate(tables)]
    else:
        value = list(tables) if isinstance(tables, tuple) else tables
        return {where: value}
    for key, value in pairs:
        items |= _leaves(value, f"{where}.{key}" if where else key)
    return items
