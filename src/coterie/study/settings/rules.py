"""The rule of a study: what its entries use where they say nothing themselves."""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from ...checks import parameters_of, takes_text
from ..config import Entry, Study, algorithm_factory, chooses_steps

STEPS = 3
"""Local steps in a round. With more, an average of different clients drifts away."""

BATCH = 32
"""Samples of a minibatch, where a model is not linear."""

MOMENTUM = 0.9

SHARED_DECAY = 1.0
"""The k of models that clients share, at most: the samples of all need no more."""

_ADAM = 0.005
_PLAIN = 0.05
"""Step sizes of models that are not linear, by Adam and without it."""

_REDUCED = 1 / 4
"""What a step size is multiplied by when training with it fails."""


@dataclass(frozen=True)
class Found:
    """What was found for one seed before training, and what that cost."""

    seed: int
    linear: bool
    decay: float = 1.0  # k
    curvature: float = 1.0  # the largest of any client, at the start
    samples: float = 1.0  # of a client, on average
    scores: dict[str, float] = field(default_factory=dict)  # means, by k
    gradients: float = 0.0  # of single samples, of all clients
    reduced: dict[str, int] = field(default_factory=dict)  # by label: how often

    def options(self, entry: Entry) -> dict[str, Any]:
        """The options of an entry that says nothing of its steps."""
        known = parameters_of(algorithm_factory(entry.name))
        factor = _REDUCED ** self.reduced.get(entry.label, 0)
        decay = f"samples({self.decay:g}, {min(self.decay, SHARED_DECAY):g})"
        found: dict[str, Any] = {"weight_decay": decay}
        if not takes_text(known["lr"]):  # its steps are not inside clients
            lr = 1 / self.curvature if self.linear else min(_PLAIN, 1 / self.curvature)
            found = {"lr": factor * lr, "weight_decay": self.decay / self.samples}
        elif self.linear:
            found |= {"lr": f"curvature({factor:g})", "momentum": MOMENTUM}
            found |= {"tune_lr": "curvature(1)"}
        else:
            found |= {"lr": f"adam({factor * _ADAM:g})"}
        return {k: v for k, v in found.items() if k in known} | entry.options

    def reduce(self, label: str) -> Found:
        """The same, with a smaller step size for an algorithm whose training failed."""
        times = self.reduced.get(label, 0) + 1
        return replace(self, reduced={**self.reduced, label: times})


def is_linear(module: nn.Module) -> bool:
    """Whether a model is one linear layer, whose usual losses are convex."""
    leaves = [layer for layer in module.modules() if not list(layer.children())]
    kinds = [type(leaf) for leaf in leaves if not isinstance(leaf, nn.Flatten)]
    return kinds == [nn.Linear]


def takes_whole(study: Study, module: nn.Module) -> bool:
    """Whether steps are on all data of a client, with a size by curvature."""
    return is_linear(module) and study.run.batch_size == 0


def with_defaults(study: Study, module: nn.Module) -> Study:
    """The study with steps and minibatches for this model, where it says nothing."""
    run = study.run
    if "batch_size" in study.chooses:
        run = replace(run, batch_size=0 if is_linear(module) else BATCH)
    if "rounds" in study.chooses:
        run = replace(run, evaluate_every=run.every)  # whatever rounds there will be
    entries = [
        replace(entry, options={"steps": STEPS} | entry.options)
        if chooses_steps(study, entry) and _has(entry, "steps")
        else entry
        for entry in study.algorithms
    ]
    return replace(study, run=run, algorithms=tuple(entries))


def _has(entry: Entry, option: str) -> bool:
    maker = algorithm_factory(entry.name)
    return option in inspect.signature(maker).parameters
