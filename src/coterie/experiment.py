"""Runs a study: every algorithm on the same data, seeds and starting point.

The only place where data, models, oracle, algorithms and records are wired together.
"""

from __future__ import annotations

import functools
import inspect
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from . import checks
from .checks import InputError, TrainingError, parameters_of
from .config import Entry, Study, algorithm_factory, factory
from .data.datasets import load
from .data.federation import PARTS, Federation
from .data.splits import divide
from .ingredients import RECIPES, ingredients_of
from .kernels import can_compile
from .metrics import TASKS
from .models import MODELS, build, ravel, with_row
from .newcomers import Newcomers, described, hold_out, models_for, on_the_device_of
from .oracle import Simulation
from .record import SNAPSHOT_CLIENTS, Cell, Folder, Records, unpack, versions
from .rounds import Round, run_rounds
from .tuning import Rung, Search, Step, choose, folded, rungs, settings_of
from .types import Algorithm

if TYPE_CHECKING:
    import pandas as pd

_COMPILE_AFTER = {"cpu": 20_000, "cuda": 500}
"""Gradient steps from which compiling (seconds) costs less than it saves."""

_SNAPSHOTS = 50
"""Collaboration matrices kept of each cell, about."""


class Progress(NamedTuple):
    """Where a study stands, for whoever shows it."""

    label: str
    seed: int
    t: int
    done: int  # rounds of all cells so far
    total: int
    score: float | None  # mean validation score, where just evaluated


class Ground(NamedTuple):
    """What all algorithms of one seed share; N clients train."""

    federation: Federation
    module: nn.Module
    simulation: Simulation
    x: Tensor  # (N, D)
    newcomers: Newcomers | None = None


@dataclass(frozen=True)
class Result:
    """A study's records, and its models."""

    folder: Path
    records: Records
    study: Study

    def table(self) -> pd.DataFrame:
        """One row for each algorithm, on test data at the last round."""
        from .tables import summary

        return summary(self.records)

    def newcomers(self) -> pd.DataFrame:
        """One row for each algorithm, on test data of those held out of training."""
        from .tables import newcomer_summary

        return newcomer_summary(self.records)

    def chosen(self) -> pd.DataFrame:
        """The options that validation data chose, by algorithm and seed."""
        from .tables import chosen

        return chosen(self.records)

    def models(self, label: str | None = None, seed: int | None = None) -> Tensor:
        """The personal models (N, D) of an algorithm, by default the last listed.

        Row j is that of the j-th client who trained, in the order of `records.clients`.
        """
        return Folder(self.folder).models(*self._cell(label, seed))

    def newcomer_models(
        self, label: str | None = None, seed: int | None = None
    ) -> Tensor:
        """The models (M, D) that newcomers got, in the order of `records.newcomers`."""
        return Folder(self.folder).models(*self._cell(label, seed), of="newcomers")

    def _cell(self, label: str | None, seed: int | None) -> tuple[str, int]:
        labels = [entry.label for entry in self.study.algorithms]
        label = checks.one_of("label", labels[-1] if label is None else label, labels)
        return label, self.study.run.seeds[0] if seed is None else seed

    def model(
        self, client: int, label: str | None = None, seed: int | None = None
    ) -> nn.Module:
        """The model of one client, who trained or joined later, ready to use."""
        label, seed = self._cell(label, seed)
        rows = self.models(label, seed)
        table = self.records.clients
        names = table.loc[table["seed"] == seed, "client"].tolist()
        if self.study.run.newcomers:
            rows = torch.cat([rows, self.newcomer_models(label, seed)])
            table = self.records.newcomers
            mine = (table["algorithm"] == label) & (table["seed"] == seed)
            names += table.loc[mine, "client"].tolist()
        checks.integer("client", client, at_least=0, at_most=len(names) - 1)
        row = rows[names.index(client)]
        return with_row(prepare(self.study, seed).module, row)


