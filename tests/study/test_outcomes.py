"""Claims about what is kept of every test sample."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from coterie.records.files import file_name
from coterie.report.tables import newcomer_summary
from coterie.scores import gain_of
from coterie.study.experiment import run_study
from coterie.study.setup import federation_of
from support.study_runs import together
from support.tiny_studies import LINEAR, made


@pytest.fixture(scope="module")
def full_run(tmp_path_factory):
    return run_study(made(seeds=[0, 1]), runs=tmp_path_factory.mktemp("runs"))


def test_means_of_outcomes_are_the_scores_of_the_last_round(full_run):
    table = full_run.records.metrics
    for (label, seed), (client, _, measures) in full_run.records.outcomes.items():
        last = table[(table["algorithm"] == label) & (table["seed"] == seed)]
        last = last[last["round"] == last["round"].max()].set_index("client")
        for name, tolerance in (("accuracy", 1e-6), ("loss", 1e-5)):
            for i, mine in last.iterrows():
                mean = measures[name][client == i].astype(float).mean()
                assert mean == pytest.approx(mine[f"test_{name}"], rel=tolerance)
    assert len(full_run.records.outcomes) == 4


def test_a_sample_is_known_by_its_place_in_the_table(full_run):
    for seed in (0, 1):
        federation = federation_of(full_run.study, seed)
        client, sample, measures = full_run.records.outcomes["fedavg", seed]
        for i in range(len(federation)):
            own = federation.only(i)
            index, mask = federation.test.rows(federation.clients[i : i + 1])
            assert sorted(sample[client == i]) == sorted(index[mask].tolist())
            assert (client == i).sum() == int(own.test.size[0])
        assert measures["accuracy"].dtype == np.uint8
    assert set(full_run.records.outcomes["local", 0].sample) != set(
        full_run.records.outcomes["local", 1].sample
    )


def test_data_drawn_anew_for_every_seed_share_no_sample(tmp_path):
    drawn = run_study(made(LINEAR, seeds=[0, 1], rounds=1), runs=tmp_path)
    same = {**LINEAR["data"], "seed": 5}
    kept = run_study(made(LINEAR, data=same, seeds=[0, 1], rounds=1), runs=tmp_path)
    for result, shared in ((drawn, False), (kept, True)):
        first, second = (result.records.outcomes["local", s].sample for s in (0, 1))
        assert bool(set(first) & set(second)) is shared


def test_several_processes_keep_the_same_outcomes(tmp_path):
    study = made(LINEAR, rounds=2)
    alone = run_study(study, runs=tmp_path / "alone")
    several, *_ = together(study, 3, tmp_path / "together")
    for key, own in alone.records.outcomes.items():
        other = several.records.outcomes[key]
        assert np.array_equal(own.client, other.client)
        assert np.array_equal(own.sample, other.sample)
        np.testing.assert_allclose(own.measures["loss"], other.measures["loss"], 1e-5)


def test_a_file_for_people_holds_them(full_run):
    with np.load(full_run.folder / "outcomes.npz") as arrays:
        for (label, seed), outcomes in full_run.records.outcomes.items():
            key = file_name(label, seed)
            assert np.array_equal(arrays[f"{key}-sample"], outcomes.sample)
            assert np.array_equal(
                arrays[f"{key}-accuracy"], outcomes.measures["accuracy"]
            )


def test_methods_that_are_told_true_clusters_are_kept_as_oracles(tmp_path):
    methods = [
        {"name": "local"},
        {"name": "all_for_one"},  # whose weights are by default the true clusters
        {"name": "all_for_one", "label": "equal", "weights": "uniform"},
        {"name": "karula", "radius": "clusters"},
        {"name": "karula", "label": "measured", "radius": "transport(5)"},
    ]
    result = run_study(made(algorithm=methods, rounds=1), runs=tmp_path)
    assert result.records.oracles == ("all_for_one", "karula")
    assert list(result.table().query("oracle").index) == ["all_for_one", "karula"]


def test_measures_of_whole_clients_and_newcomers_are_kept_by_sample(tmp_path):
    model = {"name": "linear", "measures": ["auc", "f1"], "score": "auc"}
    study = made(model=model, newcomers=1, seeds=[0, 1])
    records = run_study(study, runs=tmp_path).records
    last = records.metrics[records.metrics["round"] == records.metrics["round"].max()]
    both = [(last, records.outcomes), (records.newcomers, records.newcomer_outcomes)]
    for table, outcomes in both:
        assert len(outcomes) == 4
        for (label, seed), (client, _, measures) in outcomes.items():
            mine = table[(table["algorithm"] == label) & (table["seed"] == seed)]
            assert set(client) == set(mine["client"])
            for i, row in mine.set_index("client").iterrows():
                for name in ("auc", "f1", "loss"):
                    mean = measures[name][client == i].astype(float).mean()
                    assert mean == pytest.approx(row[f"test_{name}"], rel=1e-4)
    gain = gain_of(records, "fedavg")
    assert gain.samples > 0 and gain.seeds == 2
    row = newcomer_summary(records).loc["fedavg"]
    assert row["samples"] > 0 and np.isfinite(row["gain_low"])
    # An older run, that kept no such values, counts seeds alone.
    old = {
        key: o._replace(measures={"loss": o.measures["loss"]})
        for key, o in records.outcomes.items()
    }
    assert gain_of(replace(records, outcomes=old), "fedavg").samples == 0
    bare = replace(records, newcomer_outcomes={})
    assert newcomer_summary(bare).loc["fedavg", "samples"] == 0
