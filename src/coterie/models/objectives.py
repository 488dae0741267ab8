"""What is minimised and what is reported: losses and measures of single samples.

A task names one loss and further measures. Each maps a model's outputs (B, ...) and
targets (B, ...) to one number per sample (B,), so that sums over any grouping of
samples can be merged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor

PerSample = Callable[[Tensor, Tensor], Tensor]


class Objective(NamedTuple):
    """One loss per sample and the measures that are reported beside it."""

    loss: PerSample
    measures: dict[str, PerSample]
    higher_is_better: bool = True  # of the first measure, or of minus the loss

    @property
    def score(self) -> str:
        """The measure that comparisons use."""
        return next(iter(self.measures), "loss")


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


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Dice overlap of the mask at probability 1/2 with the true mask."""
    chance = (outputs > 0).to(outputs.dtype).flatten(1)
    truth = targets.to(outputs.dtype).flatten(1)
    return (2 * (chance * truth).sum(1) + 1) / (chance.sum(1) + truth.sum(1) + 1)


OBJECTIVES: dict[str, Objective] = {
    "classification": Objective(cross_entropy, {"accuracy": accuracy}),
    "binary": Objective(logistic, {"accuracy": binary_accuracy}),
    "regression": Objective(squared_error, {}, higher_is_better=False),
    "segmentation": Objective(dice_loss, {"dice": dice}),
}
