"""Splits a measure of all samples of a client into one value per sample.

Such a measure, for example an AUC, is not a mean over samples. Let m be its value for
all n samples, m_j its value without sample j, and m_c the mean of m_j over the n_c
samples of j's class. Then the values

    m + sqrt(n (n - 1) (n_c - 1) / n_c) (m_c - m_j)

have the mean m. The variance of their mean is the stratified jackknife's estimate of
the variance of m. So we can use these values as if m were a mean over samples. For an
AUC the estimate is DeLong's. For a sensitivity it is the usual variance of a
proportion. The classes are the strata, if two conditions hold: the measure does not
depend on class frequencies, and every class has at least two samples. Otherwise there
is one stratum with n_c = n. If sample j is the only sample of its class, a measure may
be undefined without it. Then m_j counts as 0.

A calibration error is a sum over bins of |gap|. Near gap 0, |gap| has no slope, and the
jackknife would give twice the variance. Let a_j be the part of the gap that sample j
adds, and s^2 the sum of all a_j^2. We replace |gap| - |gap without j| by erf(gap / s)
a_j. The factor erf(gap / s) is the slope of |gap| after smoothing over half the
variance of the gap.

References:
    Efron, Stein. The jackknife estimate of variance. Annals of Statistics 9, 1981.
    Shao, Tu. The Jackknife and Bootstrap. Springer 1995, chapter 6.
    DeLong, DeLong, Clarke-Pearson. Comparing the areas under two or more correlated
    receiver operating characteristic curves. Biometrics 44, 1988.
"""

from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch
from scipy.special import erf
from torch import Tensor

from ..checks import InputError
from .measures import (
    OfClient,
    auc,
    balanced_accuracy,
    balanced_accuracy_of,
    confusion,
    ece,
    errors_of,
    f1,
    f1_of,
    in_bins,
    predicted_classes,
    r2,
    rankings,
    rmse,
    sensitivity,
    sensitivity_of,
    specificity,
    specificity_of,
)
from .objectives import Objective, value_of

_MOST = 10_000
"""The largest number of samples for which users' measures are computed without each."""


def step_of(name: str) -> str:
    """The column with the steps of a measure."""
    return f"{name} step"


def outcomes(
    objective: Objective, rows: Sequence[tuple[Tensor, Tensor]], samples: int
) -> dict[str, Tensor]:
    """(M,) the loss, the measures and their `steps` for every sample.

    Args:
        objective: the objective with the loss and the measures.
        rows: outputs and targets of each client.
        samples: the number of samples, including clients in other processes.
    """
    outputs, targets = (torch.cat(parts) for parts in zip(*rows, strict=True))
    found = {n: of(outputs, targets) for n, of in objective.per_sample.items()}
    for name, of in objective.of_client.items():
        if of.measure not in _WITHOUT and samples > _MOST:
            continue
        values = [sample_values(name, of, *row) for row in rows]
        found[name] = torch.from_numpy(np.concatenate(values))
        if of.measure is auc or of.measure in _COUNTED:
            each = [steps(of, *row) for row in rows]
            found[step_of(name)] = torch.from_numpy(np.concatenate(each))
    return found


def sample_values(
    name: str, of: OfClient, outputs: Tensor, targets: Tensor
) -> np.ndarray:
    """(B,) a value for each sample, as above; all are NaN if the measure is NaN."""
    n, whole = len(targets), value_of(name, of, outputs, targets)
    if n < 2 or not math.isfinite(whole):
        return np.full(n, whole)
    without = _WITHOUT.get(of.measure, functools.partial(_one_by_one, of))
    rest = np.nan_to_num(without(outputs, targets), nan=0.0)
    stratum = _strata(of, targets)
    size, total = np.bincount(stratum)[stratum], np.bincount(stratum, rest)[stratum]
    return whole + np.sqrt(n * (n - 1) * (size - 1) / size) * (total / size - rest)


def _strata(of: OfClient, targets: Tensor) -> np.ndarray:
    """(B,) the stratum of each sample: its class, or 0 for all."""
    if of.measure in _BY_CLASS:
        _, stratum, sizes = np.unique(
            targets.numpy(), return_inverse=True, return_counts=True
        )
        if sizes.min() > 1:
            return stratum
    return np.zeros(len(targets), dtype=int)


