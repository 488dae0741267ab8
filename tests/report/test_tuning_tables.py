"""How a search is written, in tables and on the command line."""

from __future__ import annotations

import copy
import re
import sys
from pathlib import Path

import pytest
import tomli_w

from coterie import report
from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError
from coterie.records import Folder
from coterie.study.config import read_study, study_of
from coterie.study.experiment import run_study
from coterie.study.identity import identity_of
from coterie.study.search import OWN, Tune, settings_of
from support import study_runs
from support.called import called, refused
from support.made_records import written
from support.refusals import refuses
from support.tiny_studies import changed
from support.tuning_studies import LOG, RANGE, TABLES, made

LR, STEPS, SCHEDULE = (f"tune.space.{name}" for name in ("lr", "steps", "schedule"))
OWN_TABLE = "algorithm.1.tune"


def between(start: object, end: object) -> dict[str, object]:
    """The range from one value to another."""
    return {"from": start, "to": end}


def without_search() -> dict:
    """The tables of a study that searches nothing."""
    tables = copy.deepcopy(TABLES)
    del tables["tune"], tables["algorithm"][1]["tune"]
    return tables


def test_without_the_table_nothing_is_searched(tmp_path):
    asked = study_of(without_search())
    assert asked.tune is None
    assert "tune" not in asked.tables()
    result = run_study(asked, runs=tmp_path)
    assert result.records.trials.empty
    assert not (result.folder / "tuning").exists()
    assert not (result.folder / "tuning.csv").exists()
    refuses("no chosen options", result.chosen_options)
    refuses("no trials", report.trials, result.records)
    assert "What was chosen" not in written(result.records, tmp_path)


def test_shared_ranges_own_ranges_and_the_default():
    def spaces(space: dict, *own: dict) -> list[dict]:
        fedavg = {"name": "fedavg", "lr": 0.5, "tune": dict(*own)}
        entries = [{"name": "local"}, fedavg]
        return [e.tune for e in made({"space": space}, algorithm=entries).algorithms]

    momentum = {"momentum": [0.0, 0.9]}
    own = {"lr": [0.1, 0.2], **momentum}
    assert spaces({"lr": RANGE}, own) == [{"lr": LOG}, own]
    around = {"from": 0.05, "to": 5.0, "scale": "log"}
    assert spaces({}, momentum) == [{"lr": LOG}, {"lr": around, **momentum}]
    assert spaces({"lr": [1]}) == [{"lr": [1]}, {"lr": [1]}]


@pytest.mark.parametrize("name", OWN)
def test_without_a_space_the_step_size_and_the_own_parameter_are_searched(name):
    more = {"algorithm": [{"name": name}]}
    (entry,) = made({"space": {}}, **more).algorithms
    assert set(OWN[name]) < set(entry.tune)
    assert "lr" in entry.tune
    (entry,) = made({"space": {"lr": [1]}}, **more).algorithms
    assert set(entry.tune) == {"lr"}


def test_the_resolved_study_is_the_same_study_again(tmp_path):
    for tune in ({}, {"space": {}}, {"space": {"steps": [1, 2], "lr": RANGE}}):
        first = made(tune)
        path = tmp_path / "again.toml"
        path.write_text(tomli_w.dumps(first.tables()))
        again = read_study(path)
        assert again == first
        assert identity_of(again, {}) == identity_of(first, {})
        for one, two in zip(first.algorithms, again.algorithms, strict=True):
            assert list(one.tune) == list(two.tune)  # so that draws are the same


