"""Brings into a run folder what was trained before, and deletes what is out of date."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from ...checks import InputError
from ...records import Cell, Folder
from ...records.cells import baselines_file
from ...records.digests import keep_digests, remember_digests
from ...records.files import link_file
from ...records.ledgers import DataLedger, reserved_file
from ..config import Entry, Study
from ..private import releases_before
from ..settings.halves import needs_rule
from ..settings.stopping import last_round
from ..setup import Setup
from ..training import Say
from .continuing import CannotContinue, fit_records, refuse_other_rounds, reopen
from .keys import PARTS, Key, cell_key, seed_key
from .places import INDEX, Index, Note, Place, note_file, read_note, write_note

_SETTINGS, _BASELINES = "settings", "baselines"
"""The files of a seed that its cells share, as they are called in the index."""

AGAIN = "`--fresh` (`fresh=True` in Python) trains again"


class _Candidate(NamedTuple):
    """A cell of another run with the right key."""

    where: Place
    cell: Cell
    note: Note
    fitted: Cell  # with the records that it has in this study


class Reuse:
    """The cells of a run that need no training; for the first of several processes."""

    def __init__(
        self,
        folder: Folder,
        read: Mapping[str, str],
        ledger: DataLedger | None,
        say: Say,
        *,
        fresh: bool = False,
    ) -> None:
        """Nothing is written or read yet.

        Args:
            folder: the folder of the run, which is locked.
            read: digests of the study's files and data, made with the key of the runs
                folder.
            ledger: the ledger of the data, with [privacy].
            say: called with lines for the user.
            fresh: whether to delete the cells of the run, and to use no cells of other
                runs.
        """
        self._folder, self._read, self._ledger = folder, read, ledger
        self._say, self._fresh = say, fresh
        self._name = folder.path.resolve().name
        self._index = Index(folder.path.resolve().parent)
        self._deleted: set[int] = set()  # seeds of which everything was deleted
        self._keys: dict[tuple[str, int], Key] = {}

    def begin(self, setup: Setup, rounds: int | None) -> dict[str, int]:
        """Makes the cells of a seed ready to be trained, and trains nothing.

        Without `rounds`, training goes on until models no longer improve. The result
        says, by label, how often the step size of a cell had been reduced. It has only
        cells copied from another run, and cells deleted to be trained again (0).
        """
        digests = self._index.runs / INDEX / "digests.json"
        remember_digests(digests)
        if self._deletes(setup.seed):
            for entry in setup.study.algorithms:
                self._refuse_same_noise(setup, entry)
        self._begin_seed(setup)
        reduced, came = dict[str, int](), dict[str, list[str]]()
        for entry in setup.study.algorithms:
            times, source = self._begin_cell(setup, entry, rounds)
            if times is not None:
                reduced[entry.label] = times
            if source:
                came.setdefault(source, []).append(entry.label)
        for source, labels in came.items():
            self._say(
                f"{', '.join(labels)} with seed {setup.seed}: the results come from "
                f"{self._index.runs / source}, where they were trained; {AGAIN}."
            )
        if reduced or self._deletes(setup.seed):
            self._folder.begin_metrics()
        if self._fresh:
            self._deleted.add(setup.seed)
        self._index.create()
        keep_digests(digests)
        return reduced

    def _deletes(self, seed: int) -> bool:
        """Whether the cells of a seed must be deleted now."""
        return self._fresh and seed not in self._deleted

    def add(self, setup: Setup, cell: Cell, reduced: int) -> None:
        """Adds a cell that has ended to the index, for other studies.

        Its steps were made smaller `reduced` times.
        """
        key = self._keys.get((cell.label, cell.seed))
        file = note_file(self._folder.path, cell.label, cell.seed)
        note = read_note(file)
        if not cell.done or key is None or note is None or note.key != key:
            return
        if note.reduced != reduced:
            write_note(file, note._replace(reduced=reduced))
        self._index.add(key, str(cell.t), Place(self._name, cell.label, cell.seed))
        shared, common = read_note(self._seed_file(cell.seed)), self._seed_key(setup)
        if shared is not None and shared.key == common:
            for what, path in self._seed_files(cell.seed).items():
                if path.exists():
                    self._index.add(common, what, Place(self._name, "", cell.seed))

    def origins(self, study: Study) -> set[Place]:
        """The cells of other runs that this study uses."""
        found = set()
        for entry in study.algorithms:
            for seed in study.run.seeds:
                note = read_note(note_file(self._folder.path, entry.label, seed))
                if note is not None and note.run != self._name:
                    found.add(Place(note.run, note.label, seed))
        return found

    # What all cells of a seed share

    def _seed_file(self, seed: int) -> Path:
        return self._folder.path / f"seed-{seed}.key.json"

    def _seed_files(self, seed: int, folder: Path | None = None) -> dict[str, Path]:
        folder = folder or self._folder.path
        return {
            _SETTINGS: folder / f"settings-{seed}.json",
            _BASELINES: baselines_file(folder, seed),
        }

    def _seed_key(self, setup: Setup) -> Key:
        return seed_key(setup, self._read)

    def _begin_seed(self, setup: Setup) -> None:
        """Drops or brings the chosen settings and the baselines of a seed."""
        study, seed = setup.study, setup.seed
        key, file = self._seed_key(setup), self._seed_file(seed)
        files, note = self._seed_files(seed), read_note(file)
        fresh = self._deletes(seed)
        if note is None and not fresh and any(path.exists() for path in files.values()):
            return  # of a version without keys
        stale = note is not None and note.key != key and study.privacy is None
        if fresh or stale:
            for path in files.values():
                path.unlink(missing_ok=True)
        if note is None or fresh or stale:
            mine = Note(key, self._name, "", study.run.rounds, study.run.every)
            write_note(file, mine)
        wanted = {_SETTINGS: needs_rule(setup), _BASELINES: study.run.baselines}
        for what, path in files.items():
            if wanted[what] and not path.exists() and not self._fresh:
                self._bring_shared(key, what, path, seed)

    def _bring_shared(self, key: Key, what: str, path: Path, seed: int) -> None:
        """Brings a file that all cells of a seed share, if another run has it."""
        for kind, found in self._index.find(key, but=self._name):
            place = self._index.runs / found.run
            note = read_note(place / self._seed_file(seed).name)
            theirs = self._seed_files(seed, place)[what]
            if kind != what or note is None or note.key != key or not theirs.exists():
                continue
            with contextlib.suppress(InputError):
                if what == _BASELINES:
                    link_file(theirs, path)
                elif (settings := Folder(place).settings(seed)) is not None:
                    self._folder.save_settings(replace(settings, reduced={}))
                after = read_note(place / self._seed_file(seed).name)
                if after is not None and after.key == key:
                    return
                path.unlink(missing_ok=True)  # the other run has begun it again

    # One cell

    def _begin_cell(
        self, setup: Setup, entry: Entry, rounds: int | None
    ) -> tuple[int | None, str]:
        """How often a cell's steps were made smaller, and the run that it comes from.

        The number is None unless the cell was brought or deleted. The run is "" unless
        the cell was brought now.
        """
        label, seed, study = entry.label, setup.seed, setup.study
        key = cell_key(setup, entry, self._read)
        self._keys[label, seed] = key
        file = note_file(self._folder.path, label, seed)
        note, deleted = read_note(file), self._deletes(seed)
        if deleted:
            self._forget(label, seed)
            note = None
        exists = self._folder.cell_file(label, seed).exists()
        searched = self._folder.has_search(label, seed)
        if note is None and (exists or searched):
            return None, ""  # of a version without keys
        if note is not None and note.key != key:
            if study.privacy is not None and exists:
                self._keep_private(note, file, label, seed)
                return None, ""
            if exists or searched:
                self._say(_stale_text(entry, seed, note.key, key))
            self._forget(label, seed)
            note, deleted = None, True
        if note is not None and exists and self._is_ready(setup, entry, rounds):
            return None if note.run == self._name else note.reduced, ""
        if not self._fresh and (came := self._bring(setup, entry, key, rounds)):
            return came[0].reduced, came[1]
        if exists and note is not None and self._goes_on(setup, entry, note, rounds):
            return None, ""
        if exists or (note is not None and note.run != self._name):
            self._forget(label, seed)
            note, deleted = None, True
        if note is None:
            run = study.run
            write_note(file, Note(key, self._name, label, run.rounds, run.every))
        return 0 if deleted else None, ""

    def _keep_private(self, note: Note, file: Path, label: str, seed: int) -> None:
        """Keeps a private cell, whose repetition would cost its budget once more.

        If it goes on with other code, its results belong to no key.
        """
        cell = self._folder.cell(label, seed)
        if cell is not None and not cell.done:
            write_note(file, note._replace(key={}))

    def _is_ready(self, setup: Setup, entry: Entry, rounds: int | None) -> bool:
        """Whether this folder's cell can be used: it has not ended at another round."""
        if rounds is None or "rounds" not in setup.study.chooses:
            return True
        cell = self._folder.cell(entry.label, setup.seed)
        return cell is None or not cell.done or cell.t == rounds

    def _goes_on(
        self, setup: Setup, entry: Entry, note: Note, rounds: int | None
    ) -> bool:
        """Lets this folder's cell go on if it ended too early; False if it cannot."""
        cell = self._folder.cell(entry.label, setup.seed)
        if cell is None or rounds is None or cell.t > rounds:
            return False
        try:
            self._folder.save(self._fit_cell(setup, entry, cell, note, rounds))
        except CannotContinue:
            return False
        write_note(
            note_file(self._folder.path, entry.label, setup.seed),
            note._replace(run=self._name, label=entry.label),
        )
        return True

    def _forget(self, label: str, seed: int) -> None:
        """Deletes a cell; with secret noise, another training is another beginning."""
        self._folder.forget_cell(label, seed)
        reserved_file(self._folder.path, label, seed).unlink(missing_ok=True)

    def _refuse_same_noise(self, setup: Setup, entry: Entry) -> None:
        """Refuses to add the same noise to new values that earlier values got."""
        privacy, key = setup.study.privacy, cell_key(setup, entry, self._read)
        note = read_note(note_file(self._folder.path, entry.label, setup.seed))
        if privacy is None or privacy.noise_source != "seed" or note is None:
            return
        if note.key != key and note.run == self._name:
            raise InputError(
                f"`--fresh` cannot train {entry.label} again with the same seeded "
                "noise after its code has changed: give the study another name."
            )

    def _bring(
        self, setup: Setup, entry: Entry, key: Key, rounds: int | None
    ) -> tuple[Note, str] | None:
        """Brings the cell from another run, if any has it; returns its note and run."""
        refusal, later = "", list[_Candidate]()
        for found in self._candidates(setup, entry, key, rounds):
            try:
                fitted = self._fit_cell(setup, entry, found.cell, found.note, rounds)
            except CannotContinue as error:
                refusal = refusal or (
                    f"{entry.label} with seed {setup.seed} cannot continue from round "
                    f"{found.cell.t} in {self._index.runs / found.where.run}, because "
                    f"{error}; it is trained from the start."
                )
                continue
            found = found._replace(fitted=fitted)
            if fitted.done or rounds is not None:
                return self._take(setup, entry, key, found)
            later.append(found)
        for found in later[-1:]:  # none ends where it no longer improves
            return self._take(setup, entry, key, found)
        if refusal:
            self._say(refusal)
        return None

    def _candidates(
        self, setup: Setup, entry: Entry, key: Key, rounds: int | None
    ) -> Iterator[_Candidate]:
        """Cells of other runs with this key, in the order in which to try them."""
        known = []
        for what, found in self._index.find(key, but=self._name):
            if what.isdigit() and (rounds is None or int(what) <= rounds):
                known.append((int(what), found))
        # With a number of rounds, the one that ends last; without, the first.
        known.sort(key=lambda pair: pair[0], reverse=rounds is not None)
        for t, where in known:
            folder = Folder(self._index.runs / where.run)
            file = note_file(folder.path, where.label, where.seed)
            try:
                has = folder.has_model_file(where.label, where.seed)
                cell = folder.cell(where.label, where.seed) if has else None
                note = read_note(file)  # after the cell, which is deleted before it
            except InputError:  # damaged
                continue
            sound = cell is not None and cell.done and cell.t == t
            if not sound or note is None or note.key != key:
                self._index.drop(key, str(t))  # trained again, or to another end
            elif self._is_paid(setup, entry, note):
                assert cell is not None
                yield _Candidate(where, cell, note, cell)

    def _is_paid(self, setup: Setup, entry: Entry, note: Note) -> bool:
        """Whether the ledger has what a cell has spent, with [privacy]."""
        if setup.study.privacy is None:
            return True
        # The choice of partners belongs to one study.
        if self._ledger is None or releases_before(setup, entry):
            return False
        charged = {(each.run, each.label, each.seed) for each in self._ledger.entries()}
        return (note.run, note.label, setup.seed) in charged

    def _fit_cell(
        self, setup: Setup, entry: Entry, cell: Cell, note: Note, rounds: int | None
    ) -> Cell:
        """The cell as this study needs it, to be used or to go on."""
        study = setup.study
        until = cell.t if rounds is None else rounds
        if until != cell.t or note.rounds != study.run.rounds:
            refuse_other_rounds(study, entry, note)
        fitted = fit_records(cell, note, study, until)
        if until != cell.t:
            return reopen(fitted)
        flat = rounds is not None or last_round(fitted) is not None
        return fitted if flat or cell.t >= study.run.rounds else reopen(fitted)

    def _take(
        self, setup: Setup, entry: Entry, key: Key, found: _Candidate
    ) -> tuple[Note, str] | None:
        """Writes a cell of another run into this one; the cell itself comes last."""
        where, label, seed, run = found.where, entry.label, setup.seed, setup.study.run
        source, ends = Folder(self._index.runs / where.run), found.fitted.done
        self._forget(label, seed)
        mine = Note(key, self._name, label, run.rounds, run.every)
        if ends:
            note = found.note
            mine = mine._replace(run=note.run, label=note.label, reduced=note.reduced)
        write_note(note_file(self._folder.path, label, seed), mine)
        try:
            search = source.search(where.label, seed) if entry.tune else None
            if search is not None:
                self._folder.save_search(replace(search, label=label))
            for of in ("clients", "newcomers") if ends else ():
                theirs = source.models_file(where.label, seed, of)
                if theirs.exists():
                    link_file(theirs, self._folder.models_file(label, seed, of))
            if found.fitted is found.cell and where.label == label:
                there = source.cell_file(label, seed)
                link_file(there, self._folder.cell_file(label, seed))
            else:
                self._folder.save(replace(found.fitted, label=label))
            # A run changes its note before it saves anything of another key.
            after = read_note(note_file(source.path, where.label, where.seed))
            if after is None or after.key != key:
                raise InputError(f"{source.path} has other results now.")
        except InputError:  # the other run is deleted now, or trained again
            self._forget(label, seed)
            return None
        if not ends:
            self._say(
                f"{label} with seed {seed} continues from round {found.cell.t} in "
                f"{source.path}."
            )
        return mine, where.run if ends else ""


def _stale_text(entry: Entry, seed: int, old: Key, new: Key) -> str:
    """The sentence about a cell that other code has made."""
    changed = next((part for part in PARTS if old.get(part) != new[part]), "code")
    return (
        f"{entry.label} with seed {seed} is trained again, because "
        f"{PARTS[changed]} changed."
    )
