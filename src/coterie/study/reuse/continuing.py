"""Whether a cell can go on to more rounds, as if it had never stopped.

Its records must be those that the longer study would have at the same rounds, and
nothing in its training may depend on the total number of rounds.
"""

from __future__ import annotations

from dataclasses import replace

from ...checks import InputError
from ...records import Cell
from ..config import Entry, Study
from ..pooled import without_pooled
from ..tables import RunTable
from ..training import keeps_snapshot
from .places import Note


class CannotContinue(InputError):
    """A cell must train from the start; the message says why, and what to do."""


def refuse_other_rounds(study: Study, entry: Entry, note: Note) -> None:
    """Refuses an entry whose training depends on the total number of rounds."""
    if study.privacy is not None:
        raise CannotContinue(
            "the noise of [privacy] belongs to one number of rounds: train it again, "
            "which costs its privacy budget once more"
        )
    if entry.tune and study.tune is not None and not study.tune.rounds:
        raise CannotContinue(
            "its search took as many rounds as the run: set `tune.rounds` to let "
            "later runs continue"
        )
    if note.reduced:
        raise CannotContinue(
            "its steps were made smaller after all rounds had failed: set `lr` to let "
            "later runs continue"
        )


def fit_records(cell: Cell, note: Note, study: Study, rounds: int) -> Cell:
    """The cell with the records that it would have in a study of this many rounds.

    Raises `CannotContinue` if it was evaluated at other rounds.
    """
    run, last = study.run, cell.t == rounds
    before = [int(row["round"]) for row in cell.rounds]
    wanted = [t for t in range(0, cell.t, run.every)]
    wanted += [cell.t] if last or cell.t % run.every == 0 else []
    same = before[: len(wanted)] == wanted
    if not {*wanted} <= {*before} or (study.diagnostics is not None and not same):
        raise CannotContinue(
            "it was evaluated at other rounds: set `run.evaluate_every` to "
            f"{note.every} to continue"
        )
    old = replace(run, rounds=note.rounds, evaluate_every=note.every)
    kept = _snapshot_rounds(before, old)
    keeps = _snapshot_rounds(wanted, run)
    if (cell.snapshots or cell.groups) and not keeps <= kept:
        raise CannotContinue(
            f"it kept its weights at other rounds: use a multiple of {note.rounds} "
            "rounds to continue"
        )
    if before == wanted and kept == keeps:
        return cell
    at = [before.index(t) for t in wanted]
    matrices = zip(cell.snapshot_rounds, cell.snapshots, strict=True)
    groups = zip(cell.group_rounds, cell.groups, strict=True)
    some_matrices = [(t, each) for t, each in matrices if t in keeps]
    some_groups = [(t, each) for t, each in groups if t in keeps]
    return replace(
        cell,
        rounds=[cell.rounds[place] for place in at],
        metrics=[cell.metrics[place] for place in at],
        snapshot_rounds=[t for t, _ in some_matrices],
        snapshots=[each for _, each in some_matrices],
        group_rounds=[t for t, _ in some_groups],
        groups=[each for _, each in some_groups],
    )


def _snapshot_rounds(evaluations: list[int], run: RunTable) -> set[int]:
    """The evaluations at which a run keeps who learns with whom."""
    numbered = enumerate(evaluations)
    return {t for number, t in numbered if t and keeps_snapshot(run, number, t)}


def reopen(cell: Cell) -> Cell:
    """The cell as it was before its end, so that it can go on to more rounds."""
    return replace(
        without_pooled(cell),
        done=False,
        newcomers={},
        outcomes={},
        newcomer_outcomes={},
        confusion={},
        calibration={},
        releases={},
    )
