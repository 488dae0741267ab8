"""Tests of everything that a site needs, before a run begins: `coterie join --check`.

The hub hears that the site looks, and which version of torch it has. Without [privacy],
it also hears names of columns and hashes of words, so that sites can be compared before
a run begins; see `columns`.
"""

from __future__ import annotations

import datetime
import os
import shutil
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...checks import DisconnectedError, InputError, Problems, brief, several
from ...data.doubts import doubts
from ...data.federation import Table
from ...models import OBJECTIVES, ravel
from ...study import Study
from ...study.setup import module_of
from .channel import HubChannel
from .columns import differences, lonely_words, told_columns, told_in
from .declared import refuse_undeclared, target_name
from .joining import Joining, study_at
from .keys import days_left, expires_soon
from .rosters import PROTOCOL
from .rules import Site
from .site_data import own_federation
from .wire import Parcel

OK, WARNING, FAILED = "ok", "warning", "failed"

_CLOCKS = (5.0, 120.0)  # seconds: what is worth a warning, and what fails
_DISK = (100 * 2**20, 2**30)  # bytes free: what a run needs at least, and usually
_PROXIES = ("https_proxy", "http_proxy", "grpc_proxy")
_WORDS = 5  # that are shown of a column


class Checkup(NamedTuple):
    """What one test has found."""

    what: str
    outcome: str
    text: str


def look(joining: Joining) -> Iterator[Checkup]:
    """The results of all tests, one by one.

    Args:
        joining: the files of a site, which agree with each other.
    """
    yield Checkup(
        "files",
        OK,
        f"{joining.site.name} is member {joining.rank + 1} of "
        f"{len(joining.roster.members)} in the roster {joining.roster.hash}",
    )
    yield from _certificates(joining)
    hub = list(_hub(joining))
    yield from hub
    yield _disk(joining.site.folder)
    yield _hours(joining.site)
    try:
        study, table = study_at(joining)
    except Problems as found:
        yield from (Checkup("study", FAILED, text) for text in found.sentences)
        return
    except InputError as error:
        yield Checkup("data", FAILED, str(error))
        return
    yield from _data(table)
    yield from _study_words(study, table)
    if study.privacy is None and not any(one.outcome == FAILED for one in hub):
        yield from _others(joining, table)
    yield from _model(joining, study, table)


def _certificates(joining: Joining) -> Iterator[Checkup]:
    """How long certificates are valid. Wrong ones were refused before."""
    roster = joining.roster
    for seat in (roster.members[joining.rank], roster.hub):
        left = several(days_left(seat.certificate), "day")
        soon = expires_soon(seat.certificate)
        text = f"the certificate of {seat.name} is valid for {left}"
        yield Checkup("certificates", WARNING if soon else OK, text)


def _hub(joining: Joining) -> Iterator[Checkup]:
    """Whether the hub can be reached and fits: its key, version, run and clock."""
    address = joining.site.hub
    for name in _PROXIES:
        if value := os.environ.get(name):
            yield Checkup("proxy", OK, f"{name} is {brief(value)}")
    try:
        before = time.time()
        found = _ask(joining).header
        took = time.time() - before
    except (DisconnectedError, InputError) as error:
        yield Checkup("hub", FAILED, f"{address}: {_reason(str(error))}")
        return
    yield Checkup(
        "hub",
        OK,
        f"{address} answered in {1000 * took:.0f} ms, and has the "
        "key that the roster names",
    )
    yield from _answer(joining, found, before + took / 2)


def _ask(joining: Joining, told: bytes = b"") -> Parcel:
    """The answer of the hub to a site that looks, and may tell its columns."""
    channel = HubChannel(
        joining.site.hub, joining.credentials(), joining.roster.hub.name, give_up=0.0
    )
    header = {"kind": "check", "torch": str(torch.__version__)}
    try:
        asked = Parcel(header | {"run": joining.run_name}, told)
        return channel.ask(asked, patiently=False)
    finally:
        channel.close()


