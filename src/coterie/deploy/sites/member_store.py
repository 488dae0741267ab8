"""What a member remembers at its site: its attempts, what left, and its checkpoint.

Attempts are on the disk before anything of them leaves. A restarted member knows the
greatest one, so that no hub can make it do a step again.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ...checks import InputError
from ..messages import decode, encode

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (
    step INTEGER, attempt INTEGER, what TEXT, began REAL, PRIMARY KEY (step, attempt));
CREATE TABLE IF NOT EXISTS departures (
    at REAL, step INTEGER, attempt INTEGER, what TEXT, kind TEXT, receivers TEXT,
    bytes INTEGER);
CREATE TABLE IF NOT EXISTS lists (
    step INTEGER, place INTEGER, ranks TEXT, PRIMARY KEY (step, place));
"""

_PREPARED, _COMMITTED = "prepared.state", "committed.state"


class DiskError(InputError):
    """An error if a site's own files cannot be written: then nothing leaves."""


@contextlib.contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A context whose errors of the disk become one sentence."""
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise DiskError(
            f"{path} cannot be written ({error}), so nothing is sent: make room on the "
            "disk, and run the same command again."
        ) from None


class Departure(NamedTuple):
    """A message with rows that left this site."""

    at: float  # seconds since 1970
    step: int
    attempt: int
    what: str
    kind: str
    receivers: str
    bytes: int


class Checkpoint(NamedTuple):
    """What a member had after a step."""

    step: int
    attempt: int
    value: Any


class MemberStore:
    """The files of a member."""

    def __init__(self, folder: Path) -> None:
        """Opens the folder, or makes it."""
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self._lock = folder, threading.Lock()
        path = folder / "site.db"
        try:
            self._db = sqlite3.connect(
                path, check_same_thread=False, isolation_level=None
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            raise InputError(f"{path} cannot be used: {error}.") from None

    def close(self) -> None:
        """Closes the files."""
        with self._lock:
            self._db.close()

    def finish(self) -> None:
        """Keeps that this member has its results, so that it needs no hub any more."""
        with _writing(self.folder), self._lock:
            self._db.execute("INSERT INTO facts VALUES ('finished', 'yes')")

    def is_finished(self) -> bool:
        """Whether this member has its results."""
        with self._lock:
            found = self._db.execute("SELECT 1 FROM facts WHERE name = 'finished'")
            return found.fetchone() is not None

    def greatest(self) -> tuple[int, int]:
        """The last step and its last attempt in which this member took part."""
        text = "SELECT step, attempt FROM attempts ORDER BY step DESC, attempt DESC"
        with self._lock:
            found = self._db.execute(f"{text} LIMIT 1").fetchone()
        return (-1, 0) if found is None else (found[0], found[1])

    def begin(self, step: int, attempt: int, what: str) -> None:
        """Keeps an attempt, on the disk, before anything of it leaves.

        Raises:
            InputError: if a later attempt was begun before.
        """
        before = self.greatest()
        if (step, attempt) <= before:
            raise InputError(
                f"the hub asks for attempt {attempt} at step {step}, but this member "
                f"has begun attempt {before[1]} at step {before[0]} already: the hub "
                "has an old log."
            )
        with _writing(self.folder), self._lock:
            self._db.execute("PRAGMA synchronous=FULL")
            row = (step, attempt, what, time.time())
            self._db.execute("INSERT INTO attempts VALUES (?, ?, ?, ?)", row)
            self._db.execute("PRAGMA synchronous=NORMAL")

    def note_list(self, step: int, place: int, ranks: Sequence[int]) -> None:
        """Keeps, on the disk, whose rows are in a sum that may now be opened.

        Args:
            step: of the run.
            place: which call of the step asked for the sum.
            ranks: of the members with a row in it.
        """
        with _writing(self.folder), self._lock:
            self._db.execute("PRAGMA synchronous=FULL")
            row = (step, place, json.dumps(list(ranks)))
            self._db.execute("INSERT OR REPLACE INTO lists VALUES (?, ?, ?)", row)
            self._db.execute("DELETE FROM lists WHERE step < ?", (step,))
            self._db.execute("PRAGMA synchronous=NORMAL")

    def lists(self, step: int) -> list[tuple[int, tuple[int, ...]]]:
        """The sums of a step that may have been opened: their place, and whose rows."""
        text = "SELECT place, ranks FROM lists WHERE step = ? ORDER BY place"
        with self._lock:
            found = self._db.execute(text, (step,)).fetchall()
        return [(place, tuple(json.loads(ranks))) for place, ranks in found]

    def note(self, left: Departure) -> None:
        """Keeps that a message leaves."""
        with _writing(self.folder), self._lock:
            self._db.execute(
                "INSERT INTO departures VALUES (?, ?, ?, ?, ?, ?, ?)", left
            )

    def departures(self) -> list[Departure]:
        """All messages with rows that left this site, in order."""
        with self._lock:
            found = self._db.execute("SELECT * FROM departures ORDER BY rowid")
            return [Departure(*row) for row in found.fetchall()]

    def prepare(self, checkpoint: Checkpoint) -> None:
        """Writes the state after a step to the disk, which is not yet final."""
        path = self.folder / _PREPARED
        with _writing(self.folder), path.open("wb") as file:
            file.write(encode(tuple(checkpoint)))
            file.flush()
            os.fsync(file.fileno())

    def commit(self) -> None:
        """Makes the prepared state the final one."""
        os.replace(self.folder / _PREPARED, self.folder / _COMMITTED)

    def last(self) -> Checkpoint | None:
        """The last final state."""
        return self._load(_COMMITTED)

    def prepared_state(self) -> Checkpoint | None:
        """The state that was written last and never became final."""
        return self._load(_PREPARED)

    def _load(self, name: str) -> Checkpoint | None:
        try:
            return Checkpoint(*decode((self.folder / name).read_bytes()))
        except FileNotFoundError:
            return None
        except Exception:  # struct and safetensors have errors of their own
            if name == _PREPARED:  # it was not written to its end
                return None
            raise InputError(
                f"{self.folder / name} is damaged: begin this member again with an "
                "empty folder."
            ) from None
