from __future__ import annotations

import functools
import hashlib
import http.server
import inspect
import io
import os
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from coterie.checks import InputError
from coterie.data import datasets, downloads
from coterie.data.datasets import DATASETS, load
from coterie.data.downloads import Source, fetch, obtain
from coterie.data.splits import divide
from support.refusals import refusal, refuses


@pytest.fixture
def data_dir() -> str:
    """A folder with the real data files."""
    beside = Path(__file__).parents[3] / "shared" / "data"
    folder = os.environ.get("COTERIE_DATA") or str(beside)
    if not Path(folder).is_dir():
        pytest.skip("needs data files: set COTERIE_DATA to their folder")
    return folder


@pytest.fixture(autouse=True)
def no_default_folder(monkeypatch, tmp_path, request):
    """Tests that do not ask for data must not find any."""
    if "data_dir" not in request.fixturenames:
        monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "empty"))


@pytest.mark.parametrize("name", DATASETS)
def test_every_loader_introduces_itself_in_one_line(name):
    first = inspect.getdoc(DATASETS[name]).splitlines()[0]
    assert first.endswith((".", "?"))


def test_digits_lie_between_zero_and_one():
    table = load("digits")
    assert table.features.shape == (1797, 64)
    assert (float(table.features.min()), float(table.features.max())) == (0, 1)
    assert table.targets.unique().tolist() == list(range(10))


def test_linear_targets_follow_the_optimum_of_their_client_exactly():
    table = load("linear", clients=5, clusters=2, dimension=3, samples=7, seed=1)
    theta = table.optima[table.group]
    torch.testing.assert_close(
        table.targets, (table.features * theta).sum(1), rtol=1e-14, atol=1e-13
    )
    assert table.clusters.tolist() == [0, 1, 0, 1, 0]
    assert torch.equal(table.optima[0], table.optima[2])
    assert not torch.equal(table.optima[0], table.optima[1])
    assert table.optima.abs().max() <= 10


def test_linear_variation_and_noise_have_the_stated_size():
    options = {"clients": 400, "clusters": 1, "dimension": 5, "samples": 50}
    table = load("linear", variation=0.5, noise=2.0, **options)
    assert abs(float(table.optima.std(0).mean()) - 0.5) < 0.03
    error = table.targets - (table.features * table.optima[table.group]).sum(1)
    assert abs(float(error.std()) - 2) < 0.05


def test_thirds_differ_in_models_and_features_as_stated():
    options = {"clients": 60, "dimension": 40, "tests": 300, "contrast": 0.3}
    table = load("linear_thirds", noise=0.5, variation=0.2, **options)
    for c in range(3):
        inside = table.optima[table.clusters == c]
        # 800 and 240,000 draws: five standard errors each.
        assert abs(float(inside.mean()) - 1 - c / 2) < 5 * 0.2 / 800**0.5
        assert abs(float(inside.std()) - 0.2) < 5 * 0.2 / 1600**0.5
        features = table.features[(table.group % 3 == c) & table.is_test]
        scale = 0.7 + 0.3 * c
        assert (
            abs(float(features.std()) / scale - 1) < 5 / (2 * features.numel()) ** 0.5
        )
    error = table.targets - (table.features * table.optima[table.group]).sum(1)
    assert abs(float(error.std()) / 0.5 - 1) < 5 / (2 * len(error)) ** 0.5


def test_thirds_have_the_stated_sizes_and_a_test_part_of_their_own():
    options = {"smallest": 3, "largest": 9, "tests": 5, "dimension": 2}
    table = load("linear_thirds", clients=200, **options)
    train = torch.bincount(table.group[~table.is_test])
    assert train.unique().tolist() == list(range(3, 10))
    assert (torch.bincount(table.group[table.is_test]) == 5).all()
    noisier = load("linear_thirds", clients=200, noise=3.0, **options)
    assert torch.equal(table.features, noisier.features)
    other = load("linear_thirds", clients=200, seed=1, **options)
    assert not torch.equal(table.optima, other.optima)
    federation = divide(table, "natural", seed=0)
    assert (federation.test.size == 5).all()
    assert torch.equal(federation.optima, table.optima)


def test_logistic_labels_have_the_probability_of_their_logit():
    table = load("logistic", clients=4, dimension=2, samples=5000)
    logit = (table.features * table.optima[table.group]).sum(1)
    assert table.task == "binary"
    # The expected score, the gradient of the loss at the optimum, is zero.
    score = table.features * (table.targets - logit.sigmoid())[:, None]
    assert score.mean(0).abs().max() < 0.02


