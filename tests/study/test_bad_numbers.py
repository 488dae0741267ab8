"""Numbers, seeds and devices that nobody can mean are refused before any work."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.engine.clocks import trace
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from support.refusals import refuses
from support.study_runs import refused
from support.tiny_studies import LINEAR, changed

len_of = int.bit_length  # pytest cannot print the longest of them
LOCAL = {"name": "local", "lr": 0.1}


def test_complex_weights_are_refused(tmp_path):
    np.save(tmp_path / "w.npy", np.eye(4) + 0.5j)
    entry = {"name": "all_for_one", "weights": str(tmp_path / "w.npy")}
    message = "`weights` cannot be read from .*: it must hold real numbers, got complex"
    refused({**LINEAR, "algorithm": [entry]}, tmp_path, message)


@pytest.mark.parametrize("where", ["data", "split"])
@pytest.mark.parametrize(
    ("seed", "rule"),
    [
        (-1, "at least 0, got -1"),
        (True, "a whole number, got True"),
        (2**63, "a number of at most 64 bits, got 9223372036854775808"),
    ],
)
def test_seeds_of_data_and_split_are_whole_numbers_from_0(tmp_path, where, seed, rule):
    tables = {"split": {"name": "natural"}, **LINEAR}
    message = f"`{where}.seed` must be {rule}."
    refused(changed(tables, f"{where}.seed", seed), tmp_path, message)


def test_true_is_no_seed(tmp_path):
    message = r"`run.seeds` must be a list of whole numbers, got \[0, True\]"
    refused(changed(LINEAR, "run.seeds", [0, True]), tmp_path, message)


@pytest.mark.parametrize("device", ["cpu:5", "cpu:0", "meta", "cpu:x"])
def test_a_device_that_does_not_exist_is_refused(tmp_path, device):
    message = f"`run.device` must be cpu or cuda, got '{device}'."
    refused(changed(LINEAR, "run.device", device), tmp_path, message)


@pytest.mark.parametrize("value", [10**30, 10**400, -(10**5000)], ids=len_of)
@pytest.mark.parametrize(
    "where", ["run.rounds", "run.participation", "data.spread", "algorithm.0.lr"]
)
def test_numbers_beyond_64_bits_are_refused(tmp_path, where, value):
    name = where.replace(".0", "")
    message = f"`{name}` must be a number of at most 64 bits, got "
    assert len(refused(changed(LINEAR, where, value), tmp_path, message)) < 300


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"schedule": "step(1e400, 0.5)"}, "`schedule argument 1` must be a finite"),
        ({"schedule": "cosine(1e999)"}, "`schedule argument 1` must be a finite"),
        ({"steps": 10**12}, r"`steps` must be at most 1e\+09, got 1000000000000."),
        ({"weights": "biases(1e400)"}, "`weights` must be a finite number, got inf"),
        ({"weights": "means(1e300)"}, r"`weights` must be at most 1e\+09, got 1"),
        ({"weights": "threshold(1e400)"}, "`weights` must be one of"),
        ({"radius": "transport(1e300)"}, r"`radius` must be at most 1e\+06, got 1"),
    ],
)
def test_numbers_beyond_reason_in_recipes_are_refused(tmp_path, entry, message):
    names = {"weights": "all_for_one", "radius": "karula"}
    name = names.get(next(iter(entry)), "local")
    refused({**LINEAR, "algorithm": [{"name": name, **entry}]}, tmp_path, message)


@pytest.mark.parametrize("law", ["lognormal(1e999, 1)", "constant(" + "9" * 400 + ")"])
def test_laws_beyond_reason_are_refused(tmp_path, law):
    message = "`time.law .* finite number"
    assert len(refused({**LINEAR, "time": {"law": law}}, tmp_path, message)) < 300


def test_a_schedule_that_grows_beyond_all_numbers_stops_training(tmp_path):
    from coterie.checks import TrainingError

    entry = {"name": "local", "lr": 0.1, "steps": 5, "schedule": "step(1, 1e300)"}
    with pytest.raises(TrainingError, match="not finite after round 1"):
        run_study(study_of({**LINEAR, "algorithm": [entry]}), runs=tmp_path)


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"trials": 10**12}, "`tune.trials` must be at most 10000, got 1000000000000"),
        ({"space": {"steps": {"from": 10**11, "to": 10**12}}}, r"`steps` must be at"),
        ({"space": {"steps": {"from": 1, "to": 10**400}}}, "`tune.space.steps.to` mus"),
    ],
)
def test_a_search_without_end_is_refused(tmp_path, tune, message):
    tables = {**LINEAR, "algorithm": [LOCAL], "tune": tune}
    assert len(refused(tables, tmp_path, message)) < 300


def test_a_grid_of_a_trillion_settings_is_sampled(tmp_path):
    from coterie.study.trials import search_for

    reals, counts = [j / 1e4 for j in range(1, 101)], list(range(1, 101))
    space = {"steps": counts}
    space |= dict.fromkeys(["lr", "lam", "inner_lr", "momentum", "weight_decay"], reals)
    tables = {**LINEAR, "algorithm": [{"name": "pfedme"}]}
    study = study_of(
        {**tables, "tune": {"search": "grid", "trials": 5, "space": space}}
    )
    settings = search_for(study, study.algorithms[0], 0).settings
    assert len(settings) == len({tuple(s.items()) for s in settings}) == 5
    assert all(s["steps"] in counts and s["lr"] in reals for s in settings)


def test_a_step_size_without_room_around_it_is_not_searched(tmp_path):
    tables = {**LINEAR, "algorithm": [{"name": "local", "lr": 5e-324}], "tune": {}}
    refused(tables, tmp_path, "`lr` must be at least 1e-300, got 5e-324.")


@pytest.mark.parametrize("clients", [None, 2])
def test_a_trace_with_a_client_of_a_trillion_is_refused_at_once(tmp_path, clients):
    path = tmp_path / "times.csv"
    path.write_text("client,number,seconds\n0,0,1\n1,0,1\n999999999999,0,1\n")
    rule = "must have times of clients 0 to .* but it has . of client"
    refuses(rule, trace, path, clients=clients)
    path.write_text("client,number,seconds\n0,0,1\n1,0,1\n1,999999999999,1\n")
    refuses(r"client 1 0, 1, \.\.\., but 1 is missing", trace, path, clients=clients)
