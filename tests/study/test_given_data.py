"""Claims about studies of data that a program has: frames, tensors, datasets."""

from __future__ import annotations

from pathlib import Path

import jaxtyping
import numpy as np
import pandas as pd
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

import coterie as co
from coterie.checks import InputError
from coterie.data import load
from coterie.export import export_model, predict
from coterie.study import data_of
from support.called import called
from support.hospitals import write_hospitals
from support.messy_files import write_plants
from support.study_runs import refuse_training

COLUMNS = {"client": "hospital", "target": "outcome"}
LOCAL = {"run": {"rounds": 2}, "algorithm": [{"name": "local"}, {"name": "fedavg"}]}


@pytest.fixture(scope="module")
def frame(tmp_path_factory) -> pd.DataFrame:
    return pd.read_csv(write_hospitals(tmp_path_factory.mktemp("data") / "h.csv"))


def of_frame(frame) -> co.Study:
    """A study of patients, or of a dictionary of them."""
    return co.study_of({**LOCAL, "data": COLUMNS}, data=frame)


def pairs(clients: int = 3, samples: int = 20, seed: int = 0):
    """Features and quantities for each client, far from zero."""
    rng = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(clients):
        x = torch.randn(samples, 4, generator=rng)
        y = 5000 + 1000 * x[:, 0] + 100 * torch.randn(samples, generator=rng)
        found.append((x, y))
    return found


def federation(tables, data):
    return data_of(co.study_of({**LOCAL, **tables}, data=data)).federations[0]


def test_a_frame_gives_the_models_that_its_file_gives(frame, tmp_path):
    path = tmp_path / "patients.csv"
    frame.to_csv(path, index=False)
    data = {**COLUMNS, "path": str(path)}
    read = co.run_study(co.study_of({**LOCAL, "data": data}), runs=tmp_path)
    given = co.run_study(of_frame(frame), runs=tmp_path)
    assert torch.equal(given.models(), read.models())


def test_a_dictionary_of_frames_and_one_frame_are_the_same_study(frame, tmp_path):
    one = of_frame(frame)
    parts = {name: some for name, some in frame.groupby("hospital")}
    for some in (parts, {k: v.drop(columns="hospital") for k, v in parts.items()}):
        many = of_frame(some)
        assert data_of(many).read == data_of(one).read


def test_the_run_is_named_by_the_content_and_goes_on_where_it_is(
    frame, tmp_path, monkeypatch
):
    first = co.run_study(of_frame(frame), runs=tmp_path)
    other = frame.assign(age=frame["age"].where(frame.index != 3, 99))
    second = co.run_study(of_frame(other), runs=tmp_path)
    assert first.folder != second.folder
    refuse_training(monkeypatch)
    again = co.study_of(first.study.tables(), data=frame.copy())
    assert co.run_study(again, runs=tmp_path).folder == first.folder


def test_kinds_of_columns_that_pandas_has_are_read_as_words_and_numbers(frame):
    kinds = frame.assign(
        sex=frame["sex"].astype("category"),
        age=frame["age"].astype("Int64"),
        pressure=frame["pressure"].astype(object),
        hospital=frame["hospital"].astype("category"),
    )
    plain, other = (federation({"data": COLUMNS}, some) for some in (frame, kinds))
    assert torch.equal(plain.features, other.features)
    assert plain.names == other.names == ("Basel", "Bern", "Chur", "Zug")


def test_a_table_is_taken_as_it_is():
    x = torch.randn(30, 5, generator=torch.Generator().manual_seed(0))
    table = co.Table("mine", x, (x[:, 0] > 0).long(), "binary", 1)
    split = {"split": {"name": "iid", "clients": 3, "min_classes": 1}}
    found = federation(split, table)
    assert found.name == "mine" and torch.equal(found.features, x)
    with pytest.raises(InputError, match="has no option 'target'"):
        co.study_of({**LOCAL, "data": {"target": "y"}}, data=table)


