"""Claims about quantities to predict: models see deviations, people see their unit."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as co
from coterie.data.fitting import samples_of
from coterie.data.preparation import Unit, preparation_of
from coterie.export import export_model, predict
from coterie.study.config import study_of
from coterie.study.experiment import run_study
from coterie.study.setup import prepare

SIZES = {"north": 30, "south": 50, "west": 80}


def plants(path, *, scale: float = 4000.0, offset: float = 52_000.0):
    """A file of plants whose output depends on two columns, each a little otherwise."""
    rng, rows = np.random.default_rng(5), []
    for k, (name, count) in enumerate(SIZES.items()):
        x = rng.normal(size=(count, 2))
        y = x @ [1.0, -0.5 + 0.1 * k] + 0.3 * rng.normal(size=count) + 0.2 * k
        rows += [(name, *a, b) for a, b in zip(x, offset + scale * y, strict=True)]
    frame = pd.DataFrame(rows, columns=["plant", "heat", "flow", "kg"])
    frame.to_csv(path, index=False)
    return frame


def study(path, *, run=None, **tables):
    data = {"name": "file", "path": str(path), "client": "plant", "target": "kg"}
    data |= tables.pop("data", {})
    run = {"rounds": 10, **(run or {})}
    made = {"data": data, "model": {"name": "linear"}, "run": run, **tables}
    made.setdefault("algorithm", [{"name": "local", "steps": 5}])
    return study_of({"name": "plants", **made})


def of_part(federation, name):
    index, _ = samples_of(federation.part(name))
    return federation.preparations.unit.restore(federation.targets[index]).numpy()


@pytest.mark.parametrize("newcomers", [0, 1])
def test_the_unit_is_mean_and_deviation_of_all_who_train(tmp_path, newcomers):
    frame = plants(tmp_path / "p.csv")
    setup = prepare(study(tmp_path / "p.csv", run={"newcomers": newcomers}), 0)
    unit = setup.federation.preparations.unit
    train = of_part(setup.federation, "train")
    assert unit.mean == pytest.approx((train.mean(),), rel=1e-6)
    assert unit.scale == pytest.approx((train.std(),), rel=1e-6)
    assert len(setup.federation) == 3 - newcomers
    if not newcomers:
        parts = [of_part(setup.federation, p) for p in ("train", "validation", "test")]
        found = np.sort(np.concatenate(parts))
        np.testing.assert_allclose(found, np.sort(frame["kg"]), rtol=1e-6)


def test_scores_losses_and_predictions_are_in_the_unit_of_the_file(tmp_path):
    frame = plants(tmp_path / "p.csv")
    result = run_study(study(tmp_path / "p.csv"), runs=tmp_path / "runs")
    records = result.records
    assert records.score == "rmse" and not records.higher_is_better
    export_model(co.load(result.folder), "west", tmp_path / "west")
    mine = frame[frame["plant"] == "west"]
    mine.drop(columns=["kg"]).to_csv(tmp_path / "new.csv", index=False)
    told = predict(tmp_path / "west", tmp_path / "new.csv").table["predicted"]
    # Noise is 0.3 of 4,000 kg.
    errors = told.to_numpy() - mine["kg"].to_numpy()
    assert 900 < np.sqrt((errors**2).mean()) < 1800
    last = records.metrics.query("round == 10").set_index("client")
    federation = prepare(study(tmp_path / "p.csv"), 0).federation
    place = federation.names.index("west")
    test = federation.test
    index = test.index[test.start[place] : test.start[place] + test.size[place]]
    truth = federation.preparations.unit.restore(federation.targets[index]).numpy()
    of_test = np.array([errors[np.abs(mine["kg"] - y).argmin()] for y in truth])
    row = last.loc[place]
    assert row["test_rmse"] == pytest.approx(np.sqrt((of_test**2).mean()), rel=1e-4)
    assert row["test_loss"] == pytest.approx((of_test**2).mean(), rel=1e-4)
    assert row["test_r2"] == pytest.approx(
        1 - (of_test**2).sum() / ((truth - truth.mean()) ** 2).sum(), rel=1e-4
    )


def test_other_units_give_models_that_are_as_good(tmp_path):
    """Splits go by content, so models are not the same, but errors are alike."""
    found = []
    for name, scale, offset in (("kg", 4000.0, 52_000.0), ("tons", 4.0, -7.0)):
        plants(tmp_path / f"{name}.csv", scale=scale, offset=offset)
        result = run_study(study(tmp_path / f"{name}.csv"), runs=tmp_path / name)
        found.append(result.records.metrics.query("round == 10")["train_rmse"].mean())
    assert found[0] / found[1] == pytest.approx(1000, rel=0.15)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e9])
@pytest.mark.parametrize("offset", [0.0, 1e3])
def test_defaults_train_whatever_the_unit(tmp_path, scale, offset):
    plants(tmp_path / "p.csv", scale=scale, offset=offset * scale)
    made = study(tmp_path / "p.csv", algorithm=[{"name": "local"}, {"name": "fedavg"}])
    records = run_study(made, runs=tmp_path / "runs").records
    first, last = (records.metrics.query(f"round == {t}") for t in (0, 10))
    assert (last["test_rmse"].mean() < first["test_rmse"].mean()).all()
    assert np.isfinite(last.filter(like="test_").to_numpy()).all()


def test_folds_of_a_search_keep_the_unit(tmp_path):
    plants(tmp_path / "p.csv")
    tune = {"space": {"lr": [0.01, 0.1]}, "folds": 2}
    result = run_study(study(tmp_path / "p.csv", tune=tune), runs=tmp_path / "runs")
    tried = result.records.trials
    assert tried["score"].between(500, 20_000).all()  # kg


def test_targets_may_stay_as_they_are(tmp_path):
    plants(tmp_path / "p.csv", scale=1.0, offset=0.0)
    kept = {"scale_target": False}
    setup = prepare(study(tmp_path / "p.csv", data=kept), 0)
    assert setup.federation.preparations.unit is None
    assert setup.simulation.objective.score == "loss"


def test_other_losses_are_of_deviations_and_errors_of_the_unit(tmp_path):
    plants(tmp_path / "p.csv")
    model = {"name": "linear", "loss": "huber(1)"}
    result = run_study(study(tmp_path / "p.csv", model=model), runs=tmp_path / "runs")
    last = result.records.metrics.query("round == 10")
    assert (last["test_loss"] < 10).all() and (last["test_rmse"] > 500).all()


def test_a_unit_of_a_unit_is_one():
    first, second = Unit((10.0, 0.0), (2.0, 3.0)), Unit((0.5, 1.0), (4.0, 0.1))
    values = torch.tensor([[1.0, 2.0], [3.0, -1.0]], dtype=torch.float64)
    both = second.after(first)
    torch.testing.assert_close(
        both.standardise(values), second.standardise(first.standardise(values))
    )
    torch.testing.assert_close(both.restore(both.standardise(values)), values)


def test_an_older_preparation_has_no_unit():
    plain = {"columns": [], "fill": [], "mean": [], "scale": []}
    assert preparation_of(plain).unit is None
    with pytest.raises(ValueError, match="differ"):
        preparation_of({**plain, "unit": {"mean": [1.0], "scale": []}})
