"""A study as its author wrote it: TOML tables, checked before any work is done.

    [data] [split] [model] [[algorithm]] [graph] [run] [time] [tune] [privacy]
    [diagnostics] [optimizer] [sites]

The options of a table are the parameters of the function or class that it names.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from html import escape
from inspect import Parameter
from pathlib import Path
from typing import Any

from .. import checks
from ..algorithms import ALGORITHMS, CHOOSING
from ..checks import (
    InputError,
    import_object,
    integer,
    one_of,
    parameters_of,
    readable,
    several,
    value_of,
)
from ..data.federation import Table
from ..data.given import GIVEN, Given, given_table
from ..data.looking.sources import holds_arrays
from ..data.looking.studies import complete_study
from ..data.splits import SPLITS
from ..engine.faces import refuse_unused
from ..models import BESIDE, MODELS, refuse_settings, refuse_untrusted
from ..options import unused_options
from ..privacy.mechanisms.settings import Privacy
from ..types import Algorithm
from .ingredients import ingredients_of
from .search import Tune, space_of, tune_of
from .settings.optimisers import (
    checked_table,
    flat_space,
    local_options,
    local_part,
    measured_option,
    refuse_other_steps,
    split_setting,
    table_for,
    tunable_keys,
    used_table,
    uses_local,
)
from .settings.sites import Sites, sites_of
from .tables import (
    Diagnostics,
    Graph,
    RunTable,
    Time,
    diagnostics_of,
    graph_of,
    logs_of,
    privacy_table,
    refuse_bad_options,
    refuse_no_patterns,
    text,
)

TABLES = (
    *("name", "data", "split", "model", "algorithm", "graph", "run", "time", "tune"),
    *("privacy", "diagnostics", "optimizer", "sites"),
)


_USUAL = ("local", "fedavg", "coteries")
"""The algorithms that are compared on a user's table when a study names none."""


@dataclass(frozen=True)
class Entry:
    """One [[algorithm]] of a study."""

    name: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)
    tune: dict[str, Any] = field(default_factory=dict)  # values to search, by option
    waits: bool | None = None  # for the slowest client, with [time]; None: by method
    optimizer: dict[str, Any] = field(default_factory=dict)  # what it uses
    own_optimizer: dict[str, Any] = field(default_factory=dict)  # what it says itself


@dataclass(frozen=True)
class Study:
    """A checked study."""

    name: str
    data: dict[str, Any]
    split: dict[str, Any]
    model: dict[str, Any]
    algorithms: tuple[Entry, ...]
    run: RunTable
    tune: Tune | None = None
    time: Time | None = None
    graph: Graph | None = None
    privacy: Privacy | None = None
    diagnostics: Diagnostics | None = None
    given: Table | None = field(default=None, repr=False, compare=False)  # from Python
    chooses: tuple[str, ...] = ()  # automatic settings of [run]: rounds, batch_size
    optimizer: dict[str, Any] = field(default_factory=dict)  # of all methods
    found: dict[str, Any] = field(default_factory=dict, repr=False, compare=False)
    """Options of [data] that nobody wrote, found in the data."""
    sites: Sites = field(default_factory=Sites, compare=False)
    """How sites take part. It changes no simulation, and names none."""

    def __repr__(self) -> str:
        kinds = ", ".join(t["name"] for t in (self.data, self.split, self.model))
        labels = ", ".join(entry.label for entry in self.algorithms)
        most = "at most " * ("rounds" in self.chooses)
        seeds = ", ".join(map(str, self.run.seeds))
        when = f"{most}{several(self.run.rounds, 'round')}, seeds {seeds}"
        return f"<Study {self.name}: {kinds}; {labels}; {when}>"

    def _repr_html_(self) -> str:
        tables = self.tables()
        entries = [("[algorithm]", entry) for entry in tables.pop("algorithm")]
        rows = "".join(
            f"<tr><th>{name}</th><td>{escape(repr(settings)[1:-1])}</td></tr>"
            for name, settings in [(f"[{k}]", t) for k, t in tables.items()] + entries
            if isinstance(settings, dict)
        )
        return f"<p>{escape(repr(self))}</p><table>{rows}</table>"

    def tables(self) -> dict[str, Any]:
        """The study as nested plain values, as it is stored with its results.

        `run.log` is left out, because it does not change results, and so are settings
        that are chosen automatically. `baselines`, `mixed_precision` and `pooled_test`
        are written only if they are not the default, so that older runs keep their
        names.
        """
        left_out = {"log", *self.chooses}
        left_out |= {"baselines"} if self.run.baselines else set()
        left_out |= {"mixed_precision"} if self.run.mixed_precision == "off" else set()
        left_out |= set() if self.run.pooled_test else {"pooled_test"}
        run = {n: v for n, v in asdict(self.run).items() if n not in left_out}
        tables = {
            "name": self.name,
            "data": self.data,
            "split": self.split,
            "model": self.model,
            "algorithm": [
                {"name": e.name, "label": e.label, **e.options}
                | ({} if e.waits is None else {"waits": e.waits})
                | ({"optimizer": e.own_optimizer} if e.own_optimizer else {})
                | ({"tune": e.tune} if e.tune else {})
                for e in self.algorithms
            ],
            "run": run | {"seeds": list(self.run.seeds)},
        }
        for name in ("graph", "time", "privacy"):
            if (table := getattr(self, name)) is not None:
                tables[name] = table.table()
        if self.optimizer:
            tables["optimizer"] = self.optimizer
        if self.diagnostics is not None:
            tables["diagnostics"] = asdict(self.diagnostics)
        return tables | ({} if self.tune is None else {"tune": asdict(self.tune)})


