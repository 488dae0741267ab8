"""The tables that people read, made from the cells of a run."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..checks import InputError, suggestion
from ..data.federation import client_name, full_name, short_name
from ..models import OBJECTIVES
from ..types import ALONE, EVERYBODY
from . import shapes
from .cells import SNAPSHOT_CLIENTS, Baselines, Cell, load_cell
from .files import damage_error, file_name, load, read_json, read_sealed_toml
from .ledgers import SPENDING
from .searches import (
    COLUMNS,
    FoundSettings,
    Search,
    load_search,
    load_settings,
)


class Snapshots(NamedTuple):
    """Collaboration matrices over time."""

    rounds: np.ndarray  # (S,)
    matrices: np.ndarray  # (S, N, N)


class GroupLabels(NamedTuple):
    """Groups over time. A group makes one model (see `coterie.types.Info`)."""

    rounds: np.ndarray  # (S,)
    member: np.ndarray  # (S, N) the group that a client trains with, or ALONE
    uses: np.ndarray  # (S, N) whose model it uses: a group's, ALONE or EVERYBODY
    shares: np.ndarray  # (N,) weights of clients in the model of their group

    def weights(self, place: int, clients: ArrayLike | None = None) -> np.ndarray:
        """The shares of all N clients in the models that these clients use.

        `place` is the position of a record in time (-1: the last). `clients` are
        positions of clients (None: all).
        """
        n = len(self.shares)
        who = np.arange(n) if clients is None else np.asarray(clients)
        member, uses = self.member[place], self.uses[place][who, None]
        used = np.where(uses == EVERYBODY, True, uses == member) * self.shares
        total = used.sum(1, keepdims=True)
        used = used / np.where(total > 0, total, 1)
        return np.where(uses == ALONE, who[:, None] == np.arange(n), used)


class Outcomes(NamedTuple):
    """The final measures of every test sample, client after client."""

    client: np.ndarray  # (M,)
    sample: np.ndarray  # (M,) identity; the same sample has the same one everywhere
    # (M,) each. Whole numbers are 0 or 1. A measure of a client as a whole has values
    # with its mean and variance, and says where it counts: see `models.jackknife`.
    measures: dict[str, np.ndarray]


@dataclass(frozen=True)
class Records:
    """All results of a finished or interrupted study, as tables.

    Columns `algorithm` hold the labels of the study's algorithms.
    """

    study: dict[str, Any]  # the resolved configuration
    versions: dict[str, str]  # of all cells, joined by "and" if they differ
    task: str  # a name in coterie.models.OBJECTIVES
    score: str  # the measure that compares models
    higher_is_better: bool  # of the score
    clients: pd.DataFrame  # seed, client, cluster (-1 unknown), train, validation, test
    metrics: pd.DataFrame  # algorithm, seed, round, client, <part>_<measure> ...
    rounds: pd.DataFrame  # algorithm, seed, round, gradients, bytes, seconds, ...
    # By (algorithm, seed), for at most 200 clients if they come from groups.
    weights: dict[tuple[str, int], Snapshots]
    groups: dict[tuple[str, int], GroupLabels] = field(default_factory=dict)
    outcomes: dict[tuple[str, int], Outcomes] = field(default_factory=dict)
    # Algorithms that know true clusters or optima, which others must find out.
    oracles: tuple[str, ...] = ()
    # seed, v, w: identities of clients that [graph] links
    graph: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, client, cluster, train, <part>_<measure> of clients held out
    newcomers: pd.DataFrame = field(default_factory=pd.DataFrame)
    newcomer_outcomes: dict[tuple[str, int], Outcomes] = field(default_factory=dict)
    # For labels, at the end on test data: algorithm, seed, client, target, predicted,
    # and the count of samples of this target with this prediction
    confusion: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, client, bin of confidence (0 to 9), count of its samples, sum of
    # their confidence, count of right predictions
    calibration: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, trial, rounds, score, status, ..., one column for each option
    trials: pd.DataFrame = field(default_factory=pd.DataFrame)
    # With [time], rounds are ticks, and `rounds` also has time and updates:
    # algorithm, seed, delay, count of the answers that arrived with this delay
    delays: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, client, begin, end of each computation at the start of a run
    spans: pd.DataFrame = field(default_factory=pd.DataFrame)
    # algorithm, seed, client, busy, idle (virtual seconds), tasks
    work: pd.DataFrame = field(default_factory=pd.DataFrame)
    # With [privacy]: algorithm, seed, client, to (-1: a server), epsilon of that alone
    releases: pd.DataFrame = field(default_factory=pd.DataFrame)
    # Baselines, which are not methods: algorithm, seed, round (0), client,
    # <part>_<measure>
    baselines: pd.DataFrame = field(default_factory=pd.DataFrame)
    baseline_outcomes: dict[tuple[str, int], Outcomes] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()  # sentences: which baselines are missing, and why
    settings: tuple[FoundSettings, ...] = ()  # that coterie found, by seed
    # With [privacy]: epsilon of the study, and of all on its data; see `ledgers`
    spending: dict[str, Any] = field(default_factory=dict)
    # algorithm, seed, round, and the versions from there on: coterie, source, ...
    made_by: pd.DataFrame = field(default_factory=pd.DataFrame)
    names: tuple[str, ...] = ()  # of the clients, by identity; () if they have none
    features: tuple[str, ...] = ()  # names of the features; () if they have none
    classes: tuple[str, ...] = ()  # names of the labels 0, 1, ...
    # Cached results about these tables, by question; None: tables may still change
    cache: dict[Any, Any] | None = field(default=None, init=False, compare=False)

    def name_of(self, client: int) -> str:
        """A client's name in a sentence: "Chur", or "client 3"."""
        return client_name(self.names, client)

    def short_name(self, client: int) -> str:
        """A client's name where the reader knows it is a client: "Chur", or "3"."""
        return short_name(self.names, client)

    def client_named(self, name: str) -> int:
        """The identity of the client with this name."""
        known = [*self.clients["client"].unique(), *self.newcomers.get("client", [])]
        place = {full_name(self.names, int(client)): int(client) for client in known}
        if name not in place:
            hint = suggestion(name, place) or _list_names(place)
            raise InputError(f"there is no client {name!r}.{hint}")
        return place[name]

    def curves(self) -> pd.DataFrame:
        """Every recorded number of every client over rounds, as one long table.

        Columns: algorithm, seed, client, name, round, metric (such as `test_accuracy`)
        and value.
        """
        where = ["algorithm", "seed", "client", "name", "round"]
        table = add_names(self.metrics.copy(), self.names)
        return table.melt(where, var_name="metric", value_name="value")

    def __repr__(self) -> str:
        runs = self.rounds.groupby(["algorithm", "seed"]).ngroups
        labels = ", ".join(map(str, self.rounds["algorithm"].unique()))
        return (
            f"<Records of {self.study.get('name', 'a study')}: {labels}; {runs} runs, "
            f"{self.clients['client'].nunique()} clients, "
            f"up to round {self.rounds['round'].max()}>"
        )

    def _repr_html_(self) -> str:
        """The list of tables, for a notebook."""
        tables = {k: v for k, v in vars(self).items() if isinstance(v, pd.DataFrame)}
        rows = [
            (k, len(v), ", ".join(map(str, v))) for k, v in tables.items() if len(v)
        ]
        frame = pd.DataFrame(rows, columns=["table", "rows", "columns"])
        with pd.option_context("display.max_colwidth", None):
            return f"<p>{escape(repr(self))}</p>{frame.to_html(index=False)}"


