from __future__ import annotations

import copy

import pytest
import tomli_w

from coterie.checks import InputError
from coterie.study.config import factory, read_study, study_of
from coterie.study.identity import identity_of
from coterie.study.setup import federation_of
from support.refusals import refusal, refuses
from support.tiny_studies import changed

TABLES = {
    "name": "tiny",
    "data": {"name": "digits"},
    "split": {"name": "iid", "clients": 4},
    "model": {"name": "mlp", "hidden": [4]},
    "run": {"rounds": 2, "seeds": [0, 1], "batch_size": 4},
    "algorithm": [
        {"name": "local", "lr": 0.3},
        {"name": "fedavg", "lr": 0.3},
        {"name": "all_for_one", "label": "v1.0 (ours)", "weights": "uniform"},
    ],
}


@pytest.fixture
def path(tmp_path):
    """A study file."""
    path = tmp_path / "tiny.toml"
    path.write_text(tomli_w.dumps(TABLES))
    return path


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("dta", {}, r"no table \[dta\]. Did you mean 'data'"),
        ("data", 3, r"\[data\] must be a table, got 3"),
        ("data", {}, r"\[data\] needs a `name`"),
        ("data.name", 3, "`data.name` must be text, got 3"),
        ("split.name", ["iid"], "`split.name` must be text"),
        ("split.seed", "x", "`split.seed` must be a whole number, got 'x'"),
        ("data.seed", 0.5, "`data.seed` must be a whole number, got 0.5"),
        ("split.name", "idd", "`split.name` must be one of .* Did you mean 'iid'"),
        ("model.name", "mpl", "`model.name` must be one of .* Did you mean 'mlp'"),
        ("model.name", 1.5, "`model.name` must be text"),
        ("model.name", "math:pi", "must be a function"),
        ("model.name", "no_such_module:f", "cannot be imported"),
        ("model.hiden", [4], "mlp has no option 'hiden'. Did you mean 'hidden'"),
        ("model.activation", 3, "`model.activation` must be text, got 3"),
        ("algorithm", [], "at least one"),
        ("algorithm", "local", "needs a `name`, got 'local'"),
        ("algorithm.0", {"lr": 0.1}, "needs a `name`"),
        ("algorithm.0.name", "locla", "Did you mean 'local'"),
        ("algorithm.0.lrr", 0.1, r"local has no option 'lrr'. Did you mean 'lr'"),
        ("algorithm.0.lr", "0.1", "`algorithm.lr` must be a number or .*, got '0.1'"),
        ("algorithm.0.steps", 1.5, "`algorithm.steps` must be a whole number"),
        ("algorithm.0.steps", True, "`algorithm.steps` must be a whole number"),
        ("algorithm.0.label", 3, "`algorithm.label` must be text, got 3"),
        ("algorithm.0.label", " ", "`algorithm.label` must be text, got ' '"),
        ("algorithm.0.label", "fedavg", "two algorithms are called 'fedavg'"),
        ("algorithm.2.weights", [[1.0]], "`algorithm.weights` must be text"),
        ("run.round", 3, r"\[run\] has no option 'round'. Did you mean 'rounds'"),
        ("run.rounds", 0, "`run.rounds` must be at least 1, got 0"),
        ("run.rounds", "ten", "`run.rounds` must be a whole number"),
        ("run.seeds", [], "`run.seeds` must have at least one seed, got none"),
        ("run.seeds", [-1], "`run.seeds` must be at least 0, got -1"),
        ("run.seeds", [2**70], "`run.seeds` must be a number of at most 64 bits"),
        ("run.seeds", [0.5], "`run.seeds` must be a list of whole numbers"),
        ("run.seeds", [1, 1], "`run.seeds` must differ, got 1 twice"),
        ("run.seeds", 3, "`run.seeds` must be a list of whole numbers, got 3"),
        ("run.batch_size", -1, "`run.batch_size` must be at least 0"),
        ("run.participation", 0, "`run.participation` must be greater than 0, got 0"),
        ("run.participation", 1.1, "`run.participation` must be at most 1"),
        ("run.evaluate_every", -1, "`run.evaluate_every` must be at least 0"),
        ("run.evaluate_train", 1, "`run.evaluate_train` must be true or false"),
        ("run.checkpoint_seconds", float("nan"), "must be a finite number, got nan"),
        ("run.dtype", "float16", "`run.dtype` must be one of"),
        ("run.compile", "yes", "`run.compile` must be one of"),
        ("run.loop", "no", "`run.loop` must be true or false"),
        ("run.device", 0, "`run.device` must be text"),
        ("name", ["a"], "`name` must be text"),
    ],
)
def test_a_wrong_setting_is_refused_by_name_with_a_suggestion(setting, value, message):
    refuses(message, study_of, changed(TABLES, setting, value))


