"""Claims about studies whose methods train in epochs."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie import seeds
from coterie.algorithms import ALGORITHMS
from coterie.clients.samples import batches_of
from coterie.models import ravel
from coterie.study.config import options_of, study_of
from coterie.study.experiment import run_study
from coterie.study.setup import federation_of, module_of
from support.study_runs import linear_tables, refused, stopped, together

EPOCHS = [
    {"name": "local", "epochs": 2, "lr": 0.05},
    {"name": "fedavg", "epochs": 1, "lr": 0.05, "momentum": 0.5},
]


def tables(algorithm=EPOCHS, **more):
    run = {"participation": 0.6, "batch_size": 5, **more.pop("run", {})}
    made = linear_tables(4, **run)
    split = {"name": "natural", "validation": 0.2, "test": 0.3}
    return {**made, "split": split, "algorithm": copy.deepcopy(algorithm), **more}


def sizes_of(study):
    return federation_of(study, 0).train.size


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run_study(study_of(tables()), runs=tmp_path_factory.mktemp("whole"))


def last(result, label):
    rounds = result.records.rounds
    return rounds[rounds["algorithm"] == label].iloc[-1]


def test_gradients_are_those_of_all_samples_of_every_epoch(tmp_path):
    study = study_of(tables(run={"participation": 1.0}))
    result = run_study(study, runs=tmp_path)
    samples = float(sizes_of(study).sum())
    assert last(result, "local")["gradients"] == 4 * 2 * samples
    assert last(result, "fedavg")["gradients"] == 4 * 1 * samples


def test_bytes_are_those_of_steps(whole, tmp_path):
    entries = [{**entry, "steps": 1} for entry in EPOCHS]
    for entry in entries:
        del entry["epochs"]
    steps = run_study(study_of(tables(entries)), runs=tmp_path)
    for label in ("local", "fedavg"):
        assert last(steps, label)["bytes"] == last(whole, label)["bytes"]


def test_resuming_is_not_stopping(whole, tmp_path):
    study = study_of(tables())
    stopped(study, lambda p: p.label == "fedavg" and p.t == 2, runs=tmp_path)
    resumed = run_study(study, runs=tmp_path)
    for label in ("local", "fedavg"):
        assert torch.equal(resumed.models(label), whole.models(label))


@pytest.mark.parametrize("processes", [2, 4])
def test_several_processes_train_the_same_models(whole, tmp_path, processes):
    first, *_ = together(study_of(tables()), processes, tmp_path)
    for label in ("local", "fedavg"):
        gap = first.models(label) - whole.models(label)
        assert float(gap.abs().max()) < 1e-9
        for column in ("gradients", "bytes"):
            assert last(first, label)[column] == last(whole, label)[column]


def test_a_study_in_epochs_can_be_read_from_its_records(whole):
    assert study_of(whole.study.tables()) == whole.study


def test_tuning_and_newcomers_train_in_epochs_too(tmp_path):
    tune = {"trials": 2, "rounds": 2, "space": {"lr": [0.05, 0.01]}}
    entries = [{"name": "local", "epochs": 2}, {"name": "fedavg_finetune", "epochs": 1}]
    more = {"tune": tune, "run": {"newcomers": 1}}
    result = run_study(study_of(tables(entries, **more)), runs=tmp_path)
    assert np.isfinite(result.newcomers()["mean"]).all()


IN_EPOCHS = [name for name in ALGORITHMS if "epochs" in options_of(name)]


def test_methods_with_epochs_are_those_that_the_page_names():
    page = Path("docs/studies.md").read_text(encoding="utf-8")
    said = re.search(r"Methods with local steps have `epochs`:(.*?)\.", page, re.S)
    assert sorted(re.findall(r"`(\w+)`", said[1])) == sorted(IN_EPOCHS)


def test_every_method_with_local_steps_trains_in_epochs(tmp_path):
    """Their programs number all steps: others would be refused."""
    entries = [
        {"name": name, "epochs": 1}
        | {key: 0.005 for key in ("lr", "tune_lr") if key in options_of(name)}
        | ({"norm": "head"} if name == "fedbn" else {})  # there is no normalisation
        for name in IN_EPOCHS
    ]
    mlp = {"name": "mlp", "hidden": [3]}
    study = study_of(tables(entries, model=mlp, run={"rounds": 3}))
    result = run_study(study, runs=tmp_path)
    for name in IN_EPOCHS:
        models = result.models(name)
        assert models.isfinite().all() and (models[0] != 0).any()


def test_the_default_period_lets_the_slowest_client_take_all_its_steps(tmp_path):
    """With equal speeds, a client computes one epoch in its number of minibatches."""
    entries = [
        {"name": "fedavg", "epochs": 2, "lr": 0.05},
        {"name": "ditto", "epochs": 1, "lr": 0.05, "waits": False},
    ]
    given = {"time": {"law": "constant(2)"}, "run": {"participation": 1.0}}
    result = run_study(study_of(tables(entries, **given)), runs=tmp_path)
    study, rounds = result.study, 4
    batches = batches_of(sizes_of(study), 5)
    assert study.time.period == 2 * 2 * int(batches.max())
    work = result.records.work
    fedavg = work[work["algorithm"] == "fedavg"]
    expected = rounds * 2.0 * 2 * batches.double()
    assert fedavg["busy"].tolist() == expected.tolist()
    assert last(result, "fedavg")["gradients"] == rounds * 2 * int(
        sizes_of(study).sum()
    )
    # Without waiting, a task of ditto is an epoch for each of its two models.
    ditto = work[work["algorithm"] == "ditto"]
    until = rounds * study.time.period
    assert ditto["tasks"].tolist() == [
        int(until // (2.0 * 2 * int(count))) for count in batches
    ]


REFUSED = {
    "with steps": (
        [{"name": "fedavg", "epochs": 1, "steps": 2}],
        {},
        "`epochs` and `steps` of fedavg cannot be used together",
    ),
    "none": (
        [{"name": "fedavg", "epochs": 0}],
        {},
        "`algorithm.epochs` must be at least 1, got 0",
    ),
    "a part of one": (
        [{"name": "fedavg", "epochs": 0.5}],
        {},
        "`algorithm.epochs` must be a whole number, got 0.5",
    ),
    "no local steps": (
        [{"name": "all_for_one", "weights": "uniform", "epochs": 1}],
        {},
        "all_for_one has no option 'epochs'. Here it is called 'steps'",
    ),
    "single samples": (
        [{"name": "fedavg", "epochs": 1, "lr": 0.1}],
        {"privacy": {"unit": "sample", "epsilon": 5.0, "clip": 1.0}},
        "`epochs` of fedavg cannot be used with `privacy.unit` sample",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_in_one_sentence(tmp_path, case):
    entries, more, message = REFUSED[case]
    refused(tables(entries, **more), tmp_path, message)


def test_whole_clients_can_be_hidden_in_epochs(tmp_path):
    privacy = {"epsilon": 8.0, "clip": 1.0}
    epsilons = []
    for entry in ({"epochs": 2}, {"steps": 3}):
        given = [{"name": "fedavg", "lr": 0.1, **entry}]
        made = tables(given, privacy=privacy, run={"dtype": "float32"})
        result = run_study(study_of(made), runs=tmp_path)
        epsilons.append(result.records.metrics["epsilon"].max())
    assert epsilons[0] == epsilons[1]


def orders(federation, i, number, first):
    """The samples of client i in one epoch of its task `number`, step by step."""
    index, mask = federation.train.rows(torch.tensor([i]))
    samples = index[0][mask[0]]
    call = seeds.key(0, "step", number, "each", 0)
    key = torch.tensor([[seeds.key(call, first)]])
    bits = seeds.bits(key, federation.clients[i : i + 1], len(samples))[0, 0]
    return samples[bits.argsort()].split(5)


def test_without_waiting_tasks_of_epochs_are_those_of_a_loop(tmp_path):
    """Ditto: a task is an epoch of each model, and lasts as long as its minibatches."""
    entry = {"name": "ditto", "epochs": 1, "lr": 0.05, "lam": 0.4, "waits": False}
    given = {"time": {"law": "constant(1)"}, "run": {"participation": 1.0}}
    data = {"name": "linear_thirds", "clients": 4, "dimension": 3, "tests": 9}
    given |= {"split": {"name": "natural"}}
    made = tables([{**entry, "late": "constant"}], **given, data=data)
    result = run_study(study_of(made), runs=tmp_path)
    federation = federation_of(result.study, 0)
    lasts = [2 * len(orders(federation, i, 1, 0)) for i in range(4)]
    assert len(set(lasts)) > 2
    shares = federation.train.size.double() / federation.train.size.sum()

    def slope(row, index):
        features = federation.features[index].double()
        error = features @ row - federation.targets[index].double().reshape(-1)
        return 2 * features.T @ error / len(index)

    w = ravel(module_of(result.study, federation, 0))
    v = w.repeat(4, 1)
    began, number, ends = [w] * 4, [1] * 4, list(lasts)
    until = result.study.run.rounds * result.study.time.period
    while min(ends) <= until:
        now = min(ends)
        here = [i for i in range(4) if ends[i] == now]
        change = torch.zeros(3).double()
        for i in here:
            w_i, v_i = began[i], v[i].clone()
            for index in orders(federation, i, number[i], 0):
                w_i = w_i - 0.05 * slope(w_i, index)
            for index in orders(federation, i, number[i], 1):
                v_i = v_i - 0.05 * (slope(v_i, index) + 0.4 * (v_i - began[i]))
            change, v[i] = change + shares[i] * (w_i - began[i]), v_i
        w = w + change
        for i in here:
            began[i], number[i], ends[i] = w, number[i] + 1, now + lasts[i]
    assert sum(number) - 4 == int(result.records.work["tasks"].sum())
    assert torch.allclose(result.models("ditto"), v, rtol=0, atol=1e-9)
