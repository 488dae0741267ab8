from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.data.datasets import load
from coterie.data.federation import Table
from coterie.data.files import table
from coterie.data.splits import divide
from support.refusals import refusal as refused
from support.refusals import refuses

PATIENTS = """age,hospital,pressure,outcome
50,Zug,120,1
60,Basel,130.5,0
70,Zug,110,0
"""


def write_csv(folder: Path, text: str) -> Path:
    path = folder / "patients.csv"
    path.write_text(text)
    return path


def refusal(path: Path, **options: str) -> str:
    named = {"client": "hospital", "target": "outcome"}
    return refused(table, path, **named | options)


def test_a_folder_without_tables_is_refused(tmp_path):
    folder = tmp_path / "patients.csv"
    folder.mkdir()
    assert refusal(folder).startswith(f"the folder {folder} has no file that ends in")


@pytest.mark.parametrize("path", [7, [], [7], True])
def test_a_path_that_is_no_text_is_refused(unchecked, path):
    refuses("`path` must be text or a list of texts, got", load, "file", path=path)


def test_a_csv_file_becomes_a_table_with_clients_in_sorted_order(tmp_path):
    path = write_csv(tmp_path, PATIENTS)
    got = table(path, client="hospital", target="outcome")
    assert got.features.tolist() == [[50, 120], [60, 130.5], [70, 110]]
    assert got.targets.tolist() == [1, 0, 0]
    assert got.group.tolist() == [1, 0, 1]
    assert (got.name, got.task, got.outputs) == ("patients", "binary", 1)
    assert got.names == ("Basel", "Zug")
    assert [column.name for column in got.schema.columns] == ["age", "pressure"]


def test_clients_that_are_numbers_are_sorted_as_numbers(tmp_path):
    path = write_csv(tmp_path, "client,target,x\n10,0,1\n9,1,2\n10,1,3\n")
    assert table(path).group.tolist() == [1, 0, 1]


def test_classes_may_be_words(tmp_path):
    path = write_csv(tmp_path, "client,target,x\na,wolf,1\nb,cat,2\nb,dog,3\n")
    got = table(path, task="classification")
    assert got.targets.tolist() == [2, 0, 1]
    assert got.outputs == 3
    assert got.classes == ("cat", "dog", "wolf")
    assert "classes in order: cat, dog, wolf" in got.note
    assert table(path).task == "classification"
    two = write_csv(tmp_path, "client,target,x\na,wolf,1\nb,cat,2\nb,cat,3\n")
    assert table(two).task == "binary"
    assert table(two).targets.tolist() == [1, 0, 0]


def test_the_task_is_guessed_only_where_there_is_no_doubt(tmp_path):
    path = write_csv(tmp_path, "client,target,x\na,1.5,1\nb,2,2\n")
    assert table(path).task == "regression"
    path = write_csv(tmp_path, "client,target,x\na,1,1\nb,2,2\n")
    refuses("set `task`", table, path)
    assert table(path, task="regression").targets.dtype == torch.float64
    assert table(path, task="classification").outputs == 3


def test_a_test_column_fixes_the_test_part_and_is_no_feature(tmp_path):
    path = write_csv(tmp_path, "client,target,x,is_test\na,1,1,0\nb,0,2,1\n")
    got = table(path)
    assert got.is_test.tolist() == [False, True]
    assert got.features.shape == (2, 1)