def test_the_order_in_which_options_are_written_changes_nothing():
    spaces = ({"lr": [1, 2], "steps": [1, 2, 3]}, {"steps": [1, 2, 3], "lr": [1, 2]})
    first, second = (made({"space": space}) for space in spaces)
    assert identity_of(first, {}) == identity_of(second, {})
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
    changed, plain = made(change, algorithm=entries), made(algorithm=entries)
    assert identity_of(changed, {}) != identity_of(plain, {})


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
        (LR, 0.1, "`tune.space.lr` must be a list of values or a range"),
        (LR, [], "`tune.space.lr` must be a list of values or a range"),
        (LR, {"from": 1}, "`tune.space.lr` must be a list of values or a"),
        (LR, [1, 1.0], "`tune.space.lr` must differ, got 1 twice"),
        (LR, ["x"], "`tune.space.lr` must be a number or .*, got 'x'"),
        (STEPS, [1.5], "`tune.space.steps` must be a whole number"),
        (STEPS, between(1.5, 3), "`tune.space.steps` must be a whole number, got 1.5"),
        (SCHEDULE, between(1, 3), "`tune.space.schedule` must be text, got 1"),
        (
            LR,
            RANGE | {"scales": "log"},
            "the range `tune.space.lr` has no 'scales'. Did you mean 'scale'",
        ),
        (
            LR,
            RANGE | {"scale": "lin"},
            "`tune.space.lr.scale` must be one of .* Did you mean 'linear'",
        ),
        (LR, between(1.0, 0.1), "`tune.space.lr.to` must be greater than 1, got 0.1"),
        (
            LR,
            between(0, 0.1),
            "`tune.space.lr.from` must be greater than 0 on its logarithmic scale",
        ),
        (LR, between("a", 0.1), "`tune.space.lr` must be a number or .*, got 'a'"),
        (OWN_TABLE, 3, "`tune` of fedavg must be a table, got 3"),
        (
            OWN_TABLE,
            {"stepps": [1]},
            r"\[algorithm.tune\] fedavg has no option 'stepps'. Did you mean 'steps'",
        ),
        (
            OWN_TABLE,
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
    refuses(message, study_of, changed(TABLES, setting, value))


def test_ranges_of_an_algorithm_need_the_table():
    tables = {key: value for key, value in TABLES.items() if key != "tune"}
    refuses(r"`tune` of fedavg needs a table \[tune\]", study_of, tables)


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
def test_bad_input_is_refused_by_the_command_before_any_work(here, overrides, message):
    words = [f"--set={override}" for override in overrides]
    assert re.search(message, refused("run", "study.toml", *words))


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
    asked = made(tune, algorithm=entries, run=run)
    study_runs.refused(asked, tmp_path, r"momentum = 1\.0")


def test_set_reaches_the_table_and_its_space(here):
    made = read_study("study.toml", ["tune.trials=4", "tune.space.lr=[0.1, 0.2]"])
    assert made.tune == Tune(trials=4, space={"lr": [0.1, 0.2]})
    made = read_study("study.toml", ["tune.space.momentum={from=0.1, to=0.9}"])
    assert set(made.tune.space) == {"lr", "momentum"}
    made = read_study("study.toml", ["algorithm.fedavg.tune={}", "tune.space={}"])
    assert made.algorithms[1].tune == {"lr": LOG}


def test_set_may_make_the_table(here):
    Path("plain.toml").write_text(tomli_w.dumps(without_search()))
    made = read_study("plain.toml", ["tune.space.lr=[0.1, 0.2]"])
    assert made.tune == Tune(space={"lr": [0.1, 0.2]})


def test_the_command_line_prints_what_was_chosen(here):
    words = ["run", "study.toml", "--quiet", "--set=run.rounds=2"]
    code, output, _ = called(*words)
    assert code == 0, output
    folder = next(Path("runs").glob("[!.]*"))
    found = Folder(folder)
    best = [found.search("local", seed).best["lr"] for seed in (0, 1)]
    line = next(x for x in output.splitlines() if x.startswith("  local: "))
    if best[0] == best[1]:
        assert line == f"  local: lr = {best[0]:g} (seed 0, 1)"
    else:
        assert line == "  local: " + "; ".join(
            f"lr = {lr:g} (seed {seed})" for seed, lr in enumerate(best)
        )
    assert line in called("report", str(folder))[1]
