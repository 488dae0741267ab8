"""What a study gives: the same again, also after a stop, and what it measures."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from coterie.clients.simulation import Simulation
from coterie.records import Folder
from coterie.study.experiment import Progress, Result, run_study
from coterie.study.setup import federation_of, prepare
from support.methods import IN_ROUNDS
from support.plain_clients import mine
from support.refusals import refuses
from support.run_folders import folder_of
from support.study_runs import refuse_training, refused, stopped
from support.tiny_studies import ADAPTIVE, CLIENTS, LINEAR, ROUNDS, made

FEW = ("local", "fedavg", "fedavg_finetune", "ditto", "all_for_one", "ifca", "cobo")


@pytest.fixture(scope="module")
def full_run(tmp_path_factory) -> Result:
    """Algorithms of every kind, run to the end."""
    entries = [{"name": name} for name in FEW]
    return run_study(
        made(algorithm=[*entries, ADAPTIVE]), runs=tmp_path_factory.mktemp("r")
    )


def results_of(result: Result, label: str, seed: int = 0) -> pd.DataFrame:
    """All that was recorded of a cell, apart from the time it took."""
    mine = [
        table[(table["algorithm"] == label) & (table["seed"] == seed)]
        for table in (result.records.metrics, result.records.rounds)
    ]
    table = mine[0].merge(mine[1].drop(columns="seconds"))
    return table.dropna(axis=1, how="all").reset_index(drop=True)


def assert_same(first: Result, second: Result, label: str, seed: int = 0) -> None:
    """Raises unless two runs have bitwise the same metrics, weights and models."""
    pd.testing.assert_frame_equal(
        results_of(first, label, seed),
        results_of(second, label, seed),
        check_exact=True,
    )
    assert torch.equal(first.models(label, seed), second.models(label, seed))
    matrices = [r.records.weights.get((label, seed)) for r in (first, second)]
    assert (matrices[0] is None) == (matrices[1] is None)
    if matrices[0] is not None:
        np.testing.assert_array_equal(matrices[0].rounds, matrices[1].rounds)
        np.testing.assert_array_equal(matrices[0].matrices, matrices[1].matrices)


def test_the_same_study_twice_gives_bitwise_the_same(tmp_path):
    """All algorithms; the second round begins with what the first has left."""
    entries = [{"name": name} for name in IN_ROUNDS if name != ADAPTIVE["name"]]
    for entry in entries:
        if entry["name"] == "fedbn":  # there is no normalisation
            entry["norm"] = "head"
    every = made(algorithm=[*entries, ADAPTIVE], rounds=2)
    first, again = (run_study(every, runs=tmp_path / name) for name in "ab")
    assert again.folder.name == first.folder.name
    for entry in every.algorithms:
        assert_same(first, again, entry.label)


def test_other_algorithms_and_their_order_change_nothing(full_run, tmp_path):
    two = run_study(made(algorithm=[ADAPTIVE, {"name": "fedavg"}]), runs=tmp_path)
    assert_same(full_run, two, "adaptive_all_for_one")
    assert_same(full_run, two, "fedavg")


def test_another_seed_changes_nothing(full_run, tmp_path):
    entries = [{"name": "local"}]
    two = run_study(made(algorithm=entries, seeds=[1, 0]), runs=tmp_path)
    assert_same(full_run, two, "local")
    assert not torch.equal(two.models(seed=0), two.models(seed=1))


def test_a_label_changes_nothing(full_run, tmp_path):
    entries = [{"name": "local", "label": "alone/ü [bold]"}]
    other = run_study(made(algorithm=entries), runs=tmp_path)
    assert torch.equal(other.models(), full_run.models("local"))


@pytest.mark.parametrize("stop", [1, 2, ROUNDS])
def test_going_on_after_an_interruption_equals_not_stopping(full_run, tmp_path, stop):
    # One is finished when the second stops, and one has not begun.
    entries = [{"name": "local"}, ADAPTIVE, {"name": "fedavg"}]
    three = made(algorithm=entries, checkpoint_seconds=0.0)
    place = ("adaptive_all_for_one", stop)
    stopped(three, lambda p: (p.label, p.t) == place, runs=tmp_path)
    cell = Folder(folder_of(three, tmp_path)).cell("adaptive_all_for_one", 0)
    assert (cell.t, cell.done) == (stop, False)
    resumed = run_study(three, runs=tmp_path)
    for entry in three.algorithms:
        assert_same(full_run, resumed, entry.label)


@pytest.mark.parametrize("number", [0, 1, 4, 5, 9])
def test_an_interruption_anywhere_leaves_a_consistent_checkpoint(
    full_run, tmp_path, monkeypatch, number
):
    """Every evaluation asks for three parts; the first one is before round 1."""
    only = made(algorithm=[{"name": "local"}], checkpoint_seconds=0.0)
    evaluate, calls = Simulation.evaluate, iter(range(1000))

    def interrupt(self, x, name):
        if next(calls) == number:
            raise KeyboardInterrupt
        return evaluate(self, x, name)

    monkeypatch.setattr(Simulation, "evaluate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_study(only, runs=tmp_path)
    assert_same(full_run, run_study(only, runs=tmp_path), "local")


def test_an_interruption_during_a_checkpoint_leaves_the_one_before(
    full_run, tmp_path, monkeypatch
):
    save, calls = torch.save, iter(range(1000))

    def fail(values, file):
        if next(calls) >= 3:  # the first one is of the baselines
            file.write_bytes(b"half of it")
            raise KeyboardInterrupt
        save(values, file)

    only = made(algorithm=[{"name": "local"}], checkpoint_seconds=0.0)
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(KeyboardInterrupt):
        run_study(only, runs=tmp_path)
    monkeypatch.undo()
    folder = folder_of(only, tmp_path)
    assert list(folder.rglob(".*")) == []
    assert Folder(folder).cell("local", 0).t == 2
    assert_same(full_run, run_study(only, runs=tmp_path), "local")


def test_a_finished_study_is_not_run_again(full_run, monkeypatch):
    refuse_training(monkeypatch)
    seen: list[Progress] = []
    again = run_study(full_run.study, resume=full_run.folder, progress=seen.append)
    pd.testing.assert_frame_equal(again.records.metrics, full_run.records.metrics)
    assert [p.label for p in seen] == [e.label for e in full_run.study.algorithms]
    assert seen[-1].done == seen[-1].total == ROUNDS * len(full_run.study.algorithms)


def test_a_checkpoint_of_another_state_is_refused(tmp_path):
    first = made(algorithm=[{"name": "local"}])
    stopped(first, lambda p: True, runs=tmp_path)
    folder = Folder(folder_of(first, tmp_path))
    cell = folder.cell("local", 0)
    cell.state = {"x": cell.state["x"]}
    folder.save(cell)
    refuses("written by another version", run_study, first, runs=tmp_path)


def loop_over_clients(result: Result, label: str, part: str) -> list[tuple]:
    """Loss and accuracy of each client's own model on its own data, one by one."""
    federation = federation_of(result.study, 0)
    values = []
    for client in range(len(federation)):
        module = result.model(client, label)
        assert isinstance(module, nn.Module)
        index = mine(federation, client, part)
        with torch.no_grad():
            outputs = module(federation.features[index])
        targets = federation.targets[index]
        right = (outputs.argmax(1) == targets).float().mean()
        loss = nn.functional.cross_entropy(outputs, targets)
        values.append((float(loss), float(right)))
    return values


