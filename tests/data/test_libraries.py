"""Claims about data in the formats of LEAF and PFLlib."""

from __future__ import annotations

import io
import json
import pickle
import pickletools
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import coterie as co
from coterie.data import divide, load
from coterie.data.libraries.pickles import read_pickled
from coterie.study import data_of
from support.refusals import refusal

LOCAL = {"algorithm": [{"name": "local", "lr": 0.1, "steps": 1}], "run": {"rounds": 1}}
SIZES = {"f0_1": (9, 3), "f10_2": (6, 2), "f2_7": (12, 4)}


def samples(count: int, seed: int, entries: int = 4) -> dict[str, list]:
    """The `x` and `y` of a user."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, entries)).round(4)
    return {"x": x.tolist(), "y": (np.arange(count) % 3).tolist()}


def write_leaf(folder: Path, **changed: dict[str, list]) -> Path:
    """Three users with training and test samples; the first two share a file."""
    for p, part in enumerate(("train", "test")):
        (folder / part).mkdir(parents=True, exist_ok=True)
        data = {
            who: samples(sizes[p], 10 * k + p)
            for k, (who, sizes) in enumerate(SIZES.items())
        }
        data |= {who: some for who, some in changed.items() if p == 0}
        users = list(data)
        for k, some in enumerate((users[:2], users[2:])):
            content = {
                "users": some,
                "num_samples": [len(data[who].get("y", [])) for who in some],
                "user_data": {who: data[who] for who in some},
            }
            name = f"all_data_{k}_niid_0_keep_0_{part}_9.json"
            (folder / part / name).write_text(json.dumps(content))
    return folder


def write_pfllib(folder: Path, clients: int = 3, **changed: object) -> Path:
    """Clients as PFLlib writes them: a dictionary in an array of objects."""
    for p, part in enumerate(("train", "test")):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for k in range(clients):
            rng = np.random.default_rng(10 * k + p)
            count = (8 + k, 3 + k)[p]
            x = rng.normal(size=(count, 1, 2, 2)).astype(np.float32)
            data: object = {"x": x, "y": np.arange(count) % 3}
            data = changed.get(f"{part}{k}", data)
            with (folder / part / f"{k}.npz").open("wb") as file:
                np.savez_compressed(file, data=data)
    config = {"num_clients": clients, "num_classes": 4, "non_iid": True, "alpha": 0.1}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_users_of_leaf_are_clients_with_their_own_test_samples(tmp_path):
    table = load("leaf", path=str(write_leaf(tmp_path / "femnist" / "data")))
    assert table.name == "femnist" and table.names == tuple(sorted(SIZES))
    assert (table.task, table.outputs) == ("classification", 3)
    federation = divide(table, "natural", seed=0, validation=0.34)
    assert federation.names == ("f0_1", "f10_2", "f2_7")
    assert federation.test.size.tolist() == [3, 2, 4]
    assert federation.validation.size.tolist() == [3, 2, 4]  # a third of training
    assert federation.train.size.tolist() == [6, 4, 8]
    for k, who in enumerate(table.names):
        place = list(SIZES).index(who)
        wanted = torch.tensor(samples(SIZES[who][1], 10 * place + 1)["x"])
        start, size = federation.test.start[k], federation.test.size[k]
        mine = federation.features[federation.test.index[start : start + size]]
        assert torch.equal(mine.sort(0).values, wanted.sort(0).values)


def test_features_of_leaf_take_the_shape_that_a_study_asks_for(tmp_path):
    folder = str(write_leaf(tmp_path))
    flat, square = load("leaf", path=folder), load("leaf", path=folder, shape=[1, 2, 2])
    assert torch.equal(flat.features.reshape(-1, 1, 2, 2), square.features)
    said = refusal(load, "leaf", path=folder, shape=[1, 3, 3])
    assert said == "`data.shape` [1, 3, 3] needs 9 features, but a sample has 4."


def test_a_folder_without_train_and_test_has_no_fixed_test_samples(tmp_path):
    table = load("leaf", path=str(write_leaf(tmp_path) / "train"))
    assert table.is_test is None and len(table.targets) == 27
    assert divide(table, "natural", seed=0).test.size.tolist() == [2, 1, 2]


def test_text_of_leaf_becomes_the_places_of_its_characters(tmp_path):
    play = {"x": ["to be", "o be ", " be o"], "y": [" ", "o", "r"]}
    others = {who: {"x": ["aaaaa"] * 4, "y": ["a"] * 4} for who in SIZES}
    write_leaf(tmp_path, **others | {"f0_1": play})
    table = load("leaf", path=str(tmp_path / "train"))
    assert table.classes == (" ", "a", "b", "e", "o", "r", "t")
    assert table.outputs == 7 and table.features.dtype == torch.int64
    mine = table.group == table.names.index("f0_1")
    words = ["".join(table.classes[c] for c in row) for row in table.features[mine]]
    assert words == play["x"]
    assert [table.classes[c] for c in table.targets[mine]] == play["y"]


def test_clients_of_pfllib_keep_their_test_samples(tmp_path):
    table = load("pfllib", path=str(write_pfllib(tmp_path / "MNIST")))
    assert table.name == "MNIST" and table.outputs == 4  # as config.json says
    federation = divide(table, "natural", seed=0, validation=0.25)
    assert federation.test.size.tolist() == [3, 4, 5]
    assert federation.validation.size.tolist() == [2, 2, 2]
    assert federation.train.size.tolist() == [6, 7, 8]
    with np.load(tmp_path / "MNIST/test/1.npz", allow_pickle=True) as archive:
        wanted = archive["data"].tolist()["x"]
    start, size = federation.test.start[1], federation.test.size[1]
    mine = federation.features[federation.test.index[start : start + size]]
    assert torch.equal(mine.sort(0).values, torch.tensor(wanted).sort(0).values)


def test_eleven_clients_of_pfllib_are_in_the_order_of_their_numbers(tmp_path):
    table = load("pfllib", path=str(write_pfllib(tmp_path, clients=11)))
    sizes = torch.bincount(table.group[~table.is_test])
    assert table.names == () and sizes.tolist() == [8 + k for k in range(11)]


@pytest.mark.parametrize("library", ["leaf", "pfllib"])
def test_a_study_file_trains_on_these_formats(library, tmp_path):
    write = write_leaf if library == "leaf" else write_pfllib
    write(tmp_path / "data")
    text = f'[data]\nname = "{library}"\npath = "data"\n[model]\nname = "linear"\n'
    text += '[run]\nrounds = 1\n[[algorithm]]\nname = "local"\nlr = 0.1\nsteps = 1\n'
    (tmp_path / "study.toml").write_text(text)
    result = co.run_study(co.read_study(tmp_path / "study.toml"), runs=tmp_path / "r")
    assert result.models().shape[0] == 3
    result.report()


def test_a_change_in_the_file_of_any_client_is_another_study(tmp_path):
    write_pfllib(tmp_path)
    data = {"name": "pfllib", "path": str(tmp_path)}
    study = co.study_of({**LOCAL, "data": data, "model": {"name": "linear"}})
    first = data_of(study).read
    with (tmp_path / "test/0.npz").open("wb") as file:
        np.savez(file, data={"x": np.ones((3, 1, 2, 2)), "y": np.arange(3)})
    assert data_of(study).read != first


X, Y, IMAGES = np.zeros((4, 2)), np.zeros(4, int), np.zeros((4, 1, 2, 2))

BAD_CLIENTS = {
    "lengths": ({"x": X, "y": Y[:3]}, "must have the same length, got 4 and 3"),
    "labels": ({"x": X, "y": Y + 0.5}, "must be whole numbers from 0, but sample 0"),
    "negative": ({"x": X, "y": Y - 1}, "whole numbers from 0, but sample 0 has -1"),
    "classes": ({"x": IMAGES, "y": Y + 7}, "must be below 4, its number of classes"),
    "no targets": ({"x": X}, "`data` of train/1.npz must be a dictionary with"),
    "text": ({"x": np.array(["a", "b"]), "y": Y[:2]}, "`x` of client 1 in train must"),
    "words": (
        {"x": np.array([([1, 2], 2), ([3], 1)], dtype=object), "y": Y[:2]},
        "`x` of train/1.npz must be one array of numbers",
    ),
    "shape": ({"x": np.zeros((4, 3)), "y": Y}, "features of the same shape, but those"),
    "a list": ([1, 2], "its array 'data' is not a dictionary"),
}


@pytest.mark.parametrize("case", BAD_CLIENTS)
def test_bad_clients_of_pfllib_are_refused_in_one_sentence(case, tmp_path):
    data, message = BAD_CLIENTS[case]
    folder = write_pfllib(tmp_path, train1=data)
    assert message in refusal(load, "pfllib", path=str(folder))


BAD_USERS = {
    "lengths": ({"x": [[1.0] * 4], "y": [1, 2]}, "the same length, got 1 and 2"),
    "labels": ({"x": [[1.0] * 4], "y": [0.5]}, "f0_1 in train must be whole numbers"),
    "ragged": ({"x": [[1.0], [1.0, 2.0]], "y": [1, 2]}, "`x` of f0_1 in all_data_0"),
    "pictures": ({"x": ["1.jpg"], "y": [1]}, "`x` of f0_1 in train must hold numbers"),
    "no lists": ({"x": 3}, "must have lists `x` and `y`"),
    "shapes": ({"x": [[1.0]], "y": [1]}, "features of the same shape, but those of"),
    "objects": (
        {"x": [{"a": 1}], "y": [1]},
        "must hold numbers in lists of one length",
    ),
}


@pytest.mark.parametrize("case", BAD_USERS)
def test_bad_users_of_leaf_are_refused_in_one_sentence(case, tmp_path):
    data, message = BAD_USERS[case]
    folder = write_leaf(tmp_path, f0_1=data)
    assert message in refusal(load, "leaf", path=str(folder))


@pytest.mark.parametrize("library", ["leaf", "pfllib"])
def test_a_missing_folder_is_refused_by_name(library, tmp_path):
    assert "must name the folder" in refusal(load, library)
    missing = tmp_path / "missing"
    assert f"but {missing} is none" in refusal(load, library, path=str(missing))
    empty = tmp_path / "train"
    empty.mkdir()
    said = refusal(load, library, path=str(tmp_path))
    assert str(empty) in said or f"{tmp_path / 'test'} is none" in said


def test_test_samples_of_a_stranger_are_refused(tmp_path):
    write_pfllib(tmp_path / "p")
    (tmp_path / "p/train/2.npz").unlink()
    said = refusal(load, "pfllib", path=str(tmp_path / "p"))
    assert "every client with test data needs training data, but client 2 has" in said
    write_leaf(tmp_path / "l")
    file = tmp_path / "l/train/all_data_1_niid_0_keep_0_train_9.json"
    file.write_text(json.dumps({"users": [], "num_samples": [], "user_data": {}}))
    assert "but f2_7 has none" in refusal(load, "leaf", path=str(tmp_path / "l"))


def test_a_user_in_two_files_is_refused(tmp_path):
    write_leaf(tmp_path)
    (tmp_path / "train/more.json").write_bytes(
        (tmp_path / "train/all_data_0_niid_0_keep_0_train_9.json").read_bytes()
    )
    said = refusal(load, "leaf", path=str(tmp_path))
    assert "each user must be in one file of train, but f0_1" in said


@pytest.mark.parametrize("content", ["{", "[1]", '{"users": []}', '{"users": 1'])
def test_a_file_that_is_not_of_leaf_is_refused(content, tmp_path):
    write_leaf(tmp_path)
    (tmp_path / "train/odd.json").write_text(content)
    assert "odd.json" in refusal(load, "leaf", path=str(tmp_path))


class Evil:
    """Runs a command when it is unpickled."""

    def __reduce__(self):
        return (print, ("ran",))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_names_anything_but_arrays_runs_nothing(
    protocol, tmp_path, capsys
):
    folder = write_pfllib(tmp_path)
    held = io.BytesIO()
    header = {"descr": "|O", "fortran_order": False, "shape": ()}
    np.lib.format.write_array_header_1_0(held, header)
    held.write(pickle.dumps({"x": Evil(), "y": Y}, protocol=protocol))
    with zipfile.ZipFile(folder / "train/1.npz", "w") as archive:
        archive.writestr("data.npy", held.getvalue())
    said = refusal(load, "pfllib", path=str(folder))
    assert said.startswith("cannot read train/1.npz: it names ")
    assert "builtin" in said and "could run code" in said
    assert not capsys.readouterr().out


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.arange(4, dtype=">i2"),
        np.array([True, False]),
        np.zeros((0, 3), np.uint8),
        np.float64(2.5),
        np.arange(12).reshape(3, 4)[:, ::2],
    ],
    ids=str,
)
def test_a_pickled_array_is_read_as_it_was(array, protocol):
    found = read_pickled(pickle.dumps({"a": [array, "text", 7]}, protocol=protocol))
    assert found["a"][1:] == ["text", 7]
    np.testing.assert_array_equal(found["a"][0], array)
    assert found["a"][0].dtype == array.dtype


def pickled(*steps: bytes) -> bytes:
    return b"\x80\x04" + b"".join(steps) + b"."


OBJECT_KIND = (
    b"cnumpy\ndtype\n(X\x02\x00\x00\x00O8\x89\x88tR"
    b"(K\x03X\x01\x00\x00\x00|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
)
ROWS = b"cnumpy.core.multiarray\n_reconstruct\n)R"

BAD_PICKLES = {
    "objects from bytes": pickled(
        ROWS, b"(K\x01K\x01\x85", OBJECT_KIND, b"\x89C\x08", b"\x07" * 8, b"tb"
    ),
    "another callable": pickled(b"cos\nsystem\nX\x04\x00\x00\x00true\x85R"),
    "a dotted name": pickled(b"cnumpy\nndarray.__init_subclass__\n)R"),
    "a persistent name": pickled(b"K\x01Q"),
    "an extension": pickled(b"\x82\x01"),
    "a far place": pickled(b"K\x01r\xff\xff\xff\x7f"),
    "too many bytes": pickled(b"B\xff\xff\xff\x7fabc"),
    "nothing": b"",
    "a wrong state": pickled(ROWS, b"K\x01b"),
}


@pytest.mark.parametrize("case", BAD_PICKLES)
def test_damaged_and_forged_pickles_are_refused(case):
    with pytest.raises(ValueError, match=r"."):
        read_pickled(BAD_PICKLES[case])


def test_numpy_writes_no_other_steps_than_those_that_are_read():
    held = io.BytesIO()
    x = np.zeros((3, 2), np.float32)
    np.savez_compressed(held, data={"x": x, "y": np.arange(3)})
    raw = zipfile.ZipFile(held).read("data.npy")
    steps = [step.name for step, *_ in pickletools.genops(raw[128:])]
    assert len(steps) < 200
    found = read_pickled(raw[128:])
    assert found["x"].dtype == np.float32 and found["y"].tolist() == [0, 1, 2]