def federation_of(study: Study, seed: int) -> Federation:
    """The data of a study as they lie with the clients, for one of its seeds."""
    data, split = dict(study.data), dict(study.split)
    table = load(data.pop("name"), **{"seed": seed, **data})
    if table.task in ("classification", "binary"):
        # There is nothing to learn from one class; who means it can say so.
        split.setdefault("min_classes", 2)
    federation = divide(table, split.pop("name"), **{"seed": seed, **split})
    if len(federation) < 2:
        raise InputError(
            f"a study needs at least two clients, `{federation.name}` has one."
        )
    return federation


def module_of(study: Study, federation: Federation, seed: int) -> nn.Module:
    """The model of a study at its start, for one of its seeds."""
    options = dict(study.model)
    make = factory("model", options.pop("name"), MODELS)
    shape = tuple(federation.features.shape[1:])
    dtype = getattr(torch, study.run.dtype)
    try:
        inspect.signature(make).bind(shape, federation.outputs, **options)
        module = build(lambda: make(shape, federation.outputs, **options), seed, dtype)
    except (TypeError, RuntimeError) as error:
        raise InputError(
            f"`model` cannot be made for features of shape {shape} and "
            f"{federation.outputs} outputs: {_reason(error)}."
        ) from error
    _try_model(module, federation, dtype)
    return module


def prepare(study: Study, seed: int) -> Ground:
    """Everything that the algorithms of one seed share, checked and in place."""
    everybody = federation_of(study, seed)
    trains, joins = hold_out(everybody, study.run.newcomers, seed)
    federation = everybody.select(trains) if len(joins) else everybody
    module = module_of(study, federation, seed)
    simulation = _simulation(study, federation, module, seed)
    x = ravel(module).to(_device(study.run.device)).repeat(len(federation), 1)
    if not len(joins):
        return Ground(federation, module, simulation, x)
    later = on_the_device_of(simulation, everybody.select(joins))
    newcomers = Newcomers(
        everybody.select(torch.cat([trains, joins])),
        _simulation(study, later, module, seed),
    )
    return Ground(federation, module, simulation, x, newcomers)


def _simulation(
    study: Study, federation: Federation, module: nn.Module, seed: int
) -> Simulation:
    """Clients that answer as the study says."""
    run, device = study.run, _device(study.run.device)
    return Simulation(
        federation,
        module,
        batch_size=run.batch_size,
        seed=seed,
        device=device,
        dtype=getattr(torch, run.dtype),
        loop=run.loop,
        compiled=_compiled(study, device),
    )


def build_algorithm(entry: Entry, federation: Federation) -> Algorithm:
    """The algorithm of an entry, its ingredients made for this federation."""
    maker = algorithm_factory(entry.name)
    options = dict(entry.options)
    given = []
    for name in ingredients_of(maker):
        recipe, default = RECIPES[name]
        given.append(recipe(options.pop(name, default), federation))
    checks.options("algorithm", entry.name, parameters_of(maker), options)
    if ":" in str(options.get("criterion", "")):
        options["criterion"] = checks.imported("criterion", options["criterion"])
    algorithm = maker(*given, **options)
    if not isinstance(algorithm, Algorithm):
        raise InputError(
            f"{entry.name} must return a coterie Algorithm, got {algorithm!r}."
        )
    return algorithm