def read_study(
    path: Path | str, overrides: Sequence[str] = (), *, trust: Sequence[str] = ()
) -> Study:
    """The study in a TOML file, with overrides such as "run.rounds=10".

    A study may name the user's own code. Somebody else may have written the study of a
    run folder. So code that such a study names is refused, except modules in `trust`.
    """
    path = Path(path)
    try:
        if path.exists() and not path.is_file():  # a pipe would never end
            raise InputError(f"the study {path} must be a plain file.")
        text = path.read_text(encoding="utf-8-sig")  # some editors begin with a BOM
    except OSError as error:
        raise InputError(
            f"the study {path} cannot be read: {error.strerror}."
        ) from None
    except UnicodeDecodeError:
        raise InputError(f"the study {path} is not text in UTF-8.") from None
    try:
        tables = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also for a number of 5000 digits
        reason = str(error).partition(";")[0].rstrip(".")
        raise InputError(f"the study {path} is not valid TOML: {reason}.") from None
    refuse_untrusted(path, tables, trust)
    tables.setdefault("name", path.stem)
    for override in overrides:
        _override(tables, override)
    _find_data(path, tables)
    return study_of(tables)


def _find_data(path: Path, tables: dict[str, Any]) -> None:
    """Makes a relative `data.path` relative to the current folder, not to the study's.

    A file that is not next to the study is looked up in the current folder.
    """
    data = tables.get("data")
    given = data.get("path") if isinstance(data, dict) else None
    if isinstance(data, dict) and isinstance(given, str | list):
        paths = given if isinstance(given, list) else [given]
        found = [_from_current_folder(path, each) for each in paths]
        data["path"] = found if isinstance(given, list) else found[0]


def _from_current_folder(path: Path, given: Any) -> Any:
    """The path of a file next to the study, from the current folder, if it is there."""
    if not isinstance(given, str) or given.startswith("~") or Path(given).is_absolute():
        return given
    beside = path.parent / given
    return os.path.relpath(beside) if beside.exists() else given


def study_of(tables: dict[str, Any], data: Given | None = None) -> Study:
    """A checked study from nested tables, as in TOML.

    Args:
        tables: the tables by name. With `data`, the table "data" has the options of a
            file, such as "client" and "target".
        data: replaces a data set by name or a file. It is a pandas DataFrame or a
            `Table` of all clients; a list or dictionary with a frame, a pair (features,
            targets) or a torch Dataset for each client; or one Dataset, which a split
            divides.
    """
    for name in tables:
        if name not in TABLES:
            raise InputError(
                f"a study has no table [{name}].{checks.suggestion(name, TABLES)}"
            )
    checks.within_64_bits("", tables)
    given, data_table = _data(_table(tables, "data"), data)
    return _check_tables(tables, data_table, given)


def _data(
    table: dict[str, Any], data: Given | None
) -> tuple[Table | None, dict[str, Any]]:
    """The data that were given from Python, if any, and the table [data]."""
    if data is not None:
        if "path" in table or table.pop("name", GIVEN) != GIVEN:
            raise InputError(
                "[data] must not name a data set or a file when `data` is given."
            )
        found, made = given_table(data, table)
        return found, {"name": GIVEN, **made}
    if table.get("name") == GIVEN:
        raise InputError(
            "the data of this study were given from Python, so run it there: "
            "`run_study(study_of(tables, data=...))`."
        )
    if "path" in table:
        table = {"name": "file", **table}
    if "name" not in table:
        raise InputError("[data] needs a `name`; see `coterie list datasets`.")
    return None, table


