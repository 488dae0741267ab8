"""Studies that search: scores, budgets, and going on after a stop."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.checks import TrainingError
from coterie.clients.simulation import Simulation
from coterie.data.federation import Federation
from coterie.engine.rounds import run_rounds
from coterie.records import Folder, Rung
from coterie.seeds import generator
from coterie.study import setup as setups
from coterie.study.config import study_of
from coterie.study.experiment import Progress, Result, run_study
from coterie.study.newcomers import hold_out
from coterie.study.search import folds_of
from coterie.study.setup import prepare
from support.made_records import written
from support.plain_clients import mine
from support.recipes import built
from support.run_folders import folder_of
from support.study_runs import refuse_training, stopped
from support.tuning_studies import TABLES, made, searches


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Result:
    """The same, where all settings train for six rounds."""
    return run_study(made({"halving": 1}), runs=tmp_path_factory.mktemp("r"))


def run_alone(setting: dict, label: str, seed: int, folder: Path) -> Result:
    """One algorithm run with a setting by a study without [tune]."""
    tables = copy.deepcopy(TABLES)
    del tables["tune"]
    tables["run"]["seeds"] = [seed]
    (entry,) = [e for e in tables["algorithm"] if e["name"] == label]
    entry.pop("tune", None)
    tables["algorithm"] = [entry | setting]
    return run_study(study_of(tables), runs=folder)


def last_rows(result: Result, label: str, seed: int) -> pd.DataFrame:
    table = result.records.metrics
    mine = table[(table["algorithm"] == label) & (table["seed"] == seed)]
    return mine[mine["round"] == 6].reset_index(drop=True)


@pytest.mark.parametrize(("label", "seed"), [("local", 1), ("fedavg", 0)])
def test_scores_are_those_of_running_each_setting_and_the_best_is_chosen(
    whole, tmp_path, label, seed
):
    search = searches(whole)[label, seed]
    scores = []
    for setting in search.settings:
        rows = last_rows(run_alone(setting, label, seed, tmp_path), label, seed)
        scores.append(rows["validation_loss"].to_numpy().astype(np.float64).mean())
    recorded = [step.score for step in search.steps]
    # Both are means of the same four single-precision losses.
    np.testing.assert_allclose(recorded, scores, rtol=1e-12)
    assert search.chosen == int(np.argmin(scores))
    assert len(set(scores)) == len(scores)
    same = run_alone(search.best, label, seed, tmp_path)
    assert torch.equal(same.models(), whole.models(label, seed))
    pd.testing.assert_frame_equal(
        last_rows(same, label, seed), last_rows(whole, label, seed)
    )


def test_a_trial_that_goes_on_ends_as_if_it_had_run_at_once(tuned, whole):
    for key, search in searches(tuned).items():
        full = searches(whole)[key]
        assert search.settings == full.settings
        ends = [step for step in search.steps if step.rounds == 6]
        assert len(ends) == 2
        for step in ends:
            assert step.scores == full.step(step.trial, 6).scores


@pytest.mark.parametrize("name", ["adaptive_all_for_one", "fedavg_finetune"])
def test_going_on_is_exact_for_methods_with_memory_and_with_few_clients_a_round(
    tmp_path, name
):
    entry = [{"name": name, "momentum": 0.9, "tune": {"steps": [1, 3]}}]
    run = TABLES["run"] | {"participation": 0.5, "seeds": [0]}
    results = [
        run_study(made({"halving": h}, algorithm=entry, run=run), runs=tmp_path)
        for h in (2, 1)
    ]
    halved, full = (searches(result)[name, 0] for result in results)
    ends = [step for step in halved.steps if step.rounds == 6]
    assert ends
    for step in ends:
        assert step.scores == full.step(step.trial, 6).scores


def test_the_budget_is_the_same_for_all_and_as_computed_by_hand(tuned):
    found = searches(tuned)
    assert len(found) == 4
    for search in found.values():
        assert search.rungs == (Rung(5, 1), Rung(3, 3), Rung(2, 6))
        assert len(search.settings) == 5
        # Five settings for one round, three for two more, two for three more.
        assert (
            sum(step.spent for step in search.steps)
            == 5 + 6 + 6
            == search.planned_rounds
        )
    table = tuned.records.trials
    assert set(table.groupby(["algorithm", "seed"])["spent"].sum()) == {17}
    assert set(table.groupby(["algorithm", "seed"])["trial"].nunique()) == {5}


def garble(federation: Federation, samples: torch.Tensor) -> Federation:
    """The federation with other values in some of its samples."""
    features, targets = federation.features.clone(), federation.targets.clone()
    rng = generator("tests", "garbled")
    for values in (features, targets):
        noise = torch.randn(values[samples].shape, generator=rng)
        values[samples] = noise.to(values.dtype)
    return replace(federation, features=features, targets=targets)


def with_other_values(asked, folder: Path, samples_of) -> tuple[Result, Result]:
    """A study twice, the second time with other values in some of its samples."""
    before, original = run_study(asked, runs=folder / "before"), setups.divide_table

    def divide_and_garble(study, table, seed):
        federation = original(study, table, seed)
        return garble(federation, samples_of(federation, seed))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(setups, "divide_table", divide_and_garble)
        return before, run_study(asked, runs=folder / "after")


@pytest.mark.parametrize("folds", [0, 2])
def test_test_data_choose_nothing(tmp_path, folds):
    asked = made({"folds": folds}, run=TABLES["run"] | {"seeds": [1], "rounds": 4})
    before, after = with_other_values(asked, tmp_path, lambda f, _: f.test.index)
    assert searches(before) == searches(after)
    assert torch.equal(before.models("fedavg", 1), after.models("fedavg", 1))
    tests = [r.records.metrics["test_loss"] for r in (before, after)]
    assert not np.isclose(*tests).any()


def test_newcomers_take_no_part_in_the_search(tmp_path):
    def samples_of_newcomers(federation, seed):
        _, (held,) = hold_out(federation, 1, seed)
        parts = [mine(federation, held, part) for part in ("train", "validation")]
        return torch.cat(parts)

    run = TABLES["run"] | {"newcomers": 1, "seeds": [0], "rounds": 4}
    before, after = with_other_values(made(run=run), tmp_path, samples_of_newcomers)
    assert searches(before) == searches(after)
    assert torch.equal(before.models("fedavg"), after.models("fedavg"))


def test_folds_are_trained_and_judged_one_by_one(tmp_path):
    run = TABLES["run"] | {"seeds": [1], "rounds": 1}
    tune = {"folds": 3, "halving": 1, "rounds": 3}
    asked = made(tune, algorithm=TABLES["algorithm"][1:], run=run)
    result = run_study(asked, runs=tmp_path)
    setup = prepare(asked, 1)
    entry = next(e for e in asked.algorithms if e.label == "fedavg")
    search = searches(result)["fedavg", 1]
    assert sum(step.spent for step in search.steps) == 5 * 3 * 3
    for step in search.steps:
        options = entry.options | search.settings[step.trial]
        for fold, score in zip(
            folds_of(setup.federation, 3, 1), step.scores, strict=True
        ):
            clients = Simulation(fold, setup.module, batch_size=4, seed=1)
            # The ingredients are those of the fold.
            algorithm = built(replace(entry, options=options), fold)
            *_, end = run_rounds(algorithm, clients, setup.x, rounds=3, seed=1)
            x = algorithm.personal(end.state, clients.at(3, purpose="use"))
            losses = clients.evaluate(x, "validation")["loss"]
            assert score == float(losses.double().mean())
    rows = result.records.trials
    rows = rows[(rows["algorithm"] == "fedavg") & (rows["seed"] == 1)]
    means = rows[["fold_0", "fold_1", "fold_2"]].astype(float).mean(axis=1)
    np.testing.assert_allclose(rows["score"], means, rtol=1e-12)
    assert search.chosen == int(np.argmin(rows["score"]))


def states(folder: Path) -> list[str]:
    return sorted(file.name for file in (folder / "tuning").glob("*.pt"))


SHORT = {
    "algorithm": [{"name": "local"}],
    "run": {"rounds": 4, "batch_size": 4, "evaluate_every": 4},
}
"""Four trials and `halving = 2`: all train for two rounds, two of them for four."""


@pytest.fixture(scope="module")
def short(tmp_path_factory) -> Result:
    asked = made({"halving": 2, "trials": 4, "folds": 2}, **SHORT)
    return run_study(asked, runs=tmp_path_factory.mktemp("r"))


def test_a_search_that_was_stopped_anywhere_goes_on_and_ends_the_same(short, tmp_path):
    # In the second fold, between two rungs, at the end of the search and behind it.
    for place in (3, 15, 23, 25):
        seen, runs = iter(range(100)), tmp_path / str(place)

        def stop(p: Progress, place=place, seen=seen) -> bool:
            return next(seen) == place

        stopped(short.study, stop, runs=runs)
        resumed = run_study(short.study, resume=folder_in(runs))
        assert searches(resumed) == searches(short)
        assert torch.equal(resumed.models(), short.models())
        assert states(resumed.folder) == []


def folder_in(runs: Path) -> Path:
    (folder,) = runs.glob("[!.]*")
    return folder


def test_finished_trials_are_not_trained_again(tmp_path):
    asked = made({"halving": 2, "trials": 4}, **SHORT)
    # In the second of the two that go on, after all four and the first of these.
    stopped(asked, lambda p: p.done == 4 * 2 + 2 + 1, runs=tmp_path)
    again: list[Progress] = []
    run_study(asked, resume=folder_in(tmp_path), progress=again.append)
    assert [p.done for p in again if "tuning" in p.label] == [11, 12]
    assert [p.t for p in again if "tuning" in p.label] == [3, 4]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("method", ["save_search", "save_trial", "drop_trial"])
def test_a_kill_between_any_two_files_changes_nothing(
    short, tmp_path, monkeypatch, method, late
):
    original, calls = getattr(Folder, method), iter(range(1000))

    def fails(*args) -> None:
        stop = next(calls) == 3
        if stop and not late:
            raise KeyboardInterrupt
        original(*args)
        if stop:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Folder, method, fails)
        run_study(short.study, runs=tmp_path)
    resumed = run_study(short.study, resume=folder_in(tmp_path))
    assert searches(resumed) == searches(short)
    assert states(resumed.folder) == []
    assert torch.equal(resumed.models(), short.models())


def test_only_trials_that_may_go_on_keep_their_state(tmp_path):
    asked = made({"halving": 2, "trials": 4}, **SHORT)
    folder = folder_of(asked, tmp_path)
    most: Counter[str] = Counter()

    def look(p: Progress) -> None:
        most[p.label] = max(most[p.label], len(states(folder)))

    run_study(asked, runs=tmp_path, progress=look)
    assert most["local (tuning 4/4)"] >= 3
    assert max(most.values()) == 4
    assert most["local"] == 0
    assert states(folder) == []


def test_a_finished_search_is_not_made_again(tuned, monkeypatch):
    refuse_training(monkeypatch)
    again = run_study(tuned.study, resume=tuned.folder)
    assert searches(again) == searches(tuned)


def test_settings_that_diverge_are_recorded_as_failed_and_not_chosen(tmp_path):
    space = {"lr": [1e30, 0.01, 1e-4]}
    run = TABLES["run"] | {"rounds": 3}
    asked = made({"space": space}, algorithm=[{"name": "local"}], run=run)
    result = run_study(asked, runs=tmp_path)
    table = result.records.trials
    failed = table[table["status"] == "failed"]
    assert list(failed["lr"]) == [1e30, 1e30]
    assert failed["score"].isna().all()
    assert (failed["spent"] < 3).all()
    assert set(result.chosen_options()["lr"]) <= {0.01, 1e-4}
    assert "2 could not be trained" in written(result.records, tmp_path)


def test_if_all_settings_diverge_the_study_stops_and_stays_so(tmp_path):
    asked = made({"space": {"lr": [1e30, 1e29]}}, algorithm=[{"name": "local"}])
    for _ in range(2):
        with pytest.raises(TrainingError, match="none of the 2 settings"):
            run_study(asked, runs=tmp_path)
    found = Folder(folder_of(asked, tmp_path)).search("local", 0)
    assert [step.scores for step in found.steps] == [(), ()]


def test_an_algorithm_without_searched_options_runs_as_written(tmp_path):
    asked = made(
        {"space": {"tune_lr": [0.1, 0.01]}},
        algorithm=[*TABLES["algorithm"][:1], {"name": "fedavg_finetune"}],
        run=TABLES["run"] | {"seeds": [0]},
    )
    assert [entry.tune for entry in asked.algorithms] == [{}, {"tune_lr": [0.1, 0.01]}]
    result = run_study(asked, runs=tmp_path)
    alone = run_alone({}, "local", 0, tmp_path)
    assert torch.equal(result.models("local", 0), alone.models())
    assert set(result.records.trials["algorithm"]) == {"fedavg_finetune"}
    assert "as written" in written(result.records, tmp_path)


def test_every_round_of_the_search_is_counted(tmp_path):
    told: list[Progress] = []
    tune, run = {"halving": 2, "folds": 2}, TABLES["run"] | {"rounds": 2}
    run_study(made(tune, run=run), runs=tmp_path, progress=told.append)
    # Four searches of two folds, five settings for one round and three for another
    # one, and four runs of two rounds.
    assert {p.total for p in told} == {4 * 2 * (5 + 3) + 4 * 2}
    assert [p.done for p in told] == list(range(1, told[0].total + 1))
    assert told[0].label == "local (tuning 1/5)"
    scores = [p.score for p in told if "tuning" in p.label and p.score is not None]
    assert len(scores) == 4 * 2 * (5 + 3)
