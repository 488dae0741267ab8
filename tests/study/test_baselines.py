"""Baselines: a constant and scikit-learn, on the features and parts of the methods."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LogisticRegression, RidgeCV

from coterie.checks import InputError
from coterie.records import load_records
from coterie.records.cells import CONSTANT, LINEAR, POOLED, TREES
from coterie.study import baselines as room
from coterie.study.baselines.measuring import baselines_of
from coterie.study.baselines.predictors import constant_output
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.identity import identity_of
from coterie.study.setup import prepare
from support.study_runs import together
from support.tiny_studies import LINEAR as KNOWN
from support.tiny_studies import made


def table(path: Path, *, labels: bool) -> Path:
    """A file of three plants, whose targets are words or kilograms."""
    rng = np.random.default_rng(3)
    lines = ["plant,heat,speed,yield_kg"]
    for plant, count in (("Bern", 40), ("Chur", 30), ("Genf", 24)):
        x = rng.normal(size=(count, 2)) * (5, 0.1)
        y = 3000 + 200 * x[:, 0] + 300 * rng.normal(size=count)
        shown = np.where(y > 3000, "high", "low") if labels else y.round(1)
        lines += [f"{plant},{a},{b},{c}" for (a, b), c in zip(x, shown, strict=True)]
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def study(path: Path, **run: object):
    data = {"path": str(path), "client": "plant", "target": "yield_kg"}
    algorithms = [{"name": "local", "lr": 0.1}, {"name": "fedavg", "lr": 0.1}]
    run = {"rounds": 2, **run}
    return study_of({"name": "own", "data": data, "run": run, "algorithm": algorithms})


def parts(setup, client):
    """Features and targets of a client's training and test part, in 64 bits."""
    federation = setup.federation
    for part in (federation.train, federation.test):
        own = part.index[part.start[client] :][: part.size[client]]
        targets = federation.targets[own]
        yield federation.features[own].double().numpy()
        yield (targets.double() if targets.is_floating_point() else targets).numpy()


def score_of(setup, label: str, measure: str) -> np.ndarray:
    cells = {cell.label: cell for cell in baselines_of(setup).cells}
    return cells[label].metrics[0][f"test_{measure}"].numpy()


def test_labels_are_predicted_as_scikit_learn_does_on_the_same_features(tmp_path):
    setup = prepare(study(table(tmp_path / "a.csv", labels=True)), 0)
    right, pooled, most = [], [], []
    every = [list(parts(setup, client)) for client in range(3)]
    x, y = (np.concatenate([one[k] for one in every]) for k in (0, 1))
    together = LogisticRegression(max_iter=2000).fit(x, y)
    for xs, ys, xt, yt in every:
        right.append(LogisticRegression(max_iter=2000).fit(xs, ys).score(xt, yt))
        pooled.append(together.score(xt, yt))
        most.append(np.mean(yt == np.bincount(ys).argmax()))
    np.testing.assert_allclose(score_of(setup, LINEAR, "accuracy"), right, rtol=1e-6)
    np.testing.assert_allclose(score_of(setup, POOLED, "accuracy"), pooled, rtol=1e-6)
    np.testing.assert_allclose(score_of(setup, CONSTANT, "accuracy"), most, rtol=1e-6)
    assert score_of(setup, CONSTANT, "auc") == pytest.approx(0.5)


