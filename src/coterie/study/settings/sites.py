"""The table [sites]: what a study fixes when its clients are sites of their own.

In a simulation, the table changes nothing. The hash of a study is that of its tables,
without what may differ between sites: paths and formats of files, and the device. This
module needs no torch, because a hub reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import sha256
from typing import Any

from ...checks import (
    InputError,
    brief,
    integer,
    number,
    option_hint,
    options,
    parameters_of,
)

_BITS = 62
"""Sums of all members stay below 2^62, so that they fit into 64 bits with a sign."""

LOCAL = {
    "data": ("path", "separator", "decimal", "encoding"),
    "run": ("device", "compile", "log", "checkpoint_seconds"),
}
"""Options of a study that may differ between sites, by table."""

_MODULE = re.compile(r"\w+(\.\w+)*")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Sites:
    """The table [sites]."""

    least_members: int = 3  # present members in a sum, also within a group
    trust_coordinator: bool = False  # whether the hub may see rows, for `central`
    masks: bool = True  # whether the hub sees only sums of averaged rows
    bits: int = 32  # of a masked number in single precision; or 64
    scale: int = 2**28  # steps between 0 and 1 of masked numbers with 64 bits
    largest: float = 0.0  # of these numbers; 0: what fits
    patience: float = 120.0  # seconds after which a silent member is lost
    largest_message: float = 64.0  # MB
    modules: Mapping[str, str] = field(default_factory=dict)  # name to SHA-256
    # What sites need not tell, because the study says it. With [privacy], all of it.
    classes: Sequence[str] = ()  # of the target
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by column
    ranges: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by column

    def __post_init__(self) -> None:
        """Refuses what cannot be used."""
        integer("sites.least_members", self.least_members, at_least=1, at_most=1000)
        if self.bits not in (32, 64):
            raise InputError(f"`sites.bits` must be 32 or 64, got {brief(self.bits)}.")
        integer("sites.scale", self.scale, at_least=1, at_most=2**52)
        number("sites.largest", self.largest, at_least=0)
        number("sites.patience", self.patience, at_least=1, at_most=86400)
        number("sites.largest_message", self.largest_message, above=0, at_most=2000)
        _refuse_words("sites.classes", self.classes)
        for name, words in self.categories.items():
            _refuse_words(f"sites.categories.{name}", words)
        for name, ends in self.ranges.items():
            _refuse_range(f"sites.ranges.{name}", ends)

    @property
    def message_bytes(self) -> int:
        """The largest number of bytes of a message."""
        return int(self.largest_message * 1_000_000)

    def largest_for(self, members: int) -> float:
        """The largest number that a member may mask, so that no sum can overflow.

        Raises:
            InputError: if `largest` and `scale` do not fit with this number of members.
        """
        most = 2.0**_BITS / (self.scale * members)
        if self.largest > most:
            raise InputError(
                f"`sites.largest` must be at most {most:g} with {members} members and "
                f"a `sites.scale` of {self.scale}, got {self.largest:g}: sums must "
                "stay below 2^62."
            )
        return self.largest or most

    def refuse_few(self, members: int, participation: float = 1.0) -> None:
        """Refuses a run whose rounds have fewer members than a sum needs."""
        if members < self.least_members:
            raise InputError(
                "the roster must have at least `sites.least_members` members, "
                f"{self.least_members}, got {members}."
            )
        drawn = max(1, round(participation * members))
        if drawn < self.least_members:
            raise InputError(
                f"`run.participation` of {members} members must draw at least "
                f"`sites.least_members`, {self.least_members}, got "
                f"{participation:g}, which draws {drawn}."
            )

    def table(self) -> dict[str, Any]:
        """The options that differ from their defaults."""
        usual = Sites()
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("modules", "categories", "ranges"):
            found[name] = dict(found[name])
        found["classes"] = tuple(self.classes)
        return {k: v for k, v in found.items() if v != getattr(usual, k)}


def _refuse_words(key: str, words: object) -> None:
    """Refuses anything but a list of different words."""
    listed = list(words) if isinstance(words, list | tuple) else [None]
    if not all(isinstance(w, str) for w in listed) or len({*listed}) < len(listed):
        raise InputError(
            f"`{key}` must be a list of different words, got {brief(words)}."
        )


def _refuse_range(key: str, ends: object) -> None:
    """Refuses anything but a smallest and a largest value."""
    if not isinstance(ends, list | tuple) or len(ends) != 2:
        raise InputError(
            f"`{key}` must be the smallest and the largest value, got {brief(ends)}."
        )
    low, high = ends
    number(key, low)
    number(key, high, above=low)


def digests_of(key: str, table: object) -> dict[str, str]:
    """The table from modules to their SHA-256 at this key, checked."""
    if not isinstance(table, Mapping):
        raise InputError(
            f"`{key}` must be a table from modules to their SHA-256, got "
            f"{brief(table)}."
        )
    for name, digest in table.items():
        if not _MODULE.fullmatch(name):
            raise InputError(
                f"`{key}` must name modules such as mymodels, got {brief(name)}."
            )
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise InputError(
                f"`{key}.{name}` must be a SHA-256 of 64 hexadecimal digits, got "
                f"{brief(digest)}."
            )
    return dict(table)


def sites_of(table: Mapping[str, Any]) -> Sites:
    """The table [sites], checked."""
    known, modules = [f.name for f in fields(Sites)], table.get("modules", {})
    for key in table:
        if key not in known:
            hint = option_hint("sites", key, known)
            raise InputError(f"[sites] has no option {key!r}.{hint}")
    options("sites", "sites", parameters_of(Sites, ingredients=0), table)
    return Sites(**{**table, "modules": digests_of("sites.modules", modules)})


def study_hash(tables: Mapping[str, Any]) -> str:
    """The SHA-256 of a study as its author wrote it, in 64 hexadecimal digits.

    Comments, the order of keys and the options in `LOCAL` do not count. Everything else
    counts, also an option that is written with its default value.

    >>> one, two = {"run": {"rounds": 3}}, {"run": {"rounds": 3, "device": "cuda"}}
    >>> study_hash(one) == study_hash(two)
    True
    """
    shared = {
        name: {k: v for k, v in table.items() if k not in LOCAL.get(name, ())}
        if isinstance(table, Mapping)
        else table
        for name, table in tables.items()
    }
    for name in LOCAL:  # an empty table says nothing
        if not shared.get(name, True):
            del shared[name]
    text = json.dumps(shared, sort_keys=True, separators=(",", ":"), default=str)
    return sha256(b"coterie study\n" + text.encode()).hexdigest()
