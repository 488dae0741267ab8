"""Words for clients and amounts, such as "hospitals" and "+3,200 kg"."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ...checks import plural
from ...records import Records
from ...scores.finals import Score, score_of
from ...scores.words import figure, join_names

MOST_NAMED = 8
"""Up to this number, a sentence names clients; with more, it counts them."""

_NO_NOUN = {"client", "code", "group", "id", "index", "key", "label", "name", "number"}

_WORDS = {
    "rmse": "test error (RMSE)",
    "mae": "test absolute error",
    "ece": "test calibration error",
    "balanced_accuracy": "test balanced accuracy",
}


def client_nouns(records: Records) -> tuple[str, str]:
    """The singular and plural noun for clients, from the column that names them."""
    data = records.study.get("data")
    word = str(data.get("client", "") if isinstance(data, dict) else "").lower()
    word = re.sub(r"[_ ]?(id|name|code)$", "", word)
    if not re.fullmatch("[a-z]{3,20}", word) or word in _NO_NOUN:
        word = "client"
    if word.endswith("s") and not word.endswith("ss"):  # a plural already
        word = word[:-1]
    return word, plural(word)


def names_of(records: Records, clients: Iterable[int]) -> str:
    """The names of clients as a list in a sentence, such as "clients 2 and 3"."""
    names = [records.name_of(int(client)) for client in clients]
    numbers = [name.removeprefix("client ") for name in names]
    if len(names) > 1 and all(n.startswith("client ") for n in names):
        return f"clients {join_names(numbers)}"
    return join_names(names)


class Amounts(NamedTuple):
    """How scores and differences are written, in the unit of the data."""

    score: Score
    words: str  # the name of the measure

    def show(self, value: float) -> str:
        """A score as text."""
        if self.score.ticks or not np.isfinite(value):
            return self.score.show(value)
        return self._with_unit(figure(value, 3))

    def show_gain(self, value: float) -> str:
        """A difference as text, with its sign."""
        return self._with_unit(self.score.show_gain(value))

    def size(self, value: float) -> str:
        """A difference as text, without its sign."""
        return self.show_gain(abs(value)).lstrip("+")

    def interval(self, low: float, high: float) -> str:
        """An interval of a difference, in words."""
        ends = [self.size(low), self.size(high)]
        if low < 0 < high:
            return f"between {ends[0]} worse and {ends[1]} better"
        near, far = ends if low >= 0 else reversed(ends)
        unit = " points" if self.score.ticks else f" {self.score.quantity}".rstrip()
        better = "better" if low >= 0 else "worse"
        return f"between {near.removesuffix(unit)} and {far} {better}"

    def _with_unit(self, text: str) -> str:
        known = self.score.quantity and re.search(r"\d", text)
        return f"{text} {self.score.quantity}" if known else text

    @property
    def axis(self) -> str:
        """The title of an axis of differences."""
        if self.score.ticks:
            return "points"
        return self.score.quantity or self.words


def amounts_of(records: Records) -> Amounts:
    """How the scores of a study are written."""
    score = score_of(records)
    return Amounts(score, _WORDS.get(records.score, score.words))


def round_up(value: float) -> float:
    """The next larger number of the form 1, 2, 2.5 or 5 times a power of ten.

    >>> round_up(3.1), round_up(0.21), round_up(700)
    (5.0, 0.25, 1000.0)
    """
    power = 10.0 ** np.floor(np.log10(value))
    steps = [step * power for step in (1, 2, 2.5, 5, 10)]
    return float(next(step for step in steps if step >= value * (1 - 1e-9)))
