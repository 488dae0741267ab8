"""Intervals of measures that cannot have every value.

A share is from 0 to 1, and the difference of two from -1 to 1: intervals end there.

R2 is at most 1, and errors are at least 0. How far they are from that end, a, is skew
as squares are: its standard error grows in proportion to it, and where it is small by
chance, so is the error. With half the width of Student's interval, h, the error at its
far end is 1 + h / a times as large, and so is the half interval on that side:

    from a - h to a + h (1 + h / a)

The difference of two, a - b, has the half width h of its own, for which samples and
seeds are paired. It is divided between a and b in proportion to their own variances,
and each part is as skew as they are:

    g_a  = h h_a / sqrt(h_a^2 + h_b^2)     h_a, h_b are the half widths of a and b
    low  = a - b - sqrt(g_a^2 + (g_b (1 + g_b / b))^2)
    high = a - b + sqrt((g_a (1 + g_a / a))^2 + g_b^2)

That is how Zou and Donner join the ends of two intervals. (With a and b themselves, and
their correlation, it would be useless for two models that are right on nearly the same
samples: their intervals are long on one side each, and what is common does not cancel.)

References:
    Zou, Donner. Construction of confidence limits about effect measures: a general
    approach. Statistics in Medicine 27, 2008.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..models import RANGES
from .intervals import Estimate


class _Distance(NamedTuple):
    """How far from the end of the range, and half the width of the interval."""

    mean: np.ndarray | float
    half: np.ndarray | float


_NONE = _Distance(0.0, 0.0)


def is_skew(measure: str) -> bool:
    """Whether a measure has one end, from which its distance is skew."""
    return bool(np.isfinite(_range(measure)).sum() == 1)


def score_interval(measure: str, found: Estimate) -> Estimate:
    """The same, whose interval is symmetric, with ends that a score can have."""
    least, most = _range(measure)
    if is_skew(measure):
        if np.isfinite(least):
            found = _skew_interval(found, _distance(found, least), _NONE)
        else:
            found = _skew_interval(found, _NONE, _distance(found, most))
    return _clip_to_range(found, least, most)


def difference_interval(measure: str, found: Estimate, *own: Estimate) -> Estimate:
    """The same of one score less another; of a skew measure both are given as well."""
    least, most = _range(measure)
    if not is_skew(measure):
        return _clip_to_range(found, least - most, most - least)
    first, second = own
    if np.isfinite(least):
        return _skew_interval(found, _distance(first, least), _distance(second, least))
    # The first is larger where it is nearer to the end.
    return _skew_interval(found, _distance(second, most), _distance(first, most))


def _range(measure: str) -> tuple[float, float]:
    return RANGES.get(measure, (-np.inf, np.inf))


def _distance(found: Estimate, end: float) -> _Distance:
    return _Distance(np.abs(found.mean - end), found.high - found.mean)


@np.errstate(invalid="ignore", divide="ignore")
def _skew_interval(found: Estimate, a: _Distance, b: _Distance) -> Estimate:
    """The formulas above, of a - b; what is not known stays so."""
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
    """Ends that are known, no further than can be.

    A measure of one's own may have the name of ours and be what ours cannot.
    """
    known = np.isfinite(found.high - found.low)
    low = np.maximum(found.low, np.minimum(least, found.mean))
    high = np.minimum(found.high, np.maximum(most, found.mean))
    return found._replace(
        low=np.where(known, low, found.low), high=np.where(known, high, found.high)
    )
