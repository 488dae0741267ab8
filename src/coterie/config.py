"""A study as its author wrote it: TOML tables, checked before any work is done.

    [data] [split] [model] [[algorithm]] [run]

Which options a table may have is read from the signatures of what it names, so nothing
is declared twice.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from . import checks
from .algorithms import ALGORITHMS
from .checks import InputError, imported, integer, number, one_of, parameters_of
from .data.splits import SPLITS
from .ingredients import ingredients_of
from .models import MODELS
from .types import Algorithm

TABLES = ("name", "data", "split", "model", "algorithm", "run")


@dataclass(frozen=True)
class Run:
    """The table [run]: how long, how often, where."""

    rounds: int = 100
    seeds: tuple[int, ...] = (0,)
    batch_size: int = 16  # 0 takes the whole training part
    participation: float = 1.0  # share of the clients in a round
    evaluate_every: int = 0  # rounds; 0 evaluates about fifty times
    evaluate_train: bool = True
    device: str = "cpu"
    dtype: str = "float32"
    compile: str = "auto"  # auto, always, never
    loop: bool = False  # debug mode, client after client
    checkpoint_seconds: float = 30.0

    def __post_init__(self) -> None:
        integer("run.rounds", self.rounds, at_least=1)
        integer("run.batch_size", self.batch_size, at_least=0)
        number("run.participation", self.participation, above=0, at_most=1)
        integer("run.evaluate_every", self.evaluate_every, at_least=0)
        number("run.checkpoint_seconds", self.checkpoint_seconds, at_least=0)
        one_of("run.dtype", self.dtype, ("float32", "float64"))
        one_of("run.compile", self.compile, ("auto", "always", "never"))
        if not self.seeds:
            raise InputError("`run.seeds` must have at least one seed, got none.")
        for seed in self.seeds:
            integer("run.seeds", seed, at_least=0)

    @property
    def every(self) -> int:
        """Rounds between two evaluations."""
        return self.evaluate_every or max(1, self.rounds // 50)


@dataclass(frozen=True)
class Entry:
    """One [[algorithm]] of a study."""

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A checked study."""

    name: str
    data: dict[str, Any]
    split: dict[str, Any]
    model: dict[str, Any]
    algorithms: tuple[Entry, ...]
    run: Run

    def resolved(self) -> dict[str, Any]:
        """The study as nested plain values, as it is kept with its results."""
        return {
            "name": self.name,
            "data": self.data,
            "split": self.split,
            "model": self.model,
            "algorithm": [
                {"name": e.name, "label": e.label, **e.options} for e in self.algorithms
            ],
            "run": asdict(self.run) | {"seeds": list(self.run.seeds)},
        }

    @property
    def identity(self) -> str:
        """The study's name and a short hash of all that can change its results."""
        text = json.dumps(self.resolved(), sort_keys=True, default=list)
        return (
            f"{self.name}-{hashlib.blake2b(text.encode(), digest_size=4).hexdigest()}"
        )


def read_study(path: Path | str, overrides: Sequence[str] = ()) -> Study:
    """The study in a TOML file, with overrides such as "run.rounds=10"."""
    path = Path(path)
    try:
        text = path.read_text()
    except OSError as error:
        raise InputError(
            f"the study {path} cannot be read: {error.strerror}."
        ) from None
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"the study {path} is not valid TOML: {error}.") from None
    tables.setdefault("name", path.stem)
    for override in overrides:
        _override(tables, override)
    return study(tables)


def study(tables: dict[str, Any]) -> Study:
    """The study of nested tables, as in TOML, checked."""
    for name in tables:
        if name not in TABLES:
            raise InputError(
                f"a study has no table [{name}].{checks.suggestion(name, TABLES)}"
            )
    data = _table(tables, "data")
    if "name" not in data:
        raise InputError("[data] needs a `name`; see `coterie list datasets`.")
    split = {"name": "natural", **_table(tables, "split")}
    one_of("split.name", split["name"], SPLITS)
    model = {"name": "mlp", **_table(tables, "model")}
    named = factory("model", model["name"], MODELS)
    checks.options("model", model["name"], parameters_of(named), _options(model))
    entries = tables.get("algorithm", [])
    if isinstance(entries, dict):
        entries = [entries]
    if not entries:
        raise InputError("a study needs at least one [[algorithm]] with a `name`.")
    return Study(
        str(tables.get("name", "study")),
        data,
        split,
        model,
        _labelled([_entry(entry) for entry in entries]),
        _run(_table(tables, "run")),
    )


