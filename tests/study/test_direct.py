"""Claims about `co.train`: data in, models out."""

from __future__ import annotations

import inspect
import tempfile
from dataclasses import fields

import jaxtyping
import numpy as np
import pandas as pd
import pytest
import torch

import coterie as co
from coterie.algorithms import ALGORITHMS
from coterie.checks import InputError
from coterie.export.frames import predict_frame
from coterie.study import direct
from coterie.study.config import options_of
from coterie.study.tables import RunTable
from support.hospitals import write_hospitals
from support.refusals import refuses
from support.study_runs import refuse_training


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write_hospitals(tmp_path_factory.mktemp("data") / "patients.csv")


@pytest.fixture(scope="module")
def frame(file) -> pd.DataFrame:
    return pd.read_csv(file)


@pytest.fixture(scope="module")
def trained_result(frame, tmp_path_factory) -> co.Result:
    runs = tmp_path_factory.mktemp("runs")
    return co.train(frame, "hospital", "outcome", rounds=3, runs=runs)


def test_one_method_is_compared_with_training_alone(trained_result):
    assert trained_result.table().index.tolist() == ["local", "coteries"]
    assert trained_result.records.names == ("Basel", "Bern", "Chur", "Zug")


@pytest.fixture
def ask(monkeypatch):
    """Calls `train`, which makes a study and does not run it, and returns the study."""
    monkeypatch.setattr(direct, "run_study", lambda study, **options: study)
    return inspect.unwrap(direct.train)


def test_settings_are_those_of_a_study_that_sets_nothing(file, ask):
    shortest = {"path": str(file), "client": "hospital", "target": "outcome"}
    usual = co.study_of({"name": "patients", "data": shortest})
    methods = ["local", "fedavg", "coteries"]
    assert ask(file, "hospital", "outcome", methods) == usual


def test_settings_reach_the_table_or_the_methods_that_have_them(frame, ask):
    made = ask(
        frame,
        client="hospital",
        target="outcome",
        method=["local", "ditto"],
        name="mine",
        model="mlp",
        split={"test": 0.3},
        drop=["sex"],
        rounds=2,
        lr=0.05,
        lam=0.5,
    )
    assert (made.name, made.model["name"], made.split["test"]) == ("mine", "mlp", 0.3)
    assert made.data["drop"] == ["sex"] and made.run.rounds == 2
    options = [entry.options for entry in made.algorithms]
    assert [o["lr"] for o in options] == [0.05, 0.05]
    assert [o.get("lam") for o in options] == [None, 0.5]


def test_the_same_call_trains_nothing_anew(frame, trained_result, monkeypatch):
    refuse_training(monkeypatch)
    runs = trained_result.folder.parent
    again = co.train(frame, "hospital", "outcome", rounds=3, runs=runs)
    assert again.folder == trained_result.folder


def test_without_a_place_the_run_is_kept_in_a_temporary_folder(
    frame, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    made = co.train(frame, "hospital", "outcome", "fedavg", runs=None, rounds=1)
    assert made.folder.is_relative_to(tmp_path) and not (tmp_path / "runs").exists()
    assert made.model("Chur") is not None


def test_a_model_takes_the_rows_of_its_client(trained_result, frame):
    rows = frame[frame["hospital"] == "Chur"].head(5)
    raw = torch.tensor(
        [
            [row.age, row.pressure, "fm".index(row.sex), float(row.smokes)]
            for row in rows.itertuples()
        ],
        dtype=torch.float64,
    )
    with torch.no_grad():
        outputs = trained_result.model("Chur")(raw).flatten()
    found = trained_result.predict(rows, "Chur")
    # The second class, "well", is the one that a positive output stands for.
    assert found["predicted"].tolist() == [
        "well" if value > 0 else "ill" for value in outputs
    ]
    chances = torch.tensor(found["probability of well"].to_numpy())
    torch.testing.assert_close(chances.float(), outputs.float().sigmoid())


def test_rows_that_name_their_client_are_predicted_by_its_model(trained_result, frame):
    mixed = frame.sample(20, random_state=0)
    found = trained_result.predict(mixed)
    assert found.index.tolist() == mixed.index.tolist()
    for name, rows in mixed.groupby("hospital"):
        pd.testing.assert_frame_equal(
            found.loc[rows.index], trained_result.predict(rows, name)
        )
    loaded = co.load(trained_result.folder).predict(mixed)
    pd.testing.assert_frame_equal(loaded, found)


def test_rows_far_from_all_training_data_are_a_warning(trained_result, frame):
    days = frame.head(8).assign(age=365 * frame["age"])
    with pytest.warns(UserWarning, match="column 'age': 8 of 8 rows lie four or more"):
        found = trained_result.predict(days, "Chur")
    assert found.index.tolist() == days.index.tolist()


def test_rows_without_a_client_need_one_that_is_named(trained_result, frame):
    with pytest.raises(InputError, match="`client` must be given, because"):
        trained_result.predict(frame.drop(columns="hospital"))
    refuses("there is no client 'Genf'", trained_result.predict, frame.head(2), "Genf")


def test_models_of_tensors_predict_no_frame(tmp_path):
    data = [(torch.randn(12, 2), torch.arange(12) % 2) for _ in range(2)]
    made = co.train(data, method="fedavg", rounds=1, runs=tmp_path, notice=print)
    refuses("take tensors", made.predict, pd.DataFrame({"a": [1.0]}), 0)


def test_the_report_is_a_file_and_a_notebook_shows_all_of_it(trained_result):
    page = trained_result.report()
    assert page.path == trained_result.folder / "report.html"
    assert repr(page) == f"<Page {page.path}>"
    with open(page, encoding="utf-8") as file:
        text = file.read()
    assert text.startswith("<!DOCTYPE html>")
    shown = page._repr_html_()
    assert shown.startswith('<iframe srcdoc="&lt;!DOCTYPE html&gt;')
    assert shown.count('"') == 6  # those of the attributes alone


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"learning_rate": 0.1}, "no setting 'learning_rate'.*called 'lr'"),
        ({"round": 3}, "no setting 'round'.*'rounds'"),
        ({"method": []}, "`method` must be a name or a list of names"),
        ({"method": "fednova"}, "fednova"),
        ({"model": {"nme": "mlp"}}, "'nme'"),
        ({"client": "hopsital"}, "no column 'hopsital'.*'hospital'"),
    ],
)
def test_mistakes_get_one_sentence(frame, tmp_path, settings, message):
    given = {"client": "hospital", "target": "outcome", **settings}
    refuses(message, co.train, frame, runs=tmp_path / "runs", **given)
    assert not (tmp_path / "runs").exists()


def test_no_option_of_data_is_one_of_a_run_or_of_a_method():
    """So that a setting of `train` means one thing."""
    of_data = {*direct._of_data(), *(field.name for field in fields(RunTable))}
    assert len(of_data) == len(direct._of_data()) + len(fields(RunTable))
    for name in ALGORITHMS:
        assert not of_data & options_of(name).keys(), name


@pytest.mark.parametrize("wrong", [np.zeros((2, 3)), "new.csv", None])
def test_what_is_not_a_frame_is_not_predicted(monkeypatch, wrong):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users have it
    refuses("`frame` must be a pandas DataFrame, got", predict_frame, None, wrong)
