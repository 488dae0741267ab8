"""Claims about the ledger of a data set: all that leaves is charged, also by kills."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
from pathlib import Path

import pytest

from coterie.checks import InputError, TrainingError
from coterie.clients.kernels import Kernel
from coterie.privacy.accounting.gaussian import epsilon_of, mu_of
from coterie.privacy.mechanisms.per_sample.clipping import ClippedKernel
from coterie.privacy.mechanisms.rows import Mechanism
from coterie.records import Cell, ledgers
from coterie.records.folders import Folder
from coterie.records.ledgers import LEDGER, SPENDING, LedgerEntry, ReservedRounds
from coterie.study import training
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.loops import training_of
from coterie.study.private.accounting.spending import (
    PARTNERS,
    lost_rounds,
    total_epsilon,
)
from coterie.study.setup import prepare
from support.private_runs import entries
from support.study_runs import stopped, together
from support.tiny_studies import LINEAR, made

DELTA = 1e-5
TWO = [{"name": "local", "lr": 0.1}, {"name": "fedavg", "lr": 0.1}]
COST = (2 * 0.5 / (4.0 * 0.5)) ** 2
"""mu^2 of one release with clip 0.5 and noise 4: (sensitivity / noise)^2."""


def private(name: str, *, data=LINEAR["data"], algorithm=TWO, rounds=3, **privacy):
    privacy = {"clip": 0.5, "noise": 4.0, "delta": DELTA, **privacy}
    tables = {**LINEAR, "name": name, "data": data, "algorithm": algorithm}
    return made({**tables, "privacy": privacy}, rounds=rounds)


def test_studies_on_the_same_data_add_up_and_the_same_one_counts_once(tmp_path):
    lines: list[str] = []
    first = run_study(private("one"), runs=tmp_path)
    run_study(private("one"), runs=tmp_path)  # which trains nothing
    # Without `fresh`, it would take the cells of the first.
    second = run_study(private("two"), runs=tmp_path, notice=lines.append, fresh=True)
    kept = [json.loads((r.folder / SPENDING).read_text()) for r in (first, second)]
    one, both = (epsilon_of((k * 3 * COST) ** 0.5, DELTA) for k in (1, 2))
    assert kept[0]["study"] == kept[0]["all"] == pytest.approx(one, rel=1e-6)
    assert kept[1]["study"] == pytest.approx(one, rel=1e-6)
    assert kept[1]["all"] == pytest.approx(both, rel=1e-6)
    assert kept[1]["studies"] == 2
    assert any(f"{both:.3g} together with 1 other private study" in s for s in lines)


def test_other_data_have_a_ledger_of_their_own(tmp_path):
    run_study(private("one"), runs=tmp_path)
    run_study(private("one", data={**LINEAR["data"], "samples": 21}), runs=tmp_path)
    assert len(list((tmp_path / LEDGER).iterdir())) == 2


@pytest.mark.parametrize(("source", "times"), [("seed", 1), ("system", 2)])
def test_a_second_try_is_charged_where_its_noise_is_fresh(tmp_path, source, times):
    study = private("one", noise_source=source)
    shutil.rmtree(run_study(study, runs=tmp_path).folder)
    run_study(study, runs=tmp_path)
    spent = [entry.spent for entry in entries(tmp_path) if entry.label == "fedavg"]
    assert spent == [pytest.approx(3 * COST)] * times


def test_a_study_that_is_refused_after_clients_told_their_means_is_charged(tmp_path):
    told = [{"name": "all_for_one", "weights": "means(20)"}]
    study = private("one", algorithm=told, noise=1.0)
    with pytest.raises(InputError, match="the ledger of these data counts it"):
        run_study(study, runs=tmp_path)
    (entry,) = entries(tmp_path)
    assert entry.label == PARTNERS
    assert entry.spent == pytest.approx((1 / 0.5) ** 2)  # noise is half for clients


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_what_a_study_refuses_it_finds_without_asking_clients(monkeypatch, unit):
    algorithm = [{"name": "gradient_tracking", "lr": 0.1}]
    tables = {**LINEAR, "algorithm": algorithm, "graph": {"edges": "ring"}}
    privacy = {"clip": 0.5, "noise": 4.0, "unit": unit}
    study = study_of({**tables, "privacy": privacy})
    setup = prepare(study, 0)
    kernel, asked = Kernel if unit == "client" else ClippedKernel, []
    grad = kernel.grad

    def spy(self, points, batch):
        samples, _ = (self if unit == "client" else self._kernel).data(batch.index)
        asked.append(bool(samples.any()))
        return grad(self, points, batch)

    monkeypatch.setattr(kernel, "grad", spy)
    training_of(setup, study.algorithms[0]).like()
    assert not any(asked)
    assert asked or unit == "client"  # single samples are tried in a round


def test_whole_clients_are_not_hidden_by_studies_that_hide_samples():
    of_clients = LedgerEntry("a", "fedavg", 0, "client", 3, 0.5)
    of_samples = LedgerEntry("b", "fedavg", 0, "sample", 3, [[2.0, 1.0, False, 2]], [])
    alone, complete = total_epsilon([of_clients, of_samples], "client", DELTA)
    assert alone == pytest.approx(epsilon_of(0.5**0.5, DELTA)) and complete
    # Both are Gaussian releases without sampling, so that squares add: 1/2 + 2 / 4.
    both, _ = total_epsilon([of_clients, of_samples], "sample", DELTA)
    assert epsilon_of(1.0, DELTA) <= both * (1 + 1e-6) <= 1.2 * epsilon_of(1.0, DELTA)
    unknown = of_samples._replace(reserved=None)
    assert not total_epsilon([unknown], "sample", DELTA)[1]


ROUNDS = 6
FEDAVG = [{"name": "fedavg", "lr": 0.3, "steps": 1}]


def study_with(checkpoint: float = 1e9, rounds: int = ROUNDS, **privacy):
    """A small study whose noise no seed repeats, unless it says otherwise."""
    privacy = {"clip": 0.5, "noise_source": "system", **privacy}
    if "epsilon" not in privacy:
        privacy["noise"] = 4.0
    run = {"rounds": rounds, "checkpoint_seconds": checkpoint, "evaluate_every": rounds}
    return made({**LINEAR, "algorithm": FEDAVG, "privacy": privacy}, **run)


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