def test_the_mean_of_a_client_is_a_linear_model_of_the_constant():
    table = load("mean_estimation", clients=3, dimension=4, samples=1000, noise=0.1)
    assert table.features.shape == (3000, 1)
    assert table.outputs == 4
    means = table.targets.reshape(3, 1000, 4).mean(1)
    torch.testing.assert_close(means, table.optima, atol=0.02, rtol=0)


def test_volumes_show_a_ball_with_the_contrast_of_their_scanner():
    table = load("volumes", scanners=3, samples=4, size=8, noise=0.0)
    assert table.features.shape == table.targets.shape == (12, 1, 8, 8, 8)
    assert table.targets.flatten(1).sum(1).min() > 0
    for i, (outside, contrast) in enumerate([(0, 1), (1 / 3, -4 / 3), (2 / 3, 5 / 3)]):
        image, mask = (part[table.group == i] for part in table[1:3])
        torch.testing.assert_close(image, outside + contrast * mask.float())
    assert len(divide(table, "natural", seed=0)) == 3


@pytest.mark.parametrize("name", ["linear", "logistic", "mean_estimation", "volumes"])
def test_synthetic_data_depend_on_the_seed_alone(name):
    first, again, other = (load(name, samples=4, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.features, again.features)
    assert torch.equal(first.targets, again.targets)
    assert not torch.equal(first.targets, other.targets)


def test_misspelt_options_and_names_are_answered_with_a_suggestion():
    message = "[data] linear has no option 'sample'. Did you mean 'samples'?"
    assert refusal(load, "linear", sample=3) == message
    assert "Did you mean 'digits'" in refusal(load, "digit")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("linear", {"clients": 0}, "`clients` must be at least 1"),
        ("linear", {"noise": -1.0}, "`noise` must be at least 0"),
        ("volumes", {"size": 2}, "`size` must be at least 4"),
        ("linear_thirds", {"largest": 9}, "`largest` must be at least 10, got 9"),
        ("linear_thirds", {"contrast": 1.0}, "`contrast` must be less than 1"),
        ("linear_thirds", {"tests": 10**9}, "samples . `dimension` must be at most"),
        ("linear", {"samples": 0}, "`samples` must be at least 1"),
        (
            "linear",
            {"clients": 10**6, "samples": 10**6},
            r"`clients` \* `samples` \* `dimension` must be at most 2,000,000,000, "
            r"got 10,000,000,000,000\.",
        ),
        ("logistic", {"dimension": 10**6}, r"`dimension` must be .*, got 40,000,000,0"),
        ("mean_estimation", {"clients": 10**9}, "`dimension` must be at most 2,000,0"),
        (
            "volumes",
            {"size": 10**4},
            r"`scanners` \* `samples` \* `size`\^3 must be at most 2,000,000,000, "
            r"got 64,000,000,000,000\.",
        ),
        ("houses", {"target": "price"}, "`target` must be one of longitude, value"),
        ("writers", {"min_images": 0}, "`min_images` must be at least 1"),
    ],
)
def test_impossible_wishes_are_refused_by_name_and_value(name, options, message):
    refuses(message, load, name, **options)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("fashion_mnist", "t10k-labels-idx1-ubyte.gz"),
        ("cifar10", "cifar-10-binary.tar.gz"),
        ("heart_disease", "processed.va.data"),
        ("houses", "cal_housing.tgz"),
        ("writers", "train-images-idx3-ubyte.gz"),
    ],
)
def test_missing_files_are_named_with_their_folder_and_both_remedies(
    name, file, tmp_path
):
    message = refusal(load, name, data_dir=str(tmp_path))
    for needed in (
        file,
        str(tmp_path),
        "data.data_dir=",
        "COTERIE_DATA",
        "download=true",
    ):
        assert needed in message


def test_folders_are_searched_in_the_stated_order(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path / "variable"))
    assert downloads.root(str(tmp_path / "option")) == tmp_path / "option"
    assert downloads.root("") == tmp_path / "variable"
    monkeypatch.delenv("COTERIE_DATA")
    assert downloads.root("") == tmp_path / ".cache" / "coterie"


def source_of(content: bytes, url: str, algorithm: str = "sha256") -> Source:
    digest = hashlib.new(algorithm, content).hexdigest()
    return Source("a.bin", url, f"{algorithm}:{digest}")


