from __future__ import annotations

import copy
import json
import math
import os
import re
import sys
import tomllib
from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from typer.testing import CliRunner

from coterie import cells, cli, ground, report, trials
from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError, TrainingError
from coterie.config import read_study, study
from coterie.data.federation import Federation
from coterie.experiment import Progress, Result, run_study
from coterie.ground import build_algorithm, federation_of, prepare
from coterie.newcomers import hold_out
from coterie.oracle import Simulation
from coterie.record import Folder, load_records
from coterie.rounds import run_rounds
from coterie.seeds import generator
from coterie.tuning import (
    OWN,
    Rung,
    Search,
    Step,
    Tune,
    choose,
    folded,
    rungs,
    search_of,
    settings_of,
)

RANGE = {"from": 0.01, "to": 1.0}
LOG = {**RANGE, "scale": "log"}
TABLES = {
    "name": "tuned",
    "data": {"name": "linear", "clients": 4, "dimension": 3, "samples": 24},
    "model": {"name": "linear", "bias": False},
    "run": {"rounds": 6, "batch_size": 4, "seeds": [0, 1], "evaluate_every": 6},
    "algorithm": [
        {"name": "local", "lr": 0.05, "momentum": 0.5},
        {"name": "fedavg", "tune": {"steps": {"from": 1, "to": 3}}},
    ],
    "tune": {"trials": 5, "space": {"lr": {"from": 0.001, "to": 0.1}}},
}


def made(tune: dict | None = None, **tables: object):
    """The study with settings of [tune] changed, and other tables replaced."""
    whole = copy.deepcopy(TABLES) | tables
    whole["tune"] = whole["tune"] | (tune or {})
    return study(whole)


