"""Claims about data sets of Hugging Face as tables."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch

from coterie.data import divide, from_hugging_face, load
from support.refusals import refusal

# The library says this of a newer pyarrow than it knows.
pytestmark = pytest.mark.filterwarnings("ignore:Cannot")

X = torch.arange(48.0).reshape(24, 2)
Y = torch.arange(24) % 3
WHO = torch.arange(24) // 8


@pytest.fixture(scope="module")
def datasets():
    """The library of Hugging Face."""
    return pytest.importorskip("datasets", reason="Hugging Face datasets is missing.")


def hospital_rows(datasets, rows=slice(None), **more):
    columns = {"pixels": X.tolist(), "label": Y.tolist(), "site": WHO.tolist(), **more}
    return datasets.Dataset.from_dict({k: v[rows] for k, v in columns.items()})


def test_columns_of_hugging_face_become_a_table(datasets):
    table = from_hugging_face(hospital_rows(datasets), client="site", target="label")
    assert torch.equal(table.features, X) and torch.equal(table.targets, Y)
    assert torch.equal(table.group, WHO) and table.outputs == 3
    listed = from_hugging_face(
        hospital_rows(datasets).remove_columns("site"), client=WHO, target="label"
    )
    assert torch.equal(listed.group, WHO)


def test_columns_of_numbers_are_features_with_names(datasets):
    rows = datasets.Dataset.from_dict(
        {"a": [1.0, 2.0], "b": [3, 4], "y": [0.5, 1.5], "who": ["p", "q"]}
    )
    table = from_hugging_face(rows, client="who", target="y")
    assert table.task == "regression" and table.columns == ("a", "b")
    assert table.features.tolist() == [[1, 3], [2, 4]] and table.names == ("p", "q")


def test_names_of_classes_and_words_are_classes(datasets):
    kind = datasets.ClassLabel(names=["cat", "cow", "dog", "elk"])
    rows = hospital_rows(datasets).cast_column("label", kind)
    table = from_hugging_face(rows, client="site", target="label")
    assert table.classes == ("cat", "cow", "dog", "elk") and table.outputs == 4
    words = hospital_rows(datasets, label=[["owl", "ape"][k % 2] for k in range(24)])
    table = from_hugging_face(words, client="site", target="label")
    assert table.classes == ("ape", "owl") and table.task == "binary"
    assert table.targets[:3].tolist() == [1, 0, 1]


def test_images_of_hugging_face_lie_between_zero_and_one(datasets):
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 6, 3), dtype=np.uint8)
    rows = datasets.Dataset.from_dict(
        {"image": [Image.fromarray(p) for p in pixels], "y": [0, 1, 2, 0]},
        features=datasets.Features(
            {"image": datasets.Image(), "y": datasets.Value("int64")}
        ),
    )
    table = from_hugging_face(rows, client=[0, 0, 1, 1], target="y")
    wanted = torch.tensor(pixels).permute(0, 3, 1, 2) / 255
    assert torch.equal(table.features, wanted)


def test_the_split_test_holds_the_test_samples_of_clients(datasets, tmp_path):
    splits = datasets.DatasetDict(
        train=hospital_rows(datasets), test=hospital_rows(datasets, slice(0, None, 4))
    )
    table = from_hugging_face(splits, client="site", target="label")
    assert divide(table, "natural", seed=0).test.size.tolist() == [2, 2, 2]
    splits.save_to_disk(str(tmp_path / "saved"))
    again = load(
        "hugging_face", path=str(tmp_path / "saved"), client="site", target="label"
    )
    for name in ("features", "targets", "group", "is_test"):
        assert torch.equal(getattr(again, name), getattr(table, name))
    assert len(again.files) > 2


def test_bad_rows_of_hugging_face_are_refused(datasets, tmp_path):
    rows = hospital_rows(datasets, remark=["none"] * 24)
    options = {"client": "site", "target": "label"}
    said = refusal(from_hugging_face, rows, **options)
    assert said.startswith("column 'pixels' must hold one number a row")
    said = refusal(from_hugging_face, rows, **options, features="remark")
    assert said.startswith("column 'remark' must hold numbers in arrays of one shape")
    said = refusal(from_hugging_face, rows, client="sit", target="label")
    assert "has no column 'sit'; its columns are pixels, label" in said
    said = refusal(from_hugging_face, rows, client=[1, 2], target="label")
    assert "each of the 24 samples, got 2" in said
    said = refusal(from_hugging_face, {"test": rows}, **options)
    assert said == "`dataset` must have a split 'train', got ['test']."
    said = refusal(load, "hugging_face", path=str(tmp_path))
    assert said.startswith(f"cannot read {tmp_path.name} as a saved data set")


def test_other_objects_are_refused_without_the_library():
    said = refusal(from_hugging_face, [1, 2], client="a", target="b")
    assert said.startswith("`dataset` must be a datasets.Dataset with rows in memory")


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    said = refusal(load, "hugging_face", path=str(tmp_path))
    assert said.endswith("needs datasets: pip install coterie[hugging_face].")
