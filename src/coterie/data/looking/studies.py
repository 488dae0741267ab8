"""Studies of tables: finds what a study does not say, and writes a whole study."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w

from ...checks import InputError, several, suggestion
from .findings import (
    Findings,
    Inspection,
    findings_of,
    harmful_columns,
    look_at,
    target_codings,
)
from .formats import TextFormat, refuse_format
from .roles import Guess, client_guess, target_guess, unfit_client
from .sources import BY_FILE, TableSource, files_of, holds_arrays, read_source

_OPTIONS = {
    "client": "the column that names the client",
    "target": "the column to predict",
    "task": "binary, classification (classes) or regression (quantities)",
    "unit": "of what is predicted, for plots and tables",
    "positive": "sensitivity, F1 and AUC are about this class",
    "separator": "between cells",
    "decimal": "between a number and its fraction",
    "encoding": "of the text",
    "skip_empty": "rows without a client or a target are left out",
    "skip_clients": "too few rows to train and test on",
    "missing": "words among numbers that count as gaps",
    "categories": "numbers that are names",
    "drop": "columns that are not used",
    "dates": "dates become days; how they are written",
}
"""The options of [data] in the order in which they are written, and what they mean."""


def complete_study(
    data: Mapping[str, Any],
    split: Mapping[str, Any],
    source: TableSource | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """[data] and [split] of a study, with missing options filled in.

    The table comes from `source`, or from the files that [data] names. If [data] names
    the target, we only add options for columns that cannot be features as they are,
    such as dates, identifiers and free text. Otherwise we set all options as `coterie
    init` does.
    """
    given, parts = dict(data), dict(split)
    asked = TextFormat(*(given.get(name, "") for name in TextFormat._fields))
    if {"client", "target", "drop", "dates"} <= given.keys():
        return given, parts
    if source is None and not _readable(given):
        return given, parts
    look = look_at(source or read_source(given["path"], asked))
    guessed = "target" not in given and not look.has("target")
    pooled = parts.get("name", "natural") != "natural"
    client = _client_of(given, look, pooled=pooled)
    target = _target_of(given, look, client)
    if not look.has(target) or (client and not look.has(client)):
        return given, parts
    differ = target_codings(look, client, target)
    if differ and "task" not in given:
        raise InputError(f"{differ}.")
    found = findings_of(look, client, target)
    if guessed:
        if found.problems:
            raise InputError(f"{'; '.join(found.problems)}.".replace("--", "data."))
        more, parts = found.data, {**found.split, **parts}
    else:
        more = _required_options(given, look, found)
    for option in ("dates", "categories"):  # only columns that are used
        if option in more:
            more = {**more, option: _leave_out(more[option], given.get("drop", []))}
    if "client" not in given and client != "client":
        given["client"] = client
    return {**{key: value for key, value in more.items() if value}, **given}, parts


def _readable(given: Mapping[str, Any]) -> bool:
    """Whether the files are tables, and options have the right types."""
    lists = [given.get(name, []) for name in ("drop", "categories")]
    sound = all(isinstance(some, list | tuple) for some in lists)
    if not sound or not isinstance(given.get("dates", {}), Mapping):
        return False
    asked = TextFormat(*(given.get(name, "") for name in TextFormat._fields))
    if holds_arrays(given.get("path")) or not all(isinstance(v, str) for v in asked):
        return False
    try:
        files_of(given["path"])
        refuse_format(asked)
    except InputError:  # reading it raises the same error
        return False
    return True


def _required_options(
    given: Mapping[str, Any], look: Inspection, found: Findings
) -> dict[str, Any]:
    """The options that a study needs if it names its target."""
    target = found.data["target"]
    more: dict[str, Any] = {}
    if found.data["task"] == "regression" and found.sure_of_task:
        more |= {"task": "regression"} if look.of(target).whole else {}
    named = [found.data["client"], target, *given.get("categories", [])]
    more["drop"] = harmful_columns(look, [*named, *given.get("dates", {})])
    more |= _of_mixtures(look, [*named, *more["drop"], *given.get("drop", [])])
    more["dates"] = _leave_out(found.data.get("dates", {}), named)
    return more


def _of_mixtures(look: Inspection, names: Sequence[str]) -> dict[str, Any]:
    """Options for columns of numbers with some words, and of codes with some numbers.

    Infinite and too large numbers do not count as words. They may come from a mistake,
    such as a division by zero, and are refused when the column is read.
    """
    some = [p for p in look.profiles if p.name not in names]
    mixed = [p for p in some if p.kind == "codes" and not p.numeric]
    odd = {word for profile in some for word in profile.odd_words}
    return {"missing": sorted(odd), "categories": [p.name for p in mixed]}


def _leave_out(some: Any, names: Sequence[str]) -> Any:
    """The list or dictionary of columns without the columns of these names."""
    if isinstance(some, Mapping):
        return {name: value for name, value in some.items() if name not in names}
    return [name for name in some if name not in names]


def _client_of(given: Mapping[str, Any], look: Inspection, *, pooled: bool) -> str:
    """The column of the client: the given one, or the only plausible one."""
    if "client" in given or look.has("client"):
        return str(given.get("client", "client"))
    target = given.get("target") or target_guess(look.profiles).name
    guess = client_guess(look.profiles, str(target))
    if not guess.sure and not pooled:
        raise InputError(f"{doubt(look, guess, 'client', '`client` in [data]')}.")
    return guess.name if guess.sure else ""


def _target_of(given: Mapping[str, Any], look: Inspection, client: str) -> str:
    """The column of the target: the given one, or the only plausible one."""
    if "target" in given or look.has("target"):
        return str(given.get("target", "target"))
    guess = target_guess(look.profiles, client)
    if not guess.sure:
        raise InputError(f"{doubt(look, guess, 'target', '`target` in [data]')}.")
    return guess.name


def doubt(look: Inspection, guess: Guess, role: str, by: str) -> str:
    """A sentence about a column that cannot be found, with plausible columns.

    Args:
        look: the table.
        guess: the plausible columns.
        role: client or target.
        by: the option that names the column.
    """
    what = {"client": "names the clients", "target": "is to be predicted"}[role]
    label = look.source.label.name
    some = [repr(name) for name in guess.others[:6]]
    more = len(guess.others) - len(some)
    listed = ", ".join(some) + (f" and {more} more" if more else "")
    start = f"{label} does not say which column {what}"
    different = look.source.differences()
    if different:
        start = f"{start} (only columns that are in all files count, but {different})"
    if some:
        return f"{start}; it may be {listed}: name it by {by}"
    if role == "client":
        unfit = unfit_client(look.profiles)
        if unfit:
            return f"{unfit}: name another column by {by}, or correct it"
        return (
            f"{start}, and no column repeats a few names: name one by {by}, or give a "
            "file for each client"
        )
    return f"{start}, and no column has classes or quantities: add one"


def named_column(look: Inspection, role: str, name: str) -> str:
    """The name, if the table has such a column."""
    columns = [profile.name for profile in look.profiles]
    if name not in columns and name in look.source.columns():
        rest = [other for other in look.source.columns() if other != name]
        raise InputError(
            f"--{role} must name a column of all files, but "
            f"{look.source.differences(rest)}: give it the same name in all files."
        )
    if name not in columns:
        raise InputError(
            f"--{role} must name a column, but {look.source.label.name} has none "
            f"called {name!r}.{suggestion(name, columns)}"
        )
    return name


def study_text(found: Findings, look: Inspection, paths: list[str], name: str) -> str:
    """The text of a study of a table, with comments.

    Args:
        found: what the study says.
        look: the table.
        paths: the paths of its files, from the folder of the study.
        name: the name of the file of the study.
    """
    count = sum(len(frame) for frame in look.source.frames)
    usual = TextFormat(",", ".", "utf-8")
    if all(".tsv" in path.suffixes for path in look.source.files):
        usual = usual._replace(separator="\t")
    pairs = zip(TextFormat._fields, look.source.writing, usual, strict=True)
    writing = {k: v for k, v, u in pairs if v not in ("", u, "utf-8-sig")}
    data = writing | found.data
    lines = [
        f"# A study of {look.source.label.name}: {several(count, 'row')}, "
        f"{several(len(look.source.shared_columns()), 'column')}.",
        "# `coterie init` looked at it and wrote this. Change what is wrong, then:",
        "#",
        f"#     coterie run {name}",
        "",
        *(_comment(note) for note in found.notes),
        *([""] if found.notes else []),
        "[data]",
        _entry("path", paths[0] if len(paths) == 1 else paths, "relative to this file"),
    ]
    meanings = dict(_OPTIONS)
    if data["client"] == BY_FILE:
        meanings["client"] = "each file is a client"
    for option, meaning in meanings.items():
        if option in data and option != "dates":
            lines.append(_entry(option, data[option], meaning))
    if "dates" in data:
        lines += ["", f"[data.dates]  # {_OPTIONS['dates']}"]
        lines += [_entry(column, form) for column, form in data["dates"].items()]
    if found.split:
        lines += ["", "[split]"]
        lines.append(
            _entry("min_classes", 1, "some clients may train on one class alone")
        )
    lines += [
        "",
        "[run]",
        _entry("seeds", [0, 1, 2], "three random divisions into parts"),
    ]
    return "\n".join([*lines, "", *_MORE]) + "\n"


_MORE = (
    "# The model is linear (of classes: logistic regression). For a small network:",
    "#",
    "# [model]",
    '# name = "mlp"',
    "",
    "# Three methods are compared: every client alone, one model for all, and groups",
    "# that are found. To choose others, which `coterie list algorithms` shows:",
    "#",
    "# [[algorithm]]",
    '# name = "local"',
    "#",
    "# [[algorithm]]",
    '# name = "fedavg"',
    "#",
    "# [[algorithm]]",
    '# name = "coteries"',
)


def _comment(note: str) -> str:
    """The lines of a comment with this note."""
    plain = " ".join(note.split())
    return textwrap.fill(
        f"{plain}.",
        88,
        initial_indent="# - ",
        subsequent_indent="#   ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def _entry(name: str, value: Any, meaning: str = "") -> str:
    """A line of TOML; a long list has a line for each value."""
    text = tomli_w.dumps({name: value}).rstrip("\n").replace("\t", "\\t")
    if not meaning:
        return text
    if isinstance(value, list):
        key = tomli_w.dumps({name: 0}).partition(" = ")[0]
        items = [tomli_w.dumps({"a": item})[4:].rstrip("\n") for item in value]
        flat = f"{key} = [{', '.join(items)}]"
        text = flat if len(flat) <= 60 else text
    if "\n" in text:
        return f"# {meaning}\n{text}"
    return f"{text}  # {meaning}" if len(text) + len(meaning) < 96 else text


def relative(files: list[Path], folder: Path) -> list[str]:
    """The paths, relative to the folder of a study."""
    found = []
    for path in files:
        try:
            found.append(Path(os.path.relpath(path, folder)).as_posix())
        except ValueError:  # on another drive
            found.append(str(path.resolve()))
    return found
