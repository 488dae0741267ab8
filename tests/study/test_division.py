"""Claims about studies that several processes run together; here they are threads."""

from __future__ import annotations

import tempfile

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError, TrainingError
from coterie.conformance.divided import run_divided
from coterie.data import Table
from coterie.records import Folder
from coterie.seeds import generator
from coterie.study.config import study_of
from coterie.study.division import Division, read_once
from coterie.study.experiment import run_study
from support.refusals import refuses
from support.study_runs import linear_tables, spoilt, together

TABLES = {
    **linear_tables(5, participation=0.6, evaluate_every=2),
    "algorithm": [{"name": "local"}, {"name": "fedavg", "lr": 0.05, "momentum": 0.5}],
}


def tables(**changed) -> dict:
    made = {**TABLES, **changed}
    return {**made, "run": {**TABLES["run"], **changed.get("run", {})}}


def same_records(one, other) -> None:
    """Raises unless two results hold the same numbers, but for rounding and time."""
    for name in ("metrics", "rounds", "clients", "newcomers", "trials"):
        mine, theirs = (getattr(result.records, name) for result in (one, other))
        mine, theirs = (
            t.drop(columns="seconds", errors="ignore") for t in (mine, theirs)
        )
        # Sums over processes are sums in another order.
        pd.testing.assert_frame_equal(mine, theirs, rtol=1e-9, atol=1e-12)
    for label in [entry.label for entry in one.study.algorithms]:
        gap = (one.models(label) - other.models(label)).abs().max()
        assert float(gap) < 1e-9


METHODS = [
    {"name": "local"},
    {"name": "fedavg", "lr": 0.05, "momentum": 0.5},
    {"name": "adaptive_all_for_one", "lr": 0.05, "every": 2},
    {"name": "apfl", "lr": 0.05, "adaptive": True},
    {"name": "ifca", "lr": 0.05},
    {"name": "coteries", "lr": 0.05},
    {"name": "karula", "lr": 0.05},
    {"name": "cobo", "lr": 0.05},
]


@pytest.fixture(scope="module")
def one_process(tmp_path_factory):
    """Several methods in one process."""
    study = study_of(tables(algorithm=METHODS))
    return run_study(study, runs=tmp_path_factory.mktemp("alone"))


@pytest.mark.parametrize("processes", [2, 5])
def test_a_divided_study_has_the_same_records(one_process, tmp_path, processes):
    first, *_, last = together(one_process.study, processes, tmp_path)
    for result in (first, last):
        same_records(result, one_process)
    weights, own = first.records.weights, one_process.records.weights
    assert weights.keys() == own.keys()
    for key, snapshots in weights.items():
        assert abs(snapshots.matrices - own[key].matrices).max() < 1e-6
    groups, own = first.records.groups, one_process.records.groups
    assert [label for label, _ in groups] == ["ifca", "coteries"]
    for key, labels in groups.items():
        assert labels.member.shape == (2, 5)  # all clients, at rounds 2 and 4
        for here, there in zip(labels, own[key], strict=True):
            np.testing.assert_array_equal(here, there)


def test_tuning_newcomers_and_personal_columns_are_the_same_when_divided(tmp_path):
    tune = {"trials": 2, "halving": 2, "rounds": 2, "folds": 2, "space": {"lr": [0.1]}}
    tune["space"]["lr"] += [0.02]
    personal = {"name": "mlp", "hidden": [2], "personal": ["head"]}
    for name, more in (
        ("newcomers", {"tune": tune, "run": {"newcomers": 1}}),
        ("personal", {"model": personal}),
    ):
        study = study_of(tables(name=name, **more))
        one_process = run_study(study, runs=tmp_path / "alone")
        same_records(together(study, 2, tmp_path)[0], one_process)


def test_what_was_interrupted_goes_on_with_another_number_of_processes(tmp_path):
    study = study_of(tables())
    whole = run_study(study, runs=tmp_path / "whole")

    class LostProcess(Exception):
        pass

    def stops(progress) -> None:
        if progress.label == "fedavg" and progress.t == 3:
            raise LostProcess

    with pytest.raises(LostProcess):
        together(study, 2, tmp_path, progress=stops)
    for processes in (3, 1):
        same_records(together(study, processes, tmp_path)[0], whole)


def test_what_diverges_stops_all_processes_with_the_client_that_did(tmp_path):
    study = study_of(tables(algorithm=[{"name": "local", "lr": 1e200}]))
    message = r"client \d has a model that is not finite"
    with pytest.raises(TrainingError, match=message):
        together(study, 2, tmp_path)


@pytest.mark.parametrize("unit", ["client", "sample"])
def test_private_clients_that_alone_know_their_partners_tell_the_same(tmp_path, unit):
    """No process knows all links of its weights, so all count as sent."""
    privacy = {"clip": 0.5, "noise": 2.0, "unit": unit}
    study = study_of(tables(algorithm=[{"name": "cobo"}], privacy=privacy))
    one_process = run_study(study, runs=tmp_path / "alone")
    first, *_ = together(study, 2, tmp_path)
    same_records(first, one_process)
    mine, theirs = (each.records.releases for each in (first, one_process))
    pd.testing.assert_frame_equal(mine, theirs, rtol=1e-9)


def reasons(study, processes: int, runs) -> list[str]:
    """Why training fails in each of the processes."""

    def run(group):
        with pytest.raises(TrainingError) as caught:
            run_study(study, runs=runs, group=group)
        return str(caught.value).partition(";")[0]

    return run_divided(run, processes)


SELDOM = {"rounds": 20, "evaluate_every": 20, "checkpoint_seconds": 1e9}
"""Nobody evaluates or saves on the way, so that processes reckon every ten rounds."""


