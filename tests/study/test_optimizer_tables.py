"""Claims about the table [optimizer]: who uses it, refusals, and the same bits."""

from __future__ import annotations

import copy

import pytest
import torch

from coterie.checks import InputError
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.settings.optimisers import local_options
from support.study_runs import linear_tables, refused, stopped, together
from support.tiny_studies import TABLES

BOTH = [{"name": "local"}, {"name": "fedavg", "steps": 2}]
ADAM = {"name": "adamw", "lr": 0.05, "clip": 1.0, "warmup": 3, "server": "yogi"}


def tables(algorithm=BOTH, optimizer=ADAM, **more):
    run = {"participation": 0.6, **more.pop("run", {})}
    made = linear_tables(5, **run)
    made |= {"algorithm": copy.deepcopy(algorithm), "optimizer": dict(optimizer)}
    return made | more


def models(result, label="fedavg"):
    return result.models(label)


def test_a_table_is_the_options_of_every_method_with_local_steps(tmp_path):
    """In the text of an `lr`, a method gives the same models."""
    table = {"name": "adam", "lr": 0.05, "beta2": 0.9, "clip": 0.5, "weight_decay": 0.1}
    one = run_study(study_of(tables(optimizer=table)), runs=tmp_path)
    text = "adam(0.05, decoupled=false, beta2=0.9, clip=0.5)"
    said = [{**entry, "lr": text, "weight_decay": 0.1} for entry in BOTH]
    two = run_study(study_of(tables(said, {})), runs=tmp_path)
    for label in ("local", "fedavg"):
        assert torch.equal(models(one, label), models(two, label))


def test_options_of_a_method_come_before_those_of_the_table():
    optimizer = {"lr": 0.5, "momentum": 0.9, "nesterov": True}
    entries = [
        {"name": "local", "lr": 0.1},
        {"name": "fedavg", "optimizer": {"lr": 0.2, "clip": 3}},
    ]
    study = study_of(tables(entries, optimizer))
    made = [
        local_options(e.optimizer, e.options, _known(e.name)) for e in study.algorithms
    ]
    assert [each["lr"] for each in made] == [
        "sgd(0.1, nesterov=true)",
        "sgd(0.2, nesterov=true, clip=3)",
    ]
    assert [each["momentum"] for each in made] == [0.9, 0.9]


def _known(name):
    from coterie.checks import parameters_of
    from coterie.study.config import algorithm_factory

    return parameters_of(algorithm_factory(name))


def test_a_study_with_a_table_can_be_read_from_its_records():
    study = study_of(tables([*BOTH, {"name": "ditto", "optimizer": {"clip": 2.0}}]))
    assert study_of(study.tables()) == study
    assert "optimizer" not in study_of(tables(optimizer={})).tables()


def test_methods_that_average_nothing_have_no_server(tmp_path):
    plain = run_study(study_of(tables(optimizer={"lr": 0.1})), runs=tmp_path)
    table = {"lr": 0.1, "server": "adam"}
    server = run_study(study_of(tables(optimizer=table)), runs=tmp_path)
    assert torch.equal(models(plain, "local"), models(server, "local"))
    assert not torch.equal(models(plain), models(server))


@pytest.mark.parametrize("label", ["local", "fedavg"])
def test_resuming_is_not_stopping(tmp_path, label):
    study = study_of(tables())
    whole = run_study(study, runs=tmp_path / "whole")
    stopped(study, lambda p: p.label == label and p.t == 3, runs=tmp_path / "parts")
    resumed = run_study(study, runs=tmp_path / "parts")
    for name in ("local", "fedavg"):
        assert torch.equal(models(whole, name), models(resumed, name))


@pytest.mark.parametrize("processes", [2, 5])
def test_several_processes_train_the_same_models(tmp_path, processes):
    entries = [*BOTH, {"name": "fedrep"}, {"name": "coteries"}]
    study = study_of(tables(entries, model={"name": "mlp", "hidden": [3]}))
    alone = run_study(study, runs=tmp_path / "alone")
    first, *_ = together(study, processes, tmp_path / "divided")
    for entry in study.algorithms:
        gap = models(alone, entry.label) - models(first, entry.label)
        assert float(gap.abs().max()) < 1e-9


def test_the_step_size_of_an_optimiser_can_be_searched(tmp_path):
    tune = {"trials": 2, "rounds": 2, "space": {"lr": [0.001, 0.3]}}
    table = {"name": "adam", "lr": 0.05, "clip": 1.0}
    result = run_study(study_of(tables(optimizer=table, tune=tune)), runs=tmp_path)
    best = result.chosen_options()["lr"].astype(float).tolist()
    said = [{**entry, "lr": lr} for entry, lr in zip(BOTH, best, strict=True)]
    again = run_study(study_of(tables(said, table)), runs=tmp_path)
    assert torch.equal(models(result), models(again))