def steps(of: OfClient, outputs: Tensor, targets: Tensor) -> np.ndarray:
    """(B,) about how much one more correct prediction changes a measure of counts.

    With two classes, sensitivity and F1 count samples of class 1, and specificity
    counts samples of class 0. With more classes, all classes have the same weight. One
    more correct prediction changes F1 by (2 - F1) / (samples of the class + predictions
    of the class). This is about two thirds of the change in sensitivity.
    """
    labels = targets.long().numpy()
    sizes = np.bincount(labels, minlength=max(2, outputs.shape[1]))
    counted = sizes > 0
    if len(sizes) == 2 and of.measure in (f1, sensitivity, specificity):
        counted &= [of.measure is specificity, of.measure is not specificity]
    share = 2 / 3 if of.measure is f1 else 1
    return (share * counted / np.maximum(sizes, 1) / max(1, counted.sum()))[labels]


def _one_by_one(of: OfClient, outputs: Tensor, targets: Tensor) -> np.ndarray:
    """(B,) a user's measure without each sample; NaN if the user's function raises."""
    rest, everyone = np.full(len(targets), np.nan), torch.arange(len(targets))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for j in range(len(rest)):
            kept = everyone != j
            with contextlib.suppress(InputError):
                rest[j] = value_of("", of, outputs[kept], targets[kept])
    return rest


def _without_each(
    of: Callable[[np.ndarray], float],
) -> Callable[[Tensor, Tensor], np.ndarray]:
    """A function for a measure of confusion tables: its value without each sample."""

    def without(outputs: Tensor, targets: Tensor) -> np.ndarray:
        table = confusion(outputs, targets)
        rest = np.full(table.shape, np.nan)
        for place in zip(*np.nonzero(table), strict=True):
            fewer = table.copy()
            fewer[place] -= 1
            rest[place] = of(fewer)
        return rest[targets.long().numpy(), predicted_classes(outputs).numpy()]

    return without


def _areas(outputs: Tensor, targets: Tensor) -> np.ndarray:
    """(B,) the AUC without each sample."""
    found = [_area(*ranking) for ranking in rankings(outputs, targets)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of nothing but NaN
        return np.nanmean(found, axis=0)


def _area(scores: np.ndarray, ones: np.ndarray) -> np.ndarray:
    """The share of pairs in the right order without each sample; ties count half."""
    won = np.empty(len(scores))  # pairs of each sample that are in the right order
    for mine, sign in ((ones, 1), (~ones, -1)):
        others, own = np.sort(sign * scores[~mine]), sign * scores[mine]
        won[mine] = (others.searchsorted(own) + others.searchsorted(own, "right")) / 2
    first, total = ones.sum(), won[ones].sum()
    pairs = np.where(ones, (first - 1) * (~ones).sum(), first * ((~ones).sum() - 1))
    with np.errstate(invalid="ignore"):
        return np.where(pairs > 0, (total - won) / pairs, np.nan)


def _calibration_errors(outputs: Tensor, targets: Tensor) -> np.ndarray:
    place, confidence, right = in_bins(outputs, targets)
    excess = right - confidence
    gaps, wide = np.bincount(place, excess), np.bincount(place, excess**2) ** 0.5
    slope = erf(gaps / np.maximum(wide, 1e-12))[place]  # of each sample's bin
    return (np.abs(gaps).sum() - slope * excess) / (len(place) - 1)


def _root_mean_squares(outputs: Tensor, targets: Tensor) -> np.ndarray:
    squares = errors_of(outputs, targets)[0].square()
    rest = (squares.sum(0) - squares).clamp(min=0) / (len(squares) - 1)
    return rest.sqrt().mean(1).numpy()


def _r2_without_each(outputs: Tensor, targets: Tensor) -> np.ndarray:
    error, truth = errors_of(outputs, targets)
    squares, n = error.square(), len(truth)
    gaps = (truth - truth.mean(0)).square()
    spread = gaps.sum(0) - gaps * n / (n - 1)
    spread[spread <= 1e-12 * gaps.sum(0)] = torch.nan  # others are equal, but rounding
    return (1 - (squares.sum(0) - squares) / spread).mean(1).numpy()


_Without = Callable[[Tensor, Tensor], np.ndarray]

_COUNTED: dict[Callable[[Tensor, Tensor], Tensor | float], _Without] = {
    balanced_accuracy: _without_each(balanced_accuracy_of),
    f1: _without_each(f1_of),
    sensitivity: _without_each(sensitivity_of),
    specificity: _without_each(specificity_of),
}

_BY_CLASS = (auc, balanced_accuracy, sensitivity, specificity)
"""Measures whose expectation does not depend on how frequent classes are."""

_WITHOUT: dict[Callable[[Tensor, Tensor], Tensor | float], _Without] = {
    **_COUNTED,
    auc: _areas,
    ece: _calibration_errors,
    r2: _r2_without_each,
    rmse: _root_mean_squares,
}
"""Maps a measure to a function that computes it without each sample, (B,)."""
