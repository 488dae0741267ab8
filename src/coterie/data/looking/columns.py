"""Profiles of columns: numbers, words, dates, identifiers or free text."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...checks import InputError
from ..reading import LARGEST, Cells, cells_of
from .dates import form_of
from .spellings import one_spelling

MOST_WORDS = 100
"""More different words are names of samples; see `files.MOST_CATEGORIES`."""

_SOME = 20
"""With fewer rows, all cells of a column may differ by chance."""

_NEARLY_ALL = 0.9
"""A column names samples if this share of its cells differ."""

_MOST_ODD = 10
"""The most different words for a gap among numbers."""

_IDENTIFIERS = frozenset(
    "id ids uid uuid guid mrn nr no num number nummer numero key index idx identifier "
    "identifiant kennung fallnummer pid ssn ahv record".split()
)
_CODES = frozenset("code codes zip zipcode plz postcode postal icd".split())


class Profile(NamedTuple):
    """What a column holds."""

    name: str
    kind: str  # number, truth, words, codes, date, or one of `USELESS`
    cells: Cells
    counts: dict[str, int]  # of its different words, with one spelling each
    date: str = ""  # how dates are written
    odd: tuple[str, ...] = ()  # words among numbers
    # From each rarer spelling to the spelling that replaces it.
    merged: Mapping[str, str] = MappingProxyType({})

    @property
    def present(self) -> np.ndarray:
        """(M,) whether a cell is not a gap."""
        there = ~self.cells.missing
        return there & ~np.isin(self.cells.text, list(self.odd)) if self.odd else there

    @property
    def odd_words(self) -> tuple[str, ...]:
        """The entries of `odd` that are not numbers; `inf` and `1e300` are numbers."""
        text, numbers = self.cells.text, self.cells.numbers
        if not self.odd or numbers is None:
            return ()
        words = set(text[np.isnan(numbers)])
        return tuple(word for word in self.odd if word in words)

    @property
    def numeric(self) -> bool:
        """Whether every cell that is not a gap is a number."""
        numbers = self.cells.numbers
        return numbers is not None and not np.isnan(numbers[self.present]).any()

    @property
    def whole(self) -> bool:
        """Whether the column holds whole numbers only."""
        numbers = self.cells.numbers
        return numbers is not None and _are_whole(numbers[self.present])


def _are_whole(values: np.ndarray) -> bool:
    """Whether all values are whole numbers; infinite ones are not."""
    return bool(np.isfinite(values).all() and (values % 1 == 0).all())


USELESS = {
    "identifier": "identifier",
    "text": "free text",
    "many": "too many words",
    "mixed": "numbers and words",
    "constant": "always the same",
    "empty": "empty",
    "large": "numbers too large",
}
"""Kinds of columns that no model can use, and their names in sentences."""

HARMFUL = ("identifier", "text", "many")
"""Useless kinds that do harm: a model would learn names, or could not be trained."""


def tokens_of(name: str) -> frozenset[str]:
    """The words in a column's name, without accents.

    >>> sorted(tokens_of("patientID_Hôpital2"))
    ['2', 'hopital', 'id', 'patient']
    """
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    apart = re.sub(r"([a-z])([A-Z])", r"\1 \2", plain)
    return frozenset(re.findall(r"[a-z]+|\d+", apart.lower()))


def profile_of(column: pd.Series, path: Path) -> Profile:
    """The profile of a column of a table."""
    name = str(column.name)
    try:
        cells = cells_of(column, path)
    except InputError:  # lists and the like, of Parquet
        gaps = np.ones(len(column), bool)
        cells = Cells(name, np.full(len(column), ""), gaps, None, gaps)
        return Profile(name, "many", cells, {})
    words = [str(word) for word in cells.text[~cells.missing]]
    if not words:
        return Profile(name, "empty", cells, {})
    if cells.truth:
        counts = Counter(word.lower() for word in words)
        kind = "truth" if len(counts) > 1 else "constant"
        return Profile(name, kind, cells, dict(counts))
    counts = Counter(words)
    numbers = cells.numbers
    if numbers is not None and not _no_numbers(cells).any():
        return _of_numbers(cells, counts)
    form = form_of(list(counts))
    if form:
        kind = "date" if len(counts) > 1 else "constant"
        return Profile(name, kind, cells, dict(counts), form)
    if numbers is not None:
        return _of_both(cells, counts)
    return _of_words(cells, counts)


def as_names(profile: Profile) -> Profile:
    """The profile of the column, when its numbers are read as names."""
    words = Counter(str(w) for w in profile.cells.text[~profile.cells.missing])
    return _of_words(profile.cells, words)._replace(kind="words")


def _of_numbers(cells: Cells, counts: Counter[str]) -> Profile:
    """The profile of a column in which every cell is a number."""
    assert cells.numbers is not None
    name, values = cells.name, cells.numbers[~cells.missing]
    found, tokens = dict(counts), tokens_of(name)
    if len(np.unique(values)) == 1:
        return Profile(name, "constant", cells, found)
    form = form_of(list(counts)) if _are_whole(values) else ""
    if form:
        return Profile(name, "date", cells, found, form)
    whole = _are_whole(values)
    unique = len(values) >= _SOME and len(counts) >= _NEARLY_ALL * len(values)
    counted = len(values) >= _SOME and bool((np.diff(values) == 1).all())
    if whole and (counted or (unique and tokens & _IDENTIFIERS)):
        return Profile(name, "identifier", cells, found)
    if whole and tokens & _CODES and not tokens & {"status"}:
        kind = "codes" if len(counts) <= MOST_WORDS else "identifier"
        return Profile(name, kind, cells, found)
    return Profile(name, "number", cells, found)


def _no_numbers(cells: Cells) -> np.ndarray:
    """(M,) whether a cell holds a word, or a number too large for single precision."""
    assert cells.numbers is not None
    return ~cells.missing & ~(np.abs(cells.numbers) <= LARGEST)


def _of_both(cells: Cells, counts: Counter[str]) -> Profile:
    """The profile of numbers with some cells that are words or not finite."""
    assert cells.numbers is not None
    is_word = _no_numbers(cells)
    odd = sorted({str(word) for word in cells.text[is_word]})
    few = len(odd) <= _MOST_ODD and 2 * is_word.sum() <= (~cells.missing).sum()
    if few:
        numbers = {word: n for word, n in counts.items() if word not in odd}
        kind = "number" if len(numbers) > 1 else "constant"
        return Profile(cells.name, kind, cells, numbers, odd=tuple(odd))
    if not np.isnan(cells.numbers[~cells.missing]).any():
        return Profile(cells.name, "large", cells, dict(counts))
    found = _of_words(cells, counts)
    return found._replace(kind="codes" if found.kind == "words" else found.kind)


def _of_words(cells: Cells, counts: Counter[str]) -> Profile:
    """The profile of a column of words."""
    name, total = cells.name, sum(counts.values())
    merged = one_spelling(counts.elements()) if len(counts) <= 2000 else {}
    together = Counter({word: n for word, n in counts.items() if word not in merged})
    for word, usual in merged.items():
        together[usual] += counts[word]
    unique = total >= _SOME and len(together) >= _NEARLY_ALL * total
    if len(together) == 1:
        kind = "constant"
    elif len(together) <= MOST_WORDS and not unique:
        kind = "words"
    else:
        # A sentence has blanks between its words.
        blanks = sum(word.count(" ") for word in together) / len(together)
        kind = "text" if blanks >= 2 else "identifier" if unique else "many"
    return Profile(name, kind, cells, dict(together), merged=merged)
