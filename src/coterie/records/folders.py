"""What a study leaves behind in runs/<id>/, and how it is read again.

Every algorithm and seed is a cell with one file, which holds its state and all that was
recorded so far. It is replaced as a whole, so that it is never half written and a run
that was killed goes on from a consistent point; the tables that people read are made
from the cells.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import re
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import tomli_w
import torch
from torch import Tensor

from ..checks import InputError
from ..data.federation import PARTS, Federation
from ..models import OBJECTIVES, Objective
from ..types import State
from .searches import COLUMNS, Search, search_of

SPANS = 5_000
"""So many times of computing, of the beginning of a cell, are kept for its timeline."""

SNAPSHOT_CLIENTS = 200
"""With more clients, collaboration matrices are not kept: they grow as N^2."""


class Snapshots(NamedTuple):
    """Collaboration matrices over time."""

    rounds: np.ndarray  # (S,)
    matrices: np.ndarray  # (S, N, N)


@dataclass(frozen=True)
class Records:
    """Everything that is known of a finished or interrupted study, as tables.

    `algorithm` columns hold the labels of the study's algorithms.
    """

    study: dict[str, Any]  # the resolved configuration
    versions: dict[str, str]
    task: str  # a name in coterie.models.OBJECTIVES
    score: str  # the measure that compares models
    higher_is_better: bool  # of the score
    clients: pd.DataFrame  # seed, client, cluster (-1 unknown), train, validation, test
    metrics: pd.DataFrame  # algorithm, seed, round, client, <part>_<measure> ...
    rounds: pd.DataFrame  # algorithm, seed, round, gradients, bytes, seconds, ...
    weights: dict[tuple[str, int], Snapshots]  # by (algorithm, seed)
    # algorithm, seed, client, cluster, train, <part>_<measure> of those held out
    newcomers: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, trial, rounds, score, status, ..., one column for each option
    trials: pd.DataFrame = field(default_factory=pd.DataFrame)
    # with [time], whose rounds are ticks; `rounds` then has time and updates as well:
    # algorithm, seed, delay, count of the answers that arrived with this delay
    delays: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, client, begin, end of each computation, of the start of a run
    spans: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, client, busy, idle (virtual seconds), tasks
    work: pd.DataFrame = field(default_factory=pd.DataFrame)


@dataclass
class Cell:
    """One algorithm on one seed: where it stands and what was recorded."""

    label: str
    seed: int
    t: int = 0
    done: bool = False
    state: Any = None  # packed where it was read from a file
    gradients: float = 0.0  # of single samples, by all clients, so far
    floats: float = 0.0  # sent so far
    peer_floats: float = 0.0  # of these, from peer to peer
    seconds: float = 0.0
    rounds: list[dict[str, float]] = field(default_factory=list)  # at evaluations
    metrics: list[dict[str, Tensor]] = field(default_factory=list)  # (N,) each
    snapshot_rounds: list[int] = field(default_factory=list)
    snapshots: list[Tensor] = field(default_factory=list)  # (N, N) each
    clients: list[int] = field(default_factory=list)  # identities; empty: 0 .. N-1
    newcomers: dict[str, Tensor] = field(default_factory=dict)  # columns, (M,) each
    time: float = 0.0  # virtual seconds, where a study has a table [time]
    updates: int = 0  # answers of clients that arrived
    delays: dict[int, int] = field(default_factory=dict)  # how often each was seen
    # Position of a client, and from when to when it computed, at the beginning.
    spans: list[tuple[int, float, float]] = field(default_factory=list)
    work: dict[str, Tensor] = field(default_factory=dict)  # columns, (N,) each


def pack(state: State) -> Any:
    """A state of nested NamedTuples and dataclasses as nested dictionaries.

    What is in lists, which may grow, is of the simplest types: tuples become lists.
    """
    if isinstance(state, tuple):
        names = getattr(state, "_fields", None) or range(len(state))
        return {
            str(name): pack(value) for name, value in zip(names, state, strict=True)
        }
    if is_dataclass(state):
        return {name: pack(value) for name, value in vars(state).items()}
    if isinstance(state, list):
        return [_listed(value) for value in state]
    return state.detach().cpu() if isinstance(state, Tensor) else state


def unpack(packed: Any, like: State) -> State:
    """The state that was packed, of the types and on the devices of `like`."""
    if isinstance(like, tuple):
        values = [
            unpack(inner, old) for inner, old in zip(packed.values(), like, strict=True)
        ]
        named = getattr(like, "_make", None)
        return named(values) if named is not None else tuple(values)
    if is_dataclass(like) and not isinstance(like, type):
        parts = {name: unpack(packed[name], old) for name, old in vars(like).items()}
        return replace(like, **parts)
    return packed.to(like.device) if isinstance(like, Tensor) else packed


def _listed(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_listed(part) for part in value]
    return value.detach().cpu() if isinstance(value, Tensor) else value


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary file beside `path`, which takes its place if all goes well."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.chmod(0o644)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def file_name(label: str, seed: int) -> str:
    """A name for the files of a cell that every file system takes.

    >>> file_name("local", 0)
    'local-0'
    >>> file_name("a/b", 0) == file_name("a:b", 0)
    False
    """
    plain = re.sub(r"[^A-Za-z0-9._-]+", "_", label)[:60]
    if plain != label:
        plain += "-" + hashlib.blake2b(label.encode(), digest_size=4).hexdigest()
    return f"{plain}-{seed}"


class Folder:
    """The folder of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def create(self, study: dict[str, Any], versions: dict[str, str]) -> None:
        """Makes the folder, or checks that an old one belongs to the same study."""
        old = self.path / "study.toml"
        try:
            if old.exists():
                _refuse_another_study(study, _read_study(old), self.path)
            (self.path / "cells").mkdir(parents=True, exist_ok=True)
            (self.path / "models").mkdir(exist_ok=True)
            if "tune" in study:
                (self.path / "tuning").mkdir(exist_ok=True)
            _write(self.path / "versions.json", json.dumps(versions, indent=2) + "\n")
            if not old.exists():
                _write(old, tomli_w.dumps(study))
        except OSError as error:
            raise InputError(
                f"the run folder {self.path} cannot be written: {error.strerror}."
            ) from None

    def describe(self, seed: int, federation: Federation, objective: Objective) -> None:
        """Keeps the sizes and clusters of the clients of one seed, and the score."""
        clusters = federation.clusters
        table = pd.DataFrame({"client": federation.clients.cpu().numpy()})
        table.insert(0, "seed", seed)
        table["cluster"] = -1 if clusters is None else clusters.cpu().numpy()
        for part in PARTS:
            table[part] = federation.part(part).size.cpu().numpy()
        with replacing(self.path / f"clients-{seed}.csv") as file:
            table.to_csv(file, index=False)
        about = {
            "task": federation.task,
            "note": federation.note,
            "score": objective.score,
            "higher_is_better": objective.higher_is_better,
        }
        _write(self.path / "task.json", json.dumps(about) + "\n")

    def save(self, cell: Cell) -> None:
        """Replaces the cell's file."""
        path = self.path / "cells" / f"{file_name(cell.label, cell.seed)}.pt"
        _save(path, vars(cell) | {"state": pack(cell.state)})

    def cell(self, label: str, seed: int) -> Cell | None:
        """The cell as it was saved last, if ever."""
        path = self.path / "cells" / f"{file_name(label, seed)}.pt"
        return _load_cell(path) if path.exists() else None

    def save_models(
        self, label: str, seed: int, x: Tensor, *, of: str = "clients"
    ) -> None:
        """Keeps the models of `clients` or of `newcomers`, one row for each."""
        with replacing(self._models_file(label, seed, of)) as file:
            torch.save(x.detach().cpu(), file)

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
        return _load(path)

    def save_search(self, search: Search) -> None:
        """Replaces the file of a search."""
        text = json.dumps(asdict(search), indent=1) + "\n"
        _write(self._tuning_file(search.label, search.seed, "json"), text)

    def search(self, label: str, seed: int) -> Search | None:
        """The search as it was saved last, if ever."""
        path = self._tuning_file(label, seed, "json")
        return _load_search(path) if path.exists() else None

    def save_trial(
        self, label: str, seed: int, trial: int, t: int, states: list[State]
    ) -> None:
        """Keeps where a trial stands, the state of each fold, to train it on later."""
        packed = [pack(state) for state in states]
        _save(self._tuning_file(label, seed, f"{trial}.pt"), (t, packed))

    def trial(self, label: str, seed: int, trial: int) -> tuple[int, list[Any]] | None:
        """The round and the packed states of a trial, if it was saved."""
        path = self._tuning_file(label, seed, f"{trial}.pt")
        return _load(path) if path.exists() else None

    def drop_trial(self, label: str, seed: int, trial: int) -> None:
        """Deletes the states of a trial that does not train on."""
        self._tuning_file(label, seed, f"{trial}.pt").unlink(missing_ok=True)

    def _tuning_file(self, label: str, seed: int, end: str) -> Path:
        return self.path / "tuning" / f"{file_name(label, seed)}.{end}"

    def export(self) -> Records:
        """Writes the tables for people and returns them."""
        records = load_records(self.path)
        names = ["metrics", "rounds", "clients"]
        more = ["newcomers", "delays", "spans", "work"]
        names += [name for name in more if not getattr(records, name).empty]
        for name in names:
            with replacing(self.path / f"{name}.csv") as file:
                getattr(records, name).to_csv(file, index=False)
        if not records.trials.empty:
            with replacing(self.path / "tuning.csv") as file:
                records.trials.to_csv(file, index=False)
        if records.weights:
            arrays: dict[str, Any] = {}
            for (label, seed), snapshots in records.weights.items():
                key = file_name(label, seed)
                arrays[f"{key}-rounds"] = snapshots.rounds
                arrays[f"{key}-weights"] = snapshots.matrices
            with replacing(self.path / "weights.npz") as path, path.open("wb") as file:
                np.savez_compressed(file, **arrays)
        return records