def test_in_time_a_client_that_waits_for_nobody_keeps_its_means(tmp_path):
    """Where all take the same time, training alone in time is that in rounds."""
    run = {"participation": 1.0}
    table = {"name": "adam", "lr": 0.05}
    rounds = run_study(study_of(tables(optimizer=table, run=run)), runs=tmp_path)
    time = {"law": "constant(1)", "period": 1.0}
    timed = study_of(tables(BOTH[:1], table, run=run, time=time))
    result = run_study(timed, runs=tmp_path)
    gap = models(result, "local") - models(rounds, "local")
    assert float(gap.abs().max()) < 1e-12


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_private_training_has_optimisers_and_servers(tmp_path, unit):
    privacy = {"epsilon": 8.0, "clip": 1.0, "unit": unit}
    table = {"name": "adam", "lr": 0.05, "warmup": 2, "server": "momentum"}
    given = {"privacy": privacy, "run": {"dtype": "float32", "rounds": 3}}
    study = study_of(tables(BOTH[1:], table, **given))
    one = run_study(study, runs=tmp_path / "one")
    two = run_study(study, runs=tmp_path / "two")
    assert torch.equal(models(one), models(two))
    # The server works on what it has heard, so nobody reveals more.
    plain = study_of(tables(BOTH[1:], {**table, "lr": 0.01}, **given))
    other = run_study(plain, runs=tmp_path / "one")
    spent = [r.records.metrics["epsilon"].max() for r in (one, other)]
    assert spent[0] == spent[1]


REFUSED = {
    "an unknown option": ({"label": "adam"}, r"sgd has no option 'label'"),
    "an unknown optimiser": ({"name": "rmsprop"}, "`optimizer.name` must be one of"),
    "momentum with adam": (
        {"name": "adam", "momentum": 0.9},
        "adam has no option 'momentum'",
    ),
    "means with sgd": ({"name": "sgd", "beta2": 0.9}, "sgd has no option 'beta2'"),
    "nesterov alone": ({"nesterov": True}, "`optimizer.nesterov` needs"),
    "a server's option alone": (
        {"server_lr": 0.1},
        "`optimizer.server_lr` needs `optimizer.server`",
    ),
    "a server's option that it has not": (
        {"server": "momentum", "server_tau": 0.1},
        "momentum has no option 'server_tau'",
    ),
    "an unknown server": ({"server": "sgd"}, "`optimizer.server` must be one of"),
    "a bad number": ({"clip": -1.0}, "`optimizer.clip` must be at least 0, got -1"),
    "a bad warm-up": ({"warmup": 1.5}, "`optimizer.warmup` must be a whole number"),
    "a text for adam": (
        {"name": "adam", "lr": "curvature(1)"},
        "`optimizer.lr` must be a number",
    ),
    "a number for a name": ({"name": 3}, "`optimizer.name` must be text, got 3"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, case):
    table, message = REFUSED[case]
    refused(tables(optimizer=table), tmp_path, message)


ENTRIES = {
    "a server of local": (
        {"name": "local", "optimizer": {"server": "adam"}},
        "whose server averages one model of all clients, which local does not",
    ),
    "a server of coteries": (
        {"name": "coteries", "optimizer": {"server": "adam"}},
        "which coteries does not",
    ),
    "steps of another kind": (
        {"name": "all_for_one", "weights": "uniform", "optimizer": {"clip": 1.0}},
        "`optimizer.clip` is for local steps, and all_for_one takes none",
    ),
    "momentum with adam": (
        {"name": "fedavg", "momentum": 0.9, "optimizer": {"name": "adam"}},
        "adam has no option 'momentum'",
    ),
    "not a table": (
        {"name": "fedavg", "optimizer": "adam"},
        "`optimizer` of fedavg must be a table, got 'adam'",
    ),
}


@pytest.mark.parametrize("case", ENTRIES)
def test_what_a_method_does_not_use_is_refused(tmp_path, case):
    entry, message = ENTRIES[case]
    refused(tables([entry], {}), tmp_path, message)


def test_a_table_that_no_method_uses_is_refused(tmp_path):
    refused(
        tables(BOTH[:1], {"server": "adam"}), tmp_path, "no algorithm uses `server`"
    )


def test_methods_with_steps_of_another_kind_need_their_own_step_size(tmp_path):
    entry = {"name": "all_for_one", "weights": "uniform"}
    refused(tables([*BOTH, entry]), tmp_path, "give it an `lr` of its own")
    study_of(tables([*BOTH, {**entry, "lr": 0.1}]))


def test_clipping_of_samples_is_not_repeated(tmp_path):
    privacy = {"epsilon": 8.0, "clip": 1.0, "unit": "sample"}
    message = "`optimizer.clip` cannot be used with `privacy.unit` sample"
    refused(tables(privacy=privacy), tmp_path, message)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"name": "adam"}, "`optimizer.name` adam of ditto needs rounds"),
        ({"warmup": 3}, "`optimizer.warmup` of ditto needs rounds"),
        ({"momentum": 0.5}, "'momentum' of ditto is used only in rounds"),
        ({"server": "adam"}, "`optimizer.server` is for rounds"),
    ],
)
def test_what_a_flow_does_not_remember_is_refused_in_time(table, message):
    tiny = copy.deepcopy(TABLES)
    tiny["algorithm"] = [{"name": "ditto", "waits": False}]
    with pytest.raises(InputError, match=message):
        run_study(study_of({**tiny, "optimizer": table, "time": {}}), runs="nowhere")


