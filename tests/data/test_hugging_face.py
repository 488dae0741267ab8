"""Claims about data sets of Hugging Face as tables."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie as co
from coterie.data import divide, from_hugging_face, load
from coterie.data.libraries.encoded_images import EncodedImages
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


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """A home folder without hashes of earlier tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def image_rows(datasets, pixels, mode=None, kind=None):
    """A data set of these images, for two clients in turn."""
    from PIL import Image

    images = [image if image is None else Image.fromarray(image) for image in pixels]
    images = [image.convert(mode) if mode else image for image in images]
    count = range(len(images))
    return datasets.Dataset.from_dict(
        {
            "image": images,
            "label": [k % 3 for k in count],
            "site": [k % 2 for k in count],
        },
        features=datasets.Features(
            {
                "image": kind or datasets.Image(),
                "label": datasets.Value("int64"),
                "site": datasets.Value("int64"),
            }
        ),
    )


def noise(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


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


OF_IMAGES = {"client": "site", "target": "label"}


def test_images_of_hugging_face_lie_between_zero_and_one(datasets):
    pixels = noise(4, 5, 6, 3)
    table = from_hugging_face(image_rows(datasets, pixels), **OF_IMAGES)
    wanted = torch.tensor(pixels).permute(0, 3, 1, 2) / 255
    assert torch.equal(table.features, wanted)
    grey = from_hugging_face(image_rows(datasets, pixels[..., 0]), **OF_IMAGES)
    assert torch.equal(grey.features, torch.tensor(pixels[:, None, :, :, 0]) / 255)


def test_black_and_white_and_colours_of_a_palette_are_values_between_0_and_1(datasets):
    pixels = 255 * (noise(4, 5, 6) > 127).astype(np.uint8)
    two = from_hugging_face(image_rows(datasets, pixels, "1"), **OF_IMAGES)
    assert torch.equal(two.features[:, 0], torch.tensor(pixels) / 255)
    colours = np.stack([pixels, 255 - pixels, pixels], axis=-1)  # fit into a palette
    palette = from_hugging_face(image_rows(datasets, colours, "P"), **OF_IMAGES)
    assert torch.equal(palette.features, torch.tensor(colours).movedim(-1, 1) / 255)
    kind = datasets.Image(mode="RGB")
    same = from_hugging_face(image_rows(datasets, pixels, kind=kind), **OF_IMAGES)
    assert torch.equal(same.features[:, 2], torch.tensor(pixels) / 255)


def test_a_later_study_decodes_only_its_own_images(datasets, tmp_path, monkeypatch):
    pixels = noise(60, 4, 4)
    rows = image_rows(datasets, pixels)
    splits = datasets.DatasetDict(
        train=rows.select(range(50)), test=rows.select(range(50, 60))
    )
    splits.save_to_disk(str(tmp_path / "saved"))
    options = {"path": str(tmp_path / "saved"), **OF_IMAGES}
    few = {"seed": 1, "clients": 3, "max_samples": 5, "validation": 0.25}
    divide(load("hugging_face", **options), "iid", **few)
    decoded: list[int] = []
    decode = EncodedImages.__getitem__

    def count(self, places):
        decoded.extend(places.tolist())
        return decode(self, places)

    monkeypatch.setattr(EncodedImages, "__getitem__", count)
    table = load("hugging_face", **options)
    assert not decoded and repr(table).startswith("<Table saved: 60 samples of (1, 4, ")
    federation = divide(table, "iid", **few)
    assert len(decoded) == len(set(decoded)) == 15
    wanted = torch.tensor(pixels[sorted(decoded), None]) / 255
    assert torch.equal(federation.features, wanted)


def test_images_that_do_not_fit_are_named(datasets):
    def said(images) -> str:
        return refusal(
            lambda: from_hugging_face(images, **OF_IMAGES).features  # decodes
        )

    grey, colour = noise(4, 5, 6), noise(4, 5, 6, 3)
    assert said(image_rows(datasets, [*colour, grey[0]])).startswith(
        "all images must have one size and the same channels, but image 4 of 'image' "
        "has (1, 5, 6) (channels, height, width) and image 0 (3, 5, 6)"
    )
    assert "image 3 of 'image' is missing" in said(
        image_rows(datasets, [*grey[:3], None])
    )
    assert "mode 'I;16'" in said(image_rows(datasets, grey.astype(np.uint16)))
    broken = image_rows(datasets, grey).cast_column(
        "image", datasets.Image(decode=False)
    )
    broken = broken.map(lambda row: {"image": {"bytes": b"none", "path": None}})
    assert "image 0 of 'image' cannot be decoded" in said(broken)
    more = image_rows(datasets, grey).add_column("age", [1, 2, 3, 4])
    assert "type Image must be the only one, got the columns image, age" in said(more)


@pytest.mark.parametrize("kind", ["torch", "numpy", "pandas"])
def test_the_format_of_a_data_set_changes_nothing(datasets, kind):
    rows = hospital_rows(datasets)
    plain = from_hugging_face(rows, client="site", target="label")
    found = from_hugging_face(rows.with_format(kind), client="site", target="label")
    assert torch.equal(found.features, plain.features)
    assert torch.equal(found.group, plain.group)


def test_a_study_reads_columns_and_images_from_a_folder(datasets, tmp_path):
    tables = {
        "split": {"name": "natural", "validation": 0.25, "min_classes": 1},
        "model": {"name": "linear"},
        "run": {"rounds": 1},
        "algorithm": [{"name": "local", "lr": 0.1}],
    }
    columns = {"age": [30.0 + k for k in range(24)], "n": [k % 5 for k in range(24)]}
    rows = datasets.Dataset.from_dict(
        {**columns, "ill": [k % 2 for k in range(24)], "site": WHO.tolist()}
    )
    rows.save_to_disk(str(tmp_path / "columns"))
    data = {"name": "hugging_face", "path": str(tmp_path / "columns"), "client": "site"}
    data |= {"target": "ill", "scale": "agreed"}
    for features, width in ((["age", "n"], 2), (["age"], 1)):
        study = co.study_of(tables | {"data": {**data, "features": features}})
        found = co.run_study(study, runs=tmp_path / "runs")
        assert found.models("local").shape == (3, width + 1)
    image_rows(datasets, noise(24, 4, 4)).save_to_disk(str(tmp_path / "images"))
    data = {"name": "hugging_face", "path": str(tmp_path / "images"), **OF_IMAGES}
    found = co.run_study(co.study_of(tables | {"data": data}), runs=tmp_path / "runs")
    assert found.models("local").shape == (2, 16 * 3 + 3)


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
