"""Dates: the form in which a column writes them, and dates as numbers of days."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd

FORMS = (
    "ISO8601",
    *("%d.%m.%Y", "%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M:%S", "%d.%m.%y"),
    *("%d/%m/%Y", "%d/%m/%Y %H:%M", "%d/%m/%Y %H:%M:%S", "%d/%m/%y"),
    *("%m/%d/%Y", "%m/%d/%Y %H:%M", "%m/%d/%Y %H:%M:%S", "%m/%d/%y"),
    *("%m/%d/%Y %I:%M %p", "%m/%d/%Y %I:%M:%S %p"),
    *("%d-%m-%Y", "%Y/%m/%d", "%Y/%m/%d %H:%M", "%Y/%m/%d %H:%M:%S"),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y"),
)
"""Forms of dates; the first that fits a column is used."""

ORIGIN = "1970-01-01"
"""Day 0 of numbers of days."""

_TRIED = 50
"""The number of different cells that are tried first."""

_EIGHT = re.compile(r"(19|20)\d{6}")


def form_of(words: Sequence[str]) -> str:
    """The form of the dates in these cells; empty if one of them is not a date.

    >>> form_of(["24.12.2023", "01.02.2024"]), form_of(["2024", "12"])
    ('%d.%m.%Y', '')
    """
    if not len(words) or not all(any(c.isdigit() for c in w) for w in words[:_TRIED]):
        return ""
    if all(_EIGHT.fullmatch(word) for word in words):
        return "%Y%m%d" if _fits(words, "%Y%m%d") else ""
    if all(len(word) < 6 or len(word) > 30 for word in words[:_TRIED]):
        return ""
    return next((form for form in FORMS if _fits(words, form)), "")


def month_first(words: Sequence[str], form: str) -> bool:
    """Whether these cells also fit the form with the month before the day."""
    other = form.replace("%d/%m", "%m/%d").replace("%d-%m", "%m-%d")
    return other != form and _fits(words, other)


def _fits(words: Sequence[str], form: str) -> bool:
    some = list(words[:_TRIED])
    if np.isnan(days(some, form)).any():
        return False
    return len(words) <= _TRIED or not np.isnan(days(words, form)).any()


def days(words: Sequence[str], form: str) -> np.ndarray:
    """The days from 1970-01-01 to each date; NaN for words that are not dates.

    >>> days(["1970-01-02", "1969-12-31 12:00", "soon"], "ISO8601").tolist()
    [1.0, -0.5, nan]
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pandas warns about some formats
        try:
            found = pd.to_datetime(
                pd.Series(list(words), dtype=object),
                format=form,
                errors="coerce",
                utc=True,
            )
        except (ValueError, OverflowError, TypeError):  # the format is not one
            return np.full(len(words), np.nan)
    since = found - pd.Timestamp(ORIGIN, tz="UTC")
    return (since / pd.Timedelta(days=1)).to_numpy(float)