def test_keys_of_the_table_can_be_searched(tmp_path):
    """A method with the chosen table gives the same models."""
    space = {"lr": [0.01, 0.1], "optimizer": {"clip": [0.3, 5.0], "beta2": [0.9]}}
    tune = {"trials": 4, "rounds": 2, "halving": 1, "search": "grid", "space": space}
    table = {"name": "adam", "lr": 0.05, "clip": 1.0}
    study = study_of(tables(optimizer=table, tune=tune))
    assert study_of(study.tables()) == study
    result = run_study(study, runs=tmp_path)
    trials = result.records.trials
    assert (trials.groupby("algorithm")["trial"].nunique() == 4).all()
    best = result.chosen_options()
    said = [
        {
            **entry,
            "lr": float(row["lr"]),
            "optimizer": {"clip": float(row["optimizer.clip"]), "beta2": 0.9},
        }
        for entry, (_, row) in zip(BOTH, best.iterrows(), strict=True)
    ]
    again = run_study(study_of(tables(said, table)), runs=tmp_path)
    for label in ("local", "fedavg"):
        assert torch.equal(models(result, label), models(again, label))


def test_servers_can_be_searched(tmp_path):
    space = {"optimizer": {"server": ["adam", "momentum"]}}
    tune = {"trials": 2, "rounds": 2, "halving": 1, "space": space}
    study = study_of(tables(BOTH[1:], {"lr": 0.05}, tune=tune))
    result = run_study(study, runs=tmp_path)
    server = result.chosen_options()["optimizer.server"].iloc[0]
    again = study_of(tables(BOTH[1:], {"lr": 0.05, "server": server}))
    assert torch.equal(models(result), models(run_study(again, runs=tmp_path)))


SEARCHED = {
    "an unknown key": (
        {"optimizer": {"clap": [1.0]}},
        r"no algorithm has an option 'optimizer.clap'. Did you mean 'optimizer.clip'",
    ),
    "an option of the method": (
        {"optimizer": {"lr": [1.0]}},
        r"no algorithm has an option 'optimizer.lr'",
    ),
    "a key of another optimiser": (
        {"optimizer": {"beta1": [0.5]}},
        r"a setting that cannot be used, optimizer.beta1 = 0.5: .*sgd has no option",
    ),
    "a bad number": (
        {"optimizer": {"clip": [-1.0]}},
        r"optimizer.clip = -1.0: `optimizer.clip` must be at least 0, got -1",
    ),
    "not a table": ({"optimizer": [1.0]}, r"`tune.space.optimizer` must be a table"),
}


@pytest.mark.parametrize("case", SEARCHED)
def test_what_cannot_be_searched_is_refused(tmp_path, case):
    space, message = SEARCHED[case]
    tune = {"trials": 1, "space": space}
    refused(tables(BOTH, {"lr": 0.05}, tune=tune), tmp_path, message)


INNER = {"name": "pfedme", "label": "inner"}


def test_inner_steps_of_pfedme_are_those_of_the_table(tmp_path):
    table = {"name": "adam", "lr": 0.05, "clip": 0.5, "weight_decay": 0.1}
    result = run_study(study_of(tables([INNER], table)), runs=tmp_path)
    text = "adam(0.05, decoupled=false, clip=0.5)"
    said = {**INNER, "inner_lr": text, "weight_decay": 0.1}
    other = run_study(study_of(tables([said], {})), runs=tmp_path)
    assert torch.equal(models(result, "inner"), models(other, "inner"))
    own = {**INNER, "inner_lr": 0.01, "optimizer": {"momentum": 0.0}}
    run_study(study_of(tables([own], {"momentum": 0.5})), runs=tmp_path)


@pytest.mark.parametrize(
    ("table", "got"),
    [
        ({"momentum": 0.5}, "`optimizer.momentum` must be 0 for inner, .*got 0.5"),
        ({"warmup": 3}, "`optimizer.warmup` must be 0 for inner, .*got 3"),
        ({"schedule": "cosine(9)"}, "`optimizer.schedule` must be constant for inner"),
    ],
)
def test_inner_steps_that_begin_anew_have_no_memory(tmp_path, table, got):
    refused(tables([INNER], table), tmp_path, got)