def _list_names(names: Iterable[str]) -> str:
    """A sentence that lists at most twenty of the names."""
    listed = list(names)
    return f" They are {', '.join(listed[:20])}{', ...' * (len(listed) > 20)}."


def load_records(path: Path | str) -> Records:
    """The records of a run folder, finished or not."""
    path = Path(path)
    files = sorted((path / "cells").glob("*.pt"))
    needed = [path / name for name in ("study.toml", "task.json")]
    described = any(path.glob("clients-*.csv"))
    if not files or not described or not all(file.exists() for file in needed):
        raise InputError(
            f"{str(path)!r} is not the folder of a run that has begun: that has "
            "study.toml, task.json, clients-*.csv and cells/*.pt."
        )
    return records_of(path, map(read_cell, files))


def read_cell(path: Path) -> Cell:
    """The cell in a file, after checking that its parts fit together."""
    cell = load_cell(path)
    shapes.check_cell(path, cell)
    return cell


def _spending(path: Path) -> dict[str, Any]:
    """The privacy spent by a study, and by all on the same data; empty if unknown."""
    try:
        found = read_json(path) if path.exists() else {}
        return {"studies": 1, "complete": True} | found if "all" in found else {}
    except InputError:  # the report then lacks one line
        return {}


def _settings(path: Path) -> tuple[FoundSettings, ...]:
    """The settings that coterie found, in the order of seeds."""
    found = [load_settings(file) for file in path.glob("settings-*.json")]
    return tuple(sorted(found, key=lambda each: each.seed))


