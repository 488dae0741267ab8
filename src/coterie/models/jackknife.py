"""What each sample is worth in a measure of a client as a whole.

Such a measure is no mean over samples. With m its value of all n samples, m_j that
without sample j, and m_c the mean of those of the n_c samples of its class, the values

    m + sqrt(n (n - 1) (n_c - 1) / n_c) (m_c - m_j)

have the mean m, and the variance of their mean is the stratified jackknife's estimate
of the variance of m: what is known of means over samples holds for them. Of an AUC it
is DeLong's, of a sensitivity that of a share. Strata are classes for measures that do
not depend on how frequent these are; for others, and where a class has a single sample,
there is one stratum, n_c = n. Where a measure is undefined without a sample (the only
one of its class), all of it rests on that sample: m_j counts as 0.

A calibration error is a sum over bins of |gap|, which has no slope where a gap is about
0, and its jackknife would count twice its variance. In place of |gap| - |gap without j|
stands erf(gap / s) times what j adds to the gap: the slope of |gap| when this is
blurred by half its variance, s^2 being the sum of the squares of what is added.

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
"""With more samples, measures of one's own, asked without each, would take too long."""


def step_of(name: str) -> str:
    """What the steps of a measure are called beside its values."""
    return f"{name} step"


def outcomes(
    objective: Objective, rows: Sequence[tuple[Tensor, Tensor]], samples: int
) -> dict[str, Tensor]:
    """What became of every sample, (M,) each: the loss, measures, and their steps.

    Args:
        objective: what is measured.
        rows: outputs and targets of each client.
        samples: how many there are, also of clients elsewhere.
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
    """The values above, (B,); all are no number where the measure is none."""
    n, whole = len(targets), value_of(name, of, outputs, targets)
    if n < 2 or not math.isfinite(whole):
        return np.full(n, whole)
    without = _WITHOUT.get(of.measure, functools.partial(_one_by_one, of))
    rest = np.nan_to_num(without(outputs, targets), nan=0.0)
    stratum = _strata(of, targets)
    size, total = np.bincount(stratum)[stratum], np.bincount(stratum, rest)[stratum]
    return whole + np.sqrt(n * (n - 1) * (size - 1) / size) * (total / size - rest)


def _strata(of: OfClient, targets: Tensor) -> np.ndarray:
    """Which stratum each sample is in, (B,): its class, or all in one."""
    if of.measure in _BY_CLASS:
        _, stratum, sizes = np.unique(
            targets.numpy(), return_inverse=True, return_counts=True
        )
        if sizes.min() > 1:
            return stratum
    return np.zeros(len(targets), dtype=int)


def steps(of: OfClient, outputs: Tensor, targets: Tensor) -> np.ndarray:
    """About how much a measure that counts changes by one sample, (B,).

    Of two classes, sensitivity and F1 count those of class 1, specificity those of
    class 0; otherwise all classes count alike, and in them all samples. A sample
    more that is found changes F1 by 2 - F1 of the sum of those that are of the class
    and those taken for it: about two thirds of what it changes sensitivity.
    """
    labels = targets.long().numpy()
    sizes = np.bincount(labels, minlength=max(2, outputs.shape[1]))
    counted = sizes > 0
    if len(sizes) == 2 and of.measure in (f1, sensitivity, specificity):
        counted &= [of.measure is specificity, of.measure is not specificity]
    share = 2 / 3 if of.measure is f1 else 1
    return (share * counted / np.maximum(sizes, 1) / max(1, counted.sum()))[labels]


def _one_by_one(of: OfClient, outputs: Tensor, targets: Tensor) -> np.ndarray:
    """The measure without each sample, of one's own, which may not like to be asked."""
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
    """Of a measure that reads a confusion table, the same without each sample."""

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
    """AUC without each sample."""
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
"""What is to be expected of them does not depend on how frequent classes are."""

_WITHOUT: dict[Callable[[Tensor, Tensor], Tensor | float], _Without] = {
    **_COUNTED,
    auc: _areas,
    ece: _calibration_errors,
    r2: _r2_without_each,
    rmse: _root_mean_squares,
}
"""By measure, its values without each sample, (B,)."""
