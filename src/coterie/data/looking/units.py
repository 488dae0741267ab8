"""Clients whose numbers seem to be in another unit: grams in place of kilograms."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_APART = 8.0
"""Medians that differ by a smaller factor are of clients that differ by nature."""

_ALIKE = 3.0
"""Another unit moves numbers by a factor, and leaves their spread as it is.

So spreads, in decades, differ at most by this factor; a tenth of one is no spread.
"""

_FEWEST = 5
"""With fewer values, nothing is said about a client."""


class _Sizes(NamedTuple):
    """Where the sizes of a client's numbers lie, as logarithms to the base 10."""

    low: float  # one in twenty is below
    middle: float
    high: float  # one in twenty is above


def other_units(values: np.ndarray, owner: np.ndarray) -> dict[int, float]:
    """Clients whose values are many times those of all others, and how many times.

    A client has another unit where its median is 8 or more times that of the others, or
    an eighth, where this factor is larger than the whole range of the others and its
    own, and where its spread is like theirs.

    >>> kilograms, grams = np.arange(1, 7.0), 1000 * np.arange(1, 7.0)
    >>> values = np.concatenate([kilograms, kilograms, grams])
    >>> other_units(values, np.repeat([0, 1, 2], 6))
    {2: 1000.0}

    Args:
        values: of a column, NaN where there is none.
        owner: the client of each.
    """
    there = np.isfinite(values)
    order = np.argsort(owner[there], kind="stable")
    who, start = np.unique(owner[there][order], return_index=True)
    parts = np.split(values[there][order], start[1:])
    enough = [len(part) >= _FEWEST for part in parts]
    sizes = [_sizes(part) for part in parts if len(part) >= _FEWEST]
    if None in sizes or len(sizes) < 2:  # zeros and other signs have no factor
        return {}
    return _find_outliers(who[enough], np.array(sizes))


def _sizes(values: np.ndarray) -> _Sizes | None:
    """Of a client's numbers; None where many are zero or have another sign."""
    positive, negative = (values > 0).sum(), (values < 0).sum()
    clear = max(positive, negative) > 0.5 * len(values)
    if not clear or min(positive, negative) > 0.05 * len(values):
        return None
    sizes = np.log10(np.abs(values[values != 0]))
    return _Sizes(*np.quantile(sizes, (0.05, 0.5, 0.95), method="lower"))


def _find_outliers(who: np.ndarray, sizes: np.ndarray) -> dict[int, float]:
    """Those whose sizes (N, 3) are far from all others, and by which factor."""
    low, middle, high = sizes.T
    # Of two, nobody knows which is odd: the larger one is named.
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
