"""Runs a study: every algorithm on the same data, seeds and starting point.

The only place where data, models, oracle, algorithms and records are wired together.
"""

from __future__ import annotations

import inspect
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
from .oracle import Simulation
from .record import SNAPSHOT_CLIENTS, Cell, Folder, Records, unpack, versions
from .rounds import Round, run_rounds
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
    """What all algorithms of one seed share."""

    federation: Federation
    module: nn.Module
    simulation: Simulation
    x: Tensor  # (N, D)


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

    def models(self, label: str | None = None, seed: int | None = None) -> Tensor:
        """The personal models (N, D) of an algorithm, by default the last listed."""
        labels = [entry.label for entry in self.study.algorithms]
        label = checks.one_of("label", labels[-1] if label is None else label, labels)
        seed = self.study.run.seeds[0] if seed is None else seed
        return Folder(self.folder).models(label, seed)

    def model(
        self, client: int, label: str | None = None, seed: int | None = None
    ) -> nn.Module:
        """The model of one client, ready to use."""
        seed = self.study.run.seeds[0] if seed is None else seed
        rows = self.models(label, seed)
        checks.integer("client", client, at_least=0, at_most=len(rows) - 1)
        return with_row(prepare(self.study, seed).module, rows[client])


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
    run = study.run
    federation = federation_of(study, seed)
    module = module_of(study, federation, seed)
    device = _device(run.device)
    simulation = Simulation(
        federation,
        module,
        batch_size=run.batch_size,
        seed=seed,
        device=device,
        dtype=getattr(torch, run.dtype),
        loop=run.loop,
        compiled=_compiled(study, device),
    )
    x = ravel(module).to(device).repeat(len(federation), 1)
    return Ground(federation, module, simulation, x)


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
    for seed in study.run.seeds[1:]:
        federation_of(study, seed)  # refuses what a later seed could not be run with
    device = ground.x.device
    if _wants_compiling(study, device) and not can_compile(device) and notice:
        notice("no C++ compiler was found, so gradients are not compiled.")
    folder.create(study.resolved(), versions(device))
    total = study.run.rounds * len(study.algorithms) * len(study.run.seeds)
    finished = 0
    for seed in study.run.seeds:
        ground = prepare(study, seed) if seed != study.run.seeds[0] else ground
        folder.describe(seed, ground.federation)
        for entry in study.algorithms:
            tell = _teller(progress, entry.label, seed, finished, total)
            _run_cell(study, entry, seed, ground, folder, tell)
            finished += study.run.rounds
    return Result(folder.path, folder.export(), study)


Tell = Callable[[int, float | None], None]


def _teller(
    progress: Callable[[Progress], None] | None,
    label: str,
    seed: int,
    finished: int,
    total: int,
) -> Tell:
    def tell(t: int, score: float | None) -> None:
        if progress is not None:
            progress(Progress(label, seed, t, finished + t, total, score))

    return tell


def _run_cell(
    study: Study, entry: Entry, seed: int, ground: Ground, folder: Folder, tell: Tell
) -> None:
    """Runs one algorithm on one seed from where it stands to its end."""
    run, simulation = study.run, ground.simulation
    algorithm = build_algorithm(entry, ground.federation)
    cell = folder.cell(entry.label, seed) or Cell(entry.label, seed)
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
            _refuse_nonfinite_state(r, entry.label, seed)
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
    except (TrainingError, KeyboardInterrupt) as error:
        if cell.rounds:
            folder.save(cell)
        if isinstance(error, KeyboardInterrupt):
            raise
        raise TrainingError(
            f"{error}; what was before is kept in {folder.path}, and a smaller step "
            "size usually helps."
        ) from None
    use = simulation.at(cell.t, purpose="use")
    folder.save_models(entry.label, seed, algorithm.personal(cell.state, use))
    folder.save(replace(cell, done=True))


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
    _refuse_nonfinite(x, "a personal model", cell.t, cell.label, cell.seed)
    values: dict[str, Tensor] = {}
    for part in PARTS:
        if part != "train" or study.run.evaluate_train:
            measures = simulation.evaluate(x, part)
            values |= {f"{part}_{name}": v.cpu() for name, v in measures.items()}
    optima = simulation.federation.optima
    if optima is not None and optima.shape == x.shape:
        values["distance"] = (x - optima).square().sum(1).cpu()
    row = {
        "round": cell.t,
        "gradients": cell.gradients,
        "bytes": cell.floats * x.element_size(),
        "seconds": cell.seconds,
        **_scalars(info),
    }
    cell = replace(cell, metrics=[*cell.metrics, values], rounds=[*cell.rounds, row])
    return _with_snapshot(cell, study, info.get("weights"))


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


def _refuse_nonfinite_state(r: Round, label: str, seed: int) -> None:
    # A method with its own `personal` may keep its models under another name.
    x = getattr(r.state, "x", None)
    if isinstance(x, Tensor):
        _refuse_nonfinite(x, "a model", r.t, label, seed)


def _refuse_nonfinite(x: Tensor, what: str, t: int, label: str, seed: int) -> None:
    bad = ~torch.isfinite(x.sum(1))
    if bad.any():
        raise TrainingError(
            f"{label} (seed {seed}): client {int(bad.nonzero()[0])} has {what} that is "
            f"not finite after round {t}"
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