def factory(
    section: str, name: str, registry: dict[str, Callable[..., Any]]
) -> Callable[..., Any]:
    """What a name stands for: an entry of the registry or "module:attribute"."""
    if ":" in name:
        return imported(f"{section}.name", name)
    one_of(f"{section}.name", name, registry)
    return registry[name]


def algorithm_factory(name: str) -> Callable[..., Algorithm]:
    """The factory of an algorithm, ours or one's own."""
    return factory("algorithm", name, ALGORITHMS)


def _options(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in ("name", "label")}


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"[{name}] must be a table, got {table!r}.")
    return dict(table)


def _known(name: str) -> dict[str, Any]:
    """The options of an algorithm: its keywords and its ingredients."""
    maker = algorithm_factory(name)
    recipes = parameters_of(_recipe_options)
    names = {ingredient: recipes["text"] for ingredient in ingredients_of(maker)}
    return {**parameters_of(maker), **names}


def _recipe_options(*, text: str = "") -> None:
    """Stands for the option of an ingredient: a text."""


def _entry(table: Any) -> Entry:
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise InputError(f"every [[algorithm]] needs a `name`, got {table!r}.")
    options = _options(table)
    checks.options("algorithm", table["name"], _known(table["name"]), options)
    return Entry(table["name"], str(table.get("label", table["name"])), options)


def _labelled(entries: list[Entry]) -> tuple[Entry, ...]:
    labels = [entry.label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(
                f"two algorithms are called {label!r}; give each its own `label`."
            )
    return tuple(entries)


def _run(table: dict[str, Any]) -> Run:
    names = [f.name for f in fields(Run)]
    for key in table:
        if key not in names:
            raise InputError(
                f"[run] has no option {key!r}.{checks.suggestion(key, names)}"
            )
    checks.options("run", "run", parameters_of(Run, ingredients=0), table)
    seeds = table.get("seeds", [0])
    if not isinstance(seeds, list | tuple):
        raise InputError(f"`run.seeds` must be a list, got {seeds!r}.")
    return Run(**{**table, "seeds": tuple(seeds)})


def _override(tables: dict[str, Any], text: str) -> None:
    """Applies "table.key=value", "algorithm.key=..." or "algorithm.NAME.key=..."."""
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or len(keys) not in (1, 2, 3):
        raise InputError(f"`--set` must read table.key=value, got {text!r}.")
    try:
        parsed = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        parsed = value.strip()
    if keys[0] == "algorithm":
        _override_algorithm(tables, keys[1:], parsed, text)
    elif len(keys) == 2:
        tables.setdefault(keys[0], {})[keys[1]] = parsed
    elif keys == ["name"]:
        tables["name"] = parsed
    else:
        raise InputError(f"`--set` must read table.key=value, got {text!r}.")


def _override_algorithm(
    tables: dict[str, Any], keys: list[str], value: Any, text: str
) -> None:
    entries = [e for e in tables.get("algorithm", []) if isinstance(e, dict)]
    *names, key = keys or [""]
    if names:
        called = [str(e.get("label", e.get("name"))) for e in entries]
        entries = [
            e for e in entries if names[0] in (e.get("label"), e.get("name", None))
        ]
        if not entries:
            raise InputError(
                f"`--set` {text}: the study has no algorithm {names[0]!r}, "
                f"only {', '.join(called)}."
            )
    else:
        entries = [e for e in entries if key in _known(str(e.get("name")))]
        if not entries:
            raise InputError(f"`--set` {text}: no algorithm has an option {key!r}.")
    for entry in entries:
        entry[key] = value
