"""Roles of columns: which one seems to name the client, and which is the target."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from ...checks import brief
from .columns import Profile, tokens_of
from .sources import BY_FILE
from .spellings import few

_CLIENTS = (
    "client clients",
    "hospital hospitals clinic klinik clinique hopital spital krankenhaus ospedale "
    "site sites standort centre center zentrum institution institut plant plants "
    "factory werk usine bank branch filiale store shop market school schule partner "
    "member organisation organization company firma owner silo node",
    "location place city ort stadt ville region canton kanton district country land "
    "county state department abteilung ward station facility provider unit team device "
    "machine sensor writer user customer group",
)
_TARGETS = (
    "target targets label labels y ziel zielgroesse cible outcome outcomes class "
    "response",
    "diagnosis diagnose diagnostic result ergebnis resultat endpoint died death dead "
    "mortality survived survival alive readmitted readmission relapse recurrence "
    "malignant disease sick ill event churn churned default defaulted fraud failure "
    "failed fault defect yield output production consumption price cost costs charges "
    "revenue sales demand load score grade rating quality severity stage risk los "
    "approved status",
)
"""Words in names of columns, in tiers; the surest tier comes first."""

_POSITIVE = frozenset(
    "ill sick yes y true 1 positive pos malignant died dead death case event failure "
    "failed fail defect defective faulty disease diseased abnormal present krank ja "
    "oui si malade mort tot decede verstorben malin boesartig fraud churn churned "
    "default relapse readmitted bad high severe".split()
)

_NOT = frozenset("no not non none without kein keine nicht pas sans healthy".split())

FEWEST_ROWS = 4
"""The fewest rows of a client; see `splits.natural`."""


class Guess(NamedTuple):
    """The column that seems to have a role."""

    name: str  # empty if none is plausible
    sure: bool
    others: tuple[str, ...] = ()  # all plausible columns, the best first


def client_guess(profiles: Sequence[Profile], target: str = "") -> Guess:
    """The column that seems to name the clients.

    With several files, each file is a client if no column is called like a client.
    """
    profiles = [p for p in profiles if p.name not in (target, "is_test")]
    plausible = [p for p in profiles if _may_name_clients(p)]
    guess = _by_name(plausible, _CLIENTS)
    if any(p.name == BY_FILE for p in profiles) and not guess.sure:
        return Guess(BY_FILE, True, (BY_FILE, *guess.others))
    return guess


def unfit_client(profiles: Sequence[Profile]) -> str:
    """Why a column called like a client cannot be the client; empty if it can."""
    named = _by_name(profiles, _CLIENTS[:2]).name
    profile = next((p for p in profiles if p.name == named), None)
    if profile is None or not profile.counts:
        return ""
    count, rows = len(profile.counts), sum(profile.counts.values())
    start = f"column {named!r} names"
    if count > 1:
        few_each = f"{start} {count:,} clients in {rows:,} rows, too few for each"
        return few_each if 5 * count > rows else ""
    one, merged = next(iter(profile.counts)), [brief(word) for word in profile.merged]
    each = "are" if merged[1:] else "is"
    alike = f" ({few(merged)} {each} read as it)" if merged else ""
    return f"{start} one client, {brief(one)}{alike}, but a study needs two"


def target_guess(profiles: Sequence[Profile], client: str = "") -> Guess:
    """The column that seems to be the target.

    If one column has a name such as outcome, it is the target. If several columns have
    such names, the target is the last plausible column, if it is one of them. If no
    column has such a name, the target is the last column if it has two classes, or the
    only plausible column.
    """
    profiles = [p for p in profiles if p.name not in (client, BY_FILE, "is_test")]
    plausible = [p for p in profiles if may_be_target(p)]
    guess = _by_name(plausible, _TARGETS)
    if guess.sure:
        return guess
    named = _by_name(profiles, _TARGETS[:1])
    if not guess.name and named.sure:  # a later check says what is wrong with it
        return named
    if not plausible:
        return guess
    last = plausible[-1]
    if len(plausible) == 1:
        return Guess(last.name, True, guess.others)
    if last.name in guess.others and guess.name:  # several are called like a target
        return Guess(last.name, True, guess.others)
    if not guess.name and last is profiles[-1] and len(last.counts) == 2:
        return Guess(last.name, True, guess.others)
    backwards = [p.name for p in reversed(plausible)]
    first = guess.others if guess.name else ()
    return Guess("", False, tuple(dict.fromkeys([*first, *backwards])))


def _by_name(plausible: Sequence[Profile], tiers: Sequence[str]) -> Guess:
    """The column with one of these words in its name; earlier tiers count first."""
    for words in tiers:
        known = set(words.split())
        found = [p.name for p in plausible if tokens_of(p.name) & known]
        exact = [name for name in found if tokens_of(name) <= known]
        found = _once(found, plausible)
        if found:
            best = exact if len(exact) == 1 and exact[0] in found else found
            return Guess(best[0], len(best) == 1, tuple(found))
    return Guess("", False, tuple(p.name for p in plausible))


def _once(names: list[str], profiles: Sequence[Profile]) -> list[str]:
    """The names, without columns that repeat another, such as ids of its words."""
    mine = [p for name in names for p in profiles if p.name == name]
    kept: list[Profile] = []
    for profile in sorted(mine, key=lambda p: p.kind != "words"):
        if not any(same_groups(profile, other) for other in kept):
            kept.append(profile)
    return [name for name in names if any(p.name == name for p in kept)]


def same_groups(one: Profile, two: Profile) -> bool:
    """Whether two columns divide the rows into the same groups."""
    if len(one.counts) != len(two.counts):
        return False
    first, second = (
        pd.factorize(
            pd.Series(p.cells.text, dtype=object)
            .replace(dict(p.merged))
            .where(p.present)
        )[0]
        for p in (one, two)
    )
    pairs = first.astype(np.int64) * (second.max() + 2) + second
    return len(np.unique(pairs)) == len(np.unique(first)) == len(np.unique(second))


def _may_name_clients(profile: Profile) -> bool:
    """Whether the column has a few names, most of them in several rows."""
    if profile.kind not in ("words", "number", "codes", "many"):
        return False
    if profile.kind == "number" and not profile.whole:
        return False
    counts = np.array(list(profile.counts.values()))
    sound = counts >= FEWEST_ROWS
    some = 2 <= len(counts) <= 1000 and counts.sum() >= 5 * len(counts)
    return bool(some and sound.sum() >= 2 and 2 * sound.sum() >= len(counts))


def may_be_target(profile: Profile) -> bool:
    """Whether the column has classes or quantities."""
    return profile.kind in ("words", "truth", "number", "codes")


def positive_guess(counts: dict[str, int]) -> str:
    """The positive class of two: the one with a positive name, otherwise the rarer."""
    tokens = {word: tokens_of(word) for word in counts}
    named = [w for w, some in tokens.items() if some & _POSITIVE and not some & _NOT]
    if len(named) == 1:
        return named[0]
    return min(sorted(counts), key=lambda word: counts[word])