def test_quantities_are_predicted_in_the_unit_of_the_file(tmp_path):
    setup = prepare(study(table(tmp_path / "a.csv", labels=False)), 0)
    unit = setup.federation.preparations.unit
    found: dict[str, list[float]] = {LINEAR: [], TREES: [], CONSTANT: []}
    for client in range(3):
        xs, ys, xt, yt = parts(setup, client)
        leaf = min(20, max(2, len(ys) // 10))
        trees = HistGradientBoostingRegressor(
            min_samples_leaf=leaf, early_stopping=False, random_state=0
        )
        predicted = {
            LINEAR: RidgeCV(np.logspace(-3, 3, 13)).fit(xs, ys).predict(xt),
            TREES: trees.fit(xs, ys).predict(xt),
            CONSTANT: np.full(len(yt), ys.mean()),
        }
        for label, values in predicted.items():
            error = (values - yt) * unit.scale[0]
            found[label].append(float(np.sqrt(np.mean(error**2))))
    for label, errors in found.items():
        np.testing.assert_allclose(score_of(setup, label, "rmse"), errors, rtol=1e-5)
    assert min(found[CONSTANT]) > 500  # kilograms


def test_a_constant_has_the_frequencies_of_classes_or_the_mean():
    labels = torch.tensor([0, 0, 2])  # with Laplace's rule 3, 1 and 2 of 6
    chances = constant_output("classification", labels, 3).exp()
    assert chances.tolist() == pytest.approx([3 / 6, 1 / 6, 2 / 6])
    logit = constant_output("binary", torch.tensor([1, 1, 1, 0]), 1)
    assert logit.sigmoid().tolist() == pytest.approx([4 / 6])
    mean = constant_output("regression", torch.tensor([[1.0, 2.0], [3.0, 6.0]]), 2)
    assert mean.tolist() == [2, 4]
    mask = constant_output("segmentation", torch.tensor([[1, 0], [1, 1]]), 1)
    assert mask.sigmoid()[1] == pytest.approx(0.5) and mask[0].isfinite()


def test_a_client_with_one_class_gets_a_constant(tmp_path):
    path = table(tmp_path / "a.csv", labels=True)
    lines = path.read_text("utf-8").splitlines()
    lines += [f"Jena,{k},{k % 3},high" for k in range(20)]
    path.write_text("\n".join(lines), encoding="utf-8")
    tables = study(path).tables()
    tables["split"]["min_classes"] = 1
    setup = prepare(study_of(tables), 0)
    for label in (CONSTANT, LINEAR, TREES):
        assert score_of(setup, label, "accuracy")[3] == 1


def test_baselines_are_kept_once_and_never_become_methods(tmp_path, monkeypatch):
    one = study(table(tmp_path / "a.csv", labels=True))
    result = run_study(one, runs=tmp_path / "runs")
    records = load_records(result.folder)
    labels = [CONSTANT, LINEAR, TREES, POOLED]
    assert list(records.baselines["algorithm"].unique()) == labels
    assert set(records.metrics["algorithm"]) == {"local", "fedavg"}
    assert list(result.table().index) == ["local", "fedavg"]
    method, beside = records.outcomes["local", 0], records.baseline_outcomes[LINEAR, 0]
    np.testing.assert_array_equal(method.sample, beside.sample)
    assert beside.measures["accuracy"].dtype == np.uint8
    assert (result.folder / "baselines.csv").exists()
    monkeypatch.setattr(room.measuring, "baselines_of", None)  # nobody is asked again
    run_study(one, runs=tmp_path / "runs")


def test_an_older_folder_without_baselines_is_read(tmp_path):
    folder = run_study(made(rounds=1), runs=tmp_path).folder
    (folder / "baselines-0.pt").unlink()
    assert load_records(folder).baselines.empty


def test_a_damaged_file_is_named(tmp_path):
    folder = run_study(made(rounds=1), runs=tmp_path).folder
    (folder / "baselines-0.pt").write_bytes(b"else")
    with pytest.raises(InputError, match=r"baselines-0\.pt"):
        load_records(folder)


def test_the_option_leaves_the_name_of_a_run_as_it_was(tmp_path):
    assert "baselines" not in made().tables()["run"]
    assert identity_of(made(), {}) == identity_of(made(baselines=True), {})
    assert identity_of(made(), {}) != identity_of(made(baselines=False), {})
    folder = run_study(made(rounds=1, baselines=False), runs=tmp_path).folder
    assert load_records(folder).baselines.empty


def test_pooling_is_for_simulations_without_privacy():
    tables = made().tables() | {"privacy": {"clip": 1.0, "noise": 1.0}}
    labels = [cell.label for cell in baselines_of(prepare(study_of(tables), 0)).cells]
    assert labels == [CONSTANT, LINEAR]


def test_generated_sets_with_known_optima_have_a_constant_alone():
    found = baselines_of(prepare(study_of(KNOWN), 0))
    assert [cell.label for cell in found.cells] == [CONSTANT]


def test_what_would_take_long_is_left_out_and_named(monkeypatch):
    monkeypatch.setitem(room.measuring._FITS, LINEAR, 39)  # four clients, ten classes
    setup = prepare(made(), 0)
    found = baselines_of(setup)
    assert [cell.label for cell in found.cells] == [CONSTANT, POOLED]
    values = int(setup.federation.train.size.sum()) * 64 * 10
    assert found.left_out == [
        "The baseline `linear alone` was left out, because it would take long: 4 "
        f"clients, {values:,} training values."
    ]


def test_processes_that_divide_clients_find_the_same(tmp_path):
    one = load_records(run_study(made(rounds=1), runs=tmp_path / "one").folder)
    two = load_records(together(made(rounds=1), 2, tmp_path / "two")[0].folder)
    assert set(two.baselines["algorithm"]) == {CONSTANT, LINEAR}
    for label in (CONSTANT, LINEAR):
        ours, theirs = (
            table[table["algorithm"] == label]["test_loss"]
            for table in (one.baselines, two.baselines)
        )
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
