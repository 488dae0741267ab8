"""Numbers and names as a sentence says them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..checks import several


def join_names(names: Sequence[str]) -> str:
    """The names as a list in a sentence.

    >>> join_names(["a", "b", "c"])
    'a, b and c'
    """
    *head, last = names
    return f"{', '.join(head)} and {last}" if head else last


def some_of(names: Sequence[str], most: int = 8) -> str:
    """The first names of a list, and the number of all other names.

    >>> some_of(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    if len(names) <= most:
        return join_names(names)
    return f"{', '.join(names[:most])} and {len(names) - most:,} more"


_COUNTS = "no one two three four five six seven eight nine ten eleven twelve".split()


def count_in_words(count: int) -> str:
    """A number for a sentence; numbers up to twelve are words.

    >>> count_in_words(6), count_in_words(13), count_in_words(1200)
    ('six', '13', '1,200')
    """
    return _COUNTS[count] if 0 < count < len(_COUNTS) else f"{count:,}"


def all_of(count: int, many: str = "") -> str:
    """The words for all of a number of things.

    >>> all_of(2, "files"), all_of(8, "hospitals"), all_of(2)
    ('both files', 'all eight hospitals', 'both')
    """
    return f"{'both' if count == 2 else f'all {count_in_words(count)}'} {many}".rstrip()


def duration(seconds: float) -> str:
    """A time in everyday words.

    >>> duration(0.4), duration(12.3), duration(100), duration(9000)
    ('less than a second', '12 seconds', '1.7 minutes', '2.5 hours')
    """
    if seconds < 1:
        return "less than a second"
    if seconds < 59.5:
        return several(round(seconds), "second")
    if seconds < 5400:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds / 3600:.1f} hours"


def large(value: float) -> str:
    """A number without decimals, with separators of thousands."""
    return f"{value:,.0f}" if np.isfinite(value) else "unknown"


def figure(value: float, digits: int, sign: str = "") -> str:
    """A number with this many significant digits, but never rounded above whole units.

    >>> figure(0.50891, 4), figure(52417.3, 4), figure(-133.6, 2, "+"), figure(3e12, 4)
    ('0.5089', '52,417', '-134', '3e+12')
    """
    if 10.0**digits <= abs(value) < 1e9:
        return f"{value:{sign},.0f}"
    return f"{value:{sign}.{digits}g}"


def percent(share: float, unknown: str = "unknown") -> str:
    """A share in percent, with one decimal.

    >>> percent(0.948)
    '94.8 %'
    """
    return f"{100 * share:.1f} %" if np.isfinite(share) else unknown


def as_many(ratio: float, what: str, whose: str) -> str:
    """A ratio of two amounts in words.

    >>> as_many(16.04, "gradients", "local"), as_many(1.0, "bytes", "fedavg")
    ('16 times the gradients of local', 'as many bytes as fedavg')
    """
    if abs(ratio - 1) < 0.005:
        return f"as many {what} as {whose}"
    times = f"{ratio:.2g}" if ratio < 100 else f"{ratio:,.0f}"
    return f"{times} times the {what} of {whose}"


def epsilon_text(epsilon: float) -> str:
    """An epsilon as text."""
    return f"{epsilon:.3g}" if np.isfinite(epsilon) else "infinite"


def seconds_of(value: float, unknown: str = "unknown") -> str:
    """A number of seconds with its unit.

    >>> seconds_of(0.1842)
    '0.184 s'
    """
    return f"{value:.3g} s" if np.isfinite(value) else unknown


def in_bytes(value: float) -> str:
    """A number of bytes in decimal units.

    >>> in_bytes(1023), in_bytes(14.1e6)
    ('1.02 kB', '14.1 MB')
    """
    if not np.isfinite(value):
        return "unknown"
    for unit in ("B", "kB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:,.3g} TB"
