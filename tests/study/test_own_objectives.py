"""Claims about the objective of a study and the score that it compares."""

from __future__ import annotations

import textwrap

import numpy as np
import pandas as pd
import pytest
import torch

from coterie import report
from coterie.records import load_records
from coterie.scores.finals import score_of
from coterie.seeds import generator
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.setup import federation_of
from support.plain_clients import mine
from support.study_runs import refused
from support.tiny_studies import LINEAR, made

OWN = """
import torch
from coterie.models import Objective, OfClient
from coterie.models.objectives import squared_error

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


@pytest.fixture
def own(tmp_path, monkeypatch):
    (tmp_path / "own_losses.py").write_text(textwrap.dedent(OWN))
    monkeypatch.syspath_prepend(str(tmp_path))


def linear(objective: str, **tables) -> dict:
    model = {**LINEAR["model"], "objective": objective}
    return {**LINEAR, "model": model, **tables}


def test_a_study_minimises_compares_and_reports_by_an_objective_of_ones_own(
    own, tmp_path
):
    run = {**LINEAR["run"], "rounds": 2}
    study = study_of(linear("own_losses:quantile", run=run))
    result = run_study(study, runs=tmp_path)
    records = load_records(result.folder)
    assert (records.score, records.higher_is_better) == ("worst", False)
    columns = {"test_loss", "test_worst", "test_covered", "train_worst"}
    assert columns <= set(records.metrics)
    last = records.metrics.query("round == 2")
    assert result.table()["mean"].item() == pytest.approx(last["test_worst"].mean())
    assert last["test_covered"].between(0, 1).all()
    assert score_of(records).sign == -1
    report.write_report(records, tmp_path / "report.html")
    assert "test worst" in (tmp_path / "report.html").read_text()


def test_ten_steps_follow_the_gradient_of_that_objective(own, tmp_path):
    steps = [{"name": "local", "lr": 0.05, "steps": 10}]
    run = {**LINEAR["run"], "rounds": 1}
    study = study_of(linear("own_losses:quantile", run=run, algorithm=steps))
    result = run_study(study, runs=tmp_path)
    federation = federation_of(study, 0)
    for client in range(4):
        index = mine(federation, client)
        features = federation.features[index].double()
        targets, theta = federation.targets[index].double(), torch.zeros(3).double()
        for _ in range(10):
            share = torch.where(targets > features @ theta, -0.9, 0.1).double()
            theta = theta - 0.05 * share @ features / len(index)
        torch.testing.assert_close(result.models()[client], theta)


def test_a_search_goes_the_way_the_objective_points(own, tmp_path):
    tune = {"search": "grid", "space": {"lr": [1e-6, 0.2]}}
    run = {**LINEAR["run"], "rounds": 20}
    entry = [{"name": "local", "steps": 5}]
    study = linear("own_losses:quantile", run=run, tune=tune, algorithm=entry)
    result = run_study(study_of(study), runs=tmp_path)
    assert result.chosen_options()["lr"].item() == 0.2


@pytest.mark.parametrize(
    ("objective", "message"),
    [
        ("own_losses:mean", r"`loss` of the objective must give one number for each"),
        ("own_losses:missing", r"`worst` of the objective must give one number for"),
        ("own_losses:broken", r"`model` does not fit the data `linear` .*: "),
        (
            "own_losses:item",
            r"cannot be computed for all clients at once: .*\.item\(\)",
        ),
        ("own_losses:tilted", r"must be a coterie.models.Objective, got <function"),
        ("own_losses:absent", r"`model.objective` .* cannot be imported"),
        ("regressio", r"`model.objective` must be one of .* Did you mean 'regression'"),
        (3, r"`model.objective` must be text, got 3"),
    ],
)
def test_an_objective_that_cannot_be_used_is_refused_before_anything_is_written(
    own, tmp_path, objective, message
):
    refused(linear(objective), tmp_path, message)


def test_an_unknown_task_of_ones_own_data_is_refused_in_a_sentence(
    tmp_path, monkeypatch
):
    (tmp_path / "own_table.py").write_text(
        "import torch\nfrom coterie import Table\n\n"
        "def data():\n"
        "    return Table('t', torch.ones(8, 2), torch.ones(8), 'regressio', 1)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    tables = {**LINEAR, "data": {"name": "own_table:data"}}
    refused(tables, tmp_path, r"`task` must be one of .*'regression'")


def test_a_client_with_one_class_has_no_auc_and_breaks_nothing(tmp_path):
    rng = generator("tests", "one class")
    table = pd.DataFrame(torch.randn(60, 2, generator=rng).numpy(), columns=["a", "b"])
    table["client"] = np.arange(60) % 3
    table["target"] = (table["a"] > 0).astype(int)
    table.loc[table["client"] == 1, "target"] = 1
    table.to_csv(tmp_path / "mine.csv", index=False)
    study = made(
        data={"name": "file", "path": str(tmp_path / "mine.csv")},
        split={"name": "natural", "min_classes": 1},
    )
    result = run_study(study, runs=tmp_path)
    metrics = result.records.metrics
    assert metrics["train_auc"].isna().equals(metrics["client"] == 1)
    assert metrics["train_auc"].dropna().between(0, 1).all()
    assert result.records.score == "accuracy"
    summary = result.table()
    assert summary[["mean", "weighted_mean", "worst_client"]].notna().all(axis=None)
    report.write_report(result.records, tmp_path / "report.html")
    saved = pd.read_csv(result.folder / "metrics.csv")
    assert saved["test_auc"].isna().any()
