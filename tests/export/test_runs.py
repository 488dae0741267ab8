"""Claims about runs that are loaded from their folder alone."""

from __future__ import annotations

import json
import random
import shutil
import sys

import pytest
import torch

import coterie as co
from coterie.data import raw_columns
from coterie.data.preparation import Preparation
from coterie.models import ravel, with_row
from coterie.study.setup import prepare
from support.hospital_runs import damage, own_module, run, tables_of
from support.hospitals import HOSPITALS
from support.refusals import refuses
from support.strangers import forge_json
from support.study_runs import stopped
from support.tiny_studies import LINEAR, made


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A finished run, its set-ups, and the new path of its data."""
    folder = tmp_path_factory.mktemp("hospitals")
    settings = {"rounds": 2, "batch_size": 8, "seeds": [0, 1], "newcomers": 1}
    result = run(folder, tables_of(folder, run=settings))
    setups = [prepare(result.study, seed) for seed in (0, 1)]
    (folder / "patients.csv").rename(folder / "elsewhere.csv")
    return result, setups, folder / "elsewhere.csv"


def test_a_run_is_read_without_its_data(hospitals):
    result, _, _ = hospitals
    found = co.load(result.folder)
    assert (found.names, found.classes) == (HOSPITALS, ("ill", "well"))
    assert found.features == ("age", "pressure", "sex = f", "sex = m", "smokes")
    assert found.table().equals(result.table())
    assert torch.equal(found.models("local", 1), result.models("local", 1))
    labels = ("local", "fedavg", "adaptive")
    assert found.models_available() == [
        (label, seed) for label in labels for seed in (0, 1)
    ]


def test_a_loaded_model_gives_of_raw_columns_what_the_trained_one_gives_of_features(
    hospitals,
):
    result, setups, _ = hospitals
    found = co.load(result.folder)
    for seed, setup in enumerate(setups):
        federation = setup.federation
        for place, client in enumerate(federation.clients.tolist()):
            row = result.models("fedavg", seed)[place]
            index, start, size = federation.test
            mine = index[start[place] : start[place] + size[place]]
            with torch.no_grad():
                expected = with_row(setup.module, row)(federation.features[mine])
                model = found.model(HOSPITALS[client], "fedavg", seed)
                outputs = model(federation.raw[mine])
            # The same operations on the same numbers.
            assert torch.equal(outputs, expected)
            assert not model.training
            right = (outputs[:, 0] > 0) == (federation.targets[mine] == 1)
            table = result.records.metrics.query(
                f"algorithm == 'fedavg' and seed == {seed} and client == {client}"
            )
            last = table[table["round"] == 2]["test_accuracy"].item()
            assert last == pytest.approx(float(right.double().mean()))


def test_a_file_goes_through_a_loaded_model(hospitals):
    result, setups, path = hospitals
    trained = co.load(result.folder).trained_model("Bern", "local", 0)
    assert isinstance(trained.preparation, Preparation)
    raw = raw_columns(path, trained.preparation)
    federation = setups[0].federation
    # Rows of the file are in the order of the table.
    torch.testing.assert_close(raw, federation.raw, rtol=0, atol=0, equal_nan=True)
    with torch.no_grad():
        assert trained.module(raw).shape == (len(raw), 1)


def test_a_newcomers_model_is_loaded_too(hospitals):
    result, _, _ = hospitals
    found = co.load(result.folder)
    late = result.records.newcomers.query("algorithm == 'local' and seed == 1")
    row = result.newcomer_models("local", 1)[0]
    model = found.model(int(late["client"].item()), "local", 1)
    assert torch.equal(ravel(model), row)
    assert torch.equal(ravel(found.model(late["name"].item(), "local", 1)), row)


def test_results_and_loaded_runs_give_the_same_model(hospitals):
    result, _, _ = hospitals
    one, two = result.model("Zug"), co.load(str(result.folder)).model("Zug")
    assert repr(one) == repr(two)
    assert torch.equal(ravel(one), ravel(two))
    assert torch.equal(ravel(one), ravel(result.model("Zug", "adaptive", 0)))


def load_copy(result, folder):
    return co.load(shutil.copytree(result.folder, folder / "run"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("Chor",), "there is no client 'Chor'. Did you mean 'Chur'?"),
        ((9,), "`client` must be at most 3, got 9."),
        ((-1,), "`client` must be at least 0"),
        ((0, "locla"), "Did you mean 'local'?"),
        ((0, "local", 7), r"it has those of 'local' \(seed 0, 1\), 'fedavg' "),
    ],
)
def test_what_is_not_there_is_refused_with_what_is(hospitals, arguments, message):
    refuses(message, co.load(hospitals[0].folder).model, *arguments)


def test_missing_and_damaged_files_are_named(hospitals, tmp_path):
    found = load_copy(hospitals[0], tmp_path)
    model, how = found.folder / "model-0.json", found.folder / "preparation-0.json"
    about, kept = model.read_text(), how.read_text()
    for text in ("{", "[]"):
        model.write_text(text)
        refuses(r"model-0\.json is damaged", found.model, "Chur")
    for key, value in {"shape": "x", "outputs": None}.items():
        model.write_text(about)
        forge_json(model, lambda all_of, new={key: value}: all_of.update(new))
        refuses(r"model-0\.json is damaged", found.model, "Chur")
    model.unlink()
    message = r"model-0\.json is missing; run its study again"
    refuses(message, found.model, "Chur")
    model.write_text(about)
    plain = json.loads(kept)
    plain["columns"] = plain["columns"][1:]
    for text in ("{}", kept.replace('"fill"', '"full"'), json.dumps(plain)):
        how.write_text(text)
        refuses(r"preparation-0\.json is damaged", found.model, "Chur")
    how.unlink()
    refuses(r"preparation-0\.json is missing", found.model, "Chur")
    how.write_text(kept)
    (found.folder / "models" / "adaptive-0.pt").write_bytes(b"PK nonsense")
    refuses(r"adaptive-0\.pt is damaged", found.model, "Chur")
    assert found.model("Chur", "local") is not None


def test_whatever_happens_to_the_file_of_a_model_ends_in_a_model_or_a_sentence(
    hospitals, tmp_path
):
    found, rng = load_copy(hospitals[0], tmp_path), random.Random(4)
    damage(found.folder / "model-0.json", lambda: found.model("Chur"), rng)


def test_running_the_study_again_adds_what_an_old_folder_lacks(tmp_path):
    tables = tables_of(tmp_path)
    result = run(tmp_path, tables)
    text = (result.folder / "model-0.json").read_text()
    (result.folder / "model-0.json").unlink()
    run(tmp_path, tables)
    assert (result.folder / "model-0.json").read_text() == text


def test_a_stopped_run_is_read_and_says_what_it_has(tmp_path):
    study, silent = co.study_of(tables_of(tmp_path)), {"notice": lambda line: None}
    stopped(study, lambda p: p.label == "fedavg", runs=tmp_path / "runs", **silent)
    (folder,) = (tmp_path / "runs").glob("[!.]*")
    found = co.load(folder)
    assert found.models_available() == [("local", 0)]
    assert found.model("Chur", "local") is not None
    refuses(r"'fedavg' .*those of 'local' \(seed 0\)", found.model, "Chur", "fedavg")
    (folder / "models" / "local-0.pt").unlink()
    refuses("no algorithm has models yet", found.model, "Chur", "local")


def test_clusters_without_preparation_give_plain_models(tmp_path):
    result = co.run_study(made(LINEAR, rounds=2), runs=tmp_path)
    model = co.load(result.folder).model(1)
    x = torch.randn(3, 3, dtype=torch.float64)
    with torch.no_grad():
        # Without a bias, a linear model is an inner product.
        assert torch.allclose(model(x)[:, 0], x @ result.models()[1])


@pytest.fixture
def own(tmp_path, monkeypatch):
    """A run of the user's own model, which has parameters that are not trained."""
    monkeypatch.syspath_prepend(str(tmp_path))
    name = own_module(tmp_path, "own_loaded")
    tables = {
        "data": {"name": f"{name}:pictures"},
        "model": {"name": f"{name}:reshaping"},
        "run": {"rounds": 1},
        "algorithm": [{"name": "local"}],
    }
    yield run(tmp_path, tables), tmp_path / f"{name}.py"
    sys.modules.pop(name, None)


