"""What is minimised and what is reported.

An objective is a loss, measures, and of these a score, by which models are compared.
The loss and most measures map a model's outputs (B, ...) and targets (B, ...) to one
number per sample (B,), so that sums over any grouping of samples can be merged. A
measure of a client as a whole maps outputs and targets of all samples of one client's
part to one number.

Data say what is to be learned from them in one word, their task, which names the
objective of their studies unless these say otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch.nn.functional as F
from torch import Tensor

from ..checks import InputError, imported, one_of

PerSample = Callable[[Tensor, Tensor], Tensor]


class OfClient(NamedTuple):
    """A measure of all samples of a client together, on the CPU."""

    measure: Callable[[Tensor, Tensor], Tensor | float]


class Objective(NamedTuple):
    """One loss per sample and the measures that are reported beside it."""

    loss: PerSample
    measures: Mapping[str, PerSample | OfClient]
    higher_is_better: bool = True  # of the score
    labelled: bool = False  # targets are classes, and a model gives (B, outputs)

    @property
    def score(self) -> str:
        """What comparisons use: the first measure, or without one the loss."""
        return next(iter(self.measures), "loss")

    @property
    def per_sample(self) -> dict[str, PerSample]:
        """The loss and the measures of single samples."""
        named = {"loss": self.loss, **self.measures}
        return {k: v for k, v in named.items() if not isinstance(v, OfClient)}

    @property
    def of_client(self) -> dict[str, OfClient]:
        """The measures of a client as a whole."""
        return {k: v for k, v in self.measures.items() if isinstance(v, OfClient)}


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-probability of the right class."""
    return F.cross_entropy(outputs, targets, reduction="none")


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-likelihood of a label in {0, 1} under one logit."""
    return F.binary_cross_entropy_with_logits(
        outputs[:, 0], targets.to(outputs.dtype), reduction="none"
    )


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Squared distance of prediction and response, without a factor 1/2."""
    error = (outputs.reshape(targets.shape) - targets).square()
    return error.reshape(len(error), -1).sum(1)


def dice_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """One minus the soft Dice overlap of a predicted and a true mask."""
    chance = outputs.sigmoid().flatten(1)
    truth = targets.to(chance.dtype).flatten(1)
    # The usual smoothing of 1, which also makes two empty masks agree.
    overlap = 2 * (chance * truth).sum(1) + 1
    return 1 - overlap / (chance.sum(1) + truth.sum(1) + 1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the most probable class is right, else 0."""
    return (outputs.argmax(1) == targets).to(outputs.dtype)


def binary_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the label is right at probability 1/2, else 0."""
    return ((outputs[:, 0] > 0) == (targets > 0.5)).to(outputs.dtype)


def auc(outputs: Tensor, targets: Tensor) -> float:
    """How often a sample of class 1 has a larger output than one of class 0.

    That is the area under the ROC curve; ties count half. NaN where there is one class.
    """
    # For so few numbers NumPy takes a fraction of the time of torch.
    scores, ones = outputs.numpy()[:, 0], targets.numpy() > 0.5
    zeros, first = np.sort(scores[~ones]), scores[ones]
    pairs = len(zeros) * len(first)
    if not pairs or np.isnan(scores).any():
        return math.nan
    below, not_above = zeros.searchsorted(first), zeros.searchsorted(first, "right")
    return float(below.sum() + not_above.sum()) / (2 * pairs)


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Dice overlap of the mask at probability 1/2 with the true mask."""
    chance = (outputs > 0).to(outputs.dtype).flatten(1)
    truth = targets.to(outputs.dtype).flatten(1)
    return (2 * (chance * truth).sum(1) + 1) / (chance.sum(1) + truth.sum(1) + 1)


OBJECTIVES: dict[str, Objective] = {
    "classification": Objective(cross_entropy, {"accuracy": accuracy}, labelled=True),
    "binary": Objective(
        logistic, {"accuracy": binary_accuracy, "auc": OfClient(auc)}, labelled=True
    ),
    "regression": Objective(squared_error, {}, higher_is_better=False),
    "segmentation": Objective(dice_loss, {"dice": dice}),
}
"""By task, which is a word of the data."""


def target_values(task: str, outputs: int) -> int:
    """How many values a target can have where a model has so many outputs.

    0 where targets are quantities.
    """
    known = {"classification": outputs, "binary": 2, "segmentation": 2}
    return known.get(task, 0)


def outputs_for(task: str, classes: int) -> int:
    """How many outputs a model needs for so many classes."""
    return 1 if task == "binary" else classes


def objective_named(name: str, value: str) -> Objective:
    """Ours by its name, or one's own by "module:name".

    >>> objective_named("objective", "regression").score
    'loss'
    """
    if ":" not in value:
        return OBJECTIVES[one_of(name, value, OBJECTIVES)]
    found = imported(name, value)
    if not isinstance(found, Objective):
        raise InputError(
            f"`{name}` {value!r} must be a coterie.models.Objective, got {found!r}."
        )
    _refuse_unsound(name, found)
    return found


def _refuse_unsound(name: str, objective: Objective) -> None:
    measures = objective.measures
    if not isinstance(measures, Mapping) or "loss" in measures:
        raise InputError(
            f"`{name}` must name its measures, none of them 'loss', got {measures!r}."
        )
    for key, value in {"loss": objective.loss, **measures}.items():
        if not callable(value.measure if isinstance(value, OfClient) else value):
            raise InputError(f"`{key}` of `{name}` must be a function, got {value!r}.")
    if not measures and objective.higher_is_better:
        raise InputError(
            f"`{name}` has no measures, so models are compared by their loss, and "
            "`higher_is_better` must be False."
        )


def refuse_misshapen(objective: Objective, outputs: Tensor, targets: Tensor) -> None:
    """Raises InputError where a loss or measure of these samples is no such thing."""
    for name, measure in objective.per_sample.items():
        found = measure(outputs, targets)
        if not isinstance(found, Tensor) or found.shape != (len(targets),):
            raise InputError(
                f"`{name}` of the objective must give one number for each sample, but "
                f"for {len(targets)} samples it gave {_described(found)}."
            )
    for name, (whole,) in objective.of_client.items():
        value = whole(outputs, targets)
        try:
            float(value)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(
                f"`{name}` of the objective must give one number for a client, but it "
                f"gave {_described(value)}."
            ) from None


def _described(found: Any) -> str:
    return f"shape {tuple(found.shape)}" if isinstance(found, Tensor) else repr(found)
