"""What private training has asked of clients: kept before it leaves, and never less.

There are two kinds of files. `cells/<cell>.reserved.json` of a run says which rounds
may have left that no checkpoint has. The folder `.ledger/<data>/` of the runs folder
has one file for every algorithm, seed and study that trained privately on the same
data; `<data>` is a digest with the key of the runs folder.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from ..checks import InputError
from .files import file_name, read_json, unwritable
from .keys import write_secret

LEDGER = ".ledger"
"""The folder of all ledgers, in the runs folder."""

SPENDING = "spending.json"
"""What a study, and all studies on its data, had spent when it ended; in its folder."""


class Reserved(NamedTuple):
    """Rounds of an attempt that may have left, of which no checkpoint tells."""

    attempt: int
    first: int  # 0: the beginning, before the first round
    last: int


def reserved_file(folder: Path, label: str, seed: int) -> Path:
    """Where the reserved rounds of a cell are kept."""
    return folder / "cells" / f"{file_name(label, seed)}.reserved.json"


class Reservations(NamedTuple):
    """All reserved rounds of a cell."""

    entry: int = 0  # number of its entry in the ledger of the data; 0: none yet
    rounds: tuple[Reserved, ...] = ()


def read_reserved(path: Path) -> Reservations:
    """The rounds that were reserved; none where there is no file.

    Raises:
        InputError: where the file is damaged.
    """
    if not path.exists():
        return Reservations()
    try:
        kept = read_json(path)
        rounds = tuple(Reserved(*map(int, each)) for each in kept["rounds"])
        return Reservations(int(kept["entry"]), rounds)
    except (InputError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path} is damaged, so we cannot tell which rounds have left: delete it "
            f"together with {path.name.replace('.reserved.json', '.pt')} to begin the "
            "algorithm again, with its whole cost once more."
        ) from error


def write_reserved(path: Path, kept: Reservations) -> None:
    """Keeps reserved rounds; they are durable when this returns."""
    _write(path, kept._asdict())


class LedgerEntry(NamedTuple):
    """What one algorithm and seed of a study has asked of the clients of a data set.

    Costs are those of the client who pays most. For the unit client they are mu^2, for
    the unit sample [noise, rate, held out, how often] of every kind of release.
    """

    run: str  # its folder
    label: str  # of the algorithm, or what else was asked
    seed: int
    unit: str
    round: int  # the last that is charged
    spent: float | list[Any]
    reserved: float | list[Any] | None = 0.0  # on top; None: nobody knows yet
    number: int = 0  # of beginnings with fresh noise; 0: noise that a seed repeats
    attempt: int = 0  # the last that wrote it


class DataLedger:
    """All that private studies of a runs folder have asked of one data set."""

    def __init__(self, runs: Path, data: str) -> None:
        """The ledger of a data set.

        Args:
            runs: the runs folder.
            data: a digest of the data, made with the key of the runs folder.
        """
        self.path = runs / LEDGER / data

    def write(self, entry: LedgerEntry) -> None:
        """Replaces what is kept of an algorithm and seed; durable when this returns."""
        name = f"{entry.run}-{file_name(entry.label, entry.seed)}-{entry.number}.json"
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self.path, error) from None
        _write(self.path / name, entry._asdict())

    def entries(self) -> list[LedgerEntry]:
        """Everything that is kept, in the order of names.

        Raises:
            InputError: where a file is damaged.
        """
        found = []
        for path in sorted(self.path.glob("*.json")):
            try:
                entry = LedgerEntry(**read_json(path))
            except (InputError, TypeError) as error:
                raise InputError(
                    f"{path} is damaged, so we cannot tell what was spent on these "
                    "data before: bring the file back."
                ) from error
            found.append(entry)
        return found


def _write(path: Path, values: dict[str, Any]) -> None:
    try:
        write_secret(path, (json.dumps(values) + "\n").encode())
    except OSError as error:
        raise InputError(
            f"{path} cannot be written: {os.strerror(error.errno or 0)}; no round "
            "leaves before it is written down."
        ) from None
