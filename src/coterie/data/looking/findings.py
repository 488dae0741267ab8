"""Findings about a table, and what a study of it should say."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ...checks import brief, several
from ..reading import LARGEST
from .codings import (
    coding_sentence,
    codings_of,
    other_values,
    words_against_numbers,
)
from .columns import HARMFUL, USELESS, Profile, as_names, profile_of
from .dates import days, month_first
from .disguises import FEWEST, disguise_note, gives_away, repeats
from .roles import FEWEST_ROWS, positive_guess, same_groups
from .sources import BY_FILE, TableSource, site_of
from .spellings import few, look_alikes, spelling_note
from .units import other_units, unit_note

IS_TEST = "is_test"

_MOST_CLASSES = 10
"""Whole numbers with more different values are quantities."""

_SURE_OF_QUANTITY = 50

_SAFE = 5
"""With this number of samples of a class, a client also trains on the class."""

_SENTINELS = (-9999, -999, -99, -9, -1, 99, 999, 9999, 99999)
"""Numbers that people write for gaps."""


class ColumnFinding(NamedTuple):
    """What a column holds, and its use."""

    name: str
    kind: str
    use: str


class Findings(NamedTuple):
    """What a study of a table should say, and what its author should know."""

    columns: tuple[ColumnFinding, ...]
    data: dict[str, Any]  # options of [data], without the path
    split: dict[str, Any]  # options of [split]
    notes: tuple[str, ...]  # assumptions
    problems: tuple[str, ...]  # what must be corrected
    sure_of_task: bool = True


class Inspection(NamedTuple):
    """A table with the profiles of its columns."""

    source: TableSource
    frame: pd.DataFrame
    profiles: tuple[Profile, ...]

    def of(self, name: str) -> Profile:
        """The profile of the column of that name."""
        return next(p for p in self.profiles if p.name == name)

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return any(p.name == name for p in self.profiles)


def look_at(source: TableSource) -> Inspection:
    """The table, with the profile of each column."""
    frame = source.join()
    profiles = tuple(profile_of(frame[name], source.label) for name in frame)
    return Inspection(source, frame, profiles)


class _Notebook(NamedTuple):
    """The sentences that are collected."""

    notes: list[str]
    problems: list[str]


def findings_of(look: Inspection, client: str, target: str) -> Findings:
    """The findings about a table, for this client and target."""
    book = _Notebook([], [])
    profiles = (as_names(p) if p.name == client else p for p in look.profiles)
    look = look._replace(profiles=tuple(profiles))
    wanted, task = look.of(target), _task_of(look.of(target), book)
    data: dict[str, Any] = {"client": client, "target": target, "task": task.name}
    differ = target_codings(look, client, target)
    if differ:
        return Findings((), data, {}, (), (differ,))
    rows = wanted.present & look.of(client).present if client else wanted.present
    if not rows.all():
        ends = [name for name in (client, target) if name]
        lack = [repr(name) for name in ends if not look.of(name).present.all()]
        without = f"{several(int((~rows).sum()), 'row')} without {' or '.join(lack)}"
        book.notes.append(f"{without} will be left out")
        data["skip_empty"] = True
    names = _names(look.of(target), rows)
    if len(names) < 2 and not book.problems:
        book.problems.append(
            f"column {target!r} has {several(len(names), 'value')} in rows that name a "
            "client: choose another by --target"
        )
    if book.problems:
        return Findings((), data, {}, tuple(book.notes), tuple(book.problems))
    if task.name == "binary" and not task.plain:
        data["positive"] = positive_guess(names)
    split: dict[str, Any] = {}
    if client:
        data |= _clients(look, client, rows, book)
        split = _split_options(look, data, rows, book)
    leaves = _find_disguises(look, data, rows, book)
    features = _features(look, data, leaves, book)
    if task.named:
        features["categories"] = sorted([*features.get("categories", []), target])
    data |= features
    if look.has(IS_TEST) and not _is_flag(look.of(IS_TEST)):
        book.problems.append(
            f"column {IS_TEST!r} says which rows are for testing and must hold 0 or 1: "
            "correct it, or give it another name"
        )
    _say_codings(look, data, book)
    _say_units(look, data, rows, book)
    _say_sentinels(look, data, book)
    _say_spellings(look, data, book)
    columns = tuple(_finding(p, data, leaves) for p in look.profiles)
    found = (tuple(book.notes), tuple(book.problems))
    return Findings(columns, data, split, *found, task.sure)


def _is_flag(profile: Profile) -> bool:
    """Whether every row holds 0 or 1, or true or false."""
    numbers = profile.cells.numbers
    return numbers is not None and bool(np.isin(numbers, (0, 1)).all())


class TaskGuess(NamedTuple):
    """The task that a target seems to be for."""

    name: str
    sure: bool = True
    plain: bool = False  # targets are 0 and 1
    named: bool = False  # targets are numbers that name classes


def _task_of(wanted: Profile, book: _Notebook) -> TaskGuess:
    """The task that a target seems to be for; notes problems of the target."""
    name, count = wanted.name, len(wanted.counts)
    reasons = {
        "constant": f"is always {brief(next(iter(wanted.counts), ''))}",
        "empty": "is empty",
        "date": "holds dates, which cannot be predicted",
        "identifier": f"names samples: it holds {count:,} different values",
        "text": "holds free text",
        "large": f"holds numbers above {LARGEST:.1g}, which no model can predict",
        "many": f"holds {count:,} different words, too many to be classes",
    }
    if count > _MOST_CLASSES and _has_units(wanted):
        book.problems.append(
            f"column {name!r} seems to hold numbers with a unit, such as "
            f"{brief(next(iter(wanted.counts)))}: write plain numbers to predict it"
        )
    elif wanted.kind in reasons:
        reason = reasons[wanted.kind]
        book.problems.append(f"column {name!r} {reason}: choose another by --target")
    if wanted.kind == "truth":
        return TaskGuess("binary", plain=True)
    if wanted.kind != "number":
        named = wanted.kind == "codes"
        return TaskGuess("binary" if count == 2 else "classification", named=named)
    values = np.unique(wanted.cells.numbers[wanted.present])  # type: ignore[index]
    if np.isin(values, (0, 1)).all():
        return TaskGuess("binary", plain=True)
    if not wanted.whole or len(values) > _MOST_CLASSES:
        sure = not wanted.whole or len(values) > _SURE_OF_QUANTITY
        return TaskGuess("regression", sure)
    in_order = bool((values == np.arange(len(values))).all())
    book.notes.append(
        f"column {name!r} has {len(values)} whole numbers, which are taken for "
        'classes; set task = "regression" if they are quantities'
    )
    two = "binary" if len(values) == 2 else "classification"
    return TaskGuess(two, sure=False, named=not in_order)


def _names(profile: Profile, rows: np.ndarray) -> dict[str, int]:
    """How often each word occurs in these rows; spellings of a word count together."""
    words = pd.Series(profile.cells.text[rows], dtype=object).replace(
        dict(profile.merged)
    )
    return {str(word): int(n) for word, n in words.value_counts().items()}


def _clients(
    look: Inspection, client: str, rows: np.ndarray, book: _Notebook
) -> dict[str, Any]:
    """The option that leaves out clients that are too small."""
    sizes = _names(look.of(client), rows)
    everybody = _names(look.of(client), look.of(client).present)
    gone = sorted(everybody.keys() - sizes.keys())
    if gone:
        each = "have" if gone[1:] else "has"
        book.notes.append(f"{few(gone)} {each} no target and will be left out")
    small = sorted(name for name, size in sizes.items() if size < FEWEST_ROWS)
    large = len(sizes) - len(small)
    if large < 2:
        book.problems.append(
            f"column {client!r} names {several(large, 'client')} with at least "
            f"{FEWEST_ROWS} rows, but a study needs two: choose another by --client"
        )
    if not small or large < 2:
        return {}
    book.notes.append(
        f"{few(small)} will be left out, with fewer than {FEWEST_ROWS} rows"
    )
    return {"skip_clients": small}


def _owners(look: Inspection, data: dict[str, Any], rows: np.ndarray) -> np.ndarray:
    """The client of each of these rows."""
    client = look.of(data["client"])
    words = pd.Series(client.cells.text[rows], dtype=object)
    return words.replace(dict(client.merged)).to_numpy(object)


def _split_options(
    look: Inspection, data: dict[str, Any], rows: np.ndarray, book: _Notebook
) -> dict[str, Any]:
    """Options of the split, if a client may train on one class alone."""
    if data["task"] == "regression" or book.problems:
        return {}
    table = pd.crosstab(
        _owners(look, data, rows), _values(look.of(data["target"]), rows)
    )
    table = table.drop(index=data.get("skip_clients", []), errors="ignore")
    rest = table.sum(axis=1) - table.max(axis=1)
    alone = [str(name) for name in rest.index[rest < _SAFE]]
    if not alone:
        return {}
    book.notes.append(
        f"{few(alone)} {'have' if alone[1:] else 'has'} almost only one class, and may "
        "train on one alone"
    )
    return {"min_classes": 1}


def _find_disguises(
    look: Inspection, data: dict[str, Any], rows: np.ndarray, book: _Notebook
) -> list[str]:
    """Columns that determine the target; notes those that nearly do."""
    if rows.sum() < FEWEST or book.problems:
        return []
    labels = _values(look.of(data["target"]), rows)
    labelled = data["task"] != "regression"
    labels = labels.astype(int) if labelled else labels
    tells = gives_away if labelled else repeats
    found = []
    for profile in look.profiles:
        special = profile.name in (data["client"], data["target"], BY_FILE, IS_TEST)
        if special or profile.kind in USELESS:
            continue
        values = _values(profile, rows)
        if tells(values, labels):
            found.append(profile.name)
            continue
        note = disguise_note(profile.name, values, labels, labelled=labelled)
        if note:
            book.notes.append(
                f"{note}; add it to `drop` if it is known only after the target"
            )
    return found


def _values(profile: Profile, rows: np.ndarray) -> np.ndarray:
    """The values of a column as numbers, NaN for gaps."""
    cells = profile.cells
    if profile.date:
        texts = [
            t if p else "" for t, p in zip(cells.text, profile.present, strict=True)
        ]
        values = days(texts, profile.date)
    elif profile.kind in ("number", "truth") and cells.numbers is not None:
        values = cells.numbers
    else:
        words = pd.Series(cells.text, dtype=object).replace(dict(profile.merged))
        values = pd.factorize(words)[0].astype(float)
    return np.where(profile.present, values, np.nan)[rows]


def _features(
    look: Inspection, data: dict[str, Any], leaves: list[str], book: _Notebook
) -> dict[str, Any]:
    """Options about columns of features."""
    special = {data["client"], data["target"], BY_FILE, IS_TEST}
    mine = [p for p in look.profiles if p.name not in special]
    shared = look.source.shared_columns()
    apart = [name for name in look.source.columns() if name not in shared]
    doubles = _doubles(look, data, mine)
    drop = [p.name for p in mine if p.kind in USELESS] + leaves + apart + doubles
    if doubles:
        book.notes.append(
            f"{few([*map(repr, doubles)])} {'name' if doubles[1:] else 'names'} the "
            "client in another way and will be left out"
        )
    if apart:
        book.notes.append(
            f"{look.source.differences()}, so {'these' if apart[1:] else 'it'} will be "
            "left out"
        )
    if leaves:
        names = few([*map(repr, leaves)])
        each = "determine" if leaves[1:] else "determines"
        book.notes.append(
            f"{names} {each} the target of every row and will be left out; take it out "
            "of `drop` if it is known before the target"
        )
    for profile in mine:
        many = profile.kind == "words" and len(profile.counts) > _MOST_CLASSES
        if (profile.kind in HARMFUL or many) and _has_units(profile):
            book.notes.append(
                f"column {profile.name!r} seems to hold numbers with a unit, such as "
                f"{brief(next(iter(profile.counts)))}; write plain numbers to use it"
            )
    used = [p for p in mine if p.name not in drop]
    if not used:
        lack = f"{look.source.differences()}, so " if apart else ""
        advice = "give columns the same names in all files" if apart else "add some"
        book.problems.append(f"{lack}no column is left to predict from: {advice}")
    found: dict[str, Any] = {}
    dates = {p.name: p.date for p in used if p.kind == "date"}
    for name, form in dates.items():
        if month_first(list(look.of(name).counts), form):
            book.notes.append(
                f"dates of {name!r} are read with the day first; write "
                f"{form.replace('%d/%m', '%m/%d').replace('%d-%m', '%m-%d')} if the "
                "month is"
            )
    odd = sorted({word for p in [*used, look.of(data["target"])] for word in p.odd})
    if odd:
        book.notes.append(f"{few([*map(brief, odd)])} among numbers will count as gaps")
        found["missing"] = odd
    categories = [p.name for p in used if p.kind == "codes"]
    named = {"dates": dates, "categories": categories, "drop": sorted(drop)}
    return found | {key: value for key, value in named.items() if value}


_WITH_UNIT = re.compile(r"[<>~]?\s*[+-]?\d+([.,]\d+)?\s*[^\d\s.,/:-]\D{0,7}")


def _has_units(profile: Profile) -> bool:
    """Whether the words of a column look like 45 % or 12kg."""
    like = sum(bool(_WITH_UNIT.fullmatch(word)) for word in profile.counts)
    return 5 * like >= 4 * len(profile.counts) > 0


def _doubles(
    look: Inspection, data: dict[str, Any], profiles: Sequence[Profile]
) -> list[str]:
    """Other columns that name the clients, in addition to the client column."""
    if not data["client"]:
        return []
    client = look.of(data["client"])
    kinds = ("words", "codes", "number")
    return [p.name for p in profiles if p.kind in kinds and same_groups(p, client)]


def _say_sentinels(look: Inspection, data: dict[str, Any], book: _Notebook) -> None:
    """Notes numbers that may stand for a gap, because they are far from all others."""
    for profile in look.profiles:
        if profile.kind != "number" or profile.name in data.get("drop", []):
            continue
        values = profile.cells.numbers[profile.present]  # type: ignore[index]
        for value in np.intersect1d(_SENTINELS, [values.min(), values.max()]):
            rest = values[values != value]
            far = len(rest) and abs(value) > 5 * np.abs(rest).max()
            count = int((values == value).sum())
            if far and count > 1:
                book.notes.append(
                    f"column {profile.name!r} holds {value:g} in {count:,} rows; add "
                    "it to `missing`, as text, if it stands for a gap"
                )


def target_codings(look: Inspection, client: str, target: str) -> str:
    """A sentence about a target that files or clients code in different ways.

    It is empty for quantities, because clients need not have the same quantities.
    """
    profile = look.of(target)
    for owner, by_file in _owners_of_all(look, client):
        codings = codings_of(profile, owner)
        values = {value for coding in codings for value in coding.values}
        whole = profile.whole and len(values) <= _MOST_CLASSES
        named = profile.kind not in ("number", "date") or whole
        pair = words_against_numbers(codings) or (
            other_values(codings) if named else None
        )
        if pair is not None:
            return coding_sentence(f"the target {target!r}", pair, by_file=by_file)
    return ""


def _owners_of_all(look: Inspection, client: str) -> list[tuple[np.ndarray, bool]]:
    """The file of every row, if there are several, and the client of every row."""
    found = []
    if look.has(BY_FILE) and len(look.source.files) > 1:
        full = {site_of(path): path.name for path in look.source.files}
        words = look.of(BY_FILE).cells.text
        found.append((np.array([full.get(w, w) for w in words], object), True))
    if client not in ("", BY_FILE):
        profile = as_names(look.of(client))
        names = pd.Series(profile.cells.text, dtype=object)
        names = names.replace(dict(profile.merged)).where(profile.present, "")
        found.append((names.to_numpy(object), False))
    return found


def _say_codings(look: Inspection, data: dict[str, Any], book: _Notebook) -> None:
    """Notes features that files or clients code in different ways.

    A difference in values only counts if every client has exactly two values. With
    other columns, such as places, clients may well have different values.
    """
    ends = (data["client"], data["target"], BY_FILE, IS_TEST)
    for profile in look.profiles:
        mixed = bool(profile.odd) or profile.kind == "codes"
        plain = not mixed and len(profile.counts) > 4  # more than two pairs
        if plain or profile.name in (*ends, *data.get("drop", [])):
            continue
        for owner, by_file in _owners_of_all(look, data["client"]):
            codings = codings_of(profile, owner)
            of_two = all(len(coding.values) == 2 for coding in codings)
            pair = words_against_numbers(codings) or (
                other_values(codings) if of_two else None
            )
            if pair is not None:
                what = f"column {profile.name!r}"
                book.notes.append(coding_sentence(what, pair, by_file=by_file))
                break


def _say_units(
    look: Inspection, data: dict[str, Any], rows: np.ndarray, book: _Notebook
) -> None:
    """Notes clients that seem to use another unit."""
    if not data["client"]:
        return
    owner, names = pd.factorize(_owners(look, data, rows))
    wanted = [data["target"]] if data["task"] == "regression" else []
    for profile in look.profiles:
        is_feature = profile.name not in (*data.get("drop", []), data["target"])
        if profile.kind == "number" and (is_feature or profile.name in wanted):
            odd = other_units(_values(profile, rows), owner)
            for k, times in odd.items():
                book.notes.append(unit_note(profile.name, times, str(names[k])))


def _say_spellings(look: Inspection, data: dict[str, Any], book: _Notebook) -> None:
    """Notes words that are read as another word, and words that look alike."""
    for profile in look.profiles:
        if profile.name in data.get("drop", []) or profile.kind != "words":
            continue
        alike = look_alikes(profile.counts)
        if alike:
            book.notes.append(
                f"column {profile.name!r}: {few([*map(repr, alike)])} look alike; "
                "correct the file if they are one"
            )
        if profile.merged:
            book.notes.append(
                f"{spelling_note(profile.name, profile.merged)}; set merge_case = "
                "false if they differ"
            )


def _finding(
    profile: Profile, data: dict[str, Any], leaves: list[str]
) -> ColumnFinding:
    """What a column holds and its use, in words."""
    name, kind = profile.name, _kind(profile)
    if name == data["client"]:
        return ColumnFinding(name, kind, "names the client")
    if name == data["target"]:
        about = f"; {data['positive']} is positive" if "positive" in data else ""
        return ColumnFinding(name, kind, f"to predict ({data['task']}{about})")
    if name == IS_TEST:
        return ColumnFinding(name, kind, "says which rows are for testing")
    if name in leaves:
        return ColumnFinding(name, kind, "left out: reveals the target")
    if profile.kind in USELESS or name == BY_FILE or name in data.get("drop", []):
        return ColumnFinding(name, kind, "left out")
    uses = {
        "date": "used, as a number of days",
        "words": "used, a feature for each word",
    }
    uses |= {"codes": "used, a feature for each code", "truth": "used, as 1 and 0"}
    return ColumnFinding(name, kind, uses.get(profile.kind, "used"))


def _kind(profile: Profile) -> str:
    """What a column holds, in a few words."""
    gaps = int((~profile.present).sum())
    share = 100 * gaps / len(profile.present)
    empty = f", {max(share, 1):.0f} % empty" if gaps and profile.kind != "empty" else ""
    count = len(profile.counts)
    if profile.kind in USELESS:
        return USELESS[profile.kind] + empty
    if profile.kind == "date":
        example = profile.cells.text[profile.present][0]
        return f"dates, such as {example}{empty}"
    if profile.kind == "truth":
        return f"true or false{empty}"
    if profile.kind == "number":
        values = profile.cells.numbers[profile.present]  # type: ignore[index]
        return f"numbers, {values.min():g} to {values.max():g}{empty}"
    words = sorted(profile.counts, key=lambda word: -profile.counts[word])
    shown = ", ".join(word[:20] for word in words[:3])
    what = "codes" if profile.kind == "codes" else "words"
    more = f"{count} {what}: {shown}, ..." if count > 3 else f"{count} {what}: {shown}"
    return more + empty


def harmful_columns(look: Inspection, names: Sequence[str]) -> list[str]:
    """The columns of the kinds in `HARMFUL`, except those with these names."""
    return sorted(
        p.name for p in look.profiles if p.kind in HARMFUL and p.name not in names
    )