@pytest.fixture
def server(tmp_path):
    """Serves the folder `tmp_path / "served"` on loopback."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield folder, f"http://127.0.0.1:{running.server_port}/"
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_a_download_arrives_whole_and_is_not_repeated(server, tmp_path, algorithm):
    folder, url = server
    (folder / "a.bin").write_bytes(b"content")
    source = source_of(b"content", url + "a.bin", algorithm)
    options = {"data_dir": str(tmp_path / "data"), "download": True}
    (path,) = obtain([source], ["set"], **options)
    assert path == tmp_path / "data" / "set" / "a.bin"
    assert path.read_bytes() == b"content"
    (folder / "a.bin").unlink()
    assert obtain([source], ["set"], **options) == [path]


def test_a_corrupted_download_leaves_nothing_behind(server, tmp_path):
    folder, url = server
    (folder / "a.bin").write_bytes(b"other")
    source = source_of(b"content", url + "a.bin")
    target = tmp_path / "data" / "a.bin"
    said = refusal(fetch, source, target)
    for digest in (b"content", b"other"):
        assert hashlib.sha256(digest).hexdigest() in said
    assert "a.bin" in said
    assert list(target.parent.iterdir()) == []


def test_a_failed_download_says_which_address(server, tmp_path):
    _, url = server
    target = tmp_path / "data" / "a.bin"
    with pytest.raises(InputError, match=f"cannot download {url}none.bin .*404"):
        fetch(source_of(b"content", url + "none.bin"), target)
    assert list(target.parent.iterdir()) == []
    (tmp_path / "blocked").touch()
    with pytest.raises(InputError, match="cannot download"):
        fetch(source_of(b"", url), tmp_path / "blocked" / "a.bin")


def test_a_corrupted_local_file_is_refused_and_kept(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"other")
    source = source_of(b"content", "file:///none")
    with pytest.raises(InputError, match=r"a\.bin is corrupted: its sha256 must be"):
        obtain([source], ["set"], data_dir=str(tmp_path), download=True)
    assert (tmp_path / "a.bin").read_bytes() == b"other"


def test_files_are_found_in_each_folder_and_in_the_root(tmp_path):
    source = source_of(b"content", "file:///none")
    for folder in ("first", "second", "."):
        (tmp_path / folder).mkdir(exist_ok=True)
        (tmp_path / folder / "a.bin").write_bytes(b"content")
        (path,) = obtain([source], ["first", "second"], data_dir=str(tmp_path))
        assert path == tmp_path / folder / "a.bin"
        path.unlink()


def test_cifar_is_read_from_the_binary_archive(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    records = rng.integers(0, 10, (6, 20, 3073), dtype=np.uint8)
    names = [f"data_batch_{number}.bin" for number in range(1, 6)] + ["test_batch.bin"]
    path = tmp_path / "cifar-10-binary.tar.gz"
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for name, batch in reversed(list(zip(names, records, strict=True))):
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = batch.size
            archive.addfile(member, io.BytesIO(batch.tobytes()))
    digest = hashlib.md5(path.read_bytes()).hexdigest()
    monkeypatch.setattr(datasets, "CIFAR", [Source(path.name, "", f"md5:{digest}")])
    table = load("cifar10", data_dir=str(tmp_path))
    flat = records.reshape(-1, 3073)
    assert table.targets.tolist() == flat[:, 0].tolist()
    pixel = (flat[5, 1 + 1024] / 255 - 0.4822) / 0.2435  # first green one
    assert abs(float(table.features[5, 1, 0, 0]) - pixel) < 1e-6
    assert table.is_test.nonzero()[:, 0].tolist() == list(range(100, 120))
    assert table.note == ""


def test_a_corrupted_jpeg_file_is_refused(tmp_path):
    (tmp_path / "cifar10_jpeg75_bytes.npz").write_bytes(b"no archive")
    with pytest.raises(InputError, match=r"cifar10_jpeg75_bytes\.npz is corrupted"):
        load("cifar10", data_dir=str(tmp_path))


def test_a_truncated_table_of_houses_is_refused(tmp_path):
    (tmp_path / "cal_housing.data").write_text("1,2,3,4,5,6,7,8,9\n" * 3)
    with pytest.raises(InputError, match=r"20640 rows of 9 numbers, got \(3, 9\)"):
        load("houses", data_dir=str(tmp_path))


@pytest.mark.data
def test_heart_disease_has_the_parts_of_flamby(data_dir):
    table = load("heart_disease", data_dir=data_dir)
    assert table.features.shape == (740, 13)
    for i, (train, test) in enumerate([(199, 104), (172, 89), (30, 16), (85, 45)]):
        mine = table.group == i
        assert int((mine & ~table.is_test).sum()) == train
        assert int((mine & table.is_test).sum()) == test
        inside = table.features[mine & ~table.is_test]
        assert inside.mean(0).abs().max() < 1e-5
        spread = inside.std(0)
        assert ((spread - 1).abs() < 1e-4).logical_or(spread == 0).all()
    positives = torch.bincount(table.group[table.targets == 1])
    assert positives.tolist() == [139, 98, 45, 101]
    federation = divide(table, "natural", seed=0)
    assert federation.test.size.tolist() == [104, 89, 16, 45]
    held = federation.train.size + federation.validation.size
    assert held.tolist() == [199, 172, 30, 85]


@pytest.mark.data
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_images_have_mean_zero_and_deviation_one_on_the_training_part(name, data_dir):
    table = load(name, data_dir=data_dir)
    assert table.features.shape == (70_000, 1, 28, 28)
    train = table.features[~table.is_test]
    assert len(train) == 60_000
    assert abs(float(train.mean())) < 1e-3
    assert abs(float(train.std()) - 1) < 1e-3


@pytest.mark.data
def test_writers_are_those_of_qmnist(data_dir):
    table = load("writers", min_images=20, data_dir=data_dir)
    sizes = torch.bincount(table.group)
    assert sizes.min() >= 20 and len(sizes) <= 539
    few = load("writers", min_images=100, limit=7, data_dir=data_dir)
    assert torch.bincount(few.group).min() >= 100
    assert int(few.group.max()) == 6
    with pytest.raises(InputError, match="`min_images` must be at most 131"):
        load("writers", min_images=1000, data_dir=data_dir)


@pytest.mark.data
def test_houses_of_a_region_lie_together_and_regions_are_of_equal_size(data_dir):
    table = load("houses", bands=3, data_dir=data_dir)
    sizes = torch.bincount(table.group)
    assert len(sizes) == 9 and int(sizes.max() - sizes.min()) <= 3
    latitude = table.features[:, 1]
    assert latitude[table.group < 3].max() <= latitude[table.group >= 3].min()
    longitude = table.features[:, 0]
    assert longitude[table.group == 0].max() <= longitude[table.group == 1].min()
    assert abs(float(table.targets.mean())) < 1e-5
    assert abs(float(table.targets.std()) - 1) < 1e-5


@pytest.mark.data
def test_houses_by_longitude_have_the_class_sizes_of_openml_823(data_dir):
    table = load("houses", target="longitude", data_dir=data_dir)
    assert (table.task, table.features.shape) == ("binary", (20640, 8))
    assert torch.bincount(table.targets).tolist() == [11726, 8914]


@pytest.mark.data
def test_cifar_from_jpeg_equals_the_usual_decoder_and_says_so(data_dir, tmp_path):
    source = Path(data_dir) / "cifar10" / "cifar10_jpeg75_bytes.npz"
    if not source.is_file():
        pytest.skip("needs the JPEG version of CIFAR-10")
    with np.load(source) as archive:
        arrays = {name: archive[name] for name in archive.files}
    # The first 200 and 50 images; decoding all takes several seconds.
    for part, count in (("train", 200), ("test", 50)):
        arrays[f"off_{part}"] = arrays[f"off_{part}"][: count + 1]
        arrays[f"blob_{part}"] = arrays[f"blob_{part}"][: arrays[f"off_{part}"][-1]]
        arrays[f"y_{part}"] = arrays[f"y_{part}"][:count]
    np.savez(tmp_path / source.name, **arrays)
    table = load("cifar10", data_dir=str(tmp_path))
    assert table.features.shape == (250, 3, 32, 32)
    assert int((~table.is_test).sum()) == 200
    assert "JPEG of quality 75" in table.note
    start, stop = arrays["off_test"][7:9]
    image = Image.open(io.BytesIO(arrays["blob_test"][start:stop].tobytes()))
    pixels = torch.tensor(np.asarray(image)).permute(2, 0, 1) / 255
    mean = torch.tensor([0.4914, 0.4822, 0.4465])[:, None, None]
    std = torch.tensor([0.2470, 0.2435, 0.2616])[:, None, None]
    torch.testing.assert_close(table.features[207], (pixels - mean) / std)
