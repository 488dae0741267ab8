"""Claims about `run.pooled_test`: models on the test data of all clients together."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics

from coterie.engine.rounds import run_rounds
from coterie.report import measure_summary, write_report
from coterie.report.paper import as_markdown, paper_columns
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.setup import federation_of, prepare
from support.study_runs import linear_tables, together
from support.tiny_studies import TABLES, made

METHODS = [
    {"name": "local", "lr": 0.3},
    {"name": "fedavg", "lr": 0.3},
    {"name": "ditto", "lr": 0.3},
]


def tables(algorithm=METHODS, **run) -> dict:
    run = {**TABLES["run"], "evaluate_every": 2, "pooled_test": True, **run}
    return {**TABLES, "run": run, "algorithm": algorithm}


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    study = study_of(tables())
    return run_study(study, runs=tmp_path_factory.mktemp("runs"))


def last_of(result, label: str) -> pd.DataFrame:
    table = result.records.metrics
    mine = table[(table["algorithm"] == label) & (table["round"] == 4)]
    return mine.set_index("client")


def all_tests(study):
    """Features and targets of the test samples of all clients, one by one."""
    federation = federation_of(study, 0)
    index, mask = federation.test.rows(torch.arange(len(federation)))
    own = torch.cat([index[i][mask[i]] for i in range(len(federation))])
    return federation.features[own], federation.targets[own]


def test_a_personal_model_is_measured_on_the_samples_of_everybody(result):
    features, targets = all_tests(result.study)
    for label in ("local", "ditto"):
        table = last_of(result, label)
        for client in range(4):
            with torch.no_grad():
                outputs = result.model(client, label)(features)
            right = (outputs.argmax(1) == targets).float().mean()
            loss = torch.nn.functional.cross_entropy(outputs, targets)
            found = table.loc[client]
            assert found["test_pooled_accuracy"] == pytest.approx(float(right))
            assert found["test_pooled_loss"] == pytest.approx(float(loss), rel=1e-5)


def test_a_global_model_has_the_mean_over_all_samples(result):
    """The mean over clients, weighted by their test samples, is another way to it."""
    sizes = result.records.clients.set_index("client")["test"]
    table = last_of(result, "fedavg")
    expected = (table["test_accuracy"] * sizes).sum() / sizes.sum()
    assert table["test_global_accuracy"].to_numpy() == pytest.approx(expected)
    assert table["test_pooled_accuracy"].equals(
        table["test_global_accuracy"].rename("test_pooled_accuracy")
    )


def test_the_global_model_of_ditto_is_that_of_fedavg(result):
    """Personal models do not change it, and batches have the same names."""
    columns = ["test_global_accuracy", "test_global_loss"]
    every = result.records.metrics.set_index("algorithm")[columns]
    assert every.loc["local"].isna().all(axis=None)
    first = every.loc["fedavg"].to_numpy()
    np.testing.assert_allclose(every.loc["ditto"].to_numpy(), first, rtol=1e-5)


def test_the_global_model_is_measured_at_every_evaluation_and_others_at_the_end(result):
    table = result.records.metrics
    mine = table[table["algorithm"] == "ditto"]
    known = mine.dropna(subset="test_global_accuracy")["round"].unique()
    assert known.tolist() == [0, 2, 4]
    assert mine.dropna(subset="test_pooled_loss")["round"].unique().tolist() == [4]


def test_nothing_else_changes(result, tmp_path):
    plain = run_study(study_of(tables(pooled_test=False)), runs=tmp_path)
    assert plain.folder.name != result.folder.name
    assert "pooled_test" not in plain.study.tables()["run"]
    before, after = plain.records.metrics, result.records.metrics
    assert after[list(before)].equals(before)
    costs = ["gradients", "bytes"]
    assert result.records.rounds[costs].equals(plain.records.rounds[costs])


def test_a_study_without_the_option_is_named_as_before():
    assert "pooled_test" not in made().tables()["run"]
    assert made(pooled_test=True).tables()["run"]["pooled_test"] is True


def test_a_study_that_was_interrupted_has_the_same_numbers(result, tmp_path):
    class Stopped(Exception):
        pass

    def stops(progress) -> None:
        if progress.label == "ditto" and progress.t == 3:
            raise Stopped

    with pytest.raises(Stopped):
        run_study(result.study, runs=tmp_path, progress=stops)
    again = run_study(result.study, runs=tmp_path)
    assert again.records.metrics.equals(result.records.metrics)
    kept = pd.read_csv(again.folder / "metrics.csv")
    assert kept["test_pooled_loss"].count() == 3 * 4


def test_a_study_that_goes_on_to_more_rounds_has_the_same_numbers(result, tmp_path):
    said: list[str] = []
    run_study(study_of(tables(rounds=2)), runs=tmp_path)
    longer = run_study(result.study, runs=tmp_path, notice=said.append)
    assert longer.records.metrics.equals(result.records.metrics)
    assert "continue" in " ".join(said)


def test_a_divided_study_has_the_same_numbers(result, tmp_path):
    """Each process gets the test samples of the others."""
    first, last = together(result.study, 2, tmp_path)
    for found in (first, last):
        columns = [c for c in found.records.metrics if "global" in c or "pooled" in c]
        assert len(columns) == 4
        pd.testing.assert_frame_equal(
            found.records.metrics[columns],
            result.records.metrics[columns],
            rtol=1e-4,
        )


def test_a_measure_of_a_client_as_a_whole_is_of_all_samples_together(tmp_path):
    model = {**TABLES["model"], "measures": ["auc"]}
    study = study_of({**tables(METHODS[:1]), "model": model})
    found = run_study(study, runs=tmp_path)
    features, targets = all_tests(study)
    for client, row in last_of(found, "local").iterrows():
        with torch.no_grad():
            chances = found.model(client, "local")(features).softmax(1).numpy()
        areas = [
            metrics.roc_auc_score(targets.numpy() == c, chances[:, c])
            for c in targets.unique().tolist()
        ]
        assert row["test_pooled_auc"] == pytest.approx(np.mean(areas), abs=1e-6)


def test_tables_have_a_dash_where_there_is_no_global_model(result, tmp_path):
    columns = paper_columns({"A": result.records}, ["global_accuracy"])
    assert "| Method | Test accuracy of the global model (%) |" in as_markdown(columns)
    assert list(columns[0].rows.index) == ["fedavg", "ditto"]
    both = paper_columns({"A": result.records}, ["accuracy", "pooled_accuracy"])
    assert len(both[1].rows) == 3
    assert "global_loss" in measure_summary(result.records)
    page = write_report(result.records, tmp_path / "report.html").read_text()
    assert "accuracy of the global model ↑" in page
    assert "loss on all clients" in page


def test_with_personal_columns_there_is_no_global_model(tmp_path):
    model = {**TABLES["model"], "personal": ["head"]}
    study = study_of({**tables(METHODS[1:2]), "model": model})
    table = run_study(study, runs=tmp_path).records.metrics
    assert table["test_global_accuracy"].isna().all()
    assert table["test_pooled_accuracy"].count() == 4


def test_private_studies_measure_the_global_model_too(tmp_path):
    for unit in ("client", "sample"):
        privacy = {"clip": 0.5, "noise": 0.1, "unit": unit}
        study = study_of({**tables(METHODS[1:2]), "privacy": privacy})
        table = run_study(study, runs=tmp_path).records.metrics
        assert table["test_global_accuracy"].notna().all()


GLOBAL = ("apfl", "aruba", "dane", "ditto", "fedavg", "fedavg_finetune")
GLOBAL += ("low_rank_corrections", "per_fedavg", "pfedme")
NEEDS_ALL = ("preconditioned_gradient", "spag")  # whose reference takes part


@pytest.mark.parametrize("name", GLOBAL + NEEDS_ALL)
def test_a_global_model_is_the_same_for_all_clients(name):
    setup = prepare(study_of({**linear_tables(4), "algorithm": [{"name": name}]}), 0)
    algorithm = setup.algorithm(setup.study.algorithms[0])
    share = 1.0 if name in NEEDS_ALL else 0.5
    *_, last = run_rounds(
        algorithm, setup.simulation, setup.x, rounds=2, participation=share
    )
    w = algorithm.shared(last.state)
    assert w.shape == setup.x.shape
    assert torch.equal(w, w[:1].expand_as(w))
