"""Clients whose numbers seem to be in another unit: grams in place of kilograms."""

from __future__ import annotations

import numpy as np

_APART = 50.0
"""Medians that differ by this factor are of another unit, if nothing overlaps."""

_FEWEST = 5
"""With fewer values, nothing is said about a client."""


def other_units(values: np.ndarray, owner: np.ndarray) -> dict[int, float]:
    """Clients whose values are many times those of all others, and how many times.

    >>> kilograms, grams = np.arange(1, 7.0), 1000 * np.arange(1, 7.0)
    >>> values = np.concatenate([kilograms, kilograms, grams])
    >>> other_units(values, np.repeat([0, 1, 2], 6))
    {2: 1000.0}

    Args:
        values: of a column, NaN where there is none.
        owner: the client of each.
    """
    sizes = np.abs(values)
    there = np.isfinite(sizes) & (sizes > 0)
    sizes, owner = np.log10(sizes[there]), owner[there]
    order = np.lexsort((sizes, owner))
    who, start, counts = np.unique(owner[order], return_index=True, return_counts=True)
    enough = counts >= _FEWEST
    who, start, counts = who[enough], start[enough], counts[enough]
    if len(who) < 2:
        return {}
    low, middle, high = (
        sizes[order[start + (share * (counts - 1)).astype(int)]]
        for share in (0.05, 0.5, 0.95)
    )
    # Of two, nobody knows which is odd: the larger one is named.
    usual = np.median(middle) if len(who) > 2 else middle.min()
    far = np.abs(middle - usual) > np.log10(_APART)
    if not far.any() or 2 * far.sum() > len(who):
        return {}
    top, bottom = high[~far].max(), low[~far].min()
    apart = far & ((low > top) | (high < bottom))
    return {
        int(k): float(10 ** (m - usual))
        for k, m, odd in zip(who, middle, apart, strict=True)
        if odd
    }


def unit_note(column: str, times: float, who: str) -> str:
    """A sentence about a client with another unit.

    >>> unit_note("weight", 1000.0, "Bern")
    "column 'weight' of Bern is about 1,000 times that of the others: check its unit"
    """
    factor = float(f"{max(times, 1 / times):.1g}")
    size = f"{factor:,.0f} times" if times > 1 else f"1/{factor:,.0f} of"
    return (
        f"column {column!r} of {who} is about {size} that of the others: check its unit"
    )