def test_pairs_of_quantities_are_scaled_and_come_back_in_their_unit(tmp_path):
    result = co.run_study(co.study_of(LOCAL, data=pairs()), runs=tmp_path)
    assert result.records.score == "rmse"
    x, y = pairs()[1]
    with torch.no_grad():
        predictions = result.model(1)(x.double())
    assert abs(float(predictions.mean() - y.mean())) < 1000


class Squares(Dataset):
    """Whole numbers and their class, one by one."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, k: int) -> tuple[np.ndarray, int]:
        return np.array([k, k * k], dtype=np.float32), k % 3


def test_datasets_of_clients_have_their_names_and_classes():
    found = federation({}, {"Bern": Squares(12), "Chur": Squares(15)})
    assert found.names == ("Bern", "Chur")
    assert (found.task, found.outputs) == ("classification", 3)
    sizes = found.train.size + found.validation.size + found.test.size
    assert sizes.tolist() == [12, 15]
    listed = federation({}, [Squares(12), Squares(15)])
    assert listed.names == () and torch.equal(listed.features, found.features)


def test_one_dataset_belongs_to_nobody_and_a_split_divides_it():
    data = TensorDataset(torch.arange(40.0)[:, None], torch.arange(40) % 2)
    split = {"split": {"name": "iid", "clients": 4}}
    assert len(federation(split, data)) == 4
    with pytest.raises(InputError, match="has no natural clients"):
        federation({}, data)


def test_whole_numbers_stay_codes_and_images_stay_images():
    codes = [(torch.randint(9, (12, 5)), torch.arange(12) % 2) for _ in range(2)]
    assert federation({"model": {"name": "mlp"}}, codes).features.dtype == torch.int64
    images = [(torch.zeros(12, 1, 4, 4), torch.arange(12) % 2) for _ in range(2)]
    found = federation({}, images)
    assert found.features.shape == (24, 1, 4, 4)
    assert co.study_of(LOCAL, data=images).model["name"] == "mlp"


def test_report_export_and_prediction_need_the_folder_alone(
    frame, tmp_path, monkeypatch
):
    folder = co.run_study(of_frame(frame), runs=tmp_path).folder
    assert called("report", str(folder))[0] == 0
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "study_of(tables, data=...)" in page and "coterie run study.toml" not in page
    export_model(co.load(folder), "Chur", tmp_path / "chur")
    new = tmp_path / "new.csv"
    frame.head(9).to_csv(new, index=False)
    assert predict(tmp_path / "chur", new).labelled == 9


def test_a_saved_study_says_where_its_data_came_from_and_is_refused_elsewhere(
    frame, tmp_path
):
    folder = co.run_study(of_frame(frame), runs=tmp_path).folder
    text = (folder / "study.toml").read_text(encoding="utf-8")
    assert 'name = "given from Python"' in text and 'target = "outcome"' in text
    with pytest.raises(InputError, match="data of this study were given from Python"):
        called("run", str(folder / "study.toml"))


NAMELESS = pd.DataFrame({"client": ["a", "b"] * 8, "target": np.arange(16) / 3})


@pytest.mark.parametrize(
    ("data", "tables", "message"),
    [
        ("patients.csv", {}, "`data` must be a pandas DataFrame"),
        (7, {}, "`data` must be a pandas DataFrame"),
        (NAMELESS, {}, "the frame has no feature columns"),
        (NAMELESS.iloc[:0], {}, "the frame must have rows"),
        (NAMELESS, {"name": "digits"}, "must not name a data set"),
        (NAMELESS, {"path": "x.csv"}, "must not name a data set"),
        (NAMELESS, {"aim": "target"}, "has no option 'aim'"),
        (NAMELESS, {"target": "outcome"}, "no column 'outcome' for `target`"),
        ({}, {}, "must name each client once"),
        ({"a": NAMELESS}, {}, "of the frame of a must name that client"),
        ([torch.zeros(3, 2)], {}, "`data` of client 0 must be"),
        ([(torch.zeros(3, 2), torch.zeros(4))], {}, "a row for each sample"),
        ([(["x"], [1])], {}, "must be tensors or arrays of numbers"),
        ([*pairs(1), (torch.zeros(9, 5), torch.zeros(9))], {}, "of the same shapes"),
        (pairs(), {"target": "y"}, "has no option 'target'"),
        (pairs(), {"task": "ranking"}, "`data.task` must be one of"),
        ([Dataset()], {}, "the dataset of client 0 must have a length"),
    ],
)
def test_bad_data_get_one_sentence(data, tables, message, monkeypatch):
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)  # as users have it
    with pytest.raises(InputError, match=message) as refusal:
        co.study_of({**LOCAL, "data": tables}, data=data)
    assert "\n" not in str(refusal.value)


def test_dates_and_identifiers_of_a_frame_are_as_those_of_a_file(tmp_path):
    path = write_plants(tmp_path)
    frame = pd.read_csv(path, sep="\t")
    frame["day"] = pd.to_datetime(frame["day"])
    tables = {
        "algorithm": [{"name": "local", "lr": 0.1}],
        "run": {"rounds": 2, "dtype": "float64"},
    }
    columns = {"client": "plant", "target": "output_kg"}
    given = co.study_of({**tables, "data": columns}, data=frame)
    assert given.data["drop"] == ["record_no"] and list(given.data["dates"]) == ["day"]
    read = co.study_of({**tables, "data": {**columns, "path": str(path)}})
    said: list[str] = []
    one, other = (
        co.run_study(each, runs=tmp_path, notice=said.append).models()
        for each in (given, read)
    )
    found = (
        'found in the data: task = "regression", drop = ["record_no"], dates = '
        '{"day": "ISO8601"}; '
    )
    assert said[0] == f"{found}give these options yourself to change them."
    assert f"{found}`coterie init` writes this into a study." in said
    torch.testing.assert_close(one, other)


def messy_frame() -> pd.DataFrame:
    """Forty rows with an identifier, two spellings, and words among numbers."""
    return pd.DataFrame(
        {
            "hospital": ["Bern", "Chur"] * 20,
            "patient": [f"P{k}" for k in range(40)],
            "smokes": ["yes", "no", "no", "Yes "] + ["yes", "no"] * 18,
            "score": [k % 7 if k % 5 else "<1" for k in range(40)],
            "ill": [k // 3 % 2 for k in range(40)],
        }
    )


def test_what_a_frame_does_not_say_is_a_warning_and_stands_in_the_report(tmp_path):
    with pytest.warns(UserWarning) as caught:
        result = co.train(
            messy_frame(), "hospital", "ill", "local", rounds=1, runs=tmp_path
        )
    said = [str(one.message) for one in caught]
    assert said[:2] == [
        'found in the data: drop = ["patient"], missing = ["<1"]; give these options '
        "yourself to change them.",
        "column 'smokes': 'Yes' is read as 'yes'; set merge_case = false if they "
        "differ.",
    ]
    page = Path(result.report()).read_text(encoding="utf-8")
    assert "columns that are not used: patient;" in page
    assert "&#39;Yes&#39; is read as &#39;yes&#39;" in page


def test_words_and_numbers_of_a_frame_are_read_as_those_of_a_file(tmp_path):
    messy_frame().to_csv(tmp_path / "messy.csv", index=False)
    columns = {"client": "hospital", "target": "ill"}
    tables = {"algorithm": [{"name": "local", "lr": 0.1}], "data": columns}
    of_frame = co.study_of(tables, data=messy_frame()).given
    path = str(tmp_path / "messy.csv")
    of_file = co.study_of({**tables, "data": {**columns, "path": path}})
    read = load("file", **{k: v for k, v in of_file.data.items() if k != "name"})
    assert of_frame.schema == read.schema
    torch.testing.assert_close(of_frame.features, read.features, equal_nan=True)