@pytest.mark.parametrize("part", ["train", "validation", "test"])
def test_each_model_is_measured_on_its_own_clients_data(full_run, part):
    for label in ("local", "fedavg_finetune", "adaptive_all_for_one"):
        table = results_of(full_run, label)
        last = table[table["round"] == ROUNDS].sort_values("client")
        recorded = last[[f"{part}_loss", f"{part}_accuracy"]].to_numpy()
        expected = np.array(loop_over_clients(full_run, label, part))
        np.testing.assert_allclose(recorded, expected, rtol=1e-5, atol=1e-6)


def test_models_are_those_of_the_last_algorithm_and_first_seed_by_default(full_run):
    assert torch.equal(full_run.models(), full_run.models("adaptive_all_for_one", 0))
    assert full_run.models().shape == (CLIENTS, 64 * 4 + 4 + 4 * 10 + 10)


def test_files_agree_with_the_records(full_run):
    for name in ("metrics", "rounds", "clients"):
        written = pd.read_csv(full_run.folder / f"{name}.csv")
        table = getattr(full_run.records, name)
        pd.testing.assert_frame_equal(written, table, check_dtype=False)
    with np.load(full_run.folder / "weights.npz") as arrays:
        for (label, seed), snapshots in full_run.records.weights.items():
            stored = arrays[f"{label}-{seed}-weights"]
            np.testing.assert_array_equal(stored, snapshots.matrices)
    kept = {label for label, _ in full_run.records.weights}
    assert {"all_for_one", "adaptive_all_for_one", "ifca", "cobo"} <= kept
    assert not {"local", "fedavg", "ditto"} & kept