@pytest.mark.parametrize("first", [3, 14])  # client 4 takes part in these rounds
def test_a_failure_of_one_process_is_known_to_all_with_its_round(
    tmp_path, monkeypatch, first
):
    """What is kept is what was there when all were finite the last time."""
    monkeypatch.setitem(ALGORITHMS, "spoilt", spoilt(4, torch.nan, first))
    study = study_of(tables(run=SELDOM, algorithm=[{"name": "spoilt"}]))
    (why,) = reasons(study, 1, tmp_path / "alone")
    assert why.endswith(f"client 4 has a model that is not finite after round {first}")
    one_process = Folder(next((tmp_path / "alone").glob("[!.]*"))).cell("spoilt", 0)
    assert one_process.t == first - 1
    for processes in (2, 3, 5):
        runs = tmp_path / str(processes)
        assert reasons(study, processes, runs) == [why] * processes
        cell = Folder(next(runs.glob("[!.]*"))).cell("spoilt", 0)
        assert cell.t == first // 10 * 10
        assert cell.state["x"].isfinite().all()
        # Three of five take part, with four samples each.
        assert cell.gradients == 3 * 4 * cell.t


@pytest.mark.parametrize("name", ["fedavg", "ifca", "karula", "cobo", "coteries"])
def test_the_first_round_that_fails_is_named_however_late_that_is(tmp_path, name):
    study = study_of(tables(run=SELDOM, algorithm=[{"name": name, "lr": 1e200}]))
    (why,) = reasons(study, 1, tmp_path / "alone")
    assert set(reasons(study, 2, tmp_path / "two")) == {why}


def test_a_trial_that_fails_is_the_same_when_divided(tmp_path):
    tune = {"trials": 2, "halving": 1, "rounds": 14, "space": {"lr": [0.1, 1e30]}}
    study = study_of(tables(tune=tune, algorithm=[{"name": "fedavg"}]))
    one_process = run_study(study, runs=tmp_path / "alone")
    both = one_process, together(study, 2, tmp_path)[0]
    one, other = (Folder(each.folder).search("fedavg", 0).steps for each in both)
    assert one[1].spent < 14 and [s.spent for s in one] == [s.spent for s in other]


@pytest.mark.parametrize("processes", [2, 3, 5])
def test_a_round_of_fedavg_is_one_message(tmp_path, processes):
    """And one more every ten rounds, where nobody evaluates."""

    def messages_sent(rounds: int) -> list[int]:
        run = {**SELDOM, "rounds": rounds, "evaluate_every": rounds}
        study = study_of(tables(run=run, algorithm=[{"name": "fedavg"}]))

        def count(group):
            run_study(study, runs=tmp_path / str(rounds), group=group)
            return group.messages

        return run_divided(count, processes)

    few, many = messages_sent(10), messages_sent(40)
    more = [b - a for a, b in zip(few, many, strict=True)]
    assert more == [30 + 3] * processes


def test_a_study_of_time_stays_in_one_process(tmp_path):
    study = study_of(tables(time={"law": "constant(1)"}))
    refuses(r"\[time\] runs in one process, got 2", together, study, 2, tmp_path)
    assert not list(tmp_path.iterdir())


def test_there_are_at_most_as_many_processes_as_clients(tmp_path):
    study = study_of(tables())
    refuses("as many processes as clients, 5, got 6", together, study, 6, tmp_path)
    assert not list(tmp_path.iterdir())


def test_processes_must_agree_on_the_study(tmp_path):
    def run(group):
        rounds = {"rounds": 4 + group.rank}
        return run_study(study_of(tables(run=rounds)), runs=tmp_path, group=group)

    refuses("all processes must run the same study", run_divided, run, 2)
    assert not list(tmp_path.iterdir())


def test_processes_that_tell_different_things_are_named():
    def tell(group):
        name = "gap" if group.rank == 1 else "norm"
        return Division(group, 4).join_info({name: 1.0})

    message = r"process 0 reports \['norm'\] and process 1 reports \['gap'\]"
    refuses(message, run_divided, tell, 2)


def test_one_process_reads_a_table_and_all_have_it(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    x = torch.randn(9000, 40, generator=generator("table"))  # more than a MiB
    y, who = x[:, 0] > 0, torch.arange(9000) % 3
    made = Table("made", x, y.long(), "classification", 2, group=who, columns=("a",))
    read = []

    def reading(group):
        def once():
            read.append(group.rank)
            return made

        return read_once(group, once)

    for found in run_divided(reading, 3):
        for name, value in made._asdict().items():
            other = getattr(found, name)
            same = (
                torch.equal(value, other) if isinstance(value, torch.Tensor) else None
            )
            assert other == value if same is None else same
        found.features[0] = 7.0  # of this process alone
    assert read == [0] and not list(tmp_path.iterdir())
    assert not (x[0] == 7).any()


def test_who_cannot_map_a_table_reads_it(monkeypatch):
    made = Table("made", torch.ones(9000, 40), torch.ones(9000), "regression", 1)
    read = []

    def reading(group):
        return read_once(group, lambda: read.append(group.rank) or made)

    def nowhere(*_, **__):
        raise RuntimeError("unable to open file")

    monkeypatch.setattr(torch, "from_file", nowhere)
    for found in run_divided(reading, 2):
        assert torch.equal(found.features, made.features)
    assert sorted(read) == [0, 0, 1]


def test_why_a_table_cannot_be_read_is_told_to_all():
    def reading(group):
        def absent():
            raise InputError("there is no data file absent.csv.")

        refuses(r"absent\.csv", read_once, group, absent)
        return group.rank

    assert run_divided(reading, 2) == [0, 1]