def run_study(
    study: Study,
    *,
    runs: Path | str = "runs",
    resume: Path | str | None = None,
    progress: Callable[[Progress], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> Result:
    """Runs what of a study has not run yet, and returns all of its results.

    The folder is named by the study's content, so that the same study again goes on
    where it stopped; nothing is run twice.

    Args:
        study: from `read_study` or `study`.
        runs: where the folder is made.
        resume: a folder to go on in, instead; it must belong to the same study.
        progress: called after every round.
        notice: called with one line where there is something to know.
    """
    folder = Folder(Path(resume) if resume else Path(runs) / study.identity)
    if resume and not (folder.path / "study.toml").exists():
        raise InputError(
            f"there is no run to resume in {folder.path}: it has no study.toml."
        )
    ground = prepare(study, study.run.seeds[0])
    for entry in study.algorithms:
        build_algorithm(entry, ground.federation).init(ground.x)
        if ground.newcomers is not None:
            build_algorithm(entry, ground.newcomers.everybody)
    _refuse_settings(study, ground)
    for seed in study.run.seeds[1:]:
        # Refuses what a later seed could not be run with.
        everybody = federation_of(study, seed)
        trains, _ = hold_out(everybody, study.run.newcomers, seed)
        _folds(study, everybody.select(trains), seed)
    device = ground.x.device
    if _wants_compiling(study, device) and not can_compile(device) and notice:
        notice("no C++ compiler was found, so gradients are not compiled.")
    folder.create(study.resolved(), versions(device))
    searches = {
        (entry.label, seed): _search(study, entry, seed)
        for entry in study.algorithms
        for seed in study.run.seeds
    }
    total = study.run.rounds * len(searches)
    total += sum(search.planned for search in searches.values() if search)
    finished = 0
    for seed in study.run.seeds:
        ground = prepare(study, seed) if seed != study.run.seeds[0] else ground
        folder.describe(seed, ground.federation)
        for entry in study.algorithms:
            shows = functools.partial(_teller, progress, seed=seed, total=total)
            search = searches[entry.label, seed]
            if search is not None:
                entry = _tuned(study, entry, search, ground, folder, shows, finished)
                finished += search.planned
            tell = shows(entry.label, finished)
            _run_cell(study, entry, seed, ground, folder, tell)
            finished += study.run.rounds
    return Result(folder.path, folder.export(), study)


Tell = Callable[[int, float | None], None]


def _teller(
    progress: Callable[[Progress], None] | None,
    label: str,
    finished: int,
    *,
    seed: int,
    total: int,
) -> Tell:
    def tell(t: int, score: float | None) -> None:
        if progress is not None:
            progress(Progress(label, seed, t, finished + t, total, score))

    return tell


def _search(study: Study, entry: Entry, seed: int) -> Search | None:
    """The search for the options of an entry, before it begins, if there is one."""
    tune = study.tune
    if tune is None or not entry.tune:
        return None
    found = settings_of(tune, entry.tune, entry.options, seed)
    until = rungs(len(found), tune.rounds or study.run.rounds, tune.halving)
    return Search(entry.label, seed, max(1, tune.folds), found, until)


def _refuse_settings(study: Study, ground: Ground) -> None:
    """Refuses settings of [tune] that cannot be used, before anything is run."""
    _folds(study, ground.federation, study.run.seeds[0])
    for entry in study.algorithms:
        searches = [_search(study, entry, seed) for seed in study.run.seeds]
        for setting in [s for each in searches if each for s in each.settings]:
            try:
                other = replace(entry, options=entry.options | setting)
                build_algorithm(other, ground.federation).init(ground.x)
            except InputError as error:
                text = ", ".join(f"{key} = {value!r}" for key, value in setting.items())
                raise InputError(
                    f"[tune.space] gives {entry.label} a setting that cannot be used, "
                    f"{text}: {error}"
                ) from None


def _folds(study: Study, federation: Federation, seed: int) -> list[Federation]:
    """What a setting is trained and judged on: the federation or its folds."""
    if study.tune is None or study.tune.folds == 0:
        return [federation]
    return folded(federation, study.tune.folds, seed)


def _tuned(
    study: Study,
    entry: Entry,
    search: Search,
    ground: Ground,
    folder: Folder,
    shows: Callable[[str, int], Tell],
    finished: int,
) -> Entry:
    """The entry with the options that do best on validation data."""
    search = folder.search(search.label, search.seed) or search
    if search.chosen is None:
        grounds = []
        for fold in _folds(study, ground.federation, search.seed):
            placed = on_the_device_of(ground.simulation, fold)
            simulation = _simulation(study, placed, ground.module, search.seed)
            simulation.kernel = ground.simulation.kernel  # which may be compiled
            grounds.append(ground._replace(federation=fold, simulation=simulation))

        def train(search: Search, trial: int, rung: Rung) -> Step:
            other = replace(entry, options=entry.options | search.settings[trial])
            label = f"{entry.label} (tuning {trial + 1}/{len(search.settings)})"

            def tells(before: int) -> Tell:
                return shows(label, finished + search.passed + before)

            return _trained(study, other, search, trial, rung, grounds, folder, tells)

        def keep(search: Search, going: list[int]) -> None:
            folder.save_search(search)
            for trial in set(range(len(search.settings))) - set(going):
                folder.drop_trial(search.label, search.seed, trial)

        higher = TASKS[ground.federation.task].higher_is_better
        search = choose(search, train, keep, higher=higher)
    return replace(entry, options=entry.options | search.best)


def _trained(
    study: Study,
    entry: Entry,
    search: Search,
    trial: int,
    rung: Rung,
    grounds: list[Ground],
    folder: Folder,
    tells: Callable[[int], Tell],
) -> Step:
    """What becomes of a trial in a rung, which it enters where the last one ended.

    Args:
        study: says how clients take part.
        entry: the algorithm with the options of the trial.
        search: what was found so far.
        trial: its number.
        rung: how far it is trained.
        grounds: one for each fold.
        folder: where states are kept between rungs, so that memory holds one trial.
        tells: gives what to call after every round, by the rounds before.
    """
    since, states, scores = search.since(rung.rounds), [], []
    t, kept = folder.trial(search.label, search.seed, trial) or (0, [])
    for number, ground in enumerate(grounds):
        algorithm = build_algorithm(entry, ground.federation)
        state, names = algorithm.init(ground.x), ground.federation.clients.tolist()
        cell = Cell(search.label, search.seed, t=t, state=state, clients=names)
        if kept:
            state = _restored(replace(cell, state=kept[number]), state, folder)
            cell = replace(cell, state=state)
        before = number * (rung.rounds - since) - since
        tell = tells(before)
        try:
            for r in run_rounds(
                algorithm,
                ground.simulation,
                ground.x,
                rounds=rung.rounds,
                seed=search.seed,
                participation=study.run.participation,
                start=(t, state),
            ):
                cell = replace(cell, t=r.t, state=r.state)
                _refuse_nonfinite_state(r, cell)
                if r.t < rung.rounds:
                    tell(r.t, None)
            scores.append(_validated(cell, algorithm, ground.simulation))
        except TrainingError:
            return Step(trial, rung.rounds, before + cell.t, ())
        states.append(cell.state)
        tell(rung.rounds, scores[-1])
    if rung != search.rungs[-1]:
        folder.save_trial(search.label, search.seed, trial, rung.rounds, states)
    return Step(trial, rung.rounds, search.cost(rung.rounds), tuple(scores))


def _validated(cell: Cell, algorithm: Algorithm, simulation: Simulation) -> float:
    """The mean validation score of the personal models; nothing else is looked at."""
    x = algorithm.personal(cell.state, simulation.at(cell.t, purpose="use"))
    _refuse_nonfinite(x, "a personal model", cell)
    name = TASKS[simulation.federation.task].score
    score = float(simulation.evaluate(x, "validation")[name].double().mean())
    if not math.isfinite(score):
        raise TrainingError(f"the validation {name} of {cell.label} is not finite")
    return score


def _run_cell(
    study: Study, entry: Entry, seed: int, ground: Ground, folder: Folder, tell: Tell
) -> None:
    """Runs one algorithm on one seed from where it stands to its end."""
    run, simulation = study.run, ground.simulation
    algorithm = build_algorithm(entry, ground.federation)
    names = ground.federation.clients.tolist()
    cell = folder.cell(entry.label, seed) or Cell(entry.label, seed, clients=names)
    if cell.done:
        tell(run.rounds, None)
        return
    start = algorithm.init(ground.x)
    try:
        if cell.rounds:
            cell = replace(cell, state=_restored(cell, start, folder))
        else:
            cell = replace(cell, state=start)
            cell = _evaluated(cell, study, algorithm, simulation, {})
        saved = began = time.monotonic()
        for r in run_rounds(
            algorithm,
            simulation,
            ground.x,
            rounds=run.rounds,
            seed=seed,
            participation=run.participation,
            start=(cell.t, cell.state),
        ):
            _refuse_nonfinite_state(r, cell)
            # Whenever an interruption comes, `cell` is as it was after some round.
            after = _counted(cell, r, time.monotonic() - began)
            evaluates = r.t % run.every == 0 or r.t == run.rounds
            if evaluates:
                after = _evaluated(after, study, algorithm, simulation, r.info)
            cell = after
            tell(r.t, _score(cell, simulation) if evaluates else None)
            if time.monotonic() - saved >= run.checkpoint_seconds:
                folder.save(cell)
                saved = time.monotonic()
            began = time.monotonic()
        x = algorithm.personal(cell.state, simulation.at(cell.t, purpose="use"))
        if ground.newcomers is not None:
            cell = _welcomed(cell, study, entry, ground.newcomers, x, folder)
    except (TrainingError, KeyboardInterrupt) as error:
        if cell.rounds:
            folder.save(cell)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TrainingError(
            f"{error}; what was before is kept in {folder.path}, and a smaller step "
            "size usually helps."
        ) from None
    folder.save_models(entry.label, seed, x)
    folder.save(replace(cell, done=True))


def _welcomed(
    cell: Cell,
    study: Study,
    entry: Entry,
    newcomers: Newcomers,
    x: Tensor,
    folder: Folder,
) -> Cell:
    """The cell with a record of the models that newcomers get, which are kept too.

    Args:
        cell: as it is after the last round.
        study: says what is evaluated.
        entry: the algorithm.
        newcomers: those who were held out.
        x: the personal models of those who trained.
        folder: where the models go.
    """
    folder.save(cell)  # before what may take long
    algorithm = build_algorithm(entry, newcomers.everybody)
    oracle = newcomers.simulation.at(cell.t, purpose="welcome")
    rows = models_for(algorithm, cell.state, x, oracle)
    names = newcomers.federation.clients.tolist()
    _refuse_nonfinite(rows, "a newcomer's model", replace(cell, clients=names))
    folder.save_models(cell.label, cell.seed, rows, of="newcomers")
    table = described(newcomers.federation)
    table |= _measures(study, newcomers.simulation, rows)
    return replace(cell, newcomers={k: v.cpu() for k, v in table.items()})


def _restored(cell: Cell, like: Any, folder: Folder) -> Any:
    """The state of a cell that was read from its file."""
    try:
        return unpack(cell.state, like)
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"the checkpoint of {cell.label!r} in {folder.path} was written by another "
            "version of the algorithm; use a new folder."
        ) from error


def _counted(cell: Cell, r: Round, seconds: float) -> Cell:
    """The cell after a round."""
    return replace(
        cell,
        t=r.t,
        state=r.state,
        gradients=cell.gradients + float(r.gradients.sum()),
        floats=cell.floats + float(r.info.get("floats", 0.0)),
        seconds=cell.seconds + seconds,
    )


def _evaluated(
    cell: Cell,
    study: Study,
    algorithm: Algorithm,
    simulation: Simulation,
    info: dict[str, Tensor | float],
) -> Cell:
    """The cell with a record of the personal models on their own clients' parts."""
    x = algorithm.personal(cell.state, simulation.at(cell.t, purpose="use"))
    _refuse_nonfinite(x, "a personal model", cell)
    values = _measures(study, simulation, x)
    row = {
        "round": cell.t,
        "gradients": cell.gradients,
        "bytes": cell.floats * x.element_size(),
        "seconds": cell.seconds,
        **_scalars(info),
    }
    cell = replace(cell, metrics=[*cell.metrics, values], rounds=[*cell.rounds, row])
    return _with_snapshot(cell, study, info.get("weights"))


def _measures(study: Study, simulation: Simulation, x: Tensor) -> dict[str, Tensor]:
    """What is known of each client's own model on its own parts, (N,) each."""
    values: dict[str, Tensor] = {}
    for part in PARTS:
        if part != "train" or study.run.evaluate_train:
            measures = simulation.evaluate(x, part)
            values |= {f"{part}_{name}": v.cpu() for name, v in measures.items()}
    optima = simulation.federation.optima
    if optima is not None and optima.shape == x.shape:
        values["distance"] = (x - optima).square().sum(1).cpu()
    return values


def _score(cell: Cell, simulation: Simulation) -> float:
    """The mean validation score of the last evaluation."""
    name = TASKS[simulation.federation.task].score
    return float(cell.metrics[-1][f"validation_{name}"].mean())


def _scalars(info: dict[str, Tensor | float]) -> dict[str, float]:
    """Means over clients of what a round tells about itself."""
    named = {k: v for k, v in info.items() if k not in ("floats", "weights")}
    return {k: float(torch.as_tensor(v).double().mean()) for k, v in named.items()}


def _with_snapshot(cell: Cell, study: Study, weights: Tensor | float | None) -> Cell:
    if not isinstance(weights, Tensor) or len(weights) > SNAPSHOT_CLIENTS:
        return cell
    evaluations = max(1, study.run.rounds // study.run.every)
    stride = max(1, evaluations // _SNAPSHOTS)
    number = len(cell.rounds) - 1
    if number % stride and cell.t != study.run.rounds and number != 1:
        return cell
    return replace(
        cell,
        snapshot_rounds=[*cell.snapshot_rounds, cell.t],
        snapshots=[*cell.snapshots, weights.detach().to("cpu", torch.float32)],
    )


def _refuse_nonfinite_state(r: Round, cell: Cell) -> None:
    # A method with its own `personal` may keep its models under another name.
    x = getattr(r.state, "x", None)
    if isinstance(x, Tensor):
        _refuse_nonfinite(x, "a model", replace(cell, t=r.t))


def _refuse_nonfinite(x: Tensor, what: str, cell: Cell) -> None:
    bad = ~torch.isfinite(x.sum(1))
    if bad.any():
        client = cell.clients[int(bad.nonzero()[0])]
        raise TrainingError(
            f"{cell.label} (seed {cell.seed}): client {client} has {what} that is "
            f"not finite after round {cell.t}"
        )


def _try_model(module: nn.Module, federation: Federation, dtype: torch.dtype) -> None:
    """Refuses a model that does not fit the data, before anything is run."""
    for name, parameter in module.named_parameters():
        if parameter.numel() == 0:
            raise InputError(f"`model` has a layer without units: {name} is empty.")
    sample = federation.features[:2]
    sample = sample.to(dtype) if sample.is_floating_point() else sample
    try:
        with torch.no_grad():
            outputs = module(sample)
            wanted = (len(sample), federation.outputs)
            if not isinstance(outputs, Tensor):
                raise TypeError(f"it must return a tensor, got {type(outputs)}")
            labelled = federation.task in ("classification", "binary")
            if labelled and outputs.shape != wanted:
                raise ValueError(
                    f"it must give {federation.outputs} outputs for each sample, "
                    f"got shape {tuple(outputs.shape[1:])}"
                )
            TASKS[federation.task].loss(outputs, federation.targets[:2].to("cpu"))
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InputError(
            f"`model` does not fit the data `{federation.name}` with features of shape "
            f"{tuple(sample.shape[1:])}: {_reason(error)}."
        ) from error


def _reason(error: Exception) -> str:
    """The first line of an error, to be part of a sentence."""
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"`run.device` must be cpu or cuda, got {name!r}.") from None
    if device.type not in ("cpu", "cuda"):
        raise InputError(f"`run.device` must be cpu or cuda, got {name!r}.")
    return device


def _wants_compiling(study: Study, device: torch.device) -> bool:
    if study.run.compile != "auto":
        return study.run.compile == "always"
    counts = [e.options.get("steps", 1) for e in study.algorithms]
    longest = max([steps for steps in counts if isinstance(steps, int)], default=1)
    return longest * study.run.rounds >= _COMPILE_AFTER[device.type]


def _compiled(study: Study, device: torch.device) -> bool:
    return _wants_compiling(study, device) and can_compile(device)
