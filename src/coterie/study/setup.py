"""What the algorithms of a study share: data, model, clients, and their own making."""

from __future__ import annotations

import inspect
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .. import checks
from ..checks import InputError, parameters_of
from ..clients.compiling import can_compile
from ..clients.kernels import Batch, Kernel
from ..clients.simulation import Simulation
from ..data.datasets import load
from ..data.federation import Federation
from ..data.splits import divide
from ..models import (
    MODELS,
    OBJECTIVES,
    Objective,
    build,
    objective_named,
    ravel,
    refuse_misshapen,
)
from ..types import Algorithm
from .config import Entry, Study, algorithm_factory, factory, most_steps
from .faces import one_face, refuse_unused
from .ingredients import RECIPES, ingredients_of
from .newcomers import Newcomers, hold_out, on_the_device_of
from .search import folded

_COMPILE_AFTER = {"cpu": 20_000, "cuda": 500}
"""Gradient steps from which compiling (seconds) costs less than it saves."""


class Ground(NamedTuple):
    """What all algorithms of one seed share; N clients train."""

    federation: Federation
    module: nn.Module
    simulation: Simulation
    x: Tensor  # (N, D)
    newcomers: Newcomers | None = None


def federation_of(study: Study, seed: int) -> Federation:
    """The data of a study as they lie with the clients, for one of its seeds."""
    data, split = dict(study.data), dict(study.split)
    table = load(data.pop("name"), **{"seed": seed, **data})
    if OBJECTIVES[checks.one_of("task", table.task, OBJECTIVES)].labelled:
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
    options.pop("objective", None)
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
    _try_model(module, objective_of(study, federation), federation, dtype)
    return module


def objective_of(study: Study, federation: Federation) -> Objective:
    """What a study minimises: what it says, or what the task of its data stands for."""
    name = study.model.get("objective", federation.task)
    return objective_named("model.objective", name)


def prepare(study: Study, seed: int) -> Ground:
    """Everything that the algorithms of one seed share, checked and in place."""
    everybody = federation_of(study, seed)
    trains, joins = hold_out(everybody, study.run.newcomers, seed)
    federation = everybody.select(trains) if len(joins) else everybody
    module = module_of(study, federation, seed)
    simulation = simulation_of(study, federation, module, seed)
    x = ravel(module).to(_device(study.run.device)).repeat(len(federation), 1)
    if not len(joins):
        return Ground(federation, module, simulation, x)
    later = on_the_device_of(simulation, everybody.select(joins))
    newcomers = Newcomers(
        everybody.select(torch.cat([trains, joins])),
        simulation_of(study, later, module, seed),
    )
    return Ground(federation, module, simulation, x, newcomers)


def simulation_of(
    study: Study, federation: Federation, module: nn.Module, seed: int
) -> Simulation:
    """Clients that answer as the study says."""
    run, device = study.run, _device(study.run.device)
    return Simulation(
        federation,
        module,
        objective=objective_of(study, federation),
        batch_size=run.batch_size,
        seed=seed,
        device=device,
        dtype=getattr(torch, run.dtype),
        loop=run.loop,
        compiled=_compiled(study, device),
    )


def folds_of(study: Study, federation: Federation, seed: int) -> list[Federation]:
    """What a setting is trained and judged on: the federation or its folds."""
    if study.tune is None or study.tune.folds == 0:
        return [federation]
    return folded(federation, study.tune.folds, seed)


def build_algorithm(
    entry: Entry, federation: Federation, *, timed: bool = False
) -> Algorithm:
    """The algorithm of an entry, its ingredients made for this federation.

    It has the face that the entry runs, rounds or a flow, and not the other.
    """
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
    name, label = entry.name, entry.label
    algorithm = one_face(algorithm, name, label, timed=timed, waits=entry.waits)
    refuse_unused(name, maker, options, waits=algorithm.flow is None)
    return algorithm


def _try_model(
    module: nn.Module, objective: Objective, federation: Federation, dtype: torch.dtype
) -> None:
    """Refuses what does not fit together, before anything is run."""
    for name, parameter in module.named_parameters():
        if parameter.numel() == 0:
            raise InputError(f"`model` has a layer without units: {name} is empty.")
    # Not as many samples as outputs, so that shapes do not fit by chance.
    count = 2 if federation.outputs != 2 else 3
    sample, targets = (
        few.to("cpu", dtype if few.is_floating_point() else None)
        for few in (federation.features[:count], federation.targets[:count])
    )
    try:
        with torch.no_grad():
            outputs = module(sample)
            if not isinstance(outputs, Tensor):
                raise TypeError(f"it must return a tensor, got {type(outputs)}")
            if objective.labelled and outputs.shape != (count, federation.outputs):
                raise ValueError(
                    f"it must give {federation.outputs} outputs for each sample, "
                    f"got shape {tuple(outputs.shape[1:])}"
                )
            refuse_misshapen(objective, outputs, targets)
    except InputError:
        raise
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InputError(
            f"`model` does not fit the data `{federation.name}` with features of shape "
            f"{tuple(sample.shape[1:])}: {_reason(error)}."
        ) from error
    _try_gradient(module, objective, sample, targets)


def _try_gradient(
    module: nn.Module, objective: Objective, sample: Tensor, targets: Tensor
) -> None:
    """Refuses what cannot be computed for many clients at once."""
    points = ravel(module).repeat(2, 1)
    weight = points.new_full((2, len(sample)), 1 / len(sample))
    batch = Batch(torch.arange(len(sample)), weight)
    try:
        kernel = Kernel(module, objective, sample, targets)
        kernel.grad(points, batch)
        kernel.measure(points, batch)
    except (RuntimeError, ValueError, IndexError, TypeError) as error:
        raise InputError(
            "`model` and its objective cannot be computed for all clients at once: "
            f"{_reason(error)}."
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


def wants_compiling(study: Study, device: torch.device) -> bool:
    """Whether a study is long enough for compiling, or says so itself."""
    if study.run.compile != "auto":
        return study.run.compile == "always"
    return (
        most_steps(study.algorithms) * study.run.rounds >= _COMPILE_AFTER[device.type]
    )


def _compiled(study: Study, device: torch.device) -> bool:
    return wants_compiling(study, device) and can_compile(device)
