"""The privacy that training has spent, written before anything is sent.

There are two kinds of files:

- `cells/<cell>.reserved.json` of a run says which rounds after the last checkpoint may
  have been sent.
- `.ledger/<data>/` in the runs folder has one file for every algorithm, seed and study
  that trained privately on the same data. `<data>` is a digest with the key of the runs
  folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from ..checks import InputError
from .files import file_name, read_json, write_error
from .keys import write_secret

LEDGER = ".ledger"
"""The folder of all ledgers, in the runs folder."""

SPENDING = "spending.json"
"""The file with the spending of a run's study, and of all studies on its data."""


class ReservedRounds(NamedTuple):
    """Rounds of an attempt that may have been sent without being in a checkpoint."""

    attempt: int
    first: int  # 0: the beginning, before the first round
    last: int


def reserved_file(folder: Path, label: str, seed: int) -> Path:
    """The file of the reserved rounds of a cell."""
    return folder / "cells" / f"{file_name(label, seed)}.reserved.json"


class Reservations(NamedTuple):
    """All reserved rounds of a cell."""

    entry: int = 0  # the number of its entry in the ledger of the data; 0: none yet
    rounds: tuple[ReservedRounds, ...] = ()


def read_reserved(path: Path) -> Reservations:
    """The rounds that were reserved; none if there is no file."""
    if not path.exists():
        return Reservations()
    try:
        kept = read_json(path)
        rounds = tuple(ReservedRounds(*map(int, each)) for each in kept["rounds"])
        return Reservations(int(kept["entry"]), rounds)
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged, so we cannot tell which rounds were sent: delete it "
            f"together with {path.name.replace('.reserved.json', '.pt')} to start the "
            "algorithm again, which costs its whole privacy budget once more."
        ) from error


def write_reserved(path: Path, kept: Reservations) -> None:
    """Writes reserved rounds; they are on disk when this returns."""
    _write(path, kept._asdict())


class LedgerEntry(NamedTuple):
    """What one algorithm and seed of a study has spent on a data set.

    Costs are the costs of the client that pays most. For the unit client, they are
    mu^2. For the unit sample, they are lists [noise, rate, held out, how often], one
    for each kind of release.
    """

    run: str  # the name of its folder
    label: str  # of the algorithm, or of another release
    seed: int
    unit: str
    round: int  # the last one that is charged
    spent: float | list[Any]
    reserved: float | list[Any] | None = 0.0  # in addition; None: not known yet
    number: int = 0  # of starts with fresh noise; 0: noise that a seed repeats
    attempt: int = 0  # the last one that wrote this


class DataLedger:
    """All that private studies of a runs folder have spent on one data set."""

    def __init__(self, runs: Path, data: str) -> None:
        """The ledger of the data with this digest, made with the runs folder's key."""
        self.path = runs / LEDGER / data

    def write(self, entry: LedgerEntry) -> None:
        """Replaces the entry of an algorithm and seed; on disk when this returns."""
        name = f"{entry.run}-{file_name(entry.label, entry.seed)}-{entry.number}.json"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self.path, error) from None
        _write(self.path / name, entry._asdict())

    def entries(self) -> list[LedgerEntry]:
        """All entries, in the order of their files' names."""
        found = []
        for path in sorted(self.path.glob("*.json")):
            try:
                entry = LedgerEntry(**read_json(path))
            except (InputError, TypeError) as error:
                raise InputError(
                    f"{path} is damaged, so we cannot tell what was spent on these "
                    "data before: restore the file."
                ) from error
            found.append(entry)
        return found


def _write(path: Path, values: dict[str, Any]) -> None:
    try:
        write_secret(path, (json.dumps(values) + "\n").encode())
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}; nothing is "
            "sent before this file records it."
        ) from None