def reimport(path, text):
    path.write_text(text)
    sys.modules.pop(path.stem, None)


def test_a_model_of_ones_own_is_made_again_with_what_was_not_trained(own):
    result, _ = own
    start = prepare(result.study, 0).module
    model = co.load(result.folder, trust=["own_loaded"]).model(0)
    assert torch.equal(model.frozen, start.frozen)
    assert torch.equal(ravel(model), result.models()[0])


def test_a_model_that_cannot_be_imported_or_has_changed_is_refused(own):
    result, path = own
    found, text = co.load(result.folder, trust=["own_loaded"]), path.read_text()
    changes = {
        "self.body = nn.Linear(shape[-1], 4)": "it has other parameters",
        "torch.ones(1)": "it has other values that are not trained",
    }
    new = ("self.body = nn.Linear(shape[-1], 4, bias=False)", "torch.zeros(1)")
    for (old, message), other in zip(changes.items(), new, strict=True):
        reimport(path, text.replace(old, other))
        refuses(message, found.model, 0)
    reimport(path, text.replace("rows, -1)", "rows, -1) * 2"))
    refuses("the module own_loaded has changed since", found.model, 0)
    path.unlink()
    sys.modules.pop(path.stem)
    message = "'own_loaded:reshaping' cannot be imported: No module named 'own_loaded'"
    refuses(message, found.model, 0)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    refuses("is not the folder of a run that has begun", co.load, tmp_path)