def _reason(text: str) -> str:
    """The sentence about a failed connection, without the addresses of gRPC."""
    for words, plain in (
        ("CERTIFICATE_VERIFY_FAILED", "its certificate is not that of the roster"),
        ("SSL_ERROR", "the secure connection failed"),
        ("Handshake", "the secure connection failed"),
        ("Connection refused", "nobody listens there"),
        ("Deadline", "it did not answer in time"),
    ):
        if words.lower() in text.lower():
            return f"{plain}."
    return text


def _answer(joining: Joining, found: dict[str, Any], now: float) -> Iterator[Checkup]:
    """Whether what a hub says of itself fits."""
    protocol = found.get("protocol")
    same = protocol == PROTOCOL
    yield Checkup(
        "version",
        OK if same else FAILED,
        f"the protocol of the hub is {protocol}, and that of this site {PROTOCOL}",
    )
    if found.get("run") != joining.run_name:
        yield Checkup("run", FAILED, "the hub has another study or another roster")
    elif found.get("ended"):
        yield Checkup("run", WARNING, f"the run has ended: {found['ended']}")
    else:
        yield Checkup("run", OK, f"the hub is at step {found.get('step')} of the run")
    apart = abs(float(found.get("clock", 0.0)) - now)
    outcome = OK if apart < _CLOCKS[0] else WARNING if apart < _CLOCKS[1] else FAILED
    yield Checkup(
        "clock",
        outcome,
        f"the clocks of the hub and of this site are {apart:.1f} seconds apart",
    )
    others = found.get("torch", {})
    for name, text in others.items() if isinstance(others, dict) else ():
        if text != str(torch.__version__):
            yield Checkup(
                "version",
                WARNING,
                f"{name} has torch {text}, and this site "
                f"{torch.__version__}: results may differ in the last digits",
            )
    yield Checkup("version", OK, f"coterie {_version()}, torch {torch.__version__}")


def _version() -> str:
    try:
        return version("coterie")
    except PackageNotFoundError:  # run from the source, not installed
        return "from its source"


def _disk(folder: Path) -> Checkup:
    free = shutil.disk_usage(folder).free
    outcome = FAILED if free < _DISK[0] else WARNING if free < _DISK[1] else OK
    return Checkup("disk", outcome, f"{free / 1e6:,.0f} MB are free in {folder}")


def _hours(site: Site) -> Checkup:
    if not site.allow.hours:
        return Checkup("hours", OK, "the site takes part at any time")
    if site.is_open():
        return Checkup("hours", OK, "the site is open now")
    opens = site.opens(datetime.datetime.now())
    return Checkup("hours", WARNING, f"the site is closed until {opens:%A %H:%M}")


def _data(table: Table) -> Iterator[Checkup]:
    """What the site's table has, for a person who compares it with others."""
    rows = several(len(table.targets), "row")
    yield Checkup("data", OK, f"{rows}, to predict: {_target(table)}")
    for place, column in enumerate(table.schema.columns if table.schema else ()):
        values = table.features[:, place]
        text = _words(column.categories) if column.categories else _range(values)
        gaps = int(values.isnan().sum())
        more = f", {several(gaps, 'gap')}" if gaps else ""
        yield Checkup("column", OK, f"{column.name}: {text}{more}")


def _study_words(study: Study, table: Table) -> Iterator[Checkup]:
    """Whether the table has the words and ranges that the study says."""
    if study.privacy is not None:
        try:
            refuse_undeclared(study, table)
        except Problems as found:
            yield from (Checkup("study", FAILED, text) for text in found.sentences)
    numbers = (
        {c.name: j for j, c in enumerate(table.schema.columns)}
        if (table.schema)
        else {}
    )
    values = {name: table.features[:, j] for name, j in numbers.items()}
    if not OBJECTIVES[table.task].labelled:
        values[target_name(study)] = table.targets.flatten()
    for name, (low, high) in study.sites.ranges.items():
        known = values.get(name, torch.empty(0)).double()
        known = known[~known.isnan()]
        outside = int(((known < low) | (known > high)).sum())
        if outside:
            most = 2 * outside > len(known)
            yield Checkup(
                "unit",
                FAILED if most else WARNING,
                f"{outside} of {several(len(known), 'value')} in column {name!r} lie "
                f"outside {low:g} to {high:g}, which the study says: has this site "
                "another unit?",
            )


