"""Codings: whether clients, or files, write the same classes in different ways.

If one client writes `ill` and `well` and another writes 0 and 1, no model can learn
from both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...checks import brief
from .columns import Profile
from .spellings import few

_FEWEST = 4
"""The fewest rows of a client whose coding we judge."""

_MOST = 10
"""The most values of a coding: more different values are quantities or names."""


class Coding(NamedTuple):
    """The values of one client, or one file, in a column."""

    who: str
    values: tuple[str, ...]  # the different ones, sorted
    rows: int
    words: bool  # whether most are words


class CodingPair(NamedTuple):
    """Two codings of one column, and how many clients have each."""

    one: Coding
    other: Coding
    like_one: int
    like_other: int


def codings_of(profile: Profile, owner: np.ndarray) -> list[Coding]:
    """For each client with enough rows, the coding that it uses in a column.

    Args:
        profile: the profile of the column.
        owner: the client of each row, as text; empty for none.
    """
    cells = profile.cells
    there = ~cells.missing & (owner != "")
    words = pd.Series(cells.text[there], dtype=object).replace(dict(profile.merged))
    is_word = np.ones(len(words), bool)
    if cells.numbers is not None:
        is_word = np.isnan(cells.numbers[there])
        numbers = [f"{value:g}" for value in cells.numbers[there]]
        words = words.where(is_word, pd.Series(numbers, dtype=object))
    table = pd.DataFrame({"word": words, "is_word": is_word})
    return [
        Coding(
            str(who),
            tuple(sorted(set(some["word"]))),
            len(some),
            bool(2 * some["is_word"].sum() > len(some)),
        )
        for who, some in table.groupby(owner[there])
        if len(some) >= _FEWEST
    ]


def words_against_numbers(codings: Sequence[Coding]) -> CodingPair | None:
    """Clients with words and clients with numbers, if there are both."""
    return _pair(*([c for c in codings if c.words == words] for words in (True, False)))


def other_values(codings: Sequence[Coding]) -> CodingPair | None:
    """Two groups of clients without a common value, if there are exactly two groups.

    There is one exception. If every client has exactly two values, which are whole
    numbers, the groups may have one value in common. This holds in two cases: one group
    has the other group's numbers plus a constant, or one group has 0 and 1 and the
    other -1 and 1. If some clients have one value or more than two, such pairs may come
    by chance.
    """
    pairs = sorted({c.values for c in codings})
    if len(pairs) == 2 and _is_shift(*map(_numbers, pairs)):
        return _pair(*([c for c in codings if c.values == pair] for pair in pairs))
    sure = [c for c in codings if 2 <= len(c.values) <= min(_MOST, c.rows // 2)]
    groups: list[set[str]] = []
    for coding in sure:
        mine = set(coding.values)
        touching = [group for group in groups if group & mine]
        groups = [group for group in groups if not group & mine]
        groups.append(mine.union(*touching))
    if len(groups) != 2:
        return None
    return _pair(*([c for c in sure if c.values[0] in group] for group in groups))


def _numbers(values: tuple[str, ...]) -> tuple[int, ...]:
    """The values as sorted whole numbers; empty if one is not whole."""
    whole = all(value.removeprefix("-").isdecimal() for value in values)
    return tuple(sorted(map(int, values))) if whole else ()


def _is_shift(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether a pair is the other plus a constant, or one is 0, 1 and the other -1, 1.

    >>> _is_shift((0, 1), (1, 2)), _is_shift((0, 1), (-1, 1)), _is_shift((0, 1), (0, 2))
    (True, True, False)
    """
    if not len(one) == len(other) == 2:
        return False
    return one[1] - one[0] == other[1] - other[0] or {one, other} == {(0, 1), (-1, 1)}


def _pair(one: list[Coding], other: list[Coding]) -> CodingPair | None:
    return CodingPair(one[0], other[0], len(one), len(other)) if one and other else None


def coding_sentence(what: str, pair: CodingPair, *, by_file: bool) -> str:
    """A sentence about a column with two codings.

    Args:
        what: the column in words, such as "the target".
        pair: both codings.
        by_file: whether files differ, and not clients.
    """
    by, all_of = ("file", "in all files") if by_file else ("client", "for all clients")
    both = ((pair.one, pair.like_one), (pair.other, pair.like_other))
    shown = ", ".join(_has(coding, count) for coding, count in both)
    return (
        f"the codings of {what} differ by {by}: {shown}; use the same values {all_of}"
    )


def _has(coding: Coding, count: int) -> str:
    """The values of a client, and the number of others with the same coding.

    >>> _has(Coding("a.csv", ("ill", "well"), 20, True), 3)
    "a.csv and 2 more have 'ill' and 'well'"
    """
    who = f"{coding.who} and {count - 1} more have" if count > 1 else None
    shown = [brief(v) if coding.words else v for v in coding.values]
    if len(shown) > _MOST and not coding.words:
        return f"{who or f'{coding.who} has'} numbers, such as {shown[0]}"
    return f"{who or f'{coding.who} has'} {few(shown, most=4)}"
