from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
import torch

from coterie.checks import InputError
from coterie.models import OBJECTIVES
from coterie.records import Cell, Folder, load_records, pack, replacing
from coterie.records import unpack as unpacked
from coterie.records.files import file_name, save
from coterie.types import ALONE
from support.refusals import refuses


class Inner(NamedTuple):
    a: torch.Tensor
    pair: tuple[int, float]


class Outer(NamedTuple):
    x: torch.Tensor
    inner: Inner
    t: int


STUDY = {"name": "s", "algorithm": [{"name": "local", "label": "local"}], "run": {}}


def outer(t: int = 3) -> Outer:
    return Outer(torch.arange(6.0).reshape(2, 3) * t, Inner(torch.eye(2), (1, t)), t)


def evaluated_cell(label: str = "local", seed: int = 0, t: int = 0) -> Cell:
    """A cell with evaluations at rounds 0 .. t of two clients."""
    rounds = [
        {"round": r, "gradients": 4.0 * r, "bytes": 8.0 * r, "seconds": 0.0}
        for r in range(t + 1)
    ]
    metrics = [{"test_loss": torch.tensor([r + 0.5, r + 1.5])} for r in range(t + 1)]
    return Cell(label, seed, t=t, state=outer(), rounds=rounds, metrics=metrics)


@pytest.fixture
def folder(tmp_path, regression):
    """A folder with one cell of two evaluations."""
    folder = Folder(tmp_path / "run")
    folder.create(STUDY, {"the data": "0"})
    folder.describe(0, regression, OBJECTIVES["regression"])
    folder.save(evaluated_cell(t=1))
    return folder


def left_over(folder: Folder) -> list[str]:
    return [path.name for path in folder.path.rglob(".*")]


def test_a_state_survives_packing_saving_and_unpacking(tmp_path):
    torch.save(pack(outer(5)), tmp_path / "state.pt")
    again = unpacked(torch.load(tmp_path / "state.pt", weights_only=True), outer(3))
    assert type(again) is Outer
    assert type(again.inner) is Inner
    assert (again.t, again.inner.pair) == (5, (1, 5))
    assert torch.equal(again.x, outer(5).x)


def test_packing_does_not_change_the_state():
    state = outer()
    pack(state)
    assert torch.equal(state.x, outer().x)


def test_labels_that_look_alike_have_files_of_their_own():
    labels = ["a b", "a_b", "a/b", "ä", "ö", "l" * 300, "l" * 301, "local", "..", "a"]
    labels += ["Local", "LOCAL"]  # which some file systems take for one
    names = [file_name(label, 0) for label in labels]
    labels += [name.removesuffix("-0") for name in names]  # labels like their files
    names = {file_name(label, 0).lower() for label in labels}
    assert len(names) == len(set(labels))
    assert all("/" not in name and len(name) < 100 for name in names)
    assert file_name("local", 12) == "local-12"


def test_a_file_is_replaced_as_a_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="power cut"), replacing(path) as file:
        file.write_text("ne")
        raise RuntimeError("power cut")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with replacing(path) as file:
        file.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("disk full")])
def test_an_interruption_while_saving_leaves_the_old_checkpoint(
    folder, monkeypatch, error
):
    def fail(values, file):
        file.write_bytes(b"half of it")
        raise error

    monkeypatch.setattr(torch, "save", fail)
    expected = KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else InputError
    with pytest.raises(expected):
        folder.save(evaluated_cell(t=3))
    monkeypatch.undo()
    assert folder.cell("local", 0).t == 1
    assert left_over(folder) == []


def test_a_cell_comes_back_as_it_was_saved(folder):
    cell = folder.cell("local", 0)
    assert (cell.t, cell.done, len(cell.rounds)) == (1, False, 2)
    assert torch.equal(unpacked(cell.state, outer(1)).x, outer().x)
    assert folder.cell("local", 1) is None


