"""Claims about studies that name their objective, measures, score and loss."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn import metrics

from coterie import report
from coterie.records import load_records
from coterie.scores.finals import score_of
from coterie.seeds import generator
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.setup import federation_of, module_of
from support.made_records import written
from support.plain_clients import mine as samples_of
from support.study_runs import refused, together
from support.tiny_studies import LINEAR, TABLES, made

OWN = """
import torch
from coterie.models import Measure, Objective, OfClient
from coterie.models.objectives import squared_error

def largest(outputs, targets):
    return (outputs[:, 0] - targets).abs().max()

smallest = Measure(OfClient(largest), higher_is_better=False)

def cubed(outputs, targets):
    return (outputs[:, 0] - targets).abs() ** 3

def many(outputs, targets):
    return outputs

def none(outputs, targets):
    return None

def fails(outputs, targets):
    raise KeyError("no such thing")

def few(outputs, targets):
    if len(targets) > 3:
        raise ValueError("too many")
    return 1.0

def tilted(outputs, targets):
    error = targets - outputs[:, 0]
    return torch.maximum(0.9 * error, -0.1 * error)

def covered(outputs, targets):
    return (targets <= outputs[:, 0]).to(outputs.dtype)

def worst(outputs, targets):
    return squared_error(outputs, targets).max()

quantile = Objective(
    tilted, {"worst": OfClient(worst), "covered": covered}, higher_is_better=False
)
mean = Objective(lambda o, t: squared_error(o, t).mean(), {}, higher_is_better=False)
item = Objective(
    lambda o, t: squared_error(o, t) * max(1.0, o.sum().item()), {}, False
)
missing = Objective(squared_error, {"worst": worst})
broken = Objective(lambda o, t: o @ t, {}, False)
"""


SMALLEST = "named:smallest"
ONE = "of the objective must give one number for"


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "named.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))


def with_model(tables: dict, **model) -> dict:
    return {**tables, "model": {**tables["model"], **model}}


def test_several_measures_stand_beside_the_tasks_own_and_change_no_number(tmp_path):
    names = ["f1", "sensitivity", "specificity", "balanced_accuracy", "auc", "ece"]
    plain = run_study(made(), runs=tmp_path)
    more = run_study(study_of(with_model(TABLES, measures=names)), runs=tmp_path)
    assert (more.records.score, more.records.higher_is_better) == ("accuracy", True)
    before = plain.records.metrics
    pd.testing.assert_frame_equal(more.records.metrics[before.columns], before)
    added = set(more.records.metrics) - set(before)
    parts = ("train", "validation", "test")
    assert added == {f"{part}_{name}" for part in parts for name in names}


def by_client(study, result, label):
    """Test targets and outputs of every client's final model, by plain calls."""
    federation = federation_of(study, 0)
    module = module_of(study, federation, 0)
    for place, client in enumerate(federation.clients.tolist()):
        mine = samples_of(federation, place, "test")
        model = result.model(client, label)
        assert type(model) is type(module)
        with torch.no_grad():
            yield client, federation.targets[mine], model(federation.features[mine])


def test_records_have_the_confusion_and_calibration_of_the_final_models(tmp_path):
    study = made()
    result = run_study(study, runs=tmp_path)
    records = load_records(result.folder)
    for label in ("local", "fedavg"):
        for client, targets, outputs in by_client(study, result, label):
            mine = f"algorithm == {label!r} and client == {client}"
            table = records.confusion.query(mine)
            counts = np.zeros((10, 10), int)
            counts[table["target"], table["predicted"]] = table["count"]
            expected = metrics.confusion_matrix(
                targets, outputs.argmax(1), labels=range(10)
            )
            assert counts.tolist() == expected.tolist()
            bins = records.calibration.query(mine)
            assert bins["count"].sum() == len(targets)
            assert bins["right"].sum() == np.trace(expected)
            confidence = outputs.softmax(1).max(1).values.sum()
            assert bins["confidence"].sum() == pytest.approx(float(confidence))
    saved = pd.read_csv(result.folder / "confusion.csv")
    pd.testing.assert_frame_equal(saved, records.confusion)
    assert (result.folder / "calibration.csv").exists()