def test_costs_are_cumulative_and_right_by_hand(full_run):
    parameters = full_run.models().shape[1]
    rounds = full_run.records.rounds.set_index(["algorithm", "round"])
    for t in range(ROUNDS + 1):
        assert rounds.loc[("local", t), "gradients"] == t * CLIENTS * 4
        assert rounds.loc[("local", t), "bytes"] == 0
        assert rounds.loc[("fedavg", t), "gradients"] == t * CLIENTS * 4
        assert rounds.loc[("fedavg", t), "bytes"] == t * 2 * CLIENTS * parameters * 4
    assert rounds.groupby("algorithm")["seconds"].is_monotonic_increasing.all()


def test_participation_costs_less_and_moves_only_some(tmp_path):
    entries = [{"name": "fedavg"}, {"name": "local"}]
    half = made(participation=0.5, rounds=1, algorithm=entries)
    result = run_study(half, runs=tmp_path)
    last = result.records.rounds.groupby("algorithm").last()
    parameters = result.models().shape[1]
    assert last.loc["fedavg", "gradients"] == 2 * 4
    assert last.loc["fedavg", "bytes"] == 2 * 2 * parameters * 4
    moved = (result.models("local") != prepare(half, 0).x).any(1)
    assert moved.sum() == 2


def test_double_precision_sends_twice_the_bytes(full_run, tmp_path):
    entries = [{"name": "fedavg"}]
    double = run_study(made(dtype="float64", algorithm=entries), runs=tmp_path)
    assert double.models().dtype == torch.float64
    torch.testing.assert_close(
        double.models().float(), full_run.models("fedavg"), rtol=1e-4, atol=1e-5
    )
    single = full_run.records.rounds.groupby("algorithm").last().loc["fedavg", "bytes"]
    assert double.records.rounds["bytes"].max() == 2 * single


def test_one_client_after_another_gives_the_same_up_to_rounding(full_run, tmp_path):
    looped = run_study(made(loop=True, algorithm=[ADAPTIVE]), runs=tmp_path)
    torch.testing.assert_close(
        looped.models(), full_run.models("adaptive_all_for_one"), rtol=1e-4, atol=1e-6
    )


def test_tuning_does_not_change_training(full_run):
    plain = Folder(full_run.folder).cell("fedavg", 0)
    tuned = Folder(full_run.folder).cell("fedavg_finetune", 0)
    assert torch.equal(plain.state["x"], tuned.state["x"])
    assert not torch.equal(
        full_run.models("fedavg"), full_run.models("fedavg_finetune")
    )


def test_training_alone_arrives_at_known_optima(tmp_path):
    result = run_study(made(LINEAR), runs=tmp_path)
    optima = federation_of(result.study, 0).optima
    distance = result.records.metrics.groupby("round")["distance"].max()
    start = result.records.metrics.query("round == 0")["distance"]
    np.testing.assert_allclose(start, optima.square().sum(1))
    assert distance.iloc[-1] < 1e-6 < distance.iloc[0]
    torch.testing.assert_close(result.models(), optima, atol=1e-3, rtol=0)


def test_evaluations_come_when_asked_and_at_the_end(tmp_path):
    asked = made(evaluate_every=3, evaluate_train=False)
    result = run_study(asked, runs=tmp_path)
    assert result.records.rounds["round"].tolist() == 2 * [0, 3, 4]
    assert not any(name.startswith("train_") for name in result.records.metrics)


def test_progress_counts_all_rounds_and_tells_the_validation_score(tmp_path):
    seen: list[Progress] = []
    small = made(rounds=2, evaluate_every=2, seeds=[0, 1])
    result = run_study(small, runs=tmp_path, progress=seen.append)
    assert [p.done for p in seen] == list(range(1, 9))
    assert {p.total for p in seen} == {8}
    assert [p.score is None for p in seen] == 4 * [True, False]
    means = result.records.metrics.query("round == 2").groupby(
        ["seed", "algorithm"], sort=False
    )["validation_accuracy"]
    told = {(p.seed, p.label): p.score for p in seen if p.score is not None}
    assert told == pytest.approx(means.mean().to_dict())


def test_the_table_has_a_row_for_each_algorithm(full_run):
    table = full_run.table()
    assert table.index.tolist() == [e.label for e in full_run.study.algorithms]
    last = results_of(full_run, "fedavg").query(f"round == {ROUNDS}")
    assert table.loc["fedavg", "mean"] == pytest.approx(last["test_accuracy"].mean())


def test_a_study_of_one_client_is_refused(tmp_path):
    tables = {
        "data": {"name": "digits"},
        "split": {"name": "iid", "clients": 1},
        "algorithm": [{"name": "local"}],
    }
    refused(tables, tmp_path, "at least two clients, `digits` has one")