LONG = "data.name split.name split.clients model.name model.loss run.device run.dtype"


@pytest.mark.parametrize(
    "setting", [*LONG.split(), "run.log", "run.seeds", "algorithm"]
)
@pytest.mark.parametrize("value", ["ab " * 40_000, ["ab" * 50_000], [0.5] * 40_000])
def test_of_a_long_setting_the_message_shows_little(setting, value):
    with pytest.raises(InputError) as refusal:
        study = study_of(changed(TABLES, setting, value))
        assert study.run.place.type == "cpu"
        federation_of(study, 0)
    text = str(refusal.value)
    assert len(text) < 1_000 and setting.split(".")[-1] in text


@pytest.mark.parametrize("table", ["model", "run"])
def test_of_a_long_key_the_message_shows_little(path, table):
    for override in (f"{table}.{'k' * 100_000}=1", f"{'k' * 100_000}.{table}=1"):
        assert len(refusal(read_study, path, [override])) < 1_000


def test_defaults_are_filled_in():
    made = study_of({"data": {"name": "linear"}, "algorithm": {"name": "local"}})
    assert made.split == {"name": "natural"}
    assert made.model == {"name": "mlp"}
    assert [entry.label for entry in made.algorithms] == ["local"]
    assert made.run.seeds == (0,)
    assert made.name == "study"


@pytest.mark.parametrize(("rounds", "every"), [(1, 1), (49, 1), (100, 2), (501, 10)])
def test_about_fifty_evaluations_are_made_by_default(rounds, every):
    assert study_of(changed(TABLES, "run.rounds", rounds)).run.every == every


def test_evaluations_come_as_often_as_asked():
    assert study_of(changed(TABLES, "run.evaluate_every", 7)).run.every == 7


def test_a_study_is_named_by_its_file_unless_it_has_a_name(tmp_path):
    tables = {key: value for key, value in TABLES.items() if key != "name"}
    (tmp_path / "other.toml").write_text(tomli_w.dumps(tables))
    assert read_study(tmp_path / "other.toml").name == "other"


def test_a_file_may_begin_with_a_byte_order_mark(path):
    path.write_text("\ufeff" + path.read_text())
    assert read_study(path) == study_of(copy.deepcopy(TABLES))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[data\n", "is not valid TOML: .*line 1"),
        (b"name = '\xff'", "is not text in UTF-8"),
        (b"", r"\[data\] needs a `name`"),
    ],
)
def test_a_file_that_is_no_study_is_refused(path, content, message):
    path.write_bytes(content)
    refuses(message, read_study, path)


def test_set_reaches_a_table(path):
    overrides = ["run.rounds=7", "split.name = shards", "model.hidden=[2, 3]", "name=x"]
    made = read_study(path, overrides)
    assert made.run.rounds == 7
    assert made.split == {"name": "shards", "clients": 4}
    assert made.model["hidden"] == [2, 3]
    assert made.name == "x"


def test_set_may_make_a_table(tmp_path):
    path = tmp_path / "short.toml"
    path.write_text("[data]\nname = 'linear'\n[algorithm]\nname = 'local'\n")
    assert read_study(path, ["run.rounds=3", "algorithm.lr=0.5"]) == study_of(
        {
            "name": "short",
            "data": {"name": "linear"},
            "algorithm": [{"name": "local", "lr": 0.5}],
            "run": {"rounds": 3},
        }
    )


