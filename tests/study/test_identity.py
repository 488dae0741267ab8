"""A run is its settings and the content of what was read: old results stay old."""

from __future__ import annotations

import errno
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

from coterie.checks import InputError
from coterie.data.datasets import load
from coterie.records import Folder
from coterie.study import ingredients, setup, training
from coterie.study.config import study_of
from coterie.study.experiment import Progress, Result, run_study
from coterie.study.identity import content_of, settings_read
from coterie.study.setup import data_of
from support.refusals import refuses
from support.run_folders import folder_of
from support.study_runs import refuse_training, stopped
from support.tiny_studies import ADAPTIVE, CLIENTS, LINEAR, made

LOCAL = [{"name": "local", "lr": 0.3}]
OWN = """
from pathlib import Path
import torch
from coterie import Table
from coterie.algorithms.local import local
from coterie.types import Algorithm
from coterie.collaboration import weights
from own_beside import scale

def data(*, path: str = ""):
    factor = float(Path(path).read_text()) if path else 1.0
    x = torch.arange(80.0).reshape(40, 2) % 7
    group = torch.arange(40) // 10
    return Table("mine", x, factor * x.sum(1), "regression", 1, group=group)

def drawn(*, seed: int = 0):
    return data()._replace(targets=torch.full((40,), float(seed)))

def model(shape, outputs):
    layer = torch.nn.Linear(shape[0], outputs)
    torch.nn.init.constant_(layer.weight, scale)
    return layer

def criterion(*args):
    return scale * weights.continuous(*args)

def method(*, lr: float = 0.1):
    return local(lr=scale * lr)
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a user's modules, which are then imported afresh."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # which trusts in seconds
    monkeypatch.syspath_prepend(tmp_path)

    def write(text: str = OWN, beside: str = "scale = 1.0\n"):
        (tmp_path / "own_pieces.py").write_text(text)
        (tmp_path / "own_beside.py").write_text(beside)
        for name in ("own_pieces", "own_beside"):
            sys.modules.pop(name, None)

    write()
    yield write
    for name in ("own_pieces", "own_beside"):
        sys.modules.pop(name, None)


PIECES = {
    "data": {"data": {"name": "own_pieces:data"}, "split": {"name": "natural"}},
    "model": {"model": {"name": "own_pieces:model"}},
    "algorithm": {"algorithm": [{"name": "own_pieces:method"}]},
    "criterion": {"algorithm": [{**ADAPTIVE, "criterion": "own_pieces:criterion"}]},
}


@pytest.mark.parametrize("piece", PIECES)
def test_a_changed_module_of_ones_own_is_another_run(own, tmp_path, piece):
    study = made(rounds=1, **PIECES[piece])
    first = run_study(study, runs=tmp_path / "runs")
    for change, module in (
        ({"text": OWN + "\n# another comment\n"}, "own_pieces"),
        ({"beside": "scale = 0.5\n"}, "own_beside"),  # which the other one imports
    ):
        own()
        assert folder_of(study, tmp_path / "runs") == first.folder
        own(**change)
        assert folder_of(study, tmp_path / "runs") != first.folder
        with pytest.raises(InputError, match=f"other content of the module {module}: "):
            run_study(study, resume=first.folder)


@pytest.mark.parametrize("way", ["elsewhere", "importlib"])
def test_a_changed_helper_is_another_run_wherever_it_is_loaded_from(
    own, tmp_path, monkeypatch, way
):
    """A helper in another folder of the path, by a statement or by a made-up name."""
    (tmp_path / "other").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "other")
    helper = tmp_path / "other" / "own_helper.py"
    loading = "from own_helper import scale"
    if way == "importlib":
        loading = "scale = __import__('own_' + 'helper').scale"
    text = OWN.replace("from own_beside import scale", loading)
    study = made(rounds=1, **PIECES["model"])
    folders = []
    for content in ("scale = 1.0\n", "scale = 1.0\n", "scale = 0.5\n"):
        helper.write_text(content)
        own(text)
        sys.modules.pop("own_helper", None)
        folders.append(folder_of(study, tmp_path / "runs"))
    sys.modules.pop("own_helper")
    assert folders[0] == folders[1] != folders[2]


def test_what_a_function_of_ones_own_reads_is_seen_in_what_it_returns(own, tmp_path):
    file = tmp_path / "factor.txt"
    data = {"name": "own_pieces:data", "path": str(file)}
    study = made(rounds=1, data=data, split={"name": "natural"}, algorithm=LOCAL)
    scores = []
    for text in ("1", "2"):
        file.write_text(text)
        result = run_study(study, runs=tmp_path / "runs")
        scores.append(float(result.table()["mean"].iloc[0]))
    assert scores[0] != scores[1]
    old = next(p for p in (tmp_path / "runs").glob("[!.]*") if p != result.folder)
    refuses("other content of the data of own_pieces:dat", run_study, study, resume=old)


def test_drawn_data_are_read_for_every_seed_and_others_once(own):
    def digests_read(name: str) -> set[str]:
        data = {"name": f"own_pieces:{name}"}
        study = made(data=data, split={"name": "natural"}, seeds=[3, 5])
        return set(data_of(study).read)

    assert digests_read("data") == {"the data of own_pieces:data"}
    assert digests_read("drawn") == {
        "the data of own_pieces:drawn with seed 3",
        "the data of own_pieces:drawn with seed 5",
    }


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home with a table of data, weights, a graph and times."""
    monkeypatch.setenv("HOME", str(tmp_path))
    rows = [f"{i % 4},{i % 7 / 2},{i % 3}" for i in range(40)]
    (tmp_path / "d.csv").write_text("\n".join(["client,x,target", *rows]))
    np.savetxt(tmp_path / "w.csv", np.eye(4), delimiter=",")
    edges = ["v,w", "0,1", "1,2", "2,3"]
    (tmp_path / "g.csv").write_text("\n".join(edges))
    times = ["client,number,seconds", *(f"{client},0,1" for client in range(4))]
    (tmp_path / "t.csv").write_text("\n".join(times))
    return tmp_path