def _baselines_and_settings(path: Path) -> dict[str, Any]:
    """The fields of records on baselines and found settings; empty in an older run."""
    kept = [_read_baselines(file) for file in sorted(path.glob("baselines-*.pt"))]
    cells = [cell for each in kept for cell in each.cells]
    lines = dict.fromkeys(line for each in kept for line in each.left_out)
    return {
        "baselines": metrics_of(cells),
        "baseline_outcomes": _outcomes((cell, cell.outcomes) for cell in cells),
        "left_out": tuple(lines),
        "settings": _settings(path),
    }


def _read_baselines(path: Path) -> Baselines:
    try:
        kept = load(path)
        cells = [Cell(**values) for values in kept["cells"]]
        found = Baselines(int(kept["seed"]), cells, [*map(str, kept["left_out"])])
    except (KeyError, TypeError, ValueError) as error:
        raise damage_error(path, error) from error
    for cell in found.cells:
        shapes.check_cell(path, cell)
    shapes.require(path, *(cell.seed == found.seed for cell in found.cells))
    return found


def records_of(path: Path, cells: Iterable[Cell]) -> Records:
    """The records of a run folder, given all its cells (they need no states).

    The study is checked before the cells are read, because reading the cells takes
    longest.
    """
    study, about = read_sealed_toml(path / "study.toml"), read_json(path / "task.json")
    shapes.check_study(path / "study.toml", study)
    order = [entry["label"] for entry in study["algorithm"]]
    loaded = _sort_cells(path, cells, order)
    shapes.check_task(path / "task.json", about, loaded)
    files = path.glob("clients-*.csv")
    _refuse_missing_clients(path, loaded)
    clients = _concatenate([_read_clients(file, loaded) for file in files])
    if about["note"]:
        study.setdefault("data", {})["note"] = about["note"]
    usual = OBJECTIVES[about["task"]]  # for an old folder without a score
    names = tuple(about.get("clients", ()))
    groups = _groups(loaded, clients, study)
    records = Records(
        study=study,
        versions=_versions(loaded),
        task=about["task"],
        score=about.get("score", usual.score),
        higher_is_better=about.get("higher_is_better", usual.higher_is_better),
        clients=clients.sort_values(["seed", "client"], ignore_index=True),
        metrics=metrics_of(loaded),
        rounds=_rows((cell, cell.rounds) for cell in loaded).astype({"round": int}),
        weights=_weights(loaded, groups),
        groups=groups,
        outcomes=_outcomes((cell, cell.outcomes) for cell in loaded),
        oracles=tuple(about.get("oracles", ())),
        graph=_concatenate([_read_graph(f, clients) for f in path.glob("graph-*.csv")]),
        newcomers=_table((cell, cell.newcomers) for cell in loaded),
        newcomer_outcomes=_outcomes((c, c.newcomer_outcomes) for c in loaded),
        confusion=_table((cell, cell.confusion) for cell in loaded),
        calibration=_table((cell, cell.calibration) for cell in loaded),
        releases=_table((cell, cell.releases) for cell in loaded),
        **_baselines_and_settings(path),
        spending=_spending(path / SPENDING),
        trials=_trials([_search(f) for f in path.glob("tuning/*.json")], order),
        delays=_rows((cell, _delays(cell)) for cell in loaded),
        spans=_table((cell, _spans(cell)) for cell in loaded if cell.spans),
        work=_table(
            (cell, {"client": cell.clients, **cell.work})
            for cell in loaded
            if cell.work
        ),
        made_by=_rows((cell, _version_rows(cell)) for cell in loaded),
        names=names,
        features=tuple(about.get("features", ())),
        classes=tuple(about.get("classes", ())),
    )
    tables = ("clients", "metrics", "newcomers", "spans", "work", "releases")
    for name in (*tables, "baselines"):
        add_names(getattr(records, name), names)
    return records


