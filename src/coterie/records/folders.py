"""The folder runs/<id>/ of a study, and how it is written and read.

Each pair of algorithm and seed is a cell. The cell's file holds its state and all that
was recorded so far. The file is replaced as a whole, and so is never half written. A
run that was killed therefore continues from a consistent point. The tables that people
read are made from the cells.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int
from torch import Tensor, nn

from ..checks import InputError
from ..data.federation import PARTS, Federation, full_name
from ..data.preparation import Preparations, preparations_of
from ..models import Objective, description
from ..types import State
from .cells import Baselines, Cell, baselines_file, pack
from .files import (
    damage_error,
    file_name,
    is_sealed,
    load,
    read_json,
    read_sealed_json,
    read_toml,
    save,
    sealed_json,
    sealed_toml,
    write,
    write_error,
    writing,
)
from .keys import FINGERPRINT, KEY
from .searches import FoundSettings, Search, load_search, load_settings
from .shapes import check_model, check_rows
from .sheets import safe_cell, write_csv
from .tables import (
    Records,
    add_names,
    last_metrics,
    metrics_of,
    read_cell,
    records_of,
)


class Folder:
    """The folder of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, study: dict[str, Any], read: dict[str, str]) -> None:
        """Makes the folder, or checks the study and the digests of an old one."""
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
            if not old.exists() or not is_sealed(old):
                write(old, sealed_toml(study))
        except OSError as error:
            raise write_error(self.path, error) from None

    def copy_code(self, files: Mapping[str, Path]) -> None:
        """Keeps copies of the user's modules, by their names in the folder `code`.

        They are for people and for archives. Nothing imports them from here.
        """
        for name, path in files.items():
            target = self.path / "code" / name
            try:
                text = path.read_bytes()
                target.parent.mkdir(parents=True, exist_ok=True)
                if target.is_file() and target.read_bytes() == text:
                    continue
            except OSError as error:
                raise write_error(self.path, error) from None
            with writing(target) as file:
                file.write_bytes(text)

    def describe(
        self,
        seed: int,
        federation: Federation,
        objective: Objective,
        oracles: Sequence[str] = (),
    ) -> None:
        """Writes names, sizes, clusters and preparations of the clients of one seed.

        Args:
            seed: the seed of the study.
            federation: the clients that train.
            objective: defines the score.
            oracles: labels of the algorithms that know true clusters or optima.
        """
        clusters = federation.clusters
        table = pd.DataFrame({"client": federation.clients.cpu().numpy()})
        table.insert(0, "seed", seed)
        names = federation.names
        table["name"] = [full_name(names, client) for client in table["client"]]
        table["cluster"] = -1 if clusters is None else clusters.cpu().numpy()
        for part in PARTS:
            table[part] = federation.part(part).size.cpu().numpy()
        with writing(self.path / f"clients-{seed}.csv") as file:
            write_csv(table, file)
        about = {
            "task": federation.task,
            "note": federation.note,
            "score": objective.score,
            "higher_is_better": objective.higher_is_better,
            "clients": federation.names,
            "features": federation.columns,
            "classes": federation.classes,
            "oracles": list(oracles),
        }
        write(self.path / "task.json", json.dumps(about) + "\n")
        if federation.preparations is not None:
            plain = json.dumps(federation.preparations.plain())
            write(self._preparations_file(seed), plain + "\n")

    def describe_graph(
        self, seed: int, clients: Tensor, edges: Int[Tensor, "e 2"]
    ) -> None:
        """Writes the edges of [graph] with one seed, by the identities of clients."""
        table = pd.DataFrame(clients.cpu()[edges.cpu()].numpy(), columns=["v", "w"])
        table.insert(0, "seed", seed)
        with writing(self.path / f"graph-{seed}.csv") as file:
            write_csv(table, file)

    def _preparations_file(self, seed: int) -> Path:
        return self.path / f"preparation-{seed}.json"

    def preparations(self, seed: int) -> Preparations | None:
        """How the features of one seed were prepared; None if they were not."""
        path = self._preparations_file(seed)
        if not path.exists():
            return None
        try:
            return preparations_of(read_json(path))
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise damage_error(path, error) from error

    def describe_model(
        self, seed: int, federation: Federation, module: nn.Module
    ) -> None:
        """Writes what is needed to make the module of one seed without its data."""
        features, whole = federation.features, None
        if not features.is_floating_point():
            kind = str(features.dtype).removeprefix("torch.")
            ends = {"least": int(features.min()), "most": int(features.max())}
            whole = {"dtype": kind, **ends}
        about = {
            "shape": list(features.shape[1:]),
            "outputs": federation.outputs,
            "whole": whole,  # of features that are whole numbers, such as ids of words
            "prepared": federation.preparations is not None,
            **description(module),
        }
        text = json.dumps(sealed_json(about)) + "\n"
        write(self.path / f"model-{seed}.json", text)

    def model_description(self, seed: int) -> dict[str, Any]:
        """What `describe_model` wrote."""
        path = self.path / f"model-{seed}.json"
        if not path.exists():
            raise InputError(
                f"{self.path} does not say how its models are made: {path.name} is "
                "missing; run its study again, which adds the file and trains nothing "
                "twice."
            )
        about = read_sealed_json(path)
        check_model(path, about)
        return about

    def save(self, cell: Cell) -> None:
        """Replaces the cell's file."""
        path = self.cell_file(cell.label, cell.seed)
        save(path, vars(cell) | {"state": pack(cell.state)})

    def cell_file(self, label: str, seed: int) -> Path:
        """The file of a cell."""
        return self.path / "cells" / f"{file_name(label, seed)}.pt"

    def begin_metrics(self) -> None:
        """Makes metrics.csv from saved cells; a run repeats evaluations after these."""
        path = self.path / "metrics.csv"
        cells = sorted((self.path / "cells").glob("*.pt"))
        if cells:
            table = add_names(metrics_of(map(read_cell, cells)), self._names())
            with writing(path) as new:
                write_csv(table, new)
        else:
            path.unlink(missing_ok=True)

    def grow(self, cell: Cell) -> None:
        """Appends the cell's last evaluation to metrics.csv, for people who watch.

        A line may be lost or half written if the machine stops, because a run continues
        from its cells. `begin_metrics` and `export` write the file as a whole.
        """
        try:
            with (self.path / "metrics.csv").open(
                "a", encoding="utf-8", newline=""
            ) as file:
                lines = csv.writer(file, lineterminator="\n")
                if not file.tell():
                    where = ("algorithm", "seed", "round", "client", "name")
                    lines.writerow(map(safe_cell, [*where, *cell.metrics[-1]]))
                for line in last_metrics(cell, self._names()):
                    lines.writerow(map(safe_cell, line))
        except OSError as error:
            raise write_error(self.path, error) from None

    def _names(self) -> tuple[str, ...]:
        """The names of the clients that `describe` wrote."""
        return tuple(read_json(self.path / "task.json").get("clients", ()))

    def cell(self, label: str, seed: int) -> Cell | None:
        """The cell as it was last saved; None if it never was."""
        path = self.cell_file(label, seed)
        if not path.exists():
            return None
        found = read_cell(path)
        if (found.label, found.seed) != (label, seed):
            raise InputError(
                f"{path} must hold {label!r} with seed {seed}, got "
                f"{found.label!r} with seed {found.seed}: put it back, or delete it to "
                f"run {label!r} again."
            )
        return found

    def drop_cell(self, label: str, seed: int) -> None:
        """Deletes a cell that will be trained again with other settings."""
        self.cell_file(label, seed).unlink(missing_ok=True)
        self.begin_metrics()

    def forget_cell(self, label: str, seed: int) -> None:
        """Deletes a cell, its models and its search."""
        self.cell_file(label, seed).unlink(missing_ok=True)
        for of in ("clients", "newcomers"):
            self.models_file(label, seed, of).unlink(missing_ok=True)
        name = re.escape(file_name(label, seed))
        for path in (self.path / "tuning").glob("*"):
            if re.fullmatch(rf"{name}\.(json|\d+\.pt)", path.name):
                path.unlink(missing_ok=True)

    def save_settings(self, found: FoundSettings) -> None:
        """Saves the settings that were found for one seed before training."""
        text = json.dumps(asdict(found), indent=1) + "\n"
        write(self.path / f"settings-{found.seed}.json", text)

    def settings(self, seed: int) -> FoundSettings | None:
        """The settings that were found for one seed; None if none were."""
        path = self.path / f"settings-{seed}.json"
        return load_settings(path) if path.exists() else None

    def save_models(
        self, label: str, seed: int, x: Tensor, *, of: str = "clients"
    ) -> None:
        """Saves the models of `clients` or of `newcomers`, one row for each."""
        save(self.models_file(label, seed, of), x.detach().cpu())

    def models_file(self, label: str, seed: int, of: str = "clients") -> Path:
        """The file of the models of a cell that has ended."""
        end = "pt" if of == "clients" else f"{of}.pt"
        return self.path / "models" / f"{file_name(label, seed)}.{end}"

    def models(self, label: str, seed: int, *, of: str = "clients") -> Tensor:
        """The models of a finished cell: (N, D) of `clients`, (M, D) of `newcomers`."""
        path = self.models_file(label, seed, of)
        if not path.exists():
            raise InputError(
                f"{self.path} has no models of {label!r} with seed {seed}: the run did "
                "not finish."
            )
        rows = load(path)
        check_rows(path, rows)
        return rows

    def has_model_file(self, label: str, seed: int) -> bool:
        """Whether the models of a cell have a file, damaged or not."""
        return self.models_file(label, seed).exists()

    def has_models(self, label: str, seed: int, *, of: str = "clients") -> bool:
        """Whether the models of a cell exist and are intact."""
        try:
            self.models(label, seed, of=of)
        except InputError:
            return False
        return True

    def has_baselines(self, seed: int) -> bool:
        """Whether the baselines of a seed were saved."""
        return baselines_file(self.path, seed).exists()

    def save_baselines(self, found: Baselines) -> None:
        """Saves the baselines of a seed."""
        content = found._asdict() | {"cells": [vars(cell) for cell in found.cells]}
        save(baselines_file(self.path, found.seed), content)

    def save_search(self, search: Search) -> None:
        """Replaces the file of a search."""
        text = json.dumps(asdict(search), indent=1) + "\n"
        write(self._tuning_file(search.label, search.seed, "json"), text)

    def has_search(self, label: str, seed: int) -> bool:
        """Whether a search has a file."""
        return self._tuning_file(label, seed, "json").exists()

    def search(self, label: str, seed: int) -> Search | None:
        """The search as it was last saved; None if it never was."""
        path = self._tuning_file(label, seed, "json")
        return load_search(path) if path.exists() else None

    def save_trial(
        self, label: str, seed: int, trial: int, t: int, states: list[State]
    ) -> None:
        """Saves the round of a trial and its state in each fold, to continue later."""
        packed = [pack(state) for state in states]
        save(self._tuning_file(label, seed, f"{trial}.pt"), (t, packed))

    def trial(self, label: str, seed: int, trial: int) -> tuple[int, list[Any]] | None:
        """The round and the packed states of a trial; None if it was not saved."""
        path = self._tuning_file(label, seed, f"{trial}.pt")
        return load(path) if path.exists() else None

    def drop_trial(self, label: str, seed: int, trial: int) -> None:
        """Deletes the states of a trial that will not be continued."""
        self._tuning_file(label, seed, f"{trial}.pt").unlink(missing_ok=True)

    def _tuning_file(self, label: str, seed: int, end: str) -> Path:
        return self.path / "tuning" / f"{file_name(label, seed)}.{end}"

    def export(self, cells: list[Cell]) -> Records:
        """Writes the tables of all cells for people, and returns them."""
        records = records_of(self.path, cells)
        tables = {"tuning": records.trials, "versions": records.made_by}
        names = ["metrics", "rounds", "clients", "newcomers", "delays", "spans", "work"]
        names += ["confusion", "calibration", "releases", "baselines"]
        tables |= {name: getattr(records, name) for name in names}
        for name, table in tables.items():
            if not table.empty:
                with writing(self.path / f"{name}.csv") as file:
                    write_csv(table, file)
        arrays: dict[str, dict[str, np.ndarray]]
        arrays = {"weights": {}, "groups": {}, "outcomes": {}}
        for cell, snapshots in records.weights.items():
            columns = {"rounds": snapshots.rounds, "weights": snapshots.matrices}
            arrays["weights"] |= _with_prefix(file_name(*cell), columns)
        for cell, labels in records.groups.items():
            columns = {k: v for k, v in labels._asdict().items() if k != "shares"}
            arrays["groups"] |= _with_prefix(file_name(*cell), columns)
        both = {"": records.outcomes, "-newcomers": records.newcomer_outcomes}
        for end, outcomes in both.items():
            for cell, (client, sample, measures) in outcomes.items():
                columns = {"client": client, "sample": sample, **measures}
                arrays["outcomes"] |= _with_prefix(file_name(*cell) + end, columns)
        for name, found in arrays.items():
            if found:
                path = self.path / f"{name}.npz"
                with writing(path) as new, new.open("wb") as stream:
                    np.savez_compressed(stream, **found)  # type: ignore[arg-type]
        return records