def test_records_are_the_tables_of_the_cells(folder):
    records = load_records(folder.path)
    assert records.task == "regression"
    assert records.metrics.to_dict("list") == {
        "algorithm": ["local"] * 4,
        "seed": [0] * 4,
        "round": [0, 0, 1, 1],
        "client": [0, 1, 0, 1],
        "name": ["client 0", "client 1"] * 2,
        "test_loss": [0.5, 1.5, 1.5, 2.5],
    }
    assert records.rounds["gradients"].tolist() == [0, 4]
    assert records.clients["train"].tolist() == [7, 4, 9, 5, 8, 6]
    assert records.clients["cluster"].tolist() == [0, 1, 0, 1, 0, 1]


def test_seeds_are_in_their_own_order(folder, regression):
    for seed in (10, 2):
        folder.describe(seed, regression, OBJECTIVES["regression"])
        folder.save(evaluated_cell(seed=seed))
    records = load_records(folder.path)
    assert records.clients["seed"].unique().tolist() == [0, 2, 10]
    assert records.metrics["seed"].unique().tolist() == [0, 2, 10]


def test_the_folder_of_another_study_is_refused_and_left_alone(folder):
    before = {path: path.read_bytes() for path in folder.path.glob("*.*")}
    other = {**STUDY, "run": {"rounds": 3}}
    with pytest.raises(InputError, match=r"`run\.rounds` is 3 here and None there"):
        folder.create(other, {"the data": "0"})
    fewer = {"name": "s", "algorithm": STUDY["algorithm"]}
    folder.create(fewer, {"the data": "0"})  # an empty table sets nothing
    renamed = {**STUDY, "algorithm": [{"name": "local", "label": "x"}]}
    message = r"`algorithm.0.label` is 'x' here and 'local'"
    refuses(message, folder.create, renamed, {"the data": "0"})
    with pytest.raises(InputError, match=r"it sets `algorithm\.0\.label`"):
        folder.create({"name": "s", "algorithm": [{"name": "local"}]}, {})
    assert {path: path.read_bytes() for path in folder.path.glob("*.*")} == before


@pytest.mark.parametrize(
    ("read", "what"),
    [
        ({"the data": "1"}, "the data"),
        ({}, "the data"),
        ({"the data": "0", "`weights` w.csv": "2"}, "`weights` w.csv"),
    ],
)
def test_a_folder_made_from_other_content_is_refused_and_left_alone(folder, read, what):
    before = {path: path.read_bytes() for path in folder.path.glob("*.*")}
    refuses(f"was made from other content of {what}: ", folder.create, STUDY, read)
    assert {path: path.read_bytes() for path in folder.path.glob("*.*")} == before
    (folder.path / "read.json").unlink()
    refuses("was made from other content of", folder.create, STUDY, {"the data": "0"})


def test_a_file_in_the_way_of_the_folder_is_named(tmp_path):
    (tmp_path / "run").write_text("I was here first")
    for path in ("run", "run/inner"):
        message = f"the run folder .*{path} cannot be written: Not a directory"
        refuses(message, Folder(tmp_path / path).create, STUDY, {})


@pytest.mark.parametrize(
    "name", ["study.toml", "task.json", "clients-0.csv", "cells/local-0.pt"]
)
def test_a_folder_with_a_missing_or_damaged_file_is_refused(folder, name):
    path = folder.path / name
    path.write_bytes(b"" if name.endswith("csv") else path.read_bytes()[:7])
    refuses(f"{path.name} is damaged and cannot be read", load_records, folder.path)
    path.unlink()
    refuses("is not the folder of a run", load_records, folder.path)


def test_a_checkpoint_of_other_contents_is_refused(folder):
    save(folder.path / "cells" / "local-0.pt", {"label": "local", "colour": 3})
    refuses("is damaged", folder.cell, "local", 0)


def test_a_checkpoint_of_a_stranger_is_named(folder):
    folder.save(evaluated_cell("stranger"))
    refuses("the algorithm 'stranger', which the study", load_records, folder.path)