def _groups(
    cells: list[Cell], clients: pd.DataFrame, study: dict[str, Any]
) -> dict[tuple[str, int], GroupLabels]:
    """Groups over time, of the cells whose methods report groups."""
    uniform = {
        entry["label"]
        for entry in study["algorithm"]
        if entry.get("weighting") == "uniform"
    }
    found = {}
    for cell in cells:
        if cell.groups:
            member, uses = torch.stack(cell.groups, 1).numpy()  # (S, N) each
            mine = clients[clients["seed"] == cell.seed].sort_values("client")
            shares = mine["train"].to_numpy(float)
            if cell.label in uniform:
                shares = np.ones(len(shares))
            found[cell.label, cell.seed] = GroupLabels(
                np.array(cell.group_rounds), member, uses, shares
            )
    return found


def _weights(
    cells: list[Cell], groups: dict[tuple[str, int], GroupLabels]
) -> dict[tuple[str, int], Snapshots]:
    """Collaboration matrices over time: first recorded ones, then groups' ones."""
    found = {}
    for cell in cells:
        key = cell.label, cell.seed
        rounds, matrices = list(cell.snapshot_rounds), list(cell.snapshots)
        labels = groups.get(key)
        if labels is not None and len(labels.shares) <= SNAPSHOT_CLIENTS:
            rounds += labels.rounds.tolist()
            places = range(len(labels.rounds))
            matrices += [torch.from_numpy(labels.weights(j)).float() for j in places]
        if matrices:
            found[key] = Snapshots(np.array(rounds), torch.stack(matrices).numpy())
    return found


def _refuse_missing_clients(path: Path, cells: list[Cell]) -> None:
    """Refuses a folder without the table of the clients of a seed."""
    for seed in sorted({cell.seed for cell in cells}):
        file = path / f"clients-{seed}.csv"
        if not file.exists():
            raise InputError(
                f"{file} is missing: run the study again, which writes the file and "
                "trains nothing twice."
            )


def _sort_cells(path: Path, cells: Iterable[Cell], order: list[str]) -> list[Cell]:
    """The cells in the order of the study's algorithms; others are refused."""
    loaded = list(cells)
    for cell in loaded:
        if cell.label not in order:
            file = path / "cells" / file_name(cell.label, cell.seed)
            raise InputError(
                f"{file}.pt holds the algorithm {cell.label!r}, which the study does "
                "not have: move the file elsewhere."
            )
    return sorted(loaded, key=lambda cell: (order.index(cell.label), cell.seed))


def add_names(table: pd.DataFrame, names: tuple[str, ...]) -> pd.DataFrame:
    """The table, with a column of names next to the identities of clients."""
    if "client" in table and "name" not in table:
        found = {int(c): full_name(names, int(c)) for c in table["client"].unique()}
        place = list(table.columns).index("client") + 1
        table.insert(place, "name", table["client"].map(found))
    return table


def _read_clients(path: Path, cells: list[Cell]) -> pd.DataFrame:
    table = _read_csv(path, dtype={"name": str}, keep_default_na=False)
    shapes.check_clients(path, table, cells)
    # These names are made safe for a spreadsheet; task.json has the real ones.
    return table.drop(columns="name", errors="ignore")


def _read_graph(path: Path, clients: pd.DataFrame) -> pd.DataFrame:
    table = _read_csv(path)
    shapes.check_graph(path, table, clients)
    return table


def _read_csv(path: Path, **options: Any) -> pd.DataFrame:
    try:
        if not path.is_file():  # a pipe would never end
            raise ValueError
        return pd.read_csv(path, **options)
    except (ValueError, OSError) as error:
        raise damage_error(path, error) from error


def _search(path: Path) -> Search:
    search = load_search(path)
    shapes.check_search(path, search)
    return search


def metrics_of(cells: Iterable[Cell]) -> pd.DataFrame:
    """One row for each cell, evaluated round and client."""
    return _table((cell, _evaluations(cell)) for cell in cells)


