"""Measures by name, of single samples or of all samples of a client together.

For labels, a model has one output for each class. With two classes it may have a single
logit instead; class 1 is the positive class. With two classes, F1, sensitivity and
specificity are about class 1. With more classes, they are means over the classes that
the client has. If a measure is undefined for a client's samples, it is NaN for every
model. So all models are compared on the same clients.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..checks import InputError, import_object, one_of
from .losses import PerSample

BINS = 10
"""The number of equally wide bins of confidence, for calibration."""


class OfClient(NamedTuple):
    """A measure of all samples of a client together, on the CPU."""

    measure: Callable[[Tensor, Tensor], Tensor | float]


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 for samples whose most probable class is right, and 0 for the others."""
    return (predicted_classes(outputs) == targets).to(outputs.dtype)


def predicted_classes(outputs: Tensor) -> Tensor:
    """The most probable class of each sample."""
    return (outputs[:, 0] > 0).long() if outputs.shape[1] == 1 else outputs.argmax(1)


def probabilities(outputs: Tensor) -> np.ndarray:
    """(B, C) the probabilities of the classes."""
    if outputs.shape[1] == 1:
        outputs = torch.cat([torch.zeros_like(outputs), outputs], 1)
    return outputs.double().softmax(1).numpy()


def confusion(outputs: Tensor, targets: Tensor) -> np.ndarray:
    """(C, C) the number of samples of class r (row) that are predicted as class c.

    If an output is NaN, all numbers are NaN.
    """
    classes = max(2, outputs.shape[1])
    if outputs.isnan().any():
        return np.full((classes, classes), np.nan)
    # For few numbers, NumPy takes a fraction of the time of torch.
    pairs = targets.long().numpy() * classes + predicted_classes(outputs).numpy()
    return np.bincount(pairs, minlength=classes**2).reshape(classes, classes)


class _Counts(NamedTuple):
    """Counts (c,) for the classes that a measure uses, and the total of samples."""

    right: np.ndarray
    of_class: np.ndarray
    taken_for: np.ndarray
    total: float


def _counts(table: np.ndarray) -> _Counts:
    """The counts of class 1 of two classes; of more, the counts of all with samples."""
    of_class, taken_for = table.sum(1), table.sum(0)
    counted = of_class > 0 if len(table) > 2 else np.array([False, True])
    right, of_class, taken_for = (
        column[counted] for column in (table.diagonal(), of_class, taken_for)
    )
    return _Counts(right, of_class, taken_for, float(table.sum()))


def _mean_ratio(part: np.ndarray, whole: np.ndarray) -> float:
    """The mean of the ratios whose denominator is not 0; NaN if there is none."""
    some = whole > 0
    return float((part[some] / whole[some]).mean()) if some.any() else math.nan


def f1(outputs: Tensor, targets: Tensor) -> float:
    """F1 of class 1: the harmonic mean of precision and sensitivity; NaN if undefined.

    With more than two classes, it is the mean over the classes that the client has.
    """
    return f1_of(confusion(outputs, targets))


def f1_of(table: np.ndarray) -> float:
    """`f1`, from a confusion table."""
    right, of_class, taken_for, _ = _counts(table)
    return _mean_ratio(2 * right, np.where(of_class > 0, of_class + taken_for, 0))


