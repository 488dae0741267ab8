"""Columns that determine the target, or nearly do."""

from __future__ import annotations

import itertools

import numpy as np
from jaxtyping import Float, Int, Num

FEWEST = 20
"""With fewer samples, a column may fit the labels by chance."""


def gives_away(values: Float[np.ndarray, " m"], labels: Int[np.ndarray, " m"]) -> bool:
    """Whether a column determines the labels, and not only because all values differ.

    If the column has few values, their mutual information with the labels must be at
    least 99 % of the entropy of the labels. Otherwise every class must be one interval
    of values.
    """
    values = _with_gaps(values)
    kinds, code = np.unique(values, return_inverse=True)
    classes, label = np.unique(labels, return_inverse=True)
    if len(kinds) < 2:
        return False
    if len(kinds) <= max(2, len(values) // 10):
        joint = _counts(code, label, len(kinds), len(classes)) / len(values)
        entropy = _entropy(joint.sum(0))
        return entropy + _entropy(joint.sum(1)) - _entropy(joint) >= 0.99 * entropy
    order = values.argsort(kind="stable")
    sorted_labels, sorted_values = label[order], values[order]
    changes = sorted_labels[1:] != sorted_labels[:-1]
    apart = sorted_values[1:] != sorted_values[:-1]
    return int(changes.sum()) < len(classes) and bool((apart | ~changes).all())


def repeats(values: Float[np.ndarray, " m"], targets: Num[np.ndarray, " m"]) -> bool:
    """Whether a column is a linear function of the targets."""
    if np.isnan(values).any() or (values == values[0]).all():
        return False
    a, b = values - values.mean(), targets - targets.mean(dtype=np.float64)
    return bool(abs(a @ b) > (1 - 1e-6) * np.linalg.norm(a) * np.linalg.norm(b))


def disguise_note(
    column: str,
    values: Float[np.ndarray, " m"],
    labels: Num[np.ndarray, " m"],
    *,
    labelled: bool,
) -> str:
    """A sentence about a column that predicts the target too well; empty if not.

    `gives_away` and `repeats` find columns that determine the target exactly.
    """
    start = f"column {column!r} alone predicts the"
    if not labelled:
        like = rank_correlation(values, labels)
        if like < _LIKE:
            return ""
        return f"{start} order of the targets (rank correlation {like:.3f})"
    wrong, usual = least_wrong(values, labels)
    kinds, classes = len(np.unique(_with_gaps(values))), len(np.unique(labels))
    # A column with one value per class, besides gaps, may be the target in other words.
    coded = kinds <= classes + 1
    most, share = (0.05, 0.3) if coded else (0.03, 0.1)
    if not usual or wrong > min(most, share * usual):
        return ""
    return f"{start} target of {100 * (1 - wrong):.1f} % of rows"


_LIKE = 0.99
"""With a higher rank correlation, column and target seem to measure the same thing."""


def rank_correlation(
    values: Float[np.ndarray, " m"], targets: Num[np.ndarray, " m"]
) -> float:
    """The absolute rank correlation of two columns, over rows with both values."""
    both = ~(np.isnan(values) | np.isnan(targets))
    if both.sum() < max(FEWEST, len(values) // 2):
        return 0.0
    a, b = (_ranks(some[both]) for some in (values, targets))
    a, b = a - a.mean(), b - b.mean()
    size = float(np.linalg.norm(a) * np.linalg.norm(b))
    return abs(float(a @ b)) / size if size else 0.0


def _ranks(values: Num[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """(M,) the ranks of the values; equal values have the same rank."""
    _, code, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (counts.cumsum() - (counts - 1) / 2)[code]


def least_wrong(
    values: Float[np.ndarray, " m"], labels: Int[np.ndarray, " m"]
) -> tuple[float, float]:
    """Two shares of wrongly predicted labels: by a column, and by a constant.

    A column can predict by one interval of values for each class. A column with few
    values can also predict the most frequent class of each value. The better
    prediction counts.
    """
    values = _with_gaps(values)
    classes, label = np.unique(labels, return_inverse=True)
    kinds, code = np.unique(values, return_inverse=True)
    usual = 1 - float(np.bincount(label).max()) / len(label)
    found = [float((_stretches(values, label, len(classes)) != label).mean())]
    if len(kinds) <= max(2, len(values) // 10):
        right = _counts(code, label, len(kinds), len(classes)).max(axis=1).sum()
        found.append(1 - float(right) / len(label))
    return min(found), usual


def _stretches(
    values: Float[np.ndarray, " m"], label: Int[np.ndarray, " m"], classes: int
) -> Int[np.ndarray, " m"]:
    """(M,) predictions by intervals of values, in the order of the classes' medians."""
    middle = [_median(values[label == c]) for c in range(classes)]
    order = sorted(range(classes), key=lambda c: middle[c])
    found = np.full_like(label, order[0])
    for lower, upper in itertools.pairwise(order):
        mine = (label == lower) | (label == upper)
        place = values[mine].argsort(kind="stable")
        some = values[mine][place]
        # Below a border, samples of the upper class are wrong, and of the lower right.
        step = np.where(label[mine][place] == upper, 1, -1)
        errors = np.append(0.0, step.cumsum()[:-1])
        errors[1:][some[1:] == some[:-1]] = np.inf
        found[values >= some[errors.argmin()]] = upper
    return found


def _median(values: Float[np.ndarray, " m"]) -> float:
    """The lower median, because gaps are infinite and have no mean."""
    return float(np.sort(values)[(len(values) - 1) // 2])


def _with_gaps(values: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """The values, with infinity for gaps, because a gap may also predict the label."""
    return np.where(np.isnan(values), np.inf, values)


def _counts(
    code: Int[np.ndarray, " m"], label: Int[np.ndarray, " m"], kinds: int, classes: int
) -> Int[np.ndarray, "k c"]:
    """(K, C) how often each value and each class occur together."""
    counts = np.bincount(code * classes + label, minlength=kinds * classes)
    return counts.reshape(kinds, classes)


def _entropy(shares: Float[np.ndarray, "*k"]) -> float:
    there = shares[shares > 0]
    return float(-(there * np.log(there)).sum())