def _with_prefix(start: str, columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {f"{start}-{name}": column for name, column in columns.items()}


def _refuse_another_study(new: dict[str, Any], old: dict[str, Any], path: Path) -> None:
    """Refuses another study; the error names the first setting that differs."""
    for where, mine in leaves_of(new).items():
        theirs = leaves_of(old).get(where)
        if theirs == mine:
            continue
        advice = "resume with the same study or use a new folder"
        if where == "run.rounds":
            advice = "run it without --resume, which continues these results if it can"
        raise InputError(
            f"{path} belongs to another study: `{where}` is {mine!r} here and "
            f"{theirs!r} there; {advice}."
        )
    extra = leaves_of(old).keys() - leaves_of(new).keys()
    if extra:
        raise InputError(f"{path} belongs to another study: it sets `{min(extra)}`.")


def _refuse_other_content(new: dict[str, str], old: dict[str, str], path: Path) -> None:
    """Refuses changed content; the error names the first piece that has changed."""
    if FINGERPRINT in new and new[FINGERPRINT] != old.get(FINGERPRINT):
        raise InputError(
            f"{path} cannot be resumed here: its digests of data were not made with "
            f"the key of this runs folder. Move the file {KEY} of its old runs folder "
            "along with it, or run the study in a new folder."
        )
    for what in sorted(new.keys() | old.keys()):
        if new.get(what) != old.get(what):
            raise InputError(
                f"{path} was made from other content of {what}: restore that content, "
                "or use a new folder."
            )


def leaves_of(tables: Any, where: str = "") -> dict[str, Any]:
    """The settings in nested tables, by their dotted names."""
    items: dict[str, Any] = {}
    if isinstance(tables, dict):
        pairs = [(str(key), value) for key, value in tables.items()]
    elif isinstance(tables, list | tuple) and any(isinstance(v, dict) for v in tables):
        pairs = [(str(n), value) for n, value in enumerate(tables)]
    else:
        value = list(tables) if isinstance(tables, tuple) else tables
        return {where: value}
    for key, value in pairs:
        items |= leaves_of(value, f"{where}.{key}" if where else key)
    return items