def _check_tables(
    tables: dict[str, Any], data: dict[str, Any], given: Table | None
) -> Study:
    """The checked study of all tables, given its table [data]."""
    text("data.name", data["name"])
    split = {"name": "natural", **_table(tables, "split")}
    one_of("split.name", text("split.name", split["name"]), SPLITS)
    own = _is_own_table(data)
    data, split = complete_study(data, split) if own else (data, split)
    own = own or (given is not None and given.rows.dim() == 2)
    model = {"name": "linear" if own else "mlp", **_table(tables, "model")}
    named = factory("model", text("model.name", model["name"]), MODELS)
    options = {k: v for k, v in _options(model).items() if k not in BESIDE}
    checks.options("model", model["name"], parameters_of(named), options)
    refuse_settings(model)
    refuse_no_patterns(model.get("personal", []))
    for name, table in (("data", data), ("split", split)):
        seed = table.get("seed", 0)
        if type(seed) is not int:
            raise InputError(f"`{name}.seed` must be a whole number, got {seed!r}.")
        integer(f"{name}.seed", seed, at_least=0)
    entries, timed = _entries(tables), "time" in tables
    if not entries and own:
        entries = [{"name": name} for name in _USUAL]
    if not entries:
        raise InputError("a study needs at least one [[algorithm]] with a `name`.")
    tune = tune_of(_table(tables, "tune")) if "tune" in tables else None
    run = _run_table(_table(tables, "run"))
    if run.newcomers and model.get("personal"):
        raise InputError(
            "`run.newcomers` must be 0 with `model.personal`, because a newcomer has "
            f"no personal parameters, got {run.newcomers}."
        )
    shared = checked_table("[optimizer]", _table(tables, "optimizer"))
    tuned = () if tune is None else tuple(tune.space)
    read = tuple(_entry(entry, timed, shared, tuned) for entry in entries)
    _refuse_unused_optimizer(shared, read)
    _refuse_same_labels(read)
    _refuse_choices(split, read, tune)
    time = _time(_table(tables, "time"), read) if timed else None
    if time is not None:
        time.refuse_longer(run.rounds * time.period)
    study = Study(
        text("name", tables.get("name", "study")),
        data,
        split,
        model,
        _with_spaces(read, tune),
        run,
        tune,
        time,
        graph_of(_table(tables, "graph")) if "graph" in tables else None,
        privacy_table(_table(tables, "privacy"), tables)
        if "privacy" in tables
        else None,
        diagnostics_of(_table(tables, "diagnostics"))
        if "diagnostics" in tables
        else None,
        given,
        optimizer=shared,
        sites=sites_of(_table(tables, "sites")),
    )
    _refuse_private_clipping(study)
    _refuse_private_epochs(study)
    _refuse_measured_options(study)
    chosen = _choices_of(study, _table(tables, "run"))
    return replace(
        study, chooses=chosen, found=_found_options(data, _table(tables, "data"))
    )


def _found_options(data: dict[str, Any], said: dict[str, Any]) -> dict[str, Any]:
    """The options of [data] that the user did not write.

    Columns with the name of their option, such as `client = "client"`, are left out.
    """
    return {
        key: value
        for key, value in data.items()
        if key not in (*said, "name", value if isinstance(value, str) else "")
    }


def _choices_of(study: Study, run: dict[str, Any]) -> tuple[str, ...]:
    """The settings of [run] that are chosen automatically: those not written."""
    if study.privacy is not None or study.time is not None:
        return ()
    found = [] if "rounds" in run else ["rounds"]
    if any(chooses_steps(study, entry) for entry in study.algorithms):
        found += [] if "batch_size" in run else ["batch_size"]
    return tuple(found)


def chooses_steps(study: Study, entry: Entry) -> bool:
    """Whether the step size of an entry is chosen automatically.

    The step size is chosen if the study neither sets nor searches it, and the method
    has the usual default. It is never chosen with [privacy], because the choice would
    cost budget, nor with [time], where nobody waits for it.
    """
    known = options_of(entry.name)
    usual = "lr" in known and "weight_decay" in known and known["lr"].default == 0.1
    table = {**entry.optimizer, **split_setting(entry.tune)[1]}
    said = "lr" in entry.options or "lr" in entry.tune or local_part(table)
    return usual and not said and study.privacy is None and study.time is None