def test_models_that_are_not_there_are_named(folder):
    refuses("no models of 'local' with seed 0", folder.models, "local", 0)
    assert not folder.has_models("local", 0)
    folder.save_models("local", 0, torch.eye(2))
    assert torch.equal(folder.models("local", 0), torch.eye(2))
    assert folder.has_models("local", 0)
    assert not folder.has_models("local", 0, of="newcomers")


def test_records_say_what_made_each_cell_and_since_when(folder):
    old, new = {"torch": "1", "source": "a"}, {"torch": "2", "source": "b"}
    cell = evaluated_cell(t=3)
    cell.versions = [(0, old), (2, new)]
    folder.save(cell)
    records = folder.export([cell])
    rows = [["local", 0, 0, "1", "a"], ["local", 0, 2, "2", "b"]]
    assert records.made_by.to_numpy().tolist() == rows
    assert records.versions == {"torch": "1 and 2"}
    written = (folder.path / "versions.csv").read_text().splitlines()
    assert written == [
        "algorithm,seed,round,torch,source",
        "local,0,0,1,a",
        "local,0,2,2,b",
    ]


def test_groups_are_kept_as_labels_and_small_ones_become_matrices(folder, regression):
    cell, n = evaluated_cell("local", t=2), len(regression)
    cell.metrics = [{"test_loss": torch.zeros(n)} for _ in cell.rounds]
    member = torch.arange(n, dtype=torch.int32) % 2
    uses = torch.where(torch.arange(n) == 0, ALONE, member).int()
    # An older version had kept a matrix at round 1.
    cell.snapshot_rounds, cell.snapshots = [1], [torch.eye(n)]
    cell.group_rounds, cell.groups = [2], [torch.stack([member, uses])]
    folder.save(cell)
    records = load_records(folder.path)
    found = records.groups["local", 0]
    assert found.rounds.tolist() == [2]
    np.testing.assert_array_equal(found.member, [member])
    np.testing.assert_array_equal(found.uses, [uses])
    kept = records.weights["local", 0]
    assert kept.rounds.tolist() == [1, 2]
    sizes = regression.train.size.double()
    same = (member[:, None] == member) * sizes
    expected = same / same.sum(1, keepdim=True)
    expected[0] = torch.eye(n)[0]
    np.testing.assert_allclose(kept.matrices[1], expected, rtol=1e-6)
    np.testing.assert_array_equal(kept.matrices[0], np.eye(n))
    folder.export([cell])
    with np.load(folder.path / "groups.npz") as arrays:
        assert arrays["local-0-rounds"].tolist() == [2]
        np.testing.assert_array_equal(arrays["local-0-member"], [member])
        np.testing.assert_array_equal(arrays["local-0-uses"], [uses])


@pytest.mark.parametrize(
    "labels",
    [torch.zeros(2, 2), torch.zeros(2, 3).int(), torch.zeros(2).int()],
    ids=["real numbers", "other clients", "no choices"],
)
def test_groups_of_another_shape_are_called_damaged(folder, labels):
    cell = evaluated_cell(t=2)
    cell.group_rounds, cell.groups = [2], [labels]
    folder.save(cell)
    refuses(r"local-0\.pt is damaged", load_records, folder.path)


def test_the_exported_files_hold_what_the_records_hold(folder):
    import pandas as pd

    cell = evaluated_cell("local", t=2)
    cell.snapshot_rounds, cell.snapshots = [1, 2], [torch.eye(2), torch.ones(2, 2)]
    folder.save(cell)
    records = folder.export([cell])
    for name in ("metrics", "rounds", "clients"):
        table = pd.read_csv(folder.path / f"{name}.csv")
        pd.testing.assert_frame_equal(table, getattr(records, name), check_dtype=False)
    with np.load(folder.path / "weights.npz") as arrays:
        assert arrays["local-0-rounds"].tolist() == [1, 2]
        matrices = records.weights["local", 0].matrices
        np.testing.assert_array_equal(arrays["local-0-weights"], matrices)
    assert left_over(folder) == []
