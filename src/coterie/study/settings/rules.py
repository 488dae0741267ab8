"""The settings of entries that say nothing about their steps."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

from torch import nn

from ...checks import parameters_of, takes_text
from ...records import FoundSettings
from ..config import Entry, Study, algorithm_factory, chooses_steps

STEPS = 10
"""Local steps in a round. With more, an average of different clients drifts away."""

BATCH = 32
"""Samples of a minibatch, if a model is not linear."""

_ADAM = 0.005
_PLAIN = 0.05
"""Step sizes of models that are not linear, by Adam and without it."""

_OF_ONE_SIZE = ("scaffold",)
"""Methods that learn from the lengths of plain steps, unless a study says otherwise."""

_REDUCED = 1 / 4
"""What a step size is multiplied by when training with it fails."""


def options_of(found: FoundSettings, entry: Entry) -> dict[str, Any]:
    """The options of an entry whose steps are automatic."""
    known = parameters_of(algorithm_factory(entry.name))
    factor = _REDUCED ** found.reduced.get(entry.label, 0)
    decay = f"samples({found.decay:g}, {found.shared_decay:g})"
    options: dict[str, Any] = {"weight_decay": decay}
    # Steps that are not inside clients, or that a method compares, have one size.
    if not takes_text(known["lr"]) or entry.name in _OF_ONE_SIZE:
        lr = 1 / found.curvature if found.linear else min(_PLAIN, 1 / found.curvature)
        options = {"lr": factor * lr, "weight_decay": found.decay / found.samples}
    elif found.linear:
        options |= {"lr": f"curvature({factor:g})", "tune_lr": "curvature(1)"}
    else:
        options |= {"lr": f"adam({factor * _ADAM:g})"}
    return {k: v for k, v in options.items() if k in known} | entry.options


def with_smaller_steps(found: FoundSettings, label: str) -> FoundSettings:
    """The settings, with a smaller step size for an algorithm that failed to train."""
    times = found.reduced.get(label, 0) + 1
    return replace(found, reduced={**found.reduced, label: times})


def is_linear(module: nn.Module) -> bool:
    """Whether a model is one linear layer, whose usual losses are convex."""
    leaves = [layer for layer in module.modules() if not list(layer.children())]
    kinds = [type(leaf) for leaf in leaves if not isinstance(leaf, nn.Flatten)]
    return kinds == [nn.Linear]


def takes_whole(study: Study, module: nn.Module) -> bool:
    """Whether steps use all data of a client, with a size by curvature."""
    return is_linear(module) and study.run.batch_size == 0


def with_defaults(study: Study, module: nn.Module) -> Study:
    """The study with steps and minibatches for this model, unless it sets them."""
    run = study.run
    if "batch_size" in study.chooses:
        run = replace(run, batch_size=0 if is_linear(module) else BATCH)
    if "rounds" in study.chooses:
        run = replace(run, evaluate_every=run.every)  # however many rounds it takes
    entries = [
        replace(entry, options={"steps": STEPS} | entry.options)
        if chooses_steps(study, entry)
        and _has(entry, "steps")
        and "epochs" not in (*entry.options, *entry.tune)
        else entry
        for entry in study.algorithms
    ]
    return replace(study, run=run, algorithms=tuple(entries))


def _has(entry: Entry, option: str) -> bool:
    maker = algorithm_factory(entry.name)
    return option in inspect.signature(maker).parameters
