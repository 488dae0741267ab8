"""Columns that are the target in other words."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int, Num

FEWEST = 20
"""With fewer samples a column may fit the labels by chance."""


def gives_away(values: Float[np.ndarray, " m"], labels: Int[np.ndarray, " m"]) -> bool:
    """Whether a column determines the labels, not by being different everywhere.

    Either few values do, with all but a hundredth of the entropy of the labels as
    mutual information, or in the order of values every class is one stretch.
    """
    values = np.where(np.isnan(values), np.inf, values)  # a gap may tell, too
    kinds, code = np.unique(values, return_inverse=True)
    classes, label = np.unique(labels, return_inverse=True)
    if len(kinds) < 2:
        return False
    if len(kinds) <= max(2, len(values) // 10):
        place = code * len(classes) + label
        counts = np.bincount(place, minlength=len(kinds) * len(classes))
        joint = counts.reshape(len(kinds), len(classes)) / len(values)
        entropy = _entropy(joint.sum(0))
        return entropy + _entropy(joint.sum(1)) - _entropy(joint) >= 0.99 * entropy
    order = values.argsort(kind="stable")
    sorted_labels, sorted_values = label[order], values[order]
    changes = sorted_labels[1:] != sorted_labels[:-1]
    apart = sorted_values[1:] != sorted_values[:-1]
    return int(changes.sum()) < len(classes) and bool((apart | ~changes).all())


def repeats(values: Float[np.ndarray, " m"], targets: Num[np.ndarray, " m"]) -> bool:
    """Whether a column is a straight line of the targets."""
    if np.isnan(values).any() or (values == values[0]).all():
        return False
    a, b = values - values.mean(), targets - targets.mean(dtype=np.float64)
    return bool(abs(a @ b) > (1 - 1e-6) * np.linalg.norm(a) * np.linalg.norm(b))


def _entropy(shares: Float[np.ndarray, "*k"]) -> float:
    there = shares[shares > 0]
    return float(-(there * np.log(there)).sum())
