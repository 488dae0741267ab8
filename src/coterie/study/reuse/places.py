"""Where a key was trained: a note in each run folder, and an index of all of them.

- `cells/<cell>.key.json` of a run folder has the key of the cell. It is written after
  everything of another key was deleted, and before anything of this key is saved.
- `.cells/<key>-<rounds>.json` in the runs folder names the run that has a finished
  cell. If somebody deletes that run, the cell is trained again.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ...checks import InputError
from ...records.files import file_name, read_json, write, write_error
from .keys import Key, key_digest

INDEX = ".cells"
"""The folder of the index, in the runs folder."""


class Note(NamedTuple):
    """What a cell of a run folder was made from, and where it was trained."""

    key: Key  # empty: two versions of the code have trained it
    run: str  # the name of the run folder where its training ended
    label: str  # of the algorithm there
    rounds: int  # `run.rounds` there
    every: int  # rounds between evaluations there
    reduced: int = 0  # how often its steps were made smaller


def note_file(folder: Path, label: str, seed: int) -> Path:
    """The file with the note of a cell."""
    return folder / "cells" / f"{file_name(label, seed)}.key.json"


def read_note(path: Path) -> Note | None:
    """The note in a file; None if there is none, or a damaged one."""
    try:
        note = Note(**read_json(path)) if path.exists() else None
    except (InputError, TypeError):
        return None
    return note if note is not None and isinstance(note.key, dict) else None


def write_note(path: Path, note: Note) -> None:
    """Replaces the note in a file."""
    write(path, json.dumps(note._asdict()) + "\n")


class Place(NamedTuple):
    """An entry of the index."""

    run: str
    label: str
    seed: int


class Index:
    """Which runs of a runs folder have a finished cell, by its key."""

    def __init__(self, runs: Path) -> None:
        self.runs, self._path = runs, runs / INDEX

    def create(self) -> None:
        """Makes the folder of the index."""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(self._path, error) from None

    def find(self, key: Key, *, but: str) -> Iterator[tuple[str, Place]]:
        """The kind and place of each entry of this key, except those of run `but`."""
        for path in sorted(self._path.glob(f"{key_digest(key)}-*.json")):
            try:
                found = Place(**read_json(path))
            except (InputError, TypeError):  # another process has deleted it, say
                continue
            plain = isinstance(found.run, str) and Path(found.run).name == found.run
            if not plain or found.run in ("", ".", "..", but):
                continue
            if (self.runs / found.run / "study.toml").is_file():
                yield path.stem.rpartition("-")[2], found
            else:  # the run was deleted
                with contextlib.suppress(OSError):
                    path.unlink()

    def add(self, key: Key, what: str, found: Place) -> None:
        """Adds an entry; `what` is the number of rounds, or a file of the seed."""
        path = self._path / f"{key_digest(key)}-{what}.json"
        self.create()
        text = json.dumps(found._asdict()) + "\n"
        with contextlib.suppress(OSError):
            if path.read_text(encoding="utf-8") == text:
                return
        write(path, text)

    def drop(self, key: Key, what: str) -> None:
        """Deletes an entry, if there is one."""
        with contextlib.suppress(OSError):
            (self._path / f"{key_digest(key)}-{what}.json").unlink()