def sensitivity(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples of class 1 that are predicted as class 1, or NaN.

    With more than two classes, it is the mean over the classes that the client has.
    """
    return sensitivity_of(confusion(outputs, targets))


def sensitivity_of(table: np.ndarray) -> float:
    """`sensitivity`, from a confusion table."""
    right, of_class, _, _ = _counts(table)
    return _mean_ratio(right, of_class)


def specificity(outputs: Tensor, targets: Tensor) -> float:
    """The share of samples of class 0 that are predicted as class 0, or NaN.

    With more than two classes, it is the mean over the classes that the client has.
    """
    return specificity_of(confusion(outputs, targets))


def specificity_of(table: np.ndarray) -> float:
    """`specificity`, from a confusion table."""
    right, of_class, taken_for, total = _counts(table)
    others = total - of_class
    return _mean_ratio(others - (taken_for - right), others)


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    """The mean over classes of the share of right predictions; NaN for one class."""
    return balanced_accuracy_of(confusion(outputs, targets))


def balanced_accuracy_of(table: np.ndarray) -> float:
    """`balanced_accuracy`, from a confusion table."""
    of_class = table.sum(1)
    several = (of_class > 0).sum() > 1
    return _mean_ratio(table.diagonal(), of_class) if several else math.nan


def auc(outputs: Tensor, targets: Tensor) -> float:
    """How often a sample of class 1 has a larger output than a sample of class 0.

    This is the area under the ROC curve; ties count half. It is NaN for a single class.
    With more than two classes, there is an area for each class of the client, against
    all other classes. The result is their mean.
    """
    areas = [_area(*ranking) for ranking in rankings(outputs, targets)]
    return float(np.mean(areas)) if areas else math.nan


def rankings(outputs: Tensor, targets: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pairs: the scores of all samples, and whether each score should be large.

    With two classes, there is one pair, for class 1. With more, there is one pair for
    each class that the client has.
    """
    labels = targets.numpy()
    if outputs.shape[1] == 1:
        return [(outputs.numpy()[:, 0], labels > 0.5)]
    if outputs.shape[1] == 2:
        return [((outputs[:, 1] - outputs[:, 0]).numpy(), labels == 1)]
    chances = probabilities(outputs)
    return [(chances[:, c], labels == c) for c in np.unique(labels)]


def _area(scores: np.ndarray, ones: np.ndarray) -> float:
    zeros, first = np.sort(scores[~ones]), scores[ones]
    pairs = len(zeros) * len(first)
    if not pairs or np.isnan(scores).any():
        return math.nan
    below, not_above = zeros.searchsorted(first), zeros.searchsorted(first, "right")
    return float(below.sum() + not_above.sum()) / (2 * pairs)


def calibration(outputs: Tensor, targets: Tensor) -> np.ndarray:
    """(10, 3) number of samples, sum of confidences, and right predictions by bin.

    Confidence is the probability of the predicted class. Bin b has the samples whose
    confidence is in (b / 10, (b + 1) / 10].
    """
    if outputs.isnan().any():
        return np.full((BINS, 3), np.nan)
    place, confidence, right = in_bins(outputs, targets)
    columns = (None, confidence, right)
    return np.stack([np.bincount(place, w, minlength=BINS) for w in columns], 1)


def in_bins(outputs: Tensor, targets: Tensor) -> tuple[np.ndarray, ...]:
    """Bin and confidence of each sample, and 1 or 0 for right or wrong predictions."""
    confidence = probabilities(outputs).max(1, initial=0.0)
    place = np.clip(np.ceil(BINS * confidence).astype(int) - 1, 0, BINS - 1)
    return place, confidence, (predicted_classes(outputs) == targets).double().numpy()


def ece(outputs: Tensor, targets: Tensor) -> float:
    """Expected calibration error: how far confidence is from accuracy; lower is better.

    There are ten bins of equal width. The result is the mean over samples of |accuracy
    - confidence| in the bin of each sample.

    References:
        Guo, Pleiss, Sun, Weinberger. On calibration of modern neural networks.
        ICML 2017. arXiv:1706.04599.
    """
    count, confidence, right = calibration(outputs, targets).T
    total = count.sum()
    return float(np.abs(right - confidence).sum() / total) if total else math.nan


def errors_of(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Predictions minus responses, and responses, each (B, entries of a target)."""
    truth = targets.double().reshape(len(targets), -1)
    return outputs.double().reshape(truth.shape) - truth, truth


def rmse(outputs: Tensor, targets: Tensor) -> float:
    """Root mean squared error of each target entry, then the mean; lower is better."""
    error, _ = errors_of(outputs, targets)
    return float(error.square().mean(0).sqrt().mean())


def mae(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error, over samples and a target's entries; lower is better."""
    error = (outputs.reshape(targets.shape) - targets).abs()
    return error.reshape(len(error), -1).mean(1)


def r2(outputs: Tensor, targets: Tensor) -> float:
    """The share of variance that the model explains, a mean over a target's entries.

    It is NaN if a client's responses are all equal.
    """
    error, truth = errors_of(outputs, targets)
    spread = (truth - truth.mean(0)).square().sum(0)
    if not bool((spread > 0).all()):
        return math.nan
    return float((1 - error.square().sum(0) / spread).mean())


def dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """The Dice overlap of the true mask with the places of probability above 1/2."""
    chance = (outputs > 0).to(outputs.dtype).flatten(1)
    truth = targets.to(outputs.dtype).flatten(1)
    return (2 * (chance * truth).sum(1) + 1) / (chance.sum(1) + truth.sum(1) + 1)


class Measure(NamedTuple):
    """A measure, whether higher is better, and the tasks for which it is defined."""

    measure: PerSample | OfClient
    higher_is_better: bool = True
    tasks: tuple[str, ...] = ()  # none: for all


_CLASSES = ("classification", "binary")
_RESPONSES = ("regression",)

MEASURES: dict[str, Measure] = {
    "accuracy": Measure(accuracy, True, _CLASSES),
    "auc": Measure(OfClient(auc), True, _CLASSES),
    "balanced_accuracy": Measure(OfClient(balanced_accuracy), True, _CLASSES),
    "dice": Measure(dice, True, ("segmentation",)),
    "ece": Measure(OfClient(ece), False, _CLASSES),
    "f1": Measure(OfClient(f1), True, _CLASSES),
    "mae": Measure(mae, False, _RESPONSES),
    "r2": Measure(OfClient(r2), True, _RESPONSES),
    "rmse": Measure(OfClient(rmse), False, _RESPONSES),
    "sensitivity": Measure(OfClient(sensitivity), True, _CLASSES),
    "specificity": Measure(OfClient(specificity), True, _CLASSES),
}

RANGES: dict[str, tuple[float, float]] = {
    **dict.fromkeys(MEASURES, (0.0, 1.0)),
    **dict.fromkeys(("mae", "rmse"), (0.0, math.inf)),
    "r2": (-math.inf, 1.0),
}
"""Maps a measure to the smallest and the largest value that it can have."""


POOLED = {"global_": "of the global model", "pooled_": "on all clients' data"}
"""Prefixes of measures on the pooled test data of all clients."""


def base_measure(name: str) -> str:
    """The name of the measure without its prefix in `POOLED`.

    >>> base_measure("global_accuracy"), base_measure("accuracy")
    ('accuracy', 'accuracy')
    """
    return name.partition("_")[2] if name.startswith(tuple(POOLED)) else name


OF_ONE_CLASS = ("auc", "f1", "sensitivity", "specificity")
"""Measures that are about class 1 if there are two classes."""


def measure_words(measure: str, task: str, classes: Sequence[str]) -> str:
    """The name of a measure. With two classes, it includes the class that counts.

    >>> measure_words("f1", "binary", ["well", "ill"])
    'f1 for ill'
    >>> measure_words("f1", "binary", []), measure_words("accuracy", "binary", [])
    ('f1 for class 1', 'accuracy')
    """
    base = base_measure(measure)
    if base != measure:
        where = POOLED[measure.removesuffix(base)]
        return f"{measure_words(base, task, classes)} {where}"
    two = len(classes) == 2 or (task == "binary" and not classes)
    if measure not in OF_ONE_CLASS or not two:
        return measure
    return f"{measure} for {classes[1] if classes else 'class 1'}"


def measures_named(
    name: str, texts: Sequence[str], task: str | None = None
) -> dict[str, Measure]:
    """Measures by their names; users' measures by "module:function".

    A user's measure is a function of outputs and targets of all samples of a client. If
    lower values are better, it must be a `Measure` that says so.

    Args:
        name: the name of the setting.
        texts: the texts of the setting.
        task: the task of the data; None if it is not known yet.
    """
    found: dict[str, Measure] = {}
    for text in texts:
        short = text.partition(":")[2] or text
        if short in found or (short != text and short in (*MEASURES, "loss")):
            raise InputError(f"`{name}` has two measures called {short!r}.")
        found[short] = _own(name, text) if ":" in text else _ours(name, text, task)
    return found


def _ours(name: str, text: str, task: str | None) -> Measure:
    found = MEASURES[one_of(name, text, MEASURES)]
    if task is not None and task not in found.tasks:
        raise InputError(
            f"`{name}` {text} is for {' and '.join(found.tasks)}, but the task is "
            f"{task}."
        )
    return found


def _own(name: str, text: str) -> Measure:
    found = import_object(name, text)
    if isinstance(found, OfClient):
        found = Measure(found)
    if isinstance(found, Measure):
        whole = found.measure
        if callable(whole.measure if isinstance(whole, OfClient) else whole):
            return found
    elif callable(found):
        return Measure(OfClient(found))
    raise InputError(f"`{name}` {text!r} must be a function, got {found!r}.")
