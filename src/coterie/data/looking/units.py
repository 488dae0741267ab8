"""Clients that seem to use another unit, such as grams instead of kilograms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_APART = 8.0
"""If medians differ by a smaller factor, we do not assume another unit."""

_ALIKE = 3.0
"""The largest factor between the spreads of clients that hold the same quantity.

Another unit multiplies numbers, and so does not change the spread of their logarithms.
Spreads are in decades. A tenth of a decade is added to each before they are compared.
"""

_FEWEST = 5
"""The fewest values of a client whose unit we judge."""


class _Sizes(NamedTuple):
    """Quantiles of log10 |v| of a client's numbers v."""

    low: float  # 5 %
    middle: float  # the median
    high: float  # 95 %


def other_units(values: np.ndarray, owner: np.ndarray) -> dict[int, float]:
    """Clients that seem to use another unit, each with its factor.

    We assume another unit if three things hold. The client's median is more than 8
    times the median of the others, or less than an eighth. The two medians differ by a
    larger factor than small and large values do, within the client and within the
    others. The client's values have about the same spread as the others.

    >>> kilograms, grams = np.arange(1, 7.0), 1000 * np.arange(1, 7.0)
    >>> values = np.concatenate([kilograms, kilograms, grams])
    >>> other_units(values, np.repeat([0, 1, 2], 6))
    {2: 1000.0}

    Args:
        values: the values of a column, NaN for gaps.
        owner: the client of each.
    """
    there = np.isfinite(values)
    order = np.argsort(owner[there], kind="stable")
    who, start = np.unique(owner[there][order], return_index=True)
    parts = np.split(values[there][order], start[1:])
    enough = [len(part) >= _FEWEST for part in parts]
    sizes = [_sizes(part) for part in parts if len(part) >= _FEWEST]
    if None in sizes or len(sizes) < 2:  # with zeros or mixed signs there is no factor
        return {}
    return _find_outliers(who[enough], np.array(sizes))


def _sizes(values: np.ndarray) -> _Sizes | None:
    """The sizes of a client's numbers; None if many are 0 or signs are mixed."""
    positive, negative = (values > 0).sum(), (values < 0).sum()
    clear = max(positive, negative) > 0.5 * len(values)
    if not clear or min(positive, negative) > 0.05 * len(values):
        return None
    sizes = np.log10(np.abs(values[values != 0]))
    return _Sizes(*np.quantile(sizes, (0.05, 0.5, 0.95), method="lower"))


def _find_outliers(who: np.ndarray, sizes: np.ndarray) -> dict[int, float]:
    """Clients whose sizes (N, 3) are far from all others, each with the factor."""
    low, middle, high = sizes.T
    # With two clients either may be the odd one: we name the larger.
    usual = np.median(middle) if len(who) > 2 else middle.min()
    shift, width = np.abs(middle - usual), high - low
    far = shift > np.log10(_APART)
    if not far.any() or 2 * far.sum() > len(who):
        return {}
    top, bottom = high[~far].max(), low[~far].min()
    ratio = (width + 0.1) / (np.median(width[~far]) + 0.1)
    odd = (
        far
        & ((low > top) | (high < bottom))
        & (shift > np.maximum(width, top - bottom))
        & (ratio < _ALIKE)
        & (ratio > 1 / _ALIKE)
    )
    return {
        int(k): float(10 ** (m - usual))
        for k, m in zip(who[odd], middle[odd], strict=True)
    }


def unit_note(column: str, times: float, who: str) -> str:
    """A sentence about a client with another unit.

    >>> unit_note("weight", 1000.0, "Bern")
    "column 'weight' of Bern is about 1,000 times that of the others: check its unit"
    """
    factor = float(f"{max(times, 1 / times):.2g}")
    size = f"{factor:,.0f} times" if times > 1 else f"1/{factor:,.0f} of"
    return (
        f"column {column!r} of {who} is about {size} that of the others: check its unit"
    )
