"""Spellings: words that differ only by case and blanks count as one word."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from ...checks import brief


def plain_form(word: str) -> str:
    """The word in lower case and without extra blanks.

    >>> plain_form(" Los  ANGELES")
    'los angeles'
    """
    return " ".join(word.split()).casefold()


def one_spelling(words: Iterable[str]) -> dict[str, str]:
    """For each rarer spelling of a word, the most frequent one.

    >>> one_spelling(["GENEVE", "Geneve", "Geneve", "Bern"])
    {'GENEVE': 'Geneve'}
    """
    counts = Counter(words)
    best: dict[str, str] = {}
    for word in sorted(counts, key=lambda w: (-counts[w], w.isupper(), w)):
        best.setdefault(plain_form(word), word)
    usual = {word: best[plain_form(word)] for word in sorted(counts)}
    return {word: other for word, other in usual.items() if word != other}


def look_alikes(words: Iterable[str]) -> list[str]:
    """Words that differ from other words only by accents and punctuation, sorted.

    >>> look_alikes(["Geneve", "Bern", "Genève", "St. Gallen", "St Gallen"])
    ['Geneve', 'Genève', 'St Gallen', 'St. Gallen']
    """
    groups: dict[str, list[str]] = {}
    for word in sorted(words):
        parts = unicodedata.normalize("NFKD", plain_form(word))
        letters = "".join(c for c in parts if c.isalnum())
        groups.setdefault(letters if letters.isalpha() else word, []).append(word)
    return [word for some in groups.values() if some[1:] for word in some]


def spelling_note(name: str, other: Mapping[str, str]) -> str:
    """A sentence about words of a column that are read as another word.

    >>> spelling_note("city", {"BERN": "Bern", "bern": "Bern"})
    "column 'city': 'BERN' and 'bern' are read as 'Bern'"
    """
    groups: dict[str, list[str]] = {}
    for word, usual in other.items():
        groups.setdefault(usual, []).append(brief(word))
    some = []
    for usual, words in list(groups.items())[:3]:
        listed = " and ".join(
            [", ".join(words[:-1]), words[-1]] if words[1:] else words
        )
        some.append(f"{listed} {'are' if words[1:] else 'is'} read as {brief(usual)}")
    more = f", and {len(groups) - 3} more" if len(groups) > 3 else ""
    return f"column {name!r}: {'; '.join(some)}{more}"


def few(names: Sequence[str], most: int = 5) -> str:
    """The first names as a list in a sentence.

    >>> few(["a", "b", "c"]), few("abcd", most=2)
    ('a, b and c', 'a, b and 2 more')
    """
    more = [f"{len(names) - most} more"] if len(names) > most else []
    *head, last = [*names[:most], *more]
    return f"{', '.join(head)} and {last}" if head else last