def load_records(path: Path | str) -> Records:
    """Reads the records of a run folder, finished or not."""
    path = Path(path)
    cells = sorted((path / "cells").glob("*.pt"))
    tables = list(path.glob("clients-*.csv"))
    needed = [path / name for name in ("study.toml", "task.json", "versions.json")]
    if not cells or not tables or not all(file.exists() for file in needed):
        raise InputError(
            f"{str(path)!r} is not the folder of a run that has begun: it needs "
            "study.toml, task.json, versions.json, clients-*.csv and cells/*.pt."
        )
    study, about, versions = _read_study(needed[0]), *map(_read_json, needed[1:])
    order = [entry["label"] for entry in study["algorithm"]]
    loaded = [_load_cell(cell) for cell in cells]
    for cell, file in zip(loaded, cells, strict=True):
        if cell.label not in order:
            raise InputError(
                f"{file} is of an algorithm {cell.label!r}, which the study does not "
                "have: move it elsewhere."
            )
    loaded.sort(key=lambda cell: (order.index(cell.label), cell.seed))
    clients = pd.concat([_read_csv(table) for table in tables], ignore_index=True)
    usual = OBJECTIVES[about["task"]]  # where an old folder does not say
    if about["note"]:
        study.setdefault("data", {})["note"] = about["note"]
    return Records(
        study=study,
        versions=versions,
        task=about["task"],
        score=about.get("score", usual.score),
        higher_is_better=about.get("higher_is_better", usual.higher_is_better),
        clients=clients.sort_values(["seed", "client"], ignore_index=True),
        metrics=_concatenated([_metrics(cell) for cell in loaded]),
        rounds=_concatenated([_rounds(cell) for cell in loaded]),
        weights={
            (cell.label, cell.seed): Snapshots(
                np.array(cell.snapshot_rounds), torch.stack(cell.snapshots).numpy()
            )
            for cell in loaded
            if cell.snapshots
        },
        newcomers=_newcomers(loaded),
        trials=_trials([_load_search(f) for f in path.glob("tuning/*.json")], order),
        delays=_joined([_delays(cell) for cell in loaded if cell.delays]),
        spans=_joined([_spans(cell) for cell in loaded if cell.spans]),
        work=_joined([_work(cell) for cell in loaded if cell.work]),
    )


