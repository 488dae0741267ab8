"""Claims about the contents of files: shapes, claims, damage, Parquet, options."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.checks import InputError
from coterie.data.federation import Table
from coterie.data.files import table
from coterie.data.preparation import Column
from support.refusals import refusal

PATIENTS = """age,hospital,is_test,outcome
50,Zug,0,1
60,Basel,1,0
70,Zug,0,0
"""


def save_npz(folder: Path, **arrays: np.ndarray) -> Path:
    path = folder / "scans.npz"
    usual = {"features": np.zeros((4, 2)), "targets": np.arange(4) % 2}
    np.savez(path, **{**usual, **arrays})
    return path


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"targets": np.array(1.0)}, r"'targets' .* one row per sample, got shape"),
        ({"features": np.array(1.0)}, "'features' .* rows and columns or more"),
        ({"features": np.zeros(4)}, "'features' .* rows and columns or more"),
        ({"features": np.zeros((4, 0))}, "must have features, got shape"),
        ({"features": np.zeros((4, 2), complex)}, "'features' .* must hold numbers"),
        ({"features": np.full((4, 1), "x")}, "'features' .* must hold numbers"),
        ({"features": np.array([[{}]] * 4)}, r"cannot read scans\.npz"),
        (
            {"features": np.array([[0.0], [np.nan], [0], [0]])},
            "'features' .* must be finite in .* row 2 is",
        ),
        ({"features": np.zeros((3, 1))}, "one row per target, 4, got 3"),
        (
            {"features": np.full((4, 2), 1e39)},
            "finite in single precision, but row 1 is not",
        ),
        ({"client": np.zeros((4, 1))}, "'client' .* one name per sample"),
        ({"client": np.array([0, 1, np.nan, 1])}, "row 3 .* names no client"),
        ({"client": np.array(["a", "b", " ", "b"])}, "row 3 .* names no client"),
        ({"client": np.zeros(4, complex)}, "'client' .* names or whole numbers"),
        ({"is_test": np.zeros((4, 2))}, "'is_test' .* one value per sample"),
        ({"targets": np.zeros((4, 2, 2))}, "set `task`"),
        ({"features": np.zeros((0, 2)), "targets": np.zeros(0)}, "have no rows"),
    ],
)
def test_arrays_of_other_shapes_and_values_are_refused(tmp_path, arrays, message):
    assert re.search(message, refusal(table, save_npz(tmp_path, **arrays)))


@pytest.mark.parametrize(
    ("task", "arrays", "message"),
    [
        ("binary", {"targets": np.zeros((4, 2))}, "one label per row"),
        (
            "regression",
            {"targets": np.zeros((4, 3, 3))},
            "one number per row, or a few",
        ),
        ("classification", {"targets": np.array([0, 1, 1, 2**60])}, "row 4 holds 1.15"),
        (
            "segmentation",
            {"features": np.zeros((4, 1, 6, 6)), "targets": np.zeros((4, 1, 5, 5))},
            r"masks of the size of the features, \(6, 6\)",
        ),
    ],
)
def test_shapes_of_data_are_not_the_models_fault(tmp_path, task, arrays, message):
    found = refusal(table, save_npz(tmp_path, **arrays), task=task)
    assert re.search(message, found)
    assert "model" not in found


def test_a_header_that_claims_more_than_the_file_holds_is_refused(tmp_path):
    path = tmp_path / "scans.npz"
    header = io.BytesIO()
    claim = {"descr": "<f8", "fortran_order": False, "shape": (10**9, 10**4)}
    np.lib.format.write_array_header_1_0(header, claim)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("features.npy", header.getvalue() + b"0" * 64)
        archive.writestr("targets.npy", header.getvalue())
    assert "claims 80,000,000,000,000 bytes, more than" in refusal(table, path)


def test_an_encrypted_file_is_refused(tmp_path):
    path = save_npz(tmp_path)
    raw = bytearray(path.read_bytes())
    # The first bit of the flags of every member, at its data and in the directory.
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        place = raw.find(mark)
        while place >= 0:
            raw[place + offset] |= 1
            place = raw.find(mark, place + 4)
    path.write_bytes(bytes(raw))
    assert "encrypted" in refusal(table, path)


def test_damaged_files_are_read_or_refused_in_one_sentence(tmp_path):
    scans = save_npz(tmp_path)
    patients = tmp_path / "patients.csv"
    patients.write_text(PATIENTS + PATIENTS.partition("\n")[2] * 3)
    named = {"client": "hospital", "target": "outcome"}
    rng = np.random.default_rng(0)
    for path, options in ((scans, {}), (patients, named)):
        whole = path.read_bytes()
        for _ in range(100):
            raw = bytearray(whole)
            for place in rng.integers(0, len(raw), 3):
                raw[place] = rng.integers(256)
            path.write_bytes(bytes(raw[: rng.integers(1, len(raw) + 1)]))
            try:
                table(path, **options)
            except InputError as error:
                assert "\n" not in str(error)
                assert len(str(error)) < 500


def test_arrays_are_scaled_only_where_that_is_asked_for(tmp_path):
    path = save_npz(tmp_path, features=np.eye(4, 2))
    plain, scaled = table(path), table(path, scale="client")
    assert plain.schema is None
    assert plain.columns == ("feature 0", "feature 1")
    assert scaled.schema.scale == "client"
    path = save_npz(tmp_path, features=np.zeros((4, 1, 2, 2)))
    assert "must be 'none' for features of shape (1, 2, 2)" in refusal(
        table, path, scale="agreed"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "is_test"}, "`target` must not be 'is_test'"),
        ({"client": "is_test"}, "`client` must not be 'is_test'"),
        ({"client": "outcome"}, "`target` and `client` must differ"),
        ({"scale": "agree"}, "Did you mean 'agreed'"),
        ({"drop": ["ages"]}, "none called 'ages'. Did you mean 'age'"),
        ({"drop": ["outcome"]}, "`data.drop` must name columns of features"),
        ({"categories": ["hospital"]}, "`data.categories` must name columns"),
    ],
)
def test_options_that_name_no_such_thing_are_refused(tmp_path, options, message):
    path = tmp_path / "patients.csv"
    path.write_text(PATIENTS)
    named = {"client": "hospital", "target": "outcome"}
    assert message in refusal(table, path, **{**named, **options})


def test_a_column_of_too_many_words_is_refused(tmp_path):
    path = tmp_path / "people.csv"
    rows = [f"a,{k % 2},person {k}" for k in range(101)]
    path.write_text("\n".join(["client,target,who", *rows]))
    assert "'who' of people.csv holds 101 different words" in refusal(table, path)


def frame() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "client": pd.array([7, 7, 10], "Int64"),
            "target": pd.array([True, False, True], "boolean"),
            "age": pd.array([50.5, None, 60.0], "Float64"),
            "ward": pd.array(["a", None, "b"], "string"),
            "smokes": pd.array([True, None, False], "boolean"),
        }
    )


def check(got: Table) -> None:
    assert got.names == ("7", "10")
    assert got.targets.tolist() == [1, 0, 1]
    words = Column("ward", ("a", "b"))
    assert got.schema.columns == (Column("age"), Column("smokes", truth=True), words)
    gap = float("nan")
    expected = [[50.5, 1, 0], [gap, gap, gap], [60, 0, 1]]
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(got.features, expected, equal_nan=True)


def test_parquet_needs_pyarrow(tmp_path, monkeypatch):
    def none(*args, **options):
        raise ImportError("no engine")

    monkeypatch.setattr("pandas.read_parquet", none)
    path = tmp_path / "patients.parquet"
    path.touch()
    assert refusal(table, path) == (
        "reading patients.parquet needs pyarrow: pip install coterie[parquet]."
    )


def test_columns_with_types_are_read_as_text_would_be(tmp_path, monkeypatch):
    monkeypatch.setattr("pandas.read_parquet", lambda *args, **options: frame())
    path = tmp_path / "patients.parquet"
    path.touch()
    check(table(path))
    dated = frame().assign(born=pd.Timestamp("2020-01-01"))
    monkeypatch.setattr("pandas.read_parquet", lambda *args, **options: dated)
    got = table(path, dates={"born": "ISO8601"})
    assert got.schema.columns[1] == Column("born", date="ISO8601")
    assert got.features[:, 1].tolist() == [18262] * 3  # days since 1970
    check(table(path, drop=["born"]))


def test_a_parquet_file_is_read(tmp_path):
    pytest.importorskip("pyarrow")
    path = tmp_path / "patients.parquet"
    frame().to_parquet(path)
    check(table(path))
    path.write_bytes(path.read_bytes()[:-20])
    assert "cannot read patients.parquet as Parquet" in refusal(table, path)
