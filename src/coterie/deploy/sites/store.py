"""What the hub remembers: every finished step of a run, in SQLite.

A hub that was stopped, even by force, opens the same file and goes on. Rows of single
members are not here. What was sent to a member that is away stays until the member has
it, or until the file is too large.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from pathlib import Path
from typing import Any, NamedTuple

from ...checks import InputError

_TABLES = """
CREATE TABLE IF NOT EXISTS facts (name TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS attempts (
    step INTEGER, attempt INTEGER, what TEXT, present TEXT, began REAL, ended TEXT,
    PRIMARY KEY (step, attempt));
CREATE TABLE IF NOT EXISTS commits (
    step INTEGER PRIMARY KEY, attempt INTEGER, what TEXT, present TEXT, votes TEXT,
    before TEXT);
CREATE TABLE IF NOT EXISTS answers (
    step INTEGER, number INTEGER, rank INTEGER, header TEXT, payload BLOB,
    PRIMARY KEY (step, number, rank));
CREATE TABLE IF NOT EXISTS servers (step INTEGER PRIMARY KEY, value BLOB);
"""

EVERYBODY = -1
"""The rank of an answer that is the same for all members."""


class Commit(NamedTuple):
    """A step that all present members have finished."""

    step: int
    attempt: int
    what: str
    present: tuple[int, ...]
    votes: dict[str, Any]
    before: str = ""  # the hash of all sums before the step, as members said it


class Answer(NamedTuple):
    """What the hub answered to a verb; `rank` is `EVERYBODY` or a member."""

    number: int
    rank: int
    header: dict[str, Any]
    payload: bytes


class HubStore:
    """The log of a run at the hub."""

    def __init__(self, path: Path) -> None:
        """Opens the file, or makes it."""
        self._lock = threading.Lock()
        try:
            self._db = sqlite3.connect(
                path, check_same_thread=False, isolation_level=None
            )
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_TABLES)
        except sqlite3.DatabaseError as error:
            raise InputError(f"the log {path} cannot be used: {error}.") from None

    def close(self) -> None:
        """Closes the file."""
        with self._lock:
            self._db.close()

    def _do(self, text: str, *values: Any) -> list[Any]:
        with self._lock:
            return self._db.execute(text, values).fetchall()

    def fact(self, name: str, value: str) -> str:
        """The value under this name; if there is none, it becomes `value`."""
        self._do("INSERT OR IGNORE INTO facts VALUES (?, ?)", name, value)
        return self._do("SELECT value FROM facts WHERE name = ?", name)[0][0]

    def set_fact(self, name: str, value: str) -> None:
        """Keeps a value under a name."""
        self._do("INSERT OR REPLACE INTO facts VALUES (?, ?)", name, value)

    def last_step(self) -> int:
        """The last finished step; -1: none."""
        found = self._do("SELECT max(step) FROM commits")[0][0]
        return -1 if found is None else found

    def first_step(self) -> int:
        """The first step whose answers are still here."""
        found = self._do("SELECT value FROM facts WHERE name = 'first step'")
        return int(found[0][0]) if found else 0

    def begin(
        self, step: int, attempt: int, what: str, present: list[int], now: float
    ) -> None:
        """Keeps that an attempt began, before anybody is told."""
        told = json.dumps(present)
        row = (step, attempt, what, told, now, "")
        self._do("INSERT INTO attempts VALUES (?, ?, ?, ?, ?, ?)", *row)

    def end(self, step: int, attempt: int, how: str) -> None:
        """Keeps how an attempt ended."""
        text = "UPDATE attempts SET ended = ? WHERE step = ? AND attempt = ?"
        self._do(text, how, step, attempt)

    def last_attempt(self, step: int) -> int:
        """The greatest number of an attempt at a step; 0: none."""
        found = self._do("SELECT max(attempt) FROM attempts WHERE step = ?", step)
        return found[0][0] or 0

    def aborts(self) -> int:
        """The number of attempts that failed."""
        text = "SELECT count(*) FROM attempts WHERE ended NOT IN ('', 'done')"
        return self._do(text)[0][0]

    def attempts(self) -> list[tuple[int, int, str, str]]:
        """The step, number, label and end of every attempt."""
        return self._do("SELECT step, attempt, what, ended FROM attempts")

    def commit(
        self, commit: Commit, answers: list[Answer], server: bytes | None
    ) -> None:
        """Keeps a finished step and its answers, all or nothing."""
        told = (json.dumps(list(commit.present)), json.dumps(commit.votes))
        row = (commit.step, commit.attempt, commit.what, *told, commit.before)
        with self._lock:
            self._db.execute("BEGIN")
            try:
                self._db.execute("INSERT INTO commits VALUES (?, ?, ?, ?, ?, ?)", row)
                self._db.executemany(
                    "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)",
                    [
                        (commit.step, a.number, a.rank, json.dumps(a.header), a.payload)
                        for a in answers
                    ],
                )
                if server is not None:
                    self._db.execute("DELETE FROM servers")
                    given = (commit.step, server)
                    self._db.execute("INSERT INTO servers VALUES (?, ?)", given)
                self._db.execute(
                    "UPDATE attempts SET ended = 'done' WHERE step = ? AND attempt = ?",
                    (commit.step, commit.attempt),
                )
                self._db.execute("COMMIT")
            except BaseException:
                self._db.execute("ROLLBACK")
                raise

    def server(self) -> bytes | None:
        """What the coordinator remembers after the last finished step."""
        found = self._do("SELECT value FROM servers")
        return found[0][0] if found else None

    def freeze(self, step: int, present: list[int], kept: list[Answer]) -> None:
        """Keeps answers at once, because a sum among them was opened: it is final."""
        self.set_fact("final", json.dumps([step, present, kept[-1].number + 1]))
        for a in kept:
            row = (step, a.number, a.rank, json.dumps(a.header), a.payload)
            text = "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?)"
            self._do(text, *row)

    def frozen(self, step: int) -> tuple[list[int], list[Answer]] | None:
        """The members of an unfinished step with an opened sum, and its answers."""
        at, present, count = json.loads(self.fact("final", "[-1, [], 0]"))
        if at != step:
            return None
        text = (
            "SELECT number, rank, header, payload FROM answers WHERE step = ? "
            "AND number < ? ORDER BY number, rank"
        )
        found = self._do(text, step, count)
        return present, [Answer(n, r, json.loads(h), bytes(p)) for n, r, h, p in found]

    def commit_of(self, step: int) -> Commit | None:
        """A finished step."""
        found = self._do("SELECT * FROM commits WHERE step = ?", step)
        for number, attempt, what, present, votes, before in found:
            who = tuple(json.loads(present))
            return Commit(number, attempt, what, who, json.loads(votes), before)
        return None

    def commits(self) -> list[Commit]:
        """All finished steps, in order."""
        steps = [row[0] for row in self._do("SELECT step FROM commits ORDER BY step")]
        found = [self.commit_of(step) for step in steps]
        return [commit for commit in found if commit is not None]

    def answers(self, step: int, rank: int) -> list[Answer]:
        """The answers of a step for a member, in order.

        An answer that was for one member alone is empty for all others.
        """
        text = (
            "SELECT number, rank, header, payload FROM answers "
            "WHERE step = ? AND rank IN (?, ?) ORDER BY number, rank"
        )
        found = self._do(text, step, EVERYBODY, rank)
        own = {n: Answer(n, r, json.loads(h), bytes(p)) for n, r, h, p in found}
        return list(own.values())

    def forget_mail(self, step: int, rank: int) -> None:
        """Deletes what was kept for one member, up to this step."""
        text = "DELETE FROM answers WHERE step <= ? AND rank = ?"
        self._do(text, step, rank)

    def leavers(self) -> set[int]:
        """The members that have left the run for good."""
        return set(json.loads(self.fact("left", "[]")))

    def forget_member(self, rank: int) -> None:
        """Keeps that a member has left, and deletes what was kept for it.

        The deleted bytes are overwritten in the file.
        """
        self.set_fact("left", json.dumps(sorted(self.leavers() | {rank})))
        self._do("PRAGMA secure_delete = ON")
        self._do("DELETE FROM answers WHERE rank = ?", rank)
        self._do("PRAGMA wal_checkpoint(TRUNCATE)")

    def prune(self, most: int) -> None:
        """Deletes the oldest answers of rounds if all have more than `most` bytes.

        Answers of the set-up stay: everybody needs them to begin again.
        """
        total = self._do("SELECT coalesce(sum(length(payload)), 0) FROM answers")[0][0]
        if total <= most:
            return
        keep = int(self.fact("steps of set-up", "0"))
        text = (
            "SELECT step, sum(length(payload)) FROM answers WHERE step >= ? "
            "GROUP BY step ORDER BY step"
        )
        for step, size in self._do(text, keep):
            if total <= most // 2:
                break
            self._do("DELETE FROM answers WHERE step = ?", step)
            self.set_fact("first step", str(step + 1))
            total -= size