def _is_own_table(data: dict[str, Any]) -> bool:
    return data["name"] == "file" and "path" in data and not holds_arrays(data["path"])


def factory(
    section: str, name: str, registry: dict[str, Callable[..., Any]]
) -> Callable[..., Any]:
    """The factory with a name: an entry of the registry or "module:attribute"."""
    if ":" not in name:
        one_of(f"{section}.name", name, registry)
        return registry[name]
    return readable(f"{section}.name", name, import_object(f"{section}.name", name))


def algorithm_factory(name: str) -> Callable[..., Algorithm]:
    """The factory of an algorithm, one of ours or "module:function"."""
    return factory("algorithm", name, ALGORITHMS)


def _entries(tables: dict[str, Any]) -> list[Any]:
    entries = tables.get("algorithm", [])  # a single one may be a table [algorithm]
    return entries if isinstance(entries, list) else [entries]


def _options(table: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in table.items() if key not in ("name", "label")}


def _table(tables: dict[str, Any], name: str) -> dict[str, Any]:
    table = tables.get(name, {})
    if not isinstance(table, dict):
        raise InputError(f"[{name}] must be a table, got {table!r}.")
    return dict(table)


def _refuse_choices(
    split: dict[str, Any], entries: Sequence[Entry], tune: Tune | None
) -> None:
    """Refuses algorithms that choose by validation data if a study has none."""
    if split.get("validation") != 0:
        return
    who = [entry.label for entry in entries if entry.name in CHOOSING]
    who += ["[tune] without `folds`"] if tune is not None and not tune.folds else []
    if who:
        raise InputError(
            f"`split.validation` must be above 0 for {' and '.join(who)}, which "
            f"{'choose' if len(who) > 1 else 'chooses'} by validation data, got 0."
        )


def options_of(name: str) -> dict[str, Any]:
    """The options of an algorithm: its keywords, its ingredients, perhaps `epochs`."""
    maker = algorithm_factory(name)
    known = parameters_of(maker)
    text = Parameter("text", Parameter.KEYWORD_ONLY, default="")
    found = {**known, **dict.fromkeys(ingredients_of(maker), text)}
    if "steps" in known and uses_local(known):
        found["epochs"] = Parameter("epochs", Parameter.KEYWORD_ONLY, default=1)
    return found


def trained_options(entry: Entry) -> dict[str, Any]:
    """The options with which an entry is trained, its optimiser included."""
    known = parameters_of(algorithm_factory(entry.name))
    return local_options(entry.optimizer, entry.options, known)


def written_settings(entry: Entry) -> dict[str, Any]:
    """The options of an entry, and those of its optimiser, as [tune] names them."""
    return entry.options | flat_space({"optimizer": entry.optimizer})


def with_setting(entry: Entry, setting: Mapping[str, Any]) -> Entry:
    """The entry with a setting of a search."""
    options, table = split_setting(setting)
    options, known = (
        entry.options | options,
        parameters_of(algorithm_factory(entry.name)),
    )
    if table:
        table = used_table(entry.optimizer | table, entry.label, known, options)
        return replace(entry, options=options, optimizer=table)
    return replace(entry, options=options)


def _entry(
    table: Any, timed: bool, shared: dict[str, Any], tuned: tuple[str, ...]
) -> Entry:
    if not isinstance(table, dict) or not isinstance(table.get("name"), str):
        raise InputError(f"every [[algorithm]] needs a `name`, got {table!r}.")
    options, name = _options(table), table["name"]
    tune, waits = options.pop("tune", {}), options.pop("waits", None)
    own = options.pop("optimizer", {})
    label = text("algorithm.label", table.get("label", name))
    if waits is not None and not timed:
        raise InputError(
            f"`waits` of {label} needs a table [time]: without it, everybody waits."
        )
    if not isinstance(waits, bool | None):
        raise InputError(f"`waits` of {label} must be true or false, got {waits!r}.")
    checks.options("algorithm", name, options_of(name), options)
    if not isinstance(tune, dict):
        raise InputError(f"`tune` of {label} must be a table, got {tune!r}.")
    tune = flat_space(tune)
    if not isinstance(own, dict):
        raise InputError(
            f"`optimizer` of {label} must be a table, got {checks.brief(own)}."
        )
    maker, given = algorithm_factory(name), [*options, *tune]
    if "epochs" in options:
        integer("algorithm.epochs", options["epochs"], at_least=1, at_most=1e6)
    _refuse_both(label, given)
    refuse_unused(name, maker, given, waits=waits is not False)
    sets_lr = "lr" in (*given, *tuned)
    known = parameters_of(maker)
    if not sets_lr:
        refuse_other_steps(shared, label, known)
    used = table_for(shared, own, name, label, known, options)
    return Entry(name, label, options, tune, waits, used, own)