def test_responses_have_no_confusion(tmp_path):
    tables = with_model(LINEAR, measures=["rmse", "mae", "r2"])
    tables["run"] = {**LINEAR["run"], "rounds": 2}
    result = run_study(study_of(tables), runs=tmp_path)
    assert result.records.confusion.empty and result.records.calibration.empty
    metrics = result.records.metrics
    root = metrics["test_rmse"].to_numpy()
    np.testing.assert_allclose(root**2, metrics["test_loss"])
    assert (metrics["test_mae"] <= root).all()


def imbalanced_tables(path, **model) -> dict:
    """Two clients with 21 per cent of class 1, which features do not predict."""
    rows = np.arange(2000)
    table = pd.DataFrame({"a": np.where(rows % 4 < 2, 0.1, -0.1), "client": rows % 2})
    table["target"] = (rows // 4 % 100 < 21).astype(int)
    table.to_csv(path, index=False)
    return {
        "name": "imbalanced",
        "data": {"name": "file", "path": str(path)},
        "split": {"name": "natural"},
        "model": {"name": "logistic", **model},
        "run": {"rounds": 3, "batch_size": 0},
        "algorithm": [{"name": "local", "steps": 1}],
        "tune": {"search": "grid", "halving": 1, "space": {"lr": [0.01, 100.0]}},
    }


def test_choosing_by_f1_chooses_differently_than_by_accuracy(tmp_path):
    # Three small steps lead towards class 0 for all: 79 per cent are right, F1 is 0.
    # Three huge ones, of -0.29, 0.21 and 0.21 of their size, end in class 1 for all: 21
    # per cent are right, F1 is 2 x 0.21 / 1.21.
    chosen, scores = {}, {}
    for score in ("accuracy", "f1"):
        tables = imbalanced_tables(tmp_path / "mine.csv", measures=["f1"], score=score)
        result = run_study(study_of(tables), runs=tmp_path)
        chosen[score] = result.chosen_options()["lr"].item()
        scores[score] = result.records.trials.set_index("lr")["score"]
    assert chosen == {"accuracy": 0.01, "f1": 100.0}
    assert scores["accuracy"].loc[0.01] == pytest.approx(0.79, abs=0.04)
    assert scores["accuracy"].loc[100.0] == pytest.approx(0.21, abs=0.04)
    assert scores["f1"].loc[0.01] == 0
    assert scores["f1"].loc[100.0] == pytest.approx(0.347, abs=0.05)


def one_class(path, **model) -> dict:
    """Three clients, of whom client 1 has class 1 alone."""
    rng = generator("tests", "one class")
    table = pd.DataFrame(torch.randn(90, 2, generator=rng).numpy(), columns=["a", "b"])
    table["client"] = np.arange(90) % 3
    table["target"] = (table["a"] > 0).astype(int)
    table.loc[table["client"] == 1, "target"] = 1
    table.to_csv(path, index=False)
    return {
        "name": "one class",
        "data": {"name": "file", "path": str(path)},
        "split": {"name": "natural", "min_classes": 1},
        "model": {"name": "logistic", **model},
        "run": {"rounds": 2, "batch_size": 4},
        "algorithm": [{"name": "local"}, {"name": "fedavg"}],
    }


def test_a_client_with_one_class_has_no_auc_and_breaks_nothing(tmp_path):
    tables = one_class(tmp_path / "mine.csv")
    result = run_study(study_of(tables), runs=tmp_path)
    metrics = result.records.metrics
    assert metrics["train_auc"].isna().equals(metrics["client"] == 1)
    assert metrics["train_auc"].dropna().between(0, 1).all()
    assert result.records.score == "accuracy"
    summary = result.table()
    assert summary[["mean", "weighted_mean", "worst_client"]].notna().all(axis=None)
    report.write_report(result.records, tmp_path / "report.html")
    saved = pd.read_csv(result.folder / "metrics.csv")
    assert saved["test_auc"].isna().any()


def test_clients_whose_samples_leave_the_score_undefined_count_in_no_mean(tmp_path):
    tables = one_class(tmp_path / "mine.csv", score="auc")
    tables["tune"] = {"trials": 2, "space": {"lr": [0.1, 1.0]}}
    shown = []
    result = run_study(
        study_of(tables),
        runs=tmp_path,
        progress=lambda p: shown.append(p.score) if p.score is not None else None,
    )
    assert np.isfinite(shown).all()
    trials, metrics = result.records.trials, result.records.metrics
    assert trials["score"].between(0, 1).all() and trials["chosen"].any()
    test = federation_of(result.study, 0)
    labels = [test.targets[test.test.rows(torch.tensor([i]))[0][0]] for i in range(3)]
    single = [i for i, some in enumerate(labels) if len(some.unique()) == 1]
    assert 1 in single and len(single) < 3
    assert metrics["test_auc"].isna().equals(metrics["client"].isin(single))
    last = metrics.query("round == 2").groupby("algorithm")["test_auc"].mean()
    summary = result.table()
    assert summary["mean"].to_dict() == pytest.approx(last.to_dict())
    assert summary[["weighted_mean", "worst_client"]].notna().all(axis=None)


def test_a_score_that_nobody_has_is_refused(tmp_path):
    tables = one_class(tmp_path / "mine.csv", score="auc")
    table = pd.read_csv(tmp_path / "mine.csv")
    table["target"] = table["client"] % 2
    table.to_csv(tmp_path / "mine.csv", index=False)
    refused(tables, tmp_path, "'auc' is undefined on the validation data of")


@pytest.mark.parametrize(
    ("model", "score"),
    [
        ({"measures": [SMALLEST], "score": SMALLEST}, "smallest"),
        ({"objective": "named:quantile"}, "worst"),
    ],
)
def test_choosing_goes_down_where_lower_is_better(own, tmp_path, model, score):
    tables = with_model(LINEAR, **model) | {
        "run": {**LINEAR["run"], "rounds": 20},
        "algorithm": [{"name": "local", "steps": 5}],
        "tune": {"search": "grid", "space": {"lr": [1e-6, 0.2]}},
    }
    result = run_study(study_of(tables), runs=tmp_path)
    records = load_records(result.folder)
    assert (records.score, records.higher_is_better) == (score, False)
    assert result.chosen_options()["lr"].item() == 0.2


def test_a_divided_study_measures_and_counts_the_same(tmp_path):
    model = {"name": "linear", "measures": ["f1", "auc", "ece"], "score": "f1"}
    run = {**TABLES["run"], "dtype": "float64"}
    tables = {**TABLES, "model": model, "run": run}
    study = study_of(tables)
    alone = run_study(study, runs=tmp_path / "alone")
    several, *_ = together(study, 3, tmp_path / "together")
    for name in ("metrics", "confusion", "calibration"):
        mine, theirs = (getattr(r.records, name) for r in (several, alone))
        pd.testing.assert_frame_equal(mine, theirs, rtol=1e-9, atol=1e-12)


def test_a_study_minimises_compares_and_reports_by_an_objective_of_ones_own(
    own, tmp_path
):
    run = {**LINEAR["run"], "rounds": 2}
    tables = with_model(LINEAR, objective="named:quantile") | {"run": run}
    result = run_study(study_of(tables), runs=tmp_path)
    records = load_records(result.folder)
    assert (records.score, records.higher_is_better) == ("worst", False)
    columns = {"test_loss", "test_worst", "test_covered", "train_worst"}
    assert columns <= set(records.metrics)
    last = records.metrics.query("round == 2")
    assert result.table()["mean"].item() == pytest.approx(last["test_worst"].mean())
    assert last["test_covered"].between(0, 1).all()
    assert score_of(records).sign == -1
    assert "test worst" in written(records, tmp_path)


SLOPES = {
    "huber(0.5)": lambda e: e.clamp(-0.5, 0.5),
    "absolute": lambda e: e.sign(),
    "named:cubed": lambda e: 3 * e.abs() * e,
    "named:quantile": lambda e: torch.where(e < 0, -0.9, 0.1).double(),
}


@pytest.mark.parametrize("name", SLOPES)
def test_ten_steps_follow_the_gradient_of_a_named_loss(own, tmp_path, name):
    kind = "objective" if name.endswith("quantile") else "loss"
    tables = with_model(LINEAR, **{kind: name})
    tables["run"] = {**LINEAR["run"], "rounds": 1}
    tables["algorithm"] = [{"name": "local", "lr": 0.01, "steps": 10}]
    study = study_of(tables)
    result = run_study(study, runs=tmp_path)
    federation = federation_of(study, 0)
    for client in range(4):
        mine = samples_of(federation, client)
        features = federation.features[mine].double()
        targets, theta = federation.targets[mine].double(), torch.zeros(3).double()
        for _ in range(10):
            slope = SLOPES[name](features @ theta - targets)
            theta = theta - 0.01 * slope @ features / len(mine)
        torch.testing.assert_close(result.models()[client], theta)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"measures": "f1"}, "`model.measures` must be a list of names, got 'f1'"),
        ({"measures": [1]}, "`model.measures` must be text, got 1"),
        ({"measures": ["f1"]}, "f1 is for classification and binary, but the task is"),
        ({"measures": ["rmsee"]}, "`model.measures` must be one of .* 'rmse'"),
        ({"score": "r3"}, "`model.score` must be one of loss, got 'r3'"),
        ({"score": 3}, "`model.score` must be text, got 3"),
        ({"loss": "focal"}, "`model.loss` focal is for classification and binary"),
        ({"loss": "huber(0)"}, "`model.loss` must be greater than 0, got 0"),
        ({"loss": "huber(x)"}, "`model.loss` must have numbers in its brackets"),
        ({"loss": ["huber"]}, "`model.loss` must be text"),
        ({"loss": "named:many"}, "`loss` of the objective must give one number"),
        ({"measures": ["named:many"]}, f"`many` {ONE} a client"),
        ({"measures": ["named:none"]}, f"`none` {ONE} .* gave None"),
        (
            {"measures": ["named:fails"]},
            "the measure `fails` raised KeyError for 2 samples of a client: 'no such",
        ),
        (
            {"measures": ["named:few"]},
            "the measure `few` raised ValueError for \\d+ samples of a client: too",
        ),
        ({"measures": ["named:absent"]}, "cannot be imported"),
        ({"objective": "named:mean"}, f"`loss` {ONE} each"),
        ({"objective": "named:missing"}, f"`worst` {ONE}"),
        ({"objective": "named:broken"}, "`model` does not fit the data `linear` .*: "),
        (
            {"objective": "named:item"},
            r"cannot be computed for all clients at once: .*\.item\(\)",
        ),
        (
            {"objective": "named:tilted"},
            "must be a coterie.models.Objective, got <function",
        ),
        ({"objective": "named:absent"}, "`model.objective` .* cannot be imported"),
        (
            {"objective": "regressio"},
            "`model.objective` must be one of .* Did you mean 'regression'",
        ),
        ({"objective": 3}, "`model.objective` must be text, got 3"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_written(
    own, tmp_path, model, message
):
    refused(with_model(LINEAR, **model), tmp_path, message)


def test_an_unknown_task_of_ones_own_data_is_refused(tmp_path, monkeypatch):
    (tmp_path / "own_table.py").write_text(
        "import torch\nfrom coterie import Table\n\n"
        "def data():\n"
        "    return Table('t', torch.ones(8, 2), torch.ones(8), 'regressio', 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tables = {**LINEAR, "data": {"name": "own_table:data"}}
    refused(tables, tmp_path, r"`task` must be one of .*'regression'")
