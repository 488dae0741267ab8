"""What a site tells of its columns with `join --check`, and how others differ from it.

A site tells names of columns and what they hold, the task, and a hash of every word of
a category or class. All of it would be told in the set-up as well, there with the words
themselves. Values stay at home. A hash hides a word from people who do not guess it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import NamedTuple

from ...checks import suggestion
from ...data.federation import Table
from .site_data import description, kind_of
from .wire import WireError

MOST = 2**19
"""The most bytes that a site tells of its columns."""

_TARGET = ""
"""The name under which classes of the target are told."""

_SHOWN = 3  # words in a sentence


class ColumnKind(NamedTuple):
    """What a column holds, and a hash for each of its words."""

    kind: str
    words: frozenset[str]


class ToldColumns(NamedTuple):
    """What a site tells of its table."""

    task: str
    columns: dict[str, ColumnKind]

    def encode(self) -> bytes:
        """The same as bytes; without words if they are too many."""
        for with_words in (True, False):
            rows = [
                [name, one.kind, sorted(one.words) if with_words else []]
                for name, one in self.columns.items()
            ]
            text = json.dumps([self.task, rows]).encode()
            if len(text) <= MOST:
                break
        return text


def told_columns(run: str, table: Table) -> ToldColumns:
    """What a site tells of its table.

    Args:
        run: the name of the run, which enters every hash.
        table: of the site.
    """
    about = description(table)
    columns = {
        one[0]: ColumnKind(kind_of(one), _hashes(run, one[0], one[1] or ()))
        for one in about["columns"]
    }
    classes = _hashes(run, _TARGET, about["classes"])
    columns[_TARGET] = ColumnKind("words" if classes else "numbers", classes)
    return ToldColumns(about["task"], columns)


def word_hash(run: str, column: str, word: str) -> str:
    """What stands for a word of a column; other in every run."""
    text = json.dumps([run, column, word])
    return sha256(text.encode()).hexdigest()[:16]


def _hashes(run: str, column: str, words: object) -> frozenset[str]:
    assert isinstance(words, list | tuple)
    return frozenset(word_hash(run, column, word) for word in words)


def told_in(who: str, text: bytes) -> ToldColumns:
    """What another site has told.

    Raises:
        WireError: if it is not of this form.
    """
    try:
        task, rows = json.loads(text)
        columns = {
            str(name): ColumnKind(str(kind), frozenset(map(str, words)))
            for name, kind, words in rows
        }
    except (ValueError, TypeError, RecursionError):
        raise WireError(f"what {who} tells of its columns cannot be read.") from None
    return ToldColumns(str(task), columns)


def differences(
    own: ToldColumns, theirs: ToldColumns, me: str, other: str
) -> Iterator[str]:
    """Why two sites cannot take part in one run, one sentence each."""
    if own.task != theirs.task:
        yield (
            f"the task is {own.task} at {me}, but {theirs.task} at {other}: say "
            "`data.task` in the study"
        )
    for mine, others, here, there in (
        (own.columns, theirs.columns, me, other),
        (theirs.columns, own.columns, other, me),
    ):
        for name in mine:
            if name not in others:
                hint = suggestion(name, filter(None, others))
                yield f"column {name!r} is at {here}, but not at {there}.{hint}"
    for name, column in own.columns.items():
        found = theirs.columns.get(name)
        if found is not None and found.kind != column.kind:
            what = f"column {name!r}" if name else "the target"
            yield (
                f"{what} holds {column.kind} at {me}, but {found.kind} at {other}: "
                "correct it, or list it in `data.categories`"
            )


def lonely_words(
    run: str, table: Table, others: Mapping[str, ToldColumns]
) -> Iterator[str]:
    """Sentences about words that this site has, and no other site that has looked."""
    words = (
        {c.name: c.categories or () for c in table.schema.columns}
        if (table.schema)
        else {}
    )
    for name, mine in {**words, _TARGET: table.classes}.items():
        columns = [one.columns[name] for one in others.values() if name in one.columns]
        known = frozenset[str]().union(*(column.words for column in columns))
        alone = [word for word in mine if word_hash(run, name, word) not in known]
        if known and alone:
            what = f"column {name!r}" if name else "the target"
            shown = ", ".join(map(repr, alone[:_SHOWN]))
            more = f" and {len(alone) - _SHOWN} more" if len(alone) > _SHOWN else ""
            yield f"only this site has {shown}{more} in {what}: is that spelled right?"