def _evaluations(cell: Cell) -> dict[str, np.ndarray]:
    """The columns of all evaluations of a cell."""
    n = len(next(iter(cell.metrics[0].values())))
    unknown = torch.full((n,), torch.nan)
    columns = {
        name: torch.cat([values.get(name, unknown) for values in cell.metrics]).numpy()
        for name in _names(cell.metrics)
    }
    where = {
        "round": np.repeat([int(about["round"]) for about in cell.rounds], n),
        "client": np.tile(cell.clients or range(n), len(cell.rounds)),
    }
    return where | columns


def last_metrics(cell: Cell, names: tuple[str, ...]) -> Iterator[list[Any]]:
    """The rows of `metrics_of` for the last evaluation, with names of clients."""
    values = [column.numpy() for column in cell.metrics[-1].values()]
    mine = [cell.label, cell.seed, int(cell.rounds[-1]["round"])]
    clients = cell.clients or range(len(values[0]))
    for client, *numbers in zip(clients, *values, strict=True):
        known = ["" if math.isnan(number) else number for number in numbers]
        yield [*mine, client, full_name(names, client), *known]


def _outcomes(
    found: Iterable[tuple[Cell, dict[str, Tensor]]],
) -> dict[tuple[str, int], Outcomes]:
    """The final measures of every test sample of the finished cells."""
    outcomes = {}
    for cell, columns in found:
        if columns:
            arrays = {name: values.numpy() for name, values in columns.items()}
            whose = arrays.pop("client"), arrays.pop("sample")
            outcomes[cell.label, cell.seed] = Outcomes(*whose, arrays)
    return outcomes


def _table(found: Iterable[tuple[Cell, Mapping[str, ArrayLike]]]) -> pd.DataFrame:
    """The columns of all cells that have columns, one cell below the other.

    We make one frame for all cells. A frame for each cell would take most of the time
    of a small study.
    """
    parts = [(cell.label, cell.seed, columns) for cell, columns in found if columns]
    if not parts:
        return pd.DataFrame()
    labels, seeds, tables = zip(*parts, strict=True)
    sizes = [len(np.asarray(next(iter(columns.values())))) for columns in tables]
    whole: dict[str, np.ndarray] = {
        "algorithm": np.repeat(np.array(labels, dtype=object), sizes),
        "seed": np.repeat(seeds, sizes),
    }
    for name in _names(tables):
        pieces = zip(tables, sizes, strict=True)
        whole[name] = np.concatenate(
            [columns.get(name, np.full(size, np.nan)) for columns, size in pieces]
        )
    return pd.DataFrame(whole)


def _rows(found: Iterable[tuple[Cell, Iterable[Mapping[str, Any]]]]) -> pd.DataFrame:
    """The rows of all cells, one below the other."""
    return pd.DataFrame(
        [
            {"algorithm": cell.label, "seed": cell.seed, **row}
            for cell, rows in found
            for row in rows
        ]
    )


def _names(tables: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of all columns, in the order of their first appearance."""
    return list(dict.fromkeys(name for columns in tables for name in columns))


def _delays(cell: Cell) -> list[dict[str, int]]:
    """One row for each delay of an answer."""
    return [{"delay": k, "count": count} for k, count in sorted(cell.delays.items())]


def _spans(cell: Cell) -> dict[str, np.ndarray]:
    """The columns of the computations of clients that were kept."""
    who, begin, end = (np.array(part) for part in zip(*cell.spans, strict=True))
    order = np.argsort(begin)
    client = np.array(cell.clients)[who]
    return {"client": client[order], "begin": begin[order], "end": end[order]}


def _version_rows(cell: Cell) -> list[dict[str, Any]]:
    """One row for each change of the software and hardware that made a cell."""
    return [{"round": t, **versions} for t, versions in cell.versions]


def _versions(cells: list[Cell]) -> dict[str, str]:
    """The software and hardware of all cells, without digests of source code."""
    found: dict[str, dict[str, None]] = {}
    for _, versions in [pair for cell in cells for pair in cell.versions]:
        for name, text in versions.items():
            found.setdefault(name, {})[text] = None
    return {k: " and ".join(texts) for k, texts in found.items() if k != "source"}


def _trials(searches: list[Search], order: list[str]) -> pd.DataFrame:
    """One row for each trial and each rung that it reached."""
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


def _concatenate(tables: list[pd.DataFrame]) -> pd.DataFrame:
    """The tables one below the other; an empty table if there are none."""
    return pd.concat(tables or [pd.DataFrame()], ignore_index=True)