def versions(device: torch.device) -> dict[str, str]:
    """The software and hardware that results may depend on."""
    try:
        own = version("coterie")
    except PackageNotFoundError:  # run from the source, not installed
        own = "source"
    hardware = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    return {
        "coterie": own,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "system": platform.system(),
        "device": hardware,
    }


def _write(path: Path, text: str) -> None:
    with replacing(path) as file:
        file.write_text(text, encoding="utf-8")


def _read_study(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _damaged(path, error) from error


def _read_csv(path: Path) -> pd.DataFrame:
    try:
        return pd.read_csv(path)
    except ValueError as error:
        raise _damaged(path, error) from error


def _save(path: Path, values: Any) -> None:
    try:
        with replacing(path) as file:
            torch.save(values, file)
    except (OSError, RuntimeError) as error:  # torch's own for a full disk
        raise InputError(
            f"the checkpoint {path} cannot be written: {error}; what was saved before "
            "is intact."
        ) from error


def _load(path: Path) -> Any:
    try:
        return torch.load(path, weights_only=True)
    except Exception as error:  # of many types, depending on where the damage is
        raise _damaged(path, error) from error


def _load_cell(path: Path) -> Cell:
    values = _load(path)
    try:
        return Cell(**values)
    except TypeError as error:
        raise _damaged(path, error) from error


def _load_search(path: Path) -> Search:
    table = _read_json(path)
    try:
        return search_of(table)
    except (KeyError, TypeError, ValueError) as error:
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> InputError:
    return InputError(
        f"{path} is damaged and cannot be read ({type(error).__name__}); delete it and "
        "run the study again to make it anew."
    )


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


def _metrics(cell: Cell) -> pd.DataFrame:
    """Rows for each evaluated round and client."""
    tables = []
    for about, values in zip(cell.rounds, cell.metrics, strict=True):
        table = pd.DataFrame({name: v.numpy() for name, v in values.items()})
        table.insert(0, "client", cell.clients or range(len(table)))
        table.insert(0, "round", int(about["round"]))
        tables.append(table)
    return _with_cell(_concatenated(tables), cell)


def _newcomers(cells: list[Cell]) -> pd.DataFrame:
    """Rows for each cell and newcomer, who come when the training of a cell ends."""
    tables = []
    for cell in cells:
        if cell.newcomers:
            columns = {name: v.numpy() for name, v in cell.newcomers.items()}
            tables.append(_with_cell(pd.DataFrame(columns), cell))
    return _joined(tables)


def _delays(cell: Cell) -> pd.DataFrame:
    """Rows for each delay of an answer that was seen."""
    rows = sorted(cell.delays.items())
    return _with_cell(pd.DataFrame(rows, columns=["delay", "count"]), cell)


def _spans(cell: Cell) -> pd.DataFrame:
    """Rows for each time that a client computed, as far as they are kept."""
    table = pd.DataFrame(cell.spans, columns=["client", "begin", "end"])
    table["client"] = np.array(cell.clients)[table["client"]]
    return _with_cell(table.sort_values("begin", ignore_index=True), cell)


def _work(cell: Cell) -> pd.DataFrame:
    """Rows for each client: how long it computed and waited, and how many tasks."""
    table = pd.DataFrame({name: v.numpy() for name, v in cell.work.items()})
    table.insert(0, "client", cell.clients)
    return _with_cell(table, cell)


def _trials(searches: list[Search], order: list[str]) -> pd.DataFrame:
    """Rows for each trial and rung, as far as it came."""
    rows: list[dict[str, Any]] = []
    searches = [search for search in searches if search.label in order]
    for search in sorted(searches, key=lambda s: (order.index(s.label), s.seed)):
        for step in sorted(search.steps):
            about = (search.label, search.seed, step.trial, step.rounds, step.score)
            fate = (search.status(step), step.spent, step.trial == search.chosen)
            row = dict(zip(COLUMNS, about + fate, strict=True))
            if search.folds > 1:
                scores = step.scores or (np.nan,) * search.folds
                row |= {f"fold_{j}": score for j, score in enumerate(scores)}
            rows.append(row | search.settings[step.trial])
    whole = dict.fromkeys(("seed", "trial", "rounds", "spent"), int)
    table = pd.DataFrame(rows, dtype=object)  # so that whole numbers stay whole
    return table.astype({**whole, "score": float, "chosen": bool}) if rows else table


def _rounds(cell: Cell) -> pd.DataFrame:
    return _with_cell(pd.DataFrame(cell.rounds).astype({"round": int}), cell)


def _with_cell(table: pd.DataFrame, cell: Cell) -> pd.DataFrame:
    table.insert(0, "seed", cell.seed)
    table.insert(0, "algorithm", cell.label)
    return table


def _joined(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The tables one below the other; an empty one where there are none."""
    return _concatenated(tables) if tables else pd.DataFrame()


def _concatenated(tables: list[pd.DataFrame]) -> pd.DataFrame:
    return pd.concat(tables, ignore_index=True)
