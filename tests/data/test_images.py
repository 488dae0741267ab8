"""Claims about images that are decoded when a study uses them."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import coterie as co
from coterie.checks import InputError
from coterie.data import divide, load
from coterie.data.parts import contents
from coterie.data.rows.images import Images
from coterie.data.rows.jpegs import Jpegs

PARTS = {"train": 50, "test": 14}


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch) -> Path:
    """A home folder without hashes of earlier tests."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def folder(tmp_path) -> str:
    """A folder with a few images in the format of the JPEG version of CIFAR-10."""
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray] = {}
    for part, count in PARTS.items():
        codes = []
        for _ in range(count):
            held = io.BytesIO()
            pixels = rng.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(held, "jpeg", quality=75)
            codes.append(held.getvalue())
        arrays[f"blob_{part}"] = np.frombuffer(b"".join(codes), np.uint8)
        arrays[f"off_{part}"] = np.cumsum([0, *map(len, codes)])
        arrays[f"y_{part}"] = np.arange(count) % 10
    np.savez(tmp_path / "cifar10_jpeg75_bytes.npz", **arrays)
    return str(tmp_path)


@pytest.fixture
def decoded(monkeypatch) -> list[int]:
    """The places of all images that were decoded, in their order."""
    places: list[int] = []
    decode = Jpegs.__getitem__

    def count(self, some):
        places.extend(some.tolist())
        return decode(self, some)

    monkeypatch.setattr(Jpegs, "__getitem__", count)
    return places


def few(table: co.Table):
    return divide(table, "iid", seed=3, clients=3, max_samples=4, validation=0.25)


def test_loading_images_decodes_none(folder, decoded):
    table = load("cifar10", data_dir=folder)
    assert len(table.targets) == 64 and not decoded
    assert repr(table) == "<Table cifar10: 64 samples of (3, 32, 32), classification>"


def test_a_later_study_decodes_only_its_own_images(folder, decoded):
    few(load("cifar10", data_dir=folder))
    decoded.clear()
    federation = few(load("cifar10", data_dir=folder))
    assert len(decoded) == len(set(decoded)) == 12 == len(federation.features)


def test_few_images_are_the_samples_that_all_images_give(folder):
    every = load("cifar10", data_dir=folder).decode()
    wanted, found = few(every), few(load("cifar10", data_dir=folder))
    assert len(wanted.features) == 64 and len(found.features) == 12
    for part in ("train", "validation", "test"):
        want, got = wanted.part(part), found.part(part)
        assert torch.equal(want.size, got.size)
        for name in ("features", "targets"):
            rows = getattr(found, name)[got.index]
            assert torch.equal(rows, getattr(wanted, name)[want.index])


def test_the_models_of_few_images_are_those_of_all(folder, tmp_path):
    tables = {
        "split": {"name": "iid", "clients": 3, "max_samples": 6, "min_classes": 1},
        "model": {"name": "linear"},
        "run": {"rounds": 2, "seeds": [0, 1], "batch_size": 2},
        "algorithm": [{"name": "local", "lr": 0.1, "steps": 2}],
    }
    named = co.study_of({**tables, "data": {"name": "cifar10", "data_dir": folder}})
    table = load("cifar10", data_dir=folder).decode()
    found = co.run_study(named, runs=tmp_path)
    wanted = co.run_study(co.study_of(tables, data=table), runs=tmp_path)
    for seed in (0, 1):
        models = found.models("local", seed=seed)
        assert torch.equal(models, wanted.models("local", seed=seed))


def test_seeds_that_use_half_of_all_images_share_them(folder, decoded):
    table = load("cifar10", data_dir=folder)
    made = [divide(table, "iid", seed=k, clients=4, min_size=5) for k in range(3)]
    assert all(one.features is table.features for one in made)
    assert len(decoded) == 128  # once for the hashes, and once to keep


def test_hashes_of_images_are_those_of_their_numbers(folder, home):
    table = load("cifar10", data_dir=folder)
    wanted = contents(table.decode())
    assert torch.equal(contents(table), wanted)
    (file,) = (home / ".cache/coterie/hashes").iterdir()
    assert torch.equal(contents(load("cifar10", data_dir=folder)), wanted)
    assert file.stat().st_size < 1000


def test_wrong_hashes_are_refused_and_deleted(folder, home):
    few(load("cifar10", data_dir=folder))
    (file,) = (home / ".cache/coterie/hashes").iterdir()
    np.save(file, np.load(file) + 1)
    with pytest.raises(InputError, match=r"were wrong, and are deleted: run the study"):
        few(load("cifar10", data_dir=folder))
    assert not file.exists()
    few(load("cifar10", data_dir=folder))


@pytest.mark.parametrize("content", [b"", b"no array"])
def test_a_damaged_file_of_hashes_counts_as_none(folder, home, content):
    wanted = contents(load("cifar10", data_dir=folder))
    (file,) = (home / ".cache/coterie/hashes").iterdir()
    file.write_bytes(content)
    assert torch.equal(contents(load("cifar10", data_dir=folder)), wanted)


def test_a_home_that_cannot_be_written_changes_nothing(folder, home):
    home.write_text("a file")
    assert len(few(load("cifar10", data_dir=folder)).features) == 12


def test_images_of_bytes_become_numbers_by_the_formula():
    pixels = np.random.default_rng(0).integers(0, 256, (5, 3, 2, 2), dtype=np.uint8)
    images = Images(pixels, [0.5, 0.4, 0.3], [0.1, 0.2, 0.4])
    wanted = pixels.astype(np.float64) / 255
    wanted -= np.array([0.5, 0.4, 0.3])[:, None, None]
    wanted /= np.array([0.1, 0.2, 0.4])[:, None, None]
    assert np.allclose(images.all().numpy(), wanted, atol=1e-5)
    assert torch.equal(images.some(torch.tensor([3, 1])), images.all()[[3, 1]])


def test_a_code_that_is_no_jpeg_is_refused_when_it_is_used(folder):
    path = Path(folder) / "cifar10_jpeg75_bytes.npz"
    with np.load(path) as archive:
        arrays = dict(archive)
    start, stop = arrays["off_train"][4:6]
    arrays["blob_train"] = arrays["blob_train"].copy()
    arrays["blob_train"][start:stop] = 0
    np.savez(path, **arrays)
    with pytest.raises(InputError, match=r"cifar10_jpeg75_bytes\.npz is corrupted"):
        few(load("cifar10", data_dir=folder))