def _refuse_both(label: str, given: Sequence[str]) -> None:
    """Refuses both ways to count the steps of one method."""
    if "epochs" in given and "steps" in given:
        raise InputError(
            f"`epochs` and `steps` of {label} cannot be used together: an epoch takes "
            "as many steps as a client has minibatches."
        )


def _refuse_unused_optimizer(shared: dict[str, Any], entries: Sequence[Entry]) -> None:
    """Refuses options of [optimizer] that no method uses."""
    for key in shared:
        if not any(key in entry.optimizer for entry in entries):
            raise InputError(f"[optimizer]: no algorithm uses `{key}`; leave it out.")


def _refuse_private_epochs(study: Study) -> None:
    """Refuses epochs where the accountant needs independent minibatches."""
    if study.privacy is None or study.privacy.unit != "sample":
        return
    for entry in study.algorithms:
        if "epochs" in entry.options:
            raise InputError(
                f"`epochs` of {entry.label} cannot be used with `privacy.unit` sample, "
                "whose accounting needs minibatches that are drawn independently: "
                "write `steps`."
            )


def measures_clients(entry: Entry) -> str:
    """The option of an entry that needs measurements of clients' losses, or nothing."""
    table = {f"optimizer.{key}": value for key, value in entry.optimizer.items()}
    return measured_option({**table, **entry.options, **entry.tune})


def _refuse_measured_options(study: Study) -> None:
    """Refuses options that depend on clients' data where that is not measured."""
    where = "privacy" if study.privacy is not None else "time"
    if study.privacy is None and study.time is None:
        return
    for entry in study.algorithms:
        if name := measures_clients(entry):
            value = {**written_settings(entry), **entry.tune}[name]
            raise InputError(
                f"`{name}` of {entry.label} must be a number with [{where}], where "
                f"nothing is measured before training, got {checks.brief(value)}."
            )


def _refuse_private_clipping(study: Study) -> None:
    """Refuses to clip gradients a second time, after their noise."""
    if study.privacy is None or study.privacy.unit != "sample":
        return
    for entry in study.algorithms:
        lr = entry.options.get("lr")
        if isinstance(lr, str) and "clip" in lr:
            raise InputError(
                f"`clip` in `lr` of {entry.label} cannot be used with `privacy.unit` "
                "sample, where `privacy.clip` bounds every sample's gradient, got "
                f"{checks.brief(lr)}."
            )
    if any(entry.optimizer.get("clip") for entry in study.algorithms):
        raise InputError(
            "`optimizer.clip` cannot be used with `privacy.unit` sample, where "
            "`privacy.clip` bounds every sample's gradient: leave it out."
        )


def _with_spaces(entries: tuple[Entry, ...], tune: Tune | None) -> tuple[Entry, ...]:
    """The entries with their search spaces."""
    known = [_usable_options(entry) for entry in entries]
    for key in [] if tune is None else tune.space:
        if not any(key in options for options in known):
            other = {"steps": "epochs", "epochs": "steps"}.get(key, "")
            if any(other in entry.options for entry in entries):
                raise InputError(
                    f"`tune.space.{key}` cannot be used, because the algorithms that "
                    f"have `{key}` say `{other}`: search `{other}`, or leave it out."
                )
            options = {option: None for each in known for option in each}
            raise InputError(
                f"[tune.space]: no algorithm has an option {key!r}."
                f"{checks.suggestion(key, options)}"
            )
    for entry in entries:
        if entry.tune and tune is None:
            raise InputError(f"`tune` of {entry.label} needs a table [tune].")
    if tune is None:
        return entries
    found = tuple(
        replace(e, tune=space_of(tune, e.tune, written_settings(e), options, e.name))
        for e, options in zip(entries, known, strict=True)
    )
    for entry in found:
        _refuse_both(entry.label, (*entry.options, *entry.tune))
    return found