TABLE = {"name": "file", "path": "~/d.csv", "task": "regression"}
WEIGHTED = [{"name": "all_for_one", "weights": "~/w.csv"}]
IN_HOME = {
    "d.csv": ({"data": TABLE, "split": {"name": "natural"}}, "the data file d.csv"),
    "w.csv": ({"algorithm": WEIGHTED}, "`weights` ~/w.csv"),
    "t.csv": ({"time": {"trace": "~/t.csv"}}, "`time.trace` ~/t.csv"),
    "g.csv": ({"graph": {"edges": "~/g.csv"}}, "`graph.edges` ~/g.csv"),
}


def of_home(file: str):
    plain = made(rounds=1, algorithm=LOCAL).tables()
    return study_of({**plain, **IN_HOME[file][0]})


@pytest.mark.parametrize("file", IN_HOME)
def test_a_changed_file_is_another_run_also_in_ones_home(home, file):
    study = of_home(file)
    first = run_study(study, runs=home / "runs")
    text = (home / file).read_text()
    (home / file).write_text(text + "\n")  # the same numbers, other bytes
    second = run_study(study, runs=home / "runs")
    assert second.folder != first.folder
    with pytest.raises(InputError, match=rf"other content of {IN_HOME[file][1]}: "):
        run_study(study, resume=first.folder)
    (home / file).write_text(text)
    again = run_study(study, runs=home / "runs")
    assert again.folder == first.folder


def test_files_of_every_recipe_and_of_searches_are_read(home):
    np.save(home / "p.npy", np.ones(4))
    np.save(home / "v.npy", np.eye(4))
    tune = {"weights": ["clusters", "~/w.csv"]}
    entries = [
        {"name": "all_for_one", "weights": "~/v.npy", "tune": tune},
        {"name": "adaptive_all_for_one", "precision": str(home / "p.npy")},
    ]
    tables = made(algorithm=LOCAL).tables()
    study = study_of({**tables, "algorithm": entries, "tune": {"trials": 2}})
    assert set(settings_read(study)) == {
        "`weights` ~/v.npy",
        "`weights` ~/w.csv",
        f"`precision` {home / 'p.npy'}",
    }


def test_graphs_and_weights_are_found_in_ones_home(home):
    entry = {"name": "agraf", "mixing": "~/g.csv"}
    study = of_home("t.csv")
    study = study_of({**study.tables(), "algorithm": [entry]})
    result = run_study(study, runs=home / "runs")
    assert result.models().shape[0] == CLIENTS


def test_a_changed_file_below_the_folder_of_data_is_another_run(tmp_path):
    rng = np.random.default_rng(0)
    values = rng.random((20640, 9)).round(3)
    (tmp_path / "houses").mkdir()
    found = []
    for change in (0.0, 0.001):
        values[5, 3] += change
        path = tmp_path / "houses" / "cal_housing.data"
        np.savetxt(path, values, fmt="%.3f", delimiter=",")
        table = load("houses", data_dir=str(tmp_path))
        found.append(content_of(table, "houses", None))
    assert set(found[0]) == set(found[1]) == {"the data file cal_housing.data"}
    assert found[0] != found[1]