def test_data_without_clients_have_no_group(tmp_path):
    path = write_csv(tmp_path, "target,x\n1,1\n0,2\n")
    assert table(path, client="").group is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (PATIENTS.replace("130.5", "high"), "column 'pressure' .* row 3 holds 'high'"),
        (PATIENTS.replace("110,0", "110,"), "column 'outcome' .* row 4 holds nothing"),
        (PATIENTS.replace("50", "inf"), "column 'age' .* row 2 holds 'inf'"),
        (PATIENTS.replace("50", "1e39"), "column 'age' .* row 2 holds '1e39'"),
        (PATIENTS.replace("50", "1e999"), "column 'age' .* row 2 holds '1e999'"),
        (PATIENTS.replace("50", "1" * 400), r"row 2 holds '1{60}'\.\.\. \(400 letters"),
        (PATIENTS.replace("Basel", ""), "row 3 of patients.csv names no client"),
        (PATIENTS.replace("Basel", "NaN"), "row 3 of patients.csv names no client"),
        (
            PATIENTS.replace("60,Basel", "\n60,"),
            "row 4 of patients.csv names no client",
        ),
        (PATIENTS.replace("60", "x" * 10**5), r"row 3 holds 'x{60}'\.\.\. \(100,000"),
        (
            PATIENTS.replace("age", "outcome"),
            "columns 1 and 4 .* both called 'outcome'",
        ),
        (PATIENTS.replace("age", ""), "column 1 of patients.csv has no name"),
        (
            PATIENTS.replace("Basel,130.5,0", "Basel"),
            "row 3 .* has 2 cells, .* header has 4",
        ),
        (PATIENTS.replace("outcome", "outcomes"), "Did you mean 'outcomes'"),
        (PATIENTS.replace("hospital", "clinic"), "no column 'hospital' for `client`"),
        (PATIENTS.replace("110,0", "110,0,7"), "row 4 .* has 5 cells, .* header has 4"),
        ("hospital,outcome,x\n1,2,3,4\n1,2,3,4\n", "row 2 .* 4 cells, .* header has 3"),
        ("", "patients.csv has no columns"),
        ("\n\n", "patients.csv has no columns"),
        ("hospital,outcome,x\n", "no rows"),
        ("hospital,outcome\nZug,1\n", "no feature columns"),
        ("hospital,outcome,x,is_test\nZug,1,1,2\n", "must be 0 or 1, see row 2"),
    ],
)
def test_a_faulty_file_is_refused_in_one_sentence(tmp_path, text, message):
    import re

    assert re.search(message, refusal(write_csv(tmp_path, text)))


def test_labels_that_are_no_classes_are_refused(tmp_path):
    path = write_csv(tmp_path, PATIENTS.replace("120,1", "120,1.5"))
    assert "row 2 holds 1.5" in refusal(path, task="binary")
    path = write_csv(tmp_path, PATIENTS.replace("120,1", "120,-1"))
    assert "row 2 holds -1" in refusal(path, task="classification")


def test_missing_files_and_other_formats_are_refused(tmp_path):
    assert "there is no data file" in refusal(tmp_path / "none.csv")
    (tmp_path / "a.xls").touch()
    assert "must end in .csv, .csv.gz, .tsv" in refusal(tmp_path / "a.xls")
    path = write_csv(tmp_path, PATIENTS)
    assert "`task` must be one of" in refusal(path, task="classify")


def test_an_npz_file_becomes_a_table(tmp_path):
    path = tmp_path / "scans.npz"
    rng = np.random.default_rng(0)
    features = rng.normal(size=(40, 1, 4, 4))
    clients = np.array(["b", "a"] * 20)
    np.savez(path, features=features, targets=np.arange(40) % 3, client=clients)
    got = load("file", path=str(path), task="classification")
    torch.testing.assert_close(got.features, torch.tensor(features).float())
    assert got.group.tolist() == [1, 0] * 20
    assert len(divide(got, "natural", seed=0)) == 2


def test_a_faulty_npz_file_is_refused(tmp_path):
    path = tmp_path / "scans.npz"
    path.write_bytes(b"no archive")
    refuses(r"cannot read scans\.npz", table, path)
    np.savez(path, features=np.zeros((2, 1)))
    refuses("no array 'targets'; it has features", table, path)
    refuses("are options for columns", table, path, target="outcome")


MODULE = """
import torch
from coterie.data.federation import Table

def mine(*, samples=4, seed=0):
    x = torch.arange(samples).float()[:, None]
    return Table("mine", x, x[:, 0] + seed, "regression", 1)

def wrong():
    return 3

number = 3
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    (tmp_path / "own_data_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))


@pytest.mark.usefixtures("own_module")
def test_a_function_of_ones_own_is_a_data_set():
    got = load("own_data_module:mine", seed=2, samples=3)
    assert isinstance(got, Table)
    assert got.targets.tolist() == [2, 3, 4]


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_data_module:wrong", "must return a coterie Table, got int"),
        ("own_data_module:number", "must be a function"),
        ("own_data_module:none", "cannot be imported"),
        ("no_such_module:mine", "No module named 'no_such_module'"),
    ],
)
def test_what_is_no_data_set_is_refused(name, message):
    refuses(message, load, name)


@pytest.mark.usefixtures("own_module")
def test_options_of_ones_own_function_are_checked():
    said = refused(load, "own_data_module:mine", sample=3)
    assert "no option 'sample'. Did you mean 'samples'" in said


def test_a_file_needs_a_path():
    said = refused(load, "file", task="binary")
    assert said == "[data] file needs the option 'path'."