def _usable_options(entry: Entry) -> dict[str, Any]:
    """The options that an entry can use."""
    waits = entry.waits is not False
    maker = algorithm_factory(entry.name)
    other = unused_options(maker, waits=waits)
    known = options_of(entry.name)
    taken = {"epochs": "steps", "steps": "epochs"}
    other = {*other, *(taken[key] for key in taken if key in entry.options)}
    found = {name: option for name, option in known.items() if name not in other}
    return found | tunable_keys(entry.name, parameters_of(maker))


def _refuse_same_labels(entries: Sequence[Entry]) -> None:
    labels = [entry.label for entry in entries]
    for label in labels:
        if labels.count(label) > 1:
            raise InputError(
                f"two algorithms are called {label!r}; give each its own `label`."
            )


def _time(table: dict[str, Any], entries: tuple[Entry, ...]) -> Time:
    speeds = table.pop("speeds", "")
    refuse_bad_options("time", table, Time)
    if not isinstance(speeds, str | list | tuple):
        raise InputError(
            f"`time.speeds` must be a list of numbers or text, got {speeds!r}."
        )
    given = speeds if isinstance(speeds, str) else tuple(speeds)
    made = Time(speeds=given, **table)
    if any("epochs" in (*entry.options, *entry.tune) for entry in entries):
        return made  # the default period depends on the data
    return made.with_period(most_steps(entries))


def most_steps(entries: Sequence[Entry]) -> int:
    """The largest number of local steps in a round of any algorithm."""
    counts = [entry.options.get("steps", 1) for entry in entries]
    return max([steps for steps in counts if isinstance(steps, int)], default=1)


def _run_table(table: dict[str, Any]) -> RunTable:
    table = {**table, "log": logs_of(table.get("log", []))}
    refuse_bad_options("run", table, RunTable)
    seeds = table.get("seeds", [0])
    is_list = isinstance(seeds, list | tuple)
    if not is_list or not all(type(seed) is int for seed in seeds):
        raise InputError(f"`run.seeds` must be a list of whole numbers, got {seeds!r}.")
    for seed in seeds:
        integer("run.seeds", seed, at_least=0)
    return RunTable(**{**table, "seeds": tuple(seeds)})


def _override(tables: dict[str, Any], text: str) -> None:
    """Applies "table.key=value", "algorithm.key=..." or "algorithm.NAME.key=..."."""
    path, equals, value = text.partition("=")
    table, *keys = [key.strip() for key in path.split(".")]
    is_name = table == "name" and not keys
    # The label of an algorithm may have dots.
    is_setting = len(keys) == 1 or (table == "algorithm" and len(keys) > 1)
    is_space = table == "tune" and len(keys) == 2 and keys[0] == "space"
    if not equals or not all(keys) or not (is_name or is_setting or is_space):
        raise InputError(f"`--set` must read table.key=value, got {text!r}.")
    parsed = value_of(value)
    if is_name:
        tables["name"] = parsed
    elif table == "algorithm":
        _override_algorithm(tables, ".".join(keys[:-1]), keys[-1], parsed, text)
    elif is_space:
        tune = _table(tables, "tune")
        tables["tune"] = {**tune, "space": {**_table(tune, "space"), keys[1]: parsed}}
    else:
        tables[table] = {**_table(tables, table), keys[0]: parsed}


def _override_algorithm(
    tables: dict[str, Any], name: str, key: str, value: Any, text: str
) -> None:
    """Sets an option of the algorithms with a name or label; "": all that have it."""
    entries = [e for e in _entries(tables) if isinstance(e, dict)]
    if name:
        called = [str(e.get("label", e.get("name"))) for e in entries]
        entries = [e for e in entries if name in (e.get("label"), e.get("name"))]
        if not entries:
            raise InputError(
                f"`--set` {text}: the study has no algorithm {name!r}, "
                f"only {', '.join(called)}.{checks.suggestion(name, called)}"
            )
    else:
        known = [options_of(str(e.get("name"))) for e in entries]
        pairs = zip(entries, known, strict=True)
        entries = [entry for entry, options in pairs if key in options]
        if not entries:
            options = {option: None for each in known for option in each}
            raise InputError(
                f"`--set` {text}: no algorithm has an option {key!r}."
                f"{checks.suggestion(key, options)}"
            )
    for entry in entries:
        entry[key] = value