def test_the_source_of_this_package_is_no_part_of_a_run():
    study = made(LINEAR)
    assert data_of(study).read == settings_read(study) == {}
    criterion = "coterie.collaboration.weights:continuous"
    assert settings_read(made(algorithm=[{**ADAPTIVE, "criterion": criterion}])) == {}


# Versions


def test_going_on_under_another_version_says_so_once_and_records_both(
    tmp_path, monkeypatch
):
    study = made(algorithm=[*LOCAL, {"name": "fedavg"}])
    stopped(study, lambda p: (p.label, p.t) == ("fedavg", 2), runs=tmp_path)
    old, said = training.versions, []
    monkeypatch.setattr(training, "versions", lambda *a: old(*a) | {"torch": "9"})
    result = run_study(study, runs=tmp_path, notice=said.append)
    assert len(said) == 1
    assert "holds cells that other versions have made" in said[0]
    table = result.records.made_by.set_index("algorithm")[["round", "torch"]]
    mine = str(torch.__version__)
    assert table.loc["local"].tolist() == [0, mine]  # finished before
    assert table.loc["fedavg"].to_numpy().tolist() == [[0, mine], [2, "9"]]
    assert result.records.versions["torch"] == f"{mine} and 9"


def test_the_same_version_says_nothing_and_is_recorded_once(tmp_path):
    study, said = made(algorithm=LOCAL), []
    for _ in range(2):
        result = run_study(study, runs=tmp_path, notice=said.append)
    assert said == []
    assert len(result.records.made_by) == 1


# What is made once


@pytest.mark.parametrize("folds", [0, 2])
def test_data_and_ingredients_are_made_once(tmp_path, monkeypatch, folds):
    loaded, cooked = [], []
    load_, (recipe, default) = setup.load, ingredients.RECIPES["weights"]

    def counted_load(*args, **options):
        loaded.append(options["seed"])
        return load_(*args, **options)

    def counted_recipe(choice, context):
        cooked.append((choice, context.seed, len(context.federation)))
        return recipe(choice, context)

    monkeypatch.setattr(setup, "load", counted_load)
    monkeypatch.setitem(ingredients.RECIPES, "weights", (counted_recipe, default))
    entries = [
        {"name": "all_for_one", "lr": 0.1},
        {"name": "all_for_one", "label": "twice"},
        {"name": "all_for_all", "weights": "uniform"},
    ]
    tables = made(algorithm=entries, rounds=1, seeds=[4, 7]).tables()
    tune = {"trials": 3, "folds": folds, "space": {"lr": [0.1, 0.2, 0.3]}}
    run_study(study_of({**tables, "tune": tune}), runs=tmp_path)
    assert loaded == [4]
    # Once for each seed and text, and for each fold that a search trains on.
    wanted = {(c, seed, CLIENTS) for c in ("clusters", "uniform") for seed in (4, 7)}
    assert set(cooked) == wanted
    assert len(cooked) == (1 + folds) * len(wanted)


def test_recipes_see_the_federation_the_layout_and_the_seed(tmp_path, monkeypatch):
    seen = []

    def recipe(choice, context):
        seen.append(context)
        return context.federation.train.size

    monkeypatch.setitem(ingredients.RECIPES, "sizes", (recipe, "samples"))
    result = run_study(
        made(algorithm=[{"name": "fedavg"}], rounds=1, seeds=[3, 5]), runs=tmp_path
    )
    assert [context.seed for context in seen] == [3, 5]
    parameters = result.models().shape[1]
    for context in seen:
        assert len(context.federation) == CLIENTS
        row = torch.zeros(1, parameters)
        assert context.layout.ravel(context.layout.unravel(row)).shape == row.shape


