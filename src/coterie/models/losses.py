"""Losses by name: each maps outputs (B, ...) and targets (B, ...) to numbers (B,).

The code differentiates losses twice and computes them for many models at once. So they
must use tensor operations only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from ..checks import InputError, call, import_object, number, one_of, parameters_of

PerSample = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-probability of the right class."""
    return F.cross_entropy(outputs, targets, reduction="none")


def logistic(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-likelihood of a label in {0, 1}, for one logit."""
    return F.binary_cross_entropy_with_logits(
        outputs[:, 0], targets.to(outputs.dtype), reduction="none"
    )


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared distance of prediction and response, without a factor 1/2."""
    return _sum_entries((outputs.reshape(targets.shape) - targets).square())


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """The absolute error of the prediction, summed over the entries of a target."""
    return _sum_entries((outputs.reshape(targets.shape) - targets).abs())


def _sum_entries(errors: Tensor) -> Tensor:
    return errors if errors.dim() == 1 else errors.flatten(1).sum(1)


def dice_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """One minus the soft Dice overlap of a predicted and a true mask."""
    chance = outputs.sigmoid().flatten(1)
    truth = targets.to(chance.dtype).flatten(1)
    # The usual smoothing of 1. With it, two empty masks have overlap 1.
    overlap = 2 * (chance * truth).sum(1) + 1
    return 1 - overlap / (chance.sum(1) + truth.sum(1) + 1)


def huber(*, delta: float = 1.0) -> PerSample:
    """e^2 / 2 for errors e up to delta, and delta (|e| - delta / 2) for larger ones."""
    number("model.loss", delta, above=0)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        error = (outputs.reshape(targets.shape) - targets).abs()
        near = error.clamp_max(delta)  # so that both pieces are one formula
        return _sum_entries(near * (error - near / 2))

    return loss


def absolute() -> PerSample:
    """The absolute error, which follows medians, not means."""
    return absolute_error


def squared() -> PerSample:
    """The squared error, without a factor 1/2: what regression minimises."""
    return squared_error


def entropy() -> PerSample:
    """Minus the log-probability of the right class: the usual loss for labels."""
    return _log_loss


def focal(*, gamma: float = 2.0) -> PerSample:
    """(1 - p)^gamma (-log p), with the probability p of the right class.

    References:
        Lin, Goyal, Girshick, He, Dollar. Focal loss for dense object detection.
        ICCV 2017. arXiv:1708.02002.
    """
    number("model.loss", gamma, at_least=0)

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        surprise = _log_loss(outputs, targets)
        missing = -torch.expm1(-surprise)
        # The power of a zero has no derivative for gamma < 1.
        tiny = torch.finfo(missing.dtype).tiny
        return missing.clamp_min(tiny) ** gamma * surprise

    return loss


def _log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Minus the log-probability of the right class, for one logit or for several."""
    return (logistic if outputs.shape[1] == 1 else cross_entropy)(outputs, targets)


class Loss(NamedTuple):
    """A function that makes a loss from its numbers, and the tasks for this loss."""

    make: Callable[..., PerSample]
    tasks: tuple[str, ...]


_CLASSES = ("classification", "binary")

LOSSES: dict[str, Loss] = {
    "absolute": Loss(absolute, ("regression",)),
    "cross_entropy": Loss(entropy, _CLASSES),
    "focal": Loss(focal, _CLASSES),
    "huber": Loss(huber, ("regression",)),
    "squared": Loss(squared, ("regression",)),
}


def loss_named(name: str, text: str, task: str | None = None) -> PerSample:
    """The loss that a text names: one of ours, as "focal(2)", or "module:function".

    >>> loss_named("loss", "absolute", "regression").__name__
    'absolute_error'

    Args:
        name: the name of the setting.
        text: the text of the setting.
        task: the task of the data; None if it is not known yet.
    """
    if ":" in text:
        found = import_object(name, text)
        if not callable(found):
            raise InputError(f"`{name}` {text!r} must be a function, got {found!r}.")
        return found
    word, numbers = call(name, text)
    make, tasks = LOSSES[one_of(name, word, LOSSES)]
    if task is not None and task not in tasks:
        raise InputError(
            f"`{name}` {word} is for {' and '.join(tasks)}, but the task is {task}."
        )
    known = list(parameters_of(make))
    if len(numbers) > len(known):
        raise InputError(
            f"`{name}` {word} must have at most {len(known)} numbers, got {text!r}."
        )
    return make(**dict(zip(known, numbers, strict=False)))