def _others(joining: Joining, table: Table) -> Iterator[Checkup]:
    """How this site's columns differ from those of sites that have looked."""
    run, names, me = joining.run_name, joining.roster.names, joining.site.name
    own = told_columns(run, table)
    try:
        found = _ask(joining, own.encode())
        others, start = {}, 0
        for rank, size in found.header.get("columns", ()):
            told = found.payload[start : start + size]
            others[names[rank]] = told_in(names[rank], told)
            start += size
    except (DisconnectedError, InputError, TypeError, ValueError, IndexError) as error:
        yield Checkup("columns", FAILED, f"the other sites' are not known: {error}")
        return
    same = []
    for other, theirs in others.items():
        wrong = list(differences(own, theirs, me, other))
        yield from (Checkup("columns", FAILED, text) for text in wrong)
        same += [] if wrong else [other]
    if same:
        yield Checkup("columns", OK, f"those of {', '.join(same)} are the same")
    for text in lonely_words(run, table, others):
        yield Checkup("words", WARNING, text)
    if missing := [name for name in names if name not in others and name != me]:
        text = f"{', '.join(missing)} did not look yet, so nothing is known of them"
        yield Checkup("columns", OK, text)


def _target(table: Table) -> str:
    if OBJECTIVES[table.task].labelled:
        counts = torch.bincount(table.targets.long()).tolist()
        names = table.classes or tuple(map(str, range(len(counts))))
        return ", ".join(f"{n} ({c})" for n, c in zip(names, counts, strict=False))
    return _range(table.targets.flatten())


def _range(values: Tensor) -> str:
    """The range of numbers, by which people see a wrong unit."""
    known = values[~values.isnan()].double()
    if not len(known):
        return "no values"
    return f"numbers from {known.min():g} to {known.max():g}, mean {known.mean():.4g}"


def _words(words: Sequence[str]) -> str:
    more = f" and {len(words) - _WORDS} more" if len(words) > _WORDS else ""
    return f"{', '.join(words[:_WORDS])}{more}"


def _model(joining: Joining, study: Study, table: Table) -> Iterator[Checkup]:
    """Whether the data can be divided and messages are not too large."""
    seed, names = study.run.seeds[0], joining.roster.names
    try:
        own = own_federation(study, table, seed, names, joining.rank)
        parts = (own.train, own.validation, own.test)
        sizes = [int(part.size.sum()) for part in parts]
        if own.raw is not None:  # the features are made by all sites together
            yield Checkup("data", OK, _sizes_text(sizes))
            yield from (Checkup("data", WARNING, text) for text in doubts(own))
            return
        columns = len(ravel(module_of(study, own, seed)))
    except InputError as error:
        yield Checkup("study", FAILED, str(error))
        return
    yield Checkup("data", OK, _sizes_text(sizes))
    yield from (Checkup("data", WARNING, text) for text in doubts(own))
    needed, most = 8 * columns, joining.sites.message_bytes
    outcome = OK if needed <= most else FAILED
    yield Checkup(
        "messages",
        outcome,
        f"a model of {columns:,} parameters needs "
        f"{needed / 1e6:.1f} MB, and {most / 1e6:g} MB are allowed",
    )


def _sizes_text(sizes: Sequence[int]) -> str:
    train, validation, test = sizes
    return f"{train} to train, {validation} to validate and {test} to test"