# Damage


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Result:
    """Two algorithms and a newcomer, run to the end."""
    study = made(algorithm=[*LOCAL, {"name": "fedavg_finetune"}], newcomers=1)
    return run_study(study, runs=tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize("name", ["local-0.pt", "fedavg_finetune-0.newcomers.pt"])
@pytest.mark.parametrize("deleted", [True, False])
def test_models_that_are_lost_or_damaged_are_made_anew(
    whole, tmp_path, monkeypatch, name, deleted
):
    models = [whole.models("local"), whole.newcomer_models("fedavg_finetune")]
    path = whole.folder / "models" / name
    if deleted:
        path.unlink()
    else:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1
        path.write_bytes(content)
    refuse_training(monkeypatch)
    said: list[str] = []
    again = run_study(whole.study, resume=whole.folder, notice=said.append)
    label = name.partition("-")[0]
    assert said == [
        f"models of '{label}' with seed 0 were missing or damaged in {whole.folder} "
        "and are made again from its state."
    ]
    assert torch.equal(again.models("local"), models[0])
    assert torch.equal(again.newcomer_models("fedavg_finetune"), models[1])
    said.clear()
    run_study(whole.study, resume=whole.folder, notice=said.append)
    assert said == []


def test_a_flipped_byte_of_a_cell_is_noticed(tmp_path):
    study = made(algorithm=LOCAL)
    result = run_study(study, runs=tmp_path)
    path = result.folder / "cells" / "local-0.pt"
    content = bytearray(path.read_bytes())
    # The last number of the model, which torch.load alone does not look after.
    state = result.models().numpy().tobytes()
    content[content.index(state) + len(state) - 2] ^= 1
    path.write_bytes(content)
    assert not torch.equal(torch.load(path)["state"]["x"], result.models())
    for damage in (content, b"PK nonsense"):
        path.write_bytes(damage)
        refuses(r"local-0\.pt is damaged .* delete it", run_study, study, runs=tmp_path)
    path.unlink()
    assert torch.equal(run_study(study, runs=tmp_path).models(), result.models())


def test_the_cell_of_another_is_noticed(tmp_path):
    study = made(algorithm=[*LOCAL, {"name": "fedavg"}])
    cells = run_study(study, runs=tmp_path).folder / "cells"
    (cells / "fedavg-0.pt").write_bytes((cells / "local-0.pt").read_bytes())
    message = r"fedavg-0\.pt must hold 'fedavg' with seed 0, got 'local'"
    refuses(message, run_study, study, runs=tmp_path)


@pytest.mark.parametrize("where", ["models", "metrics.csv", "weights.npz"])
def test_a_full_disk_ends_in_a_sentence_and_loses_nothing(tmp_path, monkeypatch, where):
    def full(*args, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    def full_for_models(values, file):
        if isinstance(values, torch.Tensor):
            file.write_bytes(b"half of it")
            raise RuntimeError("PytorchStreamWriter failed writing file data/0")
        return save(values, file)

    save = torch.save
    study = made(algorithm=[{"name": "all_for_one"}])
    expected = run_study(study, runs=tmp_path / "other")
    with monkeypatch.context() as patch:
        if where == "models":
            patch.setattr(torch, "save", full_for_models)
        elif where == "weights.npz":
            patch.setattr(np, "savez_compressed", full)
        else:
            patch.setattr(pd.DataFrame, "to_csv", full)
        refuses(r"cannot be written: .* is intact\.$", run_study, study, runs=tmp_path)
    result = run_study(study, runs=tmp_path)
    assert torch.equal(result.models(), expected.models())
    assert list(result.folder.rglob(".*")) == []


def test_labels_that_look_like_files_have_files_of_their_own(tmp_path):
    labels = ["a/b", "a_b-82badf67", "A_b-82badf67"]
    rates = [0.1, 0.2, 0.3]
    entries = [
        {"name": "local", "label": label, "lr": lr}
        for label, lr in zip(labels, rates, strict=True)
    ]
    result = run_study(made(algorithm=entries, rounds=1), runs=tmp_path)
    for label, lr in zip(labels, rates, strict=True):
        alone = made(algorithm=[{"name": "local", "lr": lr}], rounds=1)
        other = run_study(alone, runs=tmp_path)
        assert torch.equal(result.models(label), other.models())


def test_two_cannot_run_in_one_folder_at_once(tmp_path):
    study, refused = made(algorithm=LOCAL), []

    def again(p: Progress) -> None:
        if p.t == 2:
            with pytest.raises(InputError, match="is in use by another process") as e:
                run_study(study, runs=tmp_path)
            refused.append(str(e.value))

    result = run_study(study, runs=tmp_path, progress=again)
    assert len(refused) == 1
    assert str(result.folder) in refused[0]
    assert Folder(result.folder).cell("local", 0).done
    other = replace(study, name="other")
    run_study(study, runs=tmp_path, progress=lambda p: run_study(other, runs=tmp_path))
