"""Intervals of measures with a limited range.

A share is between 0 and 1, and the difference of two shares is between -1 and 1.
Intervals end at these limits.

R2 is at most 1, and errors are at least 0. Let a be the distance of a score from this
limit. The distribution of a is skewed, like the distribution of a square: its standard
error grows in proportion to a. If a is small by chance, so is its estimated standard
error. Let h be half the width of Student's interval. At the far end, the error and the
half interval are 1 + h / a times as large:

    from a - h to a + h (1 + h / a)

A difference a - b has its own half width h, for which samples and seeds are paired. We
divide h between a and b in proportion to their variances, and skew each part:

    g_a  = h h_a / sqrt(h_a^2 + h_b^2)     h_a, h_b are the half widths of a and b
    low  = a - b - sqrt(g_a^2 + (g_b (1 + g_b / b))^2)
    high = a - b + sqrt((g_a (1 + g_a / a))^2 + g_b^2)

This is how Zou and Donner join two intervals. They use a, b and their correlation
instead of the parts. This would be useless for two models that are right on nearly the
same samples. Each interval is long on one side, and the common part of the two
intervals does not cancel.

References:
    Zou, Donner. Construction of confidence limits about effect measures: a general
    approach. Statistics in Medicine 27, 2008.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..models import RANGES
from ..models.measures import base_measure
from .intervals import Estimate


class _Distance(NamedTuple):
    """The distance from the end of the range, and half the width of the interval."""

    mean: np.ndarray | float
    half: np.ndarray | float


_NONE = _Distance(0.0, 0.0)


def is_skew(measure: str) -> bool:
    """Whether the range of a measure has exactly one end."""
    return bool(np.isfinite(_range(measure)).sum() == 1)


def score_interval(measure: str, found: Estimate) -> Estimate:
    """The estimate of a score, with an interval inside the range of the measure."""
    least, most = _range(measure)
    if is_skew(measure):
        if np.isfinite(least):
            found = _skew_interval(found, _distance(found, least), _NONE)
        else:
            found = _skew_interval(found, _NONE, _distance(found, most))
    return _clip_to_range(found, least, most)


def difference_interval(measure: str, found: Estimate, *own: Estimate) -> Estimate:
    """The estimate of a difference of scores, with an interval inside its range.

    Args:
        measure: the name of the measure.
        found: the estimate of the difference.
        own: the estimates of both scores, for a skewed measure.
    """
    least, most = _range(measure)
    if not is_skew(measure):
        return _clip_to_range(found, least - most, most - least)
    first, second = own
    if np.isfinite(least):
        return _skew_interval(found, _distance(first, least), _distance(second, least))
    # The larger score has the smaller distance, so the two change places.
    return _skew_interval(found, _distance(second, most), _distance(first, most))


def _range(measure: str) -> tuple[float, float]:
    return RANGES.get(base_measure(measure), (-np.inf, np.inf))


def _distance(found: Estimate, end: float) -> _Distance:
    return _Distance(np.abs(found.mean - end), found.high - found.mean)


@np.errstate(invalid="ignore", divide="ignore")
def _skew_interval(found: Estimate, a: _Distance, b: _Distance) -> Estimate:
    """The formulas above for a - b. An unknown interval stays unknown."""
    half, total = found.high - found.mean, np.hypot(a.half, b.half)
    parts = [np.where(total > 0, half * one.half / total, 0) for one in (a, b)]
    far = [
        part * (1 + np.where(part > 0, part / one.mean, 0))
        for part, one in zip(parts, (a, b), strict=True)
    ]
    low, high = np.hypot(parts[0], far[1]), np.hypot(far[0], parts[1])
    known = np.isfinite(low + high) & (total > 0)
    low, high = np.where(known, low, half), np.where(known, high, half)
    return found._replace(low=found.mean - low, high=found.mean + high)


def _clip_to_range(found: Estimate, least: float, most: float) -> Estimate:
    """The estimate, with known ends cut to the range. The mean stays between them.

    A user's own measure may share a name with ours and have values outside our range.
    """
    known = np.isfinite(found.high - found.low)
    low = np.maximum(found.low, np.minimum(least, found.mean))
    high = np.minimum(found.high, np.maximum(most, found.mean))
    return found._replace(
        low=np.where(known, low, found.low), high=np.where(known, high, found.high)
    )