def options(path, *overrides: str) -> list[dict]:
    return [entry.options for entry in read_study(path, overrides).algorithms]


def test_set_reaches_every_algorithm_that_has_the_option(path):
    assert options(path, "algorithm.lr=0.5") == [
        {"lr": 0.5},
        {"lr": 0.5},
        {"lr": 0.5, "weights": "uniform"},
    ]
    assert options(path, "algorithm.weighting=uniform")[1:2] == [
        {"lr": 0.3, "weighting": "uniform"}
    ]
    assert options(path, "algorithm.weights=alone") == [
        {"lr": 0.3},
        {"lr": 0.3},
        {"weights": "alone"},
    ]


@pytest.mark.parametrize("name", ["all_for_one", "v1.0 (ours)"])
def test_set_reaches_one_algorithm_by_name_or_label(path, name):
    assert options(path, f"algorithm.{name}.steps=3") == [
        {"lr": 0.3},
        {"lr": 0.3},
        {"steps": 3, "weights": "uniform"},
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.rounds", "must read table.key=value, got 'run.rounds'"),
        ("rounds=3", "must read table.key=value"),
        ("=3", "must read table.key=value"),
        ("run.=3", "must read table.key=value"),
        ("run.a.b=3", "must read table.key=value"),
        ("algorithm=3", "must read table.key=value"),
        ("algorithm..lr=3", "must read table.key=value"),
        ("name.x=3", r"\[name\] must be a table"),
        ("rum.rounds=3", r"no table \[rum\]. Did you mean 'run'"),
        ("run.rouns=3", "Did you mean 'rounds'"),
        ("run.rounds=", "`run.rounds` must be a whole number, got ''"),
        ("algorithm.lrr=3", "no algorithm has an option 'lrr'. Did you mean 'lr'"),
        ("algorithm.locl.lr=3", "no algorithm 'locl', only local, .*mean 'local'"),
        ("algorithm.local.lrr=3", "local has no option 'lrr'. Did you mean 'lr'"),
    ],
)
def test_a_wrong_override_is_refused(path, override, message):
    refuses(message, read_study, path, [override])


def test_the_resolved_study_is_the_same_study_again(tmp_path):
    first = study_of(copy.deepcopy(TABLES))
    path = tmp_path / "again.toml"
    path.write_text(tomli_w.dumps(first.tables()))
    again = read_study(path)
    assert again == first
    assert identity_of(again, {}) == identity_of(first, {})


def test_the_identity_does_not_depend_on_the_order_of_keys():
    reordered = {key: TABLES[key] for key in reversed(TABLES)}
    same = [identity_of(study_of(tables), {}) for tables in (reordered, TABLES)]
    assert same[0] == same[1]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name", "other"),
        ("data.name", "linear"),
        ("split.clients", 5),
        ("split.validation", 0.2),
        ("model.hidden", [4, 4]),
        ("algorithm.0.lr", 0.31),
        ("algorithm.0.label", "alone"),
        ("algorithm.2.weights", "alone"),
        ("run.rounds", 3),
        ("run.seeds", [0]),
        ("run.newcomers", 1),
        ("run.batch_size", 5),
        ("run.participation", 0.5),
        ("run.evaluate_every", 2),
        ("run.evaluate_train", False),
        ("run.device", "cuda"),
        ("run.dtype", "float64"),
        ("run.compile", "never"),
        ("run.loop", True),
        ("run.checkpoint_seconds", 1.0),
    ],
)
def test_the_identity_changes_with_any_setting(setting, value):
    other = identity_of(study_of(changed(TABLES, setting, value)), {})
    assert other != identity_of(study_of(TABLES), {})


def test_the_identity_names_a_folder_whatever_the_study_is_called():
    made = identity_of(study_of(changed(TABLES, "name", "../a b/ü" + 100 * "x")), {})
    assert made.startswith(".._a_b_")
    assert "/" not in made
    assert len(made) < 80


def test_a_factory_of_ones_own_is_imported():
    import math

    assert factory("model", "math:sqrt", {}) is math.sqrt