@pytest.fixture(autouse=True)
def no_waiting_for_disks(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> Result:
    """Two algorithms with two seeds; three of five settings train for six rounds."""
    return run_study(made({"halving": 2}), runs=tmp_path_factory.mktemp("r"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Result:
    """The same, where all settings train for six rounds."""
    return run_study(made({"halving": 1}), runs=tmp_path_factory.mktemp("r"))


def searches(result: Result) -> dict[tuple[str, int], Search]:
    files = sorted((result.folder / "tuning").iterdir())
    found = [search_of(json.loads(file.read_text())) for file in files]
    return {(search.label, search.seed): search for search in found}


# The schedule.


@pytest.mark.parametrize(
    ("trials", "rounds", "factor", "expected"),
    [
        (8, 100, 3, [(8, 33), (3, 100)]),
        (27, 100, 3, [(27, 11), (9, 33), (3, 100)]),
        (9, 9, 3, [(9, 3), (3, 9)]),
        (16, 8, 2, [(16, 1), (8, 2), (4, 4), (2, 8)]),
        (16, 7, 2, [(16, 1), (8, 3), (4, 7)]),  # no rung of less than a round
        (5, 6, 2, [(5, 1), (3, 3), (2, 6)]),
        (4, 10, 3, [(4, 3), (2, 10)]),
        (3, 10, 3, [(3, 10)]),  # a single one that trains on decides nothing
        (8, 2, 3, [(8, 2)]),
        (5, 10, 1, [(5, 10)]),
        (1, 10, 3, [(1, 10)]),
    ],
)
def test_rungs_are_those_computed_by_hand(trials, rounds, factor, expected):
    assert rungs(trials, rounds, factor) == tuple(Rung(*pair) for pair in expected)


# The settings.


def test_draws_lie_in_their_range_evenly_on_its_scale():
    space = {
        "a": LOG,
        "b": {"from": -1.0, "to": 3.0, "scale": "linear"},
        "c": {"from": 1, "to": 8, "scale": "log"},
        "d": {"from": 0, "to": 4, "scale": "linear"},
        "e": ["x", "y"],
    }
    count = 1000
    drawn = pd.DataFrame(settings_of(Tune(trials=count), space, {}, seed=3))
    assert drawn["a"].between(0.01, 1).all()
    assert drawn["b"].between(-1, 3).all()
    # Half of the draws lie below the middle of the scale; 4 standard deviations.
    room = 4 * math.sqrt(count) / 2
    assert abs((drawn["a"] < 0.1).sum() - count / 2) < room
    assert abs((drawn["b"] < 1).sum() - count / 2) < room
    assert abs((drawn["c"] < 3).sum() - count / 2) < room  # log 3 / log 9
    assert abs((drawn["e"] == "x").sum() - count / 2) < room
    assert set(drawn["c"]) == set(range(1, 9))
    assert set(drawn["d"]) == set(range(5))
    share = (drawn["d"] == 4).mean()
    assert abs(share - 0.2) < 4 * math.sqrt(0.2 * 0.8 / count)
    for name in ("c", "d"):
        assert all(type(value) is int for value in drawn[name].tolist())
    assert all(value == float(f"{value:.4g}") for value in drawn["a"])


def test_all_methods_try_the_same_values_of_a_shared_option():
    space = {"lr": LOG, "lam": {"from": 1.0, "to": 2.0, "scale": "linear"}}
    one = settings_of(Tune(), {"lr": LOG}, {}, seed=0)
    two = settings_of(Tune(), space, {}, seed=0)
    assert [s["lr"] for s in one] == [s["lr"] for s in two]
    assert len({s["lr"] for s in one}) == len({s["lam"] for s in two}) == 8
    other = settings_of(Tune(), {"lr": LOG}, {}, seed=1)
    assert not {s["lr"] for s in one} & {s["lr"] for s in other}


def test_settings_differ_also_where_a_range_has_few_values():
    space = {"steps": {"from": 1, "to": 3, "scale": "linear"}}
    found = settings_of(Tune(trials=8), space, {}, seed=0)
    assert sorted(s["steps"] for s in found) == [1, 2, 3]


@pytest.mark.parametrize("search", ["random", "grid"])
def test_lists_give_all_their_combinations_where_these_are_few(search):
    space = {"lr": [0.1, 1.0], "lam": [1, 2, 3]}
    expected = [{"lr": a, "lam": b} for a in (0.1, 1.0) for b in (1, 2, 3)]
    assert list(settings_of(Tune(6, search), space, {}, seed=0)) == expected
    assert list(settings_of(Tune(9, search), space, {}, seed=0)) == expected


@pytest.mark.parametrize("search", ["random", "grid"])
def test_of_too_many_combinations_a_random_choice_is_tried(search):
    space = {"lr": [0.1, 0.2, 0.3], "lam": [1, 2, 3]}
    counts, chosen = Counter(), set()
    for seed in range(300):
        found = settings_of(Tune(4, search), space, {}, seed)
        tried = {(s["lr"], s["lam"]) for s in found}
        assert len(found) == len(tried) == 4
        counts.update(tried)
        chosen.add(tuple(sorted(tried)))
    assert len(chosen) > 50
    # Each of the nine is tried with probability 4/9; 4 standard deviations.
    assert len(counts) == 9
    room = 4 * math.sqrt(300 * 4 / 9 * 5 / 9)
    assert all(abs(count - 300 * 4 / 9) < room for count in counts.values())


def test_a_grid_may_have_more_combinations_than_memory():
    space = {name: list(range(1000)) for name in "abcdef"}
    assert len(settings_of(Tune(8, "grid"), space, {"a": 7}, seed=0)) == 8


@pytest.mark.parametrize(
    "space", [{"lr": LOG, "lam": [1, 2]}, {"lr": [0.01, 0.5], "lam": [1, 2]}]
)
def test_written_values_are_tried_first_and_only_once(space):
    for lr in (0.5, 7.0):
        found = settings_of(Tune(trials=4), space, {"lr": lr, "steps": 3}, seed=0)
        assert len(found) == 4
        assert found[0]["lr"] == lr
        assert all(s.keys() == {"lr", "lam"} for s in found)
        assert sum(s == found[0] for s in found) == 1
        if isinstance(space["lr"], dict):
            assert all(s["lr"] != lr for s in found[1:])


# The folds.


def of(federation: Federation, name: str, client: int) -> list[int]:
    index, start, size = federation.part(name)
    return index[start[client] : start[client] + size[client]].tolist()


@pytest.mark.parametrize("folds", [2, 3, 5])
def test_folds_divide_training_and_validation_data_and_leave_test_data(
    classification, folds
):
    some = classification.select(torch.tensor([4, 0, 2]))
    made = folded(some, folds, seed=0)
    assert len(made) == folds
    for client in range(3):
        everything = of(some, "train", client) + of(some, "validation", client)
        held = [of(fold, "validation", client) for fold in made]
        assert sorted(j for part in held for j in part) == sorted(everything)
        sizes = [len(part) for part in held]
        assert max(sizes) - min(sizes) <= 1
        for fold, part in zip(made, held, strict=True):
            rest = of(fold, "train", client)
            assert sorted(rest + part) == sorted(everything)
            assert of(fold, "test", client) == of(some, "test", client)
    for fold in made:
        assert fold.clients is some.clients
        assert fold.features is some.features


def test_folds_depend_on_the_seed_alone(classification):
    first, again, other = (folded(classification, 2, seed) for seed in (0, 0, 1))
    assert torch.equal(first[0].train.index, again[0].train.index)
    assert not torch.equal(first[0].train.index, other[0].train.index)


def test_too_few_samples_for_the_folds_are_refused(classification):
    message = r"`tune.folds` = 7 needs at least 7 samples .* client 1 .* has 6"
    with pytest.raises(InputError, match=message):
        folded(classification, 7, seed=0)
    assert len(folded(classification, 6, seed=0)) == 6


# The choice, with scores from a table in place of training.


def scored(table: list[list[float]], spent: list[tuple[int, int]]):
    """Training that takes scores from a table (trial, rung); NaN fails."""

    def train(search: Search, trial: int, rung: Rung) -> Step:
        spent.append((trial, rung.rounds))
        score = table[trial][search.rungs.index(rung)]
        return Step(trial, rung.rounds, 1, () if math.isnan(score) else (score,))

    return train


def begun(trials: int, rounds: int = 9, factor: int = 3) -> Search:
    settings = tuple({"lr": float(number)} for number in range(trials))
    return Search("local", 0, 1, settings, rungs(trials, rounds, factor))


@pytest.mark.parametrize("higher", [True, False])
def test_the_best_of_each_rung_go_on_and_the_best_at_the_end_is_chosen(higher):
    sign = 1 if higher else -1
    # After 3 rounds 1, 4 and 5 are best, and 1 comes before 0 and 2 only by a tie.
    table = [[1, 9], [5, 3], [1, 9], [0, 9], [7, 1], [5, 3]]
    begin = Search("local", 0, 1, begun(6).settings, (Rung(6, 3), Rung(3, 9)))
    spent: list[tuple[int, int]] = []
    train = scored([[sign * value for value in row] for row in table], spent)
    end = choose(begin, train, lambda *_: None, higher=higher)
    assert spent == [*((trial, 3) for trial in range(6)), (4, 9), (1, 9), (5, 9)]
    assert end.chosen == 1  # as good as 5, and tried before
    assert end.best == {"lr": 1.0}
    fates = {step[:2]: end.status(step) for step in end.steps}
    assert [fates[trial, 3] for trial in range(6)] == [
        "dropped",
        "went on",
        "dropped",
        "dropped",
        "went on",
        "went on",
    ]
    assert [fates[trial, 9] for trial in (1, 4, 5)] == [
        "chosen",
        "finished",
        "finished",
    ]


def test_a_setting_that_fails_cannot_be_chosen_even_late():
    nan = math.nan
    begin = begun(6)
    assert begin.rungs == (Rung(6, 3), Rung(2, 9))
    train = scored([[nan, 1], [3, nan], [2, 0], [nan, 1], [1, 9], [1, 9]], [])
    end = choose(begin, train, lambda *_: None, higher=True)
    assert end.chosen == 2
    assert [s.trial for s in end.steps if end.status(s) == "failed"] == [0, 3, 1]


@pytest.mark.parametrize("rung", [0, 1])
def test_if_every_setting_fails_training_stops_with_a_sentence(rung):
    table = [[1.0, 1.0] for _ in range(6)]
    for row in table:
        row[rung] = math.nan
    message = r"local \(seed 0\): none of the 6 settings of \[tune.space\]"
    with pytest.raises(TrainingError, match=message):
        choose(begun(6), scored(table, []), lambda *_: None, higher=True)


def test_a_stopped_search_makes_only_the_steps_that_are_left():
    rng = generator("tests", "stopped")
    table = torch.rand(9, 2, generator=rng).tolist()
    spent: list[tuple[int, int]] = []
    found: list[Search] = []
    train = scored(table, spent)
    end = choose(begun(9), train, lambda s, _: found.append(s), higher=True)
    steps = list(spent)
    assert len(steps) == 12
    for number, stopped in enumerate(found):
        spent.clear()
        assert choose(stopped, train, lambda *_: None, higher=True) == end
        assert spent == steps[number + 1 :]


# Studies.


def alone(setting: dict, label: str, seed: int, folder: Path) -> Result:
    """One algorithm run with a setting by a study without [tune]."""
    tables = copy.deepcopy(TABLES)
    del tables["tune"]
    tables["run"]["seeds"] = [seed]
    (entry,) = [e for e in tables["algorithm"] if e["name"] == label]
    entry.pop("tune", None)
    tables["algorithm"] = [entry | setting]
    return run_study(study(tables), runs=folder)


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
        rows = last_rows(alone(setting, label, seed, tmp_path), label, seed)
        scores.append(rows["validation_loss"].to_numpy().astype(np.float64).mean())
    recorded = [step.score for step in search.steps]
    # Both are means of the same four single-precision losses.
    np.testing.assert_allclose(recorded, scores, rtol=1e-12)
    assert search.chosen == int(np.argmin(scores))
    assert len(set(scores)) == len(scores)
    same = alone(search.best, label, seed, tmp_path)
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
        assert sum(step.spent for step in search.steps) == 5 + 6 + 6 == search.planned
    table = tuned.records.trials
    assert set(table.groupby(["algorithm", "seed"])["spent"].sum()) == {17}
    assert set(table.groupby(["algorithm", "seed"])["trial"].nunique()) == {5}


def garbled(federation: Federation, samples: torch.Tensor) -> Federation:
    """The federation with other values in some of its samples."""
    features, targets = federation.features.clone(), federation.targets.clone()
    rng = generator("tests", "garbled")
    for values in (features, targets):
        noise = torch.randn(values[samples].shape, generator=rng)
        values[samples] = noise.to(values.dtype)
    return replace(federation, features=features, targets=targets)


@pytest.mark.parametrize("folds", [0, 2])
def test_test_data_choose_nothing(tmp_path, monkeypatch, folds):
    asked = made({"folds": folds}, run=TABLES["run"] | {"seeds": [1], "rounds": 4})
    before = run_study(asked, runs=tmp_path / "before")
    original = federation_of

    def other(study, seed):
        federation = original(study, seed)
        return garbled(federation, federation.test.index)

    monkeypatch.setattr(ground, "federation_of", other)
    after = run_study(asked, runs=tmp_path / "after")
    assert searches(before) == searches(after)
    assert torch.equal(before.models("fedavg", 1), after.models("fedavg", 1))
    tests = [r.records.metrics["test_loss"] for r in (before, after)]
    assert not np.isclose(*tests).any()


def test_newcomers_take_no_part_in_the_search(tmp_path, monkeypatch):
    run = TABLES["run"] | {"newcomers": 1, "seeds": [0], "rounds": 4}
    asked = made(run=run)
    before = run_study(asked, runs=tmp_path / "before")
    original = federation_of

    def other(study, seed):
        federation = original(study, seed)
        _, (held,) = hold_out(federation, 1, seed)
        train, validation = (
            of(federation, part, int(held)) for part in ("train", "validation")
        )
        return garbled(federation, torch.tensor(train + validation))

    monkeypatch.setattr(ground, "federation_of", other)
    after = run_study(asked, runs=tmp_path / "after")
    assert searches(before) == searches(after)
    assert torch.equal(before.models("fedavg"), after.models("fedavg"))


def test_folds_are_trained_and_judged_one_by_one(tmp_path):
    run = TABLES["run"] | {"seeds": [1], "rounds": 1}
    tune = {"folds": 3, "halving": 1, "rounds": 3}
    asked = made(tune, algorithm=TABLES["algorithm"][1:], run=run)
    result = run_study(asked, runs=tmp_path)
    ground = prepare(asked, 1)
    entry = next(e for e in asked.algorithms if e.label == "fedavg")
    search = searches(result)["fedavg", 1]
    assert sum(step.spent for step in search.steps) == 5 * 3 * 3
    for step in search.steps:
        options = entry.options | search.settings[step.trial]
        for fold, score in zip(
            folded(ground.federation, 3, 1), step.scores, strict=True
        ):
            clients = Simulation(fold, ground.module, batch_size=4, seed=1)
            # The ingredients are those of the fold.
            algorithm = build_algorithm(replace(entry, options=options), fold)
            *_, end = run_rounds(algorithm, clients, ground.x, rounds=3, seed=1)
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
        seen = iter(range(100))

        def interrupt(p: Progress, stop=place, seen=seen) -> None:
            if next(seen) == stop:
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            run_study(short.study, runs=tmp_path / str(place), progress=interrupt)
        resumed = run_study(short.study, resume=folder_in(tmp_path / str(place)))
        assert searches(resumed) == searches(short)
        assert torch.equal(resumed.models(), short.models())
        assert states(resumed.folder) == []


def folder_in(runs: Path) -> Path:
    (folder,) = runs.iterdir()
    return folder


def test_finished_trials_are_not_trained_again(tmp_path):
    asked = made({"halving": 2, "trials": 4}, **SHORT)

    def interrupt(p: Progress) -> None:
        # In the second of the two that go on, after all four and the first of these.
        if p.done == 4 * 2 + 2 + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(asked, runs=tmp_path, progress=interrupt)
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
    folder = tmp_path / asked.identity
    most: Counter[str] = Counter()

    def look(p: Progress) -> None:
        most[p.label] = max(most[p.label], len(states(folder)))

    run_study(asked, runs=tmp_path, progress=look)
    assert most["local (tuning 4/4)"] >= 3
    assert max(most.values()) == 4
    assert most["local"] == 0
    assert states(folder) == []


def test_a_finished_search_is_not_made_again(tuned, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("trained again")

    monkeypatch.setattr(trials, "run_rounds", refuse)
    monkeypatch.setattr(cells, "run_rounds", refuse)
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
    assert set(result.chosen()["lr"]) <= {0.01, 1e-4}
    page = report.write_report(result.records, tmp_path / "report.html")
    assert "2 could not be trained" in page.read_text("utf-8")


def test_if_all_settings_diverge_the_study_stops_and_stays_so(tmp_path):
    asked = made({"space": {"lr": [1e30, 1e29]}}, algorithm=[{"name": "local"}])
    for _ in range(2):
        with pytest.raises(TrainingError, match="none of the 2 settings"):
            run_study(asked, runs=tmp_path)
    found = Folder(tmp_path / asked.identity).search("local", 0)
    assert [step.scores for step in found.steps] == [(), ()]


def test_an_algorithm_without_searched_options_runs_as_written(tmp_path):
    asked = made(
        {"space": {"tune_lr": [0.1, 0.01]}},
        algorithm=[*TABLES["algorithm"][:1], {"name": "fedavg_finetune"}],
        run=TABLES["run"] | {"seeds": [0]},
    )
    assert [entry.tune for entry in asked.algorithms] == [{}, {"tune_lr": [0.1, 0.01]}]
    result = run_study(asked, runs=tmp_path)
    written = alone({}, "local", 0, tmp_path)
    assert torch.equal(result.models("local", 0), written.models())
    assert set(result.records.trials["algorithm"]) == {"fedavg_finetune"}
    page = report.write_report(result.records, tmp_path / "report.html")
    assert "as written" in page.read_text("utf-8")


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


# How it is written.


def test_without_the_table_nothing_is_searched(tmp_path):
    tables = {
        key: value for key, value in copy.deepcopy(TABLES).items() if key != "tune"
    }
    del tables["algorithm"][1]["tune"]
    asked = study(tables)
    assert asked.tune is None
    assert "tune" not in asked.resolved()
    result = run_study(asked, runs=tmp_path)
    assert result.records.trials.empty
    assert not (result.folder / "tuning").exists()
    assert not (result.folder / "tuning.csv").exists()
    with pytest.raises(InputError, match="no choice"):
        result.chosen()
    with pytest.raises(InputError, match="no trials"):
        report.trials(result.records)
    page = report.write_report(result.records, tmp_path / "report.html")
    assert "What was chosen" not in page.read_text("utf-8")


def test_shared_ranges_own_ranges_and_the_default(tmp_path):
    entries = [
        {"name": "local"},
        {
            "name": "fedavg",
            "lr": 0.5,
            "tune": {"lr": [0.1, 0.2], "momentum": [0.0, 0.9]},
        },
    ]
    spaces = [
        e.tune for e in made({"space": {"lr": RANGE}}, algorithm=entries).algorithms
    ]
    assert spaces == [{"lr": LOG}, {"lr": [0.1, 0.2], "momentum": [0.0, 0.9]}]
    entries[1]["tune"] = {"momentum": [0.0, 0.9]}
    around = {"from": 0.05, "to": 5.0, "scale": "log"}
    spaces = [e.tune for e in made({"space": {}}, algorithm=entries).algorithms]
    assert spaces == [{"lr": LOG}, {"lr": around, "momentum": [0.0, 0.9]}]
    entries[1]["tune"] = {}
    spaces = [
        e.tune for e in made({"space": {"lr": [1]}}, algorithm=entries).algorithms
    ]
    assert spaces == [{"lr": [1]}, {"lr": [1]}]


@pytest.mark.parametrize("name", OWN)
def test_without_a_space_the_step_size_and_the_own_parameter_are_searched(name):
    (entry,) = made({"space": {}}, algorithm=[{"name": name}]).algorithms
    assert set(OWN[name]) < set(entry.tune)
    assert "lr" in entry.tune
    (entry,) = made({"space": {"lr": [1]}}, algorithm=[{"name": name}]).algorithms
    assert set(entry.tune) == {"lr"}


def test_the_resolved_study_is_the_same_study_again(tmp_path):
    for tune in ({}, {"space": {}}, {"space": {"steps": [1, 2], "lr": RANGE}}):
        first = made(tune)
        path = tmp_path / "again.toml"
        path.write_text(tomli_w.dumps(first.resolved()))
        again = read_study(path)
        assert again == first
        assert again.identity == first.identity
        for one, two in zip(first.algorithms, again.algorithms, strict=True):
            assert list(one.tune) == list(two.tune)  # so that draws are the same


def test_the_order_in_which_options_are_written_changes_nothing():
    spaces = ({"lr": [1, 2], "steps": [1, 2, 3]}, {"steps": [1, 2, 3], "lr": [1, 2]})
    first, second = (made({"space": space}) for space in spaces)
    assert first.identity == second.identity
    for one, two in zip(first.algorithms, second.algorithms, strict=True):
        found = [
            settings_of(s.tune, e.tune, e.options, 0)
            for s, e in ((first, one), (second, two))
        ]
        assert found[0] == found[1]


@pytest.mark.parametrize(
    "change",
    [
        {"trials": 4},
        {"search": "grid", "space": {"lr": [0.1, 1.0], "steps": [1]}},
        {"halving": 2},
        {"folds": 2},
        {"rounds": 3},
        {"space": {"lr": {"from": 0.002, "to": 0.1}}},
    ],
)
def test_the_identity_changes_with_every_key(change):
    entries = [{"name": "local"}]
    assert made(change, algorithm=entries).identity != made(algorithm=entries).identity


def wrong(path: str, value: object) -> dict:
    """The tables with one setting changed, such as "tune.space.lr"."""
    tables = copy.deepcopy(TABLES)
    *way, last = [int(key) if key.isdigit() else key for key in path.split(".")]
    place = tables
    for key in way:
        place = place[key]
    place[last] = value
    return tables


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("tune", 3, r"\[tune\] must be a table, got 3"),
        ("tune.trails", 3, r"\[tune\] has no option 'trails'. Did you mean 'trials'"),
        ("tune.trials", 0, "`tune.trials` must be at least 1, got 0"),
        ("tune.trials", "many", "`tune.trials` must be a whole number, got 'many'"),
        ("tune.search", "gird", "`tune.search` must be one of .* Did you mean 'grid'"),
        ("tune.halving", 0, "`tune.halving` must be at least 1, got 0"),
        ("tune.folds", 1, "`tune.folds` must be 0 or at least 2, got 1"),
        ("tune.rounds", -1, "`tune.rounds` must be at least 0, got -1"),
        ("tune.space", [1], r"\[tune.space\] must be a table, got \[1\]"),
        ("tune.space.lrr", [1], "no algorithm has an option 'lrr'. Did you mean 'lr'"),
        ("tune.space.lr", 0.1, "`tune.space.lr` must be a list of values or a range"),
        ("tune.space.lr", [], "`tune.space.lr` must be a list of values or a range"),
        ("tune.space.lr", {"from": 1}, "`tune.space.lr` must be a list of values or a"),
        ("tune.space.lr", [1, 1.0], "`tune.space.lr` must differ, got 1 twice"),
        ("tune.space.lr", ["x"], "`tune.space.lr` must be a number, got 'x'"),
        ("tune.space.steps", [1.5], "`tune.space.steps` must be a whole number"),
        (
            "tune.space.steps",
            {"from": 1.5, "to": 3},
            "`tune.space.steps` must be a whole number, got 1.5",
        ),
        (
            "tune.space.schedule",
            {"from": 1, "to": 3},
            "`tune.space.schedule` must be text, got 1",
        ),
        (
            "tune.space.lr",
            {**RANGE, "scales": "log"},
            "the range `tune.space.lr` has no 'scales'. Did you mean 'scale'",
        ),
        (
            "tune.space.lr",
            {**RANGE, "scale": "lin"},
            "`tune.space.lr.scale` must be one of .* Did you mean 'linear'",
        ),
        (
            "tune.space.lr",
            {"from": 1.0, "to": 0.1},
            "`tune.space.lr.to` must be greater than 1, got 0.1",
        ),
        (
            "tune.space.lr",
            {"from": 0, "to": 0.1},
            "`tune.space.lr.from` must be greater than 0 on its logarithmic scale",
        ),
        (
            "tune.space.lr",
            {"from": "a", "to": 0.1},
            "`tune.space.lr` must be a number, got 'a'",
        ),
        ("algorithm.1.tune", 3, "`tune` of fedavg must be a table, got 3"),
        (
            "algorithm.1.tune",
            {"stepps": [1]},
            r"\[algorithm.tune\] fedavg has no option 'stepps'. Did you mean 'steps'",
        ),
        (
            "algorithm.1.tune",
            {"steps": 3},
            "`algorithm.tune.steps` must be a list of values or a range",
        ),
        (
            "tune.search",
            "grid",
            "grid needs lists of values .* lr of local has a range",
        ),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_a_suggestion(setting, value, message):
    with pytest.raises(InputError, match=message):
        study(wrong(setting, value))


def test_ranges_of_an_algorithm_need_the_table():
    tables = {key: value for key, value in TABLES.items() if key != "tune"}
    with pytest.raises(InputError, match=r"`tune` of fedavg needs a table \[tune\]"):
        study(tables)


def test_an_option_that_records_call_otherwise_cannot_be_tuned(monkeypatch):
    def mine(*, rounds: int = 1) -> None:
        """Not run."""

    monkeypatch.setitem(ALGORITHMS, "m", mine)
    with pytest.raises(InputError, match=r"`tune.space.rounds` cannot be tuned"):
        made({"space": {"rounds": [1, 2]}}, algorithm=[{"name": "m"}])


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with study.toml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("COLUMNS", "80")
    Path("study.toml").write_text(tomli_w.dumps(TABLES))
    return tmp_path


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ["tune.space.lr=[0.1, -1.0]"],
            r"\[tune.space\] gives local a setting that cannot be used, lr = -1.0: "
            r"`lr` must be greater than 0, got -1.0\.",
        ),
        (
            ["tune.space.momentum=[0.5, 1.0]"],
            r"momentum = 1.0: `momentum` must be less",
        ),
        (["tune.folds=50"], "`tune.folds` = 50 needs at least 50 samples"),
        (["tune.space.lrr=[1]"], "Did you mean 'lr'"),
        (["tune.spce.lr=[1]"], "must read table.key=value"),
        (["tune.trials=x"], "`tune.trials` must be a whole number, got 'x'"),
    ],
)
def test_bad_input_is_refused_by_the_command_line_before_any_work(
    here, capsys, monkeypatch, overrides, message
):
    monkeypatch.setattr(
        sys,
        "argv",
        ["coterie", "run", "study.toml", *(f"--set={o}" for o in overrides)],
    )
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 2
    written = capsys.readouterr()
    assert len(written.err.strip().splitlines()) == 1
    assert re.search(message, written.err)
    assert [path.name for path in here.iterdir()] == ["study.toml"]


def test_a_setting_of_a_later_seed_is_checked_before_work_too(tmp_path):
    """With 2 trials of 40 values, the bad one is drawn by some seeds only."""
    space = {"momentum": [number / 40 for number in range(41)]}
    entries = [{"name": "local"}]
    tune = {"trials": 2, "space": space}
    asked = made(tune, algorithm=entries)
    entry = asked.algorithms[0]
    drawn = {
        seed: [s["momentum"] for s in settings_of(asked.tune, entry.tune, {}, seed)]
        for seed in range(200)
    }
    bad = next(seed for seed, values in drawn.items() if 1.0 in values)
    good = next(seed for seed, values in drawn.items() if 1.0 not in values)
    run = TABLES["run"] | {"seeds": [good, bad]}
    with pytest.raises(InputError, match=r"momentum = 1\.0"):
        run_study(made(tune, algorithm=entries, run=run), runs=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_set_reaches_the_table_and_its_space(here):
    made = read_study("study.toml", ["tune.trials=4", "tune.space.lr=[0.1, 0.2]"])
    assert made.tune == Tune(trials=4, space={"lr": [0.1, 0.2]})
    made = read_study("study.toml", ["tune.space.momentum={from=0.1, to=0.9}"])
    assert set(made.tune.space) == {"lr", "momentum"}
    made = read_study("study.toml", ["algorithm.fedavg.tune={}", "tune.space={}"])
    assert made.algorithms[1].tune == {"lr": LOG}


def test_set_may_make_the_table(here):
    tables = {
        key: value for key, value in copy.deepcopy(TABLES).items() if key != "tune"
    }
    del tables["algorithm"][1]["tune"]
    Path("plain.toml").write_text(tomli_w.dumps(tables))
    made = read_study("plain.toml", ["tune.space.lr=[0.1, 0.2]"])
    assert made.tune == Tune(space={"lr": [0.1, 0.2]})


# What is left behind.


def test_records_say_what_was_tried_and_chosen(tuned):
    table = tuned.records.trials
    read = pd.read_csv(tuned.folder / "tuning.csv")
    pd.testing.assert_frame_equal(
        read, table.astype(read.dtypes.to_dict()), check_dtype=False
    )
    for (label, seed), search in searches(tuned).items():
        mine = table[(table["algorithm"] == label) & (table["seed"] == seed)]
        assert len(mine) == len(search.steps) == 10
        assert set(mine.loc[mine["chosen"], "trial"]) == {search.chosen}
        for _, row in mine.iterrows():
            setting = search.settings[row["trial"]]
            assert {key: row[key] for key in setting} == setting
        options = tuned.chosen().loc[(label, seed)].dropna().to_dict()
        assert options == search.best
    assert type(tuned.chosen()["steps"].dropna().iloc[0]) is int
    assert list(tuned.chosen().columns) == ["lr", "steps"]
    again = load_records(tuned.folder).trials
    pd.testing.assert_frame_equal(again, table)


def test_the_report_says_what_was_chosen_and_from_what(tuned, tmp_path):
    page = report.write_report(tuned.records, tmp_path / "report.html")
    text = page.read_text("utf-8")
    section = text[text.index('<h2 id="chosen">') : text.index('<h2 id="made">')]
    assert "Test data chose nothing" in section
    assert "5 settings with each seed, by random search" in section
    assert "train for 1 rounds, the best 3 go on to round 3, the best 2" in section
    for (label, seed), options in tuned.chosen().iterrows():
        for option, value in options.dropna().items():
            row = re.search(
                rf'<th scope="row">{label}</th><td>{option}</td>(.*?)</tr>', section
            )
            cells = re.findall("<td>(.*?)</td>", row[1])
            assert cells[1 + seed] == f"{value:g}"
            assert cells[-2:] == ["5", "17"]
    assert "<td>0.001 to 0.1 (log)</td>" in section
    assert "<td>1 to 3 (log)</td>" in section


def test_the_figure_shows_every_trial_where_it_ended(tuned):
    figure = report.trials(tuned.records)
    assert [trace.name for trace in figure.data] == ["local", "fedavg"]
    found = searches(tuned)
    for trace in figure.data:
        mine = [found[trace.name, seed] for seed in (0, 1)]
        ends = {}
        for search in mine:
            for step in sorted(search.steps):
                lr = search.settings[step.trial]["lr"]
                ends[lr, step.trial, search.seed] = step.score
        expected = sorted((lr, score) for (lr, *_), score in ends.items())
        assert sorted(zip(trace.x, trace.y, strict=True)) == expected
        stars = [
            x
            for x, symbol in zip(trace.x, trace.marker.symbol, strict=True)
            if symbol == "star"
        ]
        assert sorted(stars) == sorted(search.best["lr"] for search in mine)
        assert Counter(trace.marker.symbol) == {
            "star": 2,
            "circle": 2,
            "circle-open": 6,
        }
    assert figure.layout.xaxis.type == "log"
    by_steps = figure.layout.updatemenus[0].buttons[1]
    assert by_steps.args[1]["xaxis.title.text"] == "steps"
    assert list(by_steps.args[0]["x"][0]) == [None] * 10  # local did not search them


def test_values_of_other_kinds_have_an_axis_of_names(tmp_path):
    entries = [{"name": "local"}, {"name": "all_for_one"}]
    space = {"weights": ["clusters", "alone"], "lr": [0.01]}
    run = {"rounds": 2, "batch_size": 4}
    asked = made({"space": space}, algorithm=entries, run=run)
    result = run_study(asked, runs=tmp_path)
    figure = report.trials(result.records)
    kinds = [b.args[1]["xaxis.type"] for b in figure.layout.updatemenus[0].buttons]
    assert kinds == ["linear", "category"]
    assert set(result.chosen()["weights"].dropna()) <= {"clusters", "alone"}


def test_an_interrupted_search_is_reported(tmp_path):
    asked = made({"halving": 2}, run=TABLES["run"] | {"seeds": [0], "rounds": 2})

    def interrupt(p: Progress) -> None:
        if p.label == "fedavg (tuning 3/5)":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_study(asked, runs=tmp_path, progress=interrupt)
    records = load_records(tmp_path / asked.identity)
    waiting = records.trials[records.trials["algorithm"] == "fedavg"]
    assert list(waiting["status"]) == ["waiting", "waiting"]
    page = report.write_report(records, tmp_path / "report.html")
    assert "What was chosen" in page.read_text("utf-8")


def test_the_command_line_prints_what_was_chosen(here):
    words = ["run", "study.toml", "--quiet", "--set=run.rounds=2"]
    result = CliRunner().invoke(cli.app, words)
    assert result.exit_code == 0, result.output
    folder = next(Path("runs").iterdir())
    found = Folder(folder)
    best = [found.search("local", seed).best["lr"] for seed in (0, 1)]
    line = next(x for x in result.stdout.splitlines() if x.startswith("  local: "))
    if best[0] == best[1]:
        assert line == f"  local: lr = {best[0]:g} (seed 0, 1)"
    else:
        assert line == "  local: " + "; ".join(
            f"lr = {lr:g} (seed {seed})" for seed, lr in enumerate(best)
        )
    again = CliRunner().invoke(cli.app, ["report", str(folder)])
    assert line in again.stdout


DOCS = Path(__file__).parents[1] / "docs" / "studies.md"


@pytest.mark.parametrize("key", [f for f in fields(Tune) if f.name != "space"])
def test_every_key_is_described_with_its_default(key):
    shown = f'"{key.default}"' if isinstance(key.default, str) else repr(key.default)
    assert f"| `{key.name}` | `{shown}` |" in DOCS.read_text("utf-8")


def test_the_example_of_the_documentation_runs(tmp_path):
    section = DOCS.read_text("utf-8").split("## Tuning")[1]
    tables = tomllib.loads(re.search(r"```toml\n(.*?)```", section, re.DOTALL)[1])
    # "A search trains as many rounds as 4.7 runs."
    whole = rungs(tables["tune"]["trials"], 300, tables["tune"]["halving"])
    assert Search("", 0, 1, (), whole).planned == pytest.approx(4.7 * 300, rel=0.01)
    tables["run"] |= {"rounds": 3, "seeds": [1]}
    tables["tune"]["trials"] = 4
    result = run_study(study(tables), runs=tmp_path)
    table = result.records.trials
    assert set(table.groupby(["algorithm", "seed"])["trial"].nunique()) == {4}
    first = table[(table["algorithm"] == "local") & (table["trial"] == 0)]
    assert set(first["lr"]) == {0.3}
    finetuned = table[table["algorithm"] == "fedavg_finetune"]
    assert finetuned["lr"].astype(float).between(0.1, 3.0).all()
