"""Claims about private runs that are killed: nothing leaves that is not charged."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest

from coterie.checks import InputError, TrainingError
from coterie.privacy.accounting.gaussian import mu_of
from coterie.privacy.mechanisms.rows import Mechanism
from coterie.records import Cell, ledgers
from coterie.records.folders import Folder
from coterie.records.ledgers import LEDGER, ReservedRounds
from coterie.study import training
from coterie.study.experiment import run_study
from coterie.study.private.accounting.spending import lost_rounds
from support.private_runs import entries
from support.study_runs import stopped, together
from support.tiny_studies import LINEAR, made

ROUNDS = 6
FEDAVG = [{"name": "fedavg", "lr": 0.3, "steps": 1}]


def study_with(checkpoint: float = 1e9, rounds: int = ROUNDS, **privacy):
    """A small study whose noise no seed repeats, unless it says otherwise."""
    privacy = {"clip": 0.5, "noise_source": "system", **privacy}
    if "epsilon" not in privacy:
        privacy["noise"] = 4.0
    run = {"rounds": rounds, "checkpoint_seconds": checkpoint, "evaluate_every": rounds}
    return made({**LINEAR, "algorithm": FEDAVG, "privacy": privacy}, **run)


COST = (2 * 0.5 / (4.0 * 0.5)) ** 2
"""mu^2 of one release: (sensitivity / noise)^2."""


def entry_in(runs: Path) -> dict:
    """The one entry of the one ledger."""
    (path,) = (runs / LEDGER).glob("*/*.json")
    assert path.stat().st_mode & 0o777 == 0o600
    return json.loads(path.read_text())


def _dying(study, runs: Path, step: int) -> None:
    """Runs a study, and is killed at some call of what releases or writes."""
    left = [step]

    def fatal(call):
        def count_down(*args, **options):
            for late in (False, True):
                left[0] -= 1
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                if not late:
                    found = call(*args, **options)
            return found

        return count_down

    def record_release(self, *args, **options):
        if not self.source.secret:  # or of clients without data, who plan ahead
            return really(self, *args, **options)
        return released_to_others(self, *args, **options)

    @fatal
    def released_to_others(self, *args, **options):
        found = really(self, *args, **options)
        with (runs.parent / "left").open("a") as file:  # which is what others see
            file.write("row\n")
        return found

    really = Mechanism.release
    Mechanism.release = record_release  # type: ignore[method-assign]
    ledgers.write_secret = fatal(ledgers.write_secret)
    Folder.save = fatal(Folder.save)  # type: ignore[method-assign]
    run_study(study, runs=runs)


def was_killed(study, runs: Path, step: int) -> bool:
    """Whether a process that runs a study was killed at this step."""
    process = multiprocessing.get_context("fork").Process(
        target=_dying, args=(study, runs, step)
    )
    process.start()
    process.join()
    assert process.exitcode in (0, -signal.SIGKILL)
    return process.exitcode != 0


def released_rows(runs: Path) -> int:
    path = runs.parent / "left"
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.parametrize("checkpoint", [0.0, 1e9])
def test_whenever_a_run_is_killed_all_that_left_is_charged(tmp_path, checkpoint):
    study, runs = study_with(checkpoint), tmp_path / "runs"
    for step in (3, 8, 11):
        assert was_killed(study, runs, step)
        if released_rows(runs):
            entry = entry_in(runs)
            assert entry["spent"] + entry["reserved"] >= COST * released_rows(runs)
    assert not was_killed(study, runs, 10**9)
    rows, entry = released_rows(runs), entry_in(runs)
    assert entry["reserved"] == 0 and rows > ROUNDS
    # Whoever reads the result sees all of it, too.
    found = run_study(study, runs=runs)
    (told,) = set(found.records.releases["epsilon"])
    assert mu_of(told, 1e-5) ** 2 == pytest.approx(entry["spent"], rel=1e-6)
    assert Folder(found.folder).cell("fedavg", 0).repeated > 0
    assert entry["spent"] >= COST * rows - 1e-9
    # And not much more: every kill may cost one round that had not begun.
    assert entry["spent"] <= COST * (rows + 2 * 3) + 1e-9


def test_a_budget_holds_with_the_rounds_that_were_lost(tmp_path):
    """Eight rounds use epsilon up; with lost ones, fewer may follow."""
    study, runs = study_with(epsilon=4.0, rounds=8), tmp_path / "runs"
    for step in (12, 12):
        assert was_killed(study, runs, step)
    lines: list[str] = []
    found = run_study(study, runs=runs, notice=lines.append)
    assert float(found.records.metrics["epsilon"].max()) <= 4.0 * (1 + 1e-6)
    assert any("rounds may have left before the run was killed" in s for s in lines)
    assert released_rows(runs) < 2 * 8


@pytest.mark.parametrize("stops", [KeyboardInterrupt, InputError])
def test_a_run_that_stops_before_it_goes_on_forgets_no_lost_round(
    tmp_path, monkeypatch, stops
):
    study, runs = study_with(1e9), tmp_path / "runs"
    assert was_killed(study, runs, 8)
    (kept,) = runs.glob("*/cells/*.reserved.json")
    before = kept.read_text()

    def stopped_here(*_, **__):
        raise stops("before the state is there")

    with monkeypatch.context() as patch:
        patch.setattr(training, "_with_state", stopped_here)
        with pytest.raises(stops):
            run_study(study, runs=runs)
    assert kept.read_text() == before
    run_study(study, runs=runs)
    spent = sum(entry.spent for entry in entries(runs))
    assert spent >= COST * (released_rows(runs) + ROUNDS) - 1e-9


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_a_folder_that_was_copied_back_is_charged_as_another_beginning(tmp_path, unit):
    study, runs = study_with(0.0, unit=unit), tmp_path / "runs"
    stopped(study, lambda progress: progress.t == 3, runs=runs)
    (folder,) = (path for path in runs.iterdir() if path.name[0] != ".")
    shutil.copytree(folder, tmp_path / "copy")
    run_study(study, runs=runs)
    (before,) = entries(runs)
    shutil.rmtree(folder)
    shutil.move(tmp_path / "copy", folder)
    run_study(study, runs=runs)
    found = entries(runs)
    assert before in found and len(found) == 2
    assert all(entry.round == ROUNDS for entry in found)


@pytest.mark.parametrize("unit", ["client", "sample"])
@pytest.mark.parametrize("back", [3, 0])
def test_a_checkpoint_that_is_old_or_deleted_is_another_beginning(tmp_path, unit, back):
    """Also where the file of reserved rounds is the newest."""
    study, runs = study_with(0.0, unit=unit), tmp_path / "runs"
    stopped(study, lambda progress: progress.t == 3, runs=runs)
    (cell,) = runs.glob("*/cells/*.pt")
    shutil.copy(cell, tmp_path / "old.pt")
    stopped(study, lambda progress: progress.t == 5, runs=runs)
    (before,) = entries(runs)
    cell.unlink()
    if back:
        shutil.copy(tmp_path / "old.pt", cell)
    run_study(study, runs=runs)
    found = entries(runs)
    assert before in found and len(found) == 2


def test_seeded_noise_costs_nothing_again_and_resumes_bit_by_bit(tmp_path):
    study = study_with(0.0, noise_source="seed")
    whole = run_study(study, runs=tmp_path / "whole")
    assert was_killed(study, tmp_path / "runs", 8)
    again = run_study(study, runs=tmp_path / "runs")
    assert again.models().equal(whole.models())
    assert entry_in(tmp_path / "runs")["spent"] == pytest.approx(COST * ROUNDS)
    assert Folder(again.folder).cell("fedavg", 0).repeated == 0


def test_an_interruption_in_good_order_charges_one_round_at_most(tmp_path):
    study, runs = study_with(), tmp_path / "runs"
    stopped(study, lambda progress: progress.t == 3, runs=runs)
    entry = entry_in(runs)
    assert (entry["round"], entry["spent"]) == (4, pytest.approx(3 * COST))
    assert entry["reserved"] in (0.0, pytest.approx(COST))
    run_study(study, runs=runs)
    assert entry_in(runs)["spent"] <= (ROUNDS + 1) * COST + 1e-9


def test_a_failure_that_others_learn_late_is_charged_with_all_rounds_that_left(
    tmp_path, monkeypatch
):
    """Two processes: one fails after round 3, and they reckon after round 10."""
    study, runs = study_with(rounds=20), tmp_path / "runs"

    def fails(r, cell, setup):
        return "a sensor" if r.t >= 3 and setup.division.group.rank == 1 else ""

    with monkeypatch.context() as patch:
        patch.setattr(training, "nonfinite_state", fails)
        with pytest.raises(TrainingError, match="a sensor"):
            together(study, 2, runs)
    entry = entry_in(runs)
    assert (entry["round"], entry["spent"]) == (10, 0)
    assert entry["reserved"] == pytest.approx(10 * COST)
    found, _ = together(study, 2, runs)
    assert Folder(found.folder).cell("fedavg", 0).repeated == 10
    assert entry_in(runs)["spent"] == pytest.approx((10 + 20) * COST)


def test_lost_rounds_are_those_after_the_checkpoint_of_their_attempt():
    kept = [ReservedRounds(1, 0, 3), ReservedRounds(2, 2, 9)]
    row = [{"round": 0.0}]
    assert lost_rounds(kept, Cell("a", 0)) == kept
    assert lost_rounds(kept, Cell("a", 0, t=5, rounds=row, attempt=2)) == [
        ReservedRounds(2, 6, 9)
    ]
    assert lost_rounds(kept, Cell("a", 0, t=1, rounds=row, attempt=1)) == [
        ReservedRounds(1, 2, 3),
        ReservedRounds(2, 2, 9),
    ]
    assert lost_rounds(kept, Cell("a", 0, t=9, rounds=row, attempt=2)) == []
