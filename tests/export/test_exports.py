"""Claims about exported models: their folder is complete, or it is not there."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import coterie as co
from coterie.checks import InputError
from coterie.data import raw_columns
from coterie.export import cards, default_label, export_model, folders, read_export
from coterie.export.cards import escape_markdown
from coterie.models import layout
from coterie.records import GroupLabels, Snapshots
from coterie.scores import client_scores, gain_of
from support.hospital_runs import TENSORS, own_module, run, tables_of
from support.refusals import refuses

FILES = {"README.md", "model.json", "model.pt2", "weights.safetensors"}


def left_over(place: Path) -> list[str]:
    return [path.name for path in place.iterdir() if path.name.startswith(".")]


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """A run of two seeds, its patients, and the exported model of Chur."""
    folder = tmp_path_factory.mktemp("hospitals")
    settings = {"rounds": 3, "batch_size": 8, "seeds": [0, 1]}
    result = run(folder, tables_of(folder, run=settings))
    found = export_model(
        co.load(result.folder), "Chur", folder / "chur", label="adaptive"
    )
    return result, folder / "patients.csv", found


def test_the_folder_holds_weights_program_card_and_what_they_mean(hospitals):
    result, _, found = hospitals
    names = {path.name for path in found.folder.iterdir()}
    assert names - {"model.onnx"} == FILES
    assert ("model.onnx" in names) == (not found.skipped)
    weights = load_file(found.folder / "weights.safetensors")
    model = co.load(result.folder).trained_model("Chur", "adaptive", 0).model
    expected = layout(model).unravel(result.models("adaptive", 0)[2])
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
    about = json.loads((found.folder / "model.json").read_text())
    assert about["classes"] == ["ill", "well"]
    assert about["input"]["columns"] == ["age", "pressure", "sex", "smokes"]
    assert about["features"] == ["age", "pressure", "sex = f", "sex = m", "smokes"]
    assert (about["input"]["shape"], about["input"]["dtype"]) == (
        ["rows", 4],
        "float64",
    )
    for name, digest in about["checksums"].items():
        content = (found.folder / name).read_bytes()
        assert hashlib.sha256(content).hexdigest() == digest
    assert {"weights.safetensors", "model.pt2"} <= about["checksums"].keys()


def test_the_program_gives_what_the_model_gives_for_any_number_of_rows(hospitals):
    result, path, found = hospitals
    trained = co.load(result.folder).trained_model("Chur", "adaptive", 0)
    raw = raw_columns(path, trained.preparation)
    program = torch.export.load(found.folder / "model.pt2").module()
    with torch.no_grad():
        for rows in (raw[:1], raw[:5], raw):
            # Single precision, and a hidden layer of four.
            expected = trained.module(rows)
            torch.testing.assert_close(program(rows), expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(read_export(found.folder).module(raw), trained.module(raw))


def test_no_file_tells_of_the_machine_that_wrote_it(hospitals):
    _, path, found = hospitals
    words = [str(path.parent), sys.prefix, "site-packages"]
    for file in found.folder.iterdir():
        assert not [word for word in words if word.encode() in file.read_bytes()]
        assert file.stat().st_mode & 0o444 == 0o444


def test_the_card_says_scores_partners_and_cost_as_the_records_have_them(hospitals):
    result, _, found = hospitals
    records, text = result.records, (found.folder / "README.md").read_text()
    chur = client_scores(records, "adaptive", 0).loc[2]
    table = records.metrics.query(
        "algorithm == 'adaptive' and seed == 0 and round == 3"
    )
    test = table[table["client"] == 2]["test_accuracy"].item()
    assert chur["mean"] == pytest.approx(test)
    assert f"| this model | {100 * test:.1f} % |" in text
    gain = gain_of(records, "adaptive").clients.loc[2]
    assert f"with 2 seeds: {100 * gain['mean']:+.1f} points" in text
    row = records.weights["adaptive", 0].matrices[-1][2].astype(float)
    row /= row.sum()  # weights of the paper's rule do not sum to 1
    names = ["Basel", "Bern", "Chur (itself)", "Zug"]
    for name, weight in zip(names, row, strict=True):
        assert (f"| {name} | {weight:.3f} |" in text) == (weight > 0)
    assert "gradients of single samples" in text and "## Versions" in text


def test_a_card_has_the_row_of_a_client_where_many_have_groups(hospitals):
    """With many clients, there are no matrices."""
    trained = co.load(hospitals[0].folder).trained_model("Chur", "adaptive", 0)
    labels = np.array([[1, 0, 1, 1]])
    kept = GroupLabels(np.array([3]), labels, labels, np.array([1.0, 5, 2, 1]))
    told = replace(hospitals[0].records, weights={}, groups={("adaptive", 0): kept})
    lines = cards.partner_text(told, trained).splitlines()
    assert lines[0] == "Its weights of collaboration at round 3:"
    assert lines[4:] == [
        "| Chur (itself) | 0.500 |",
        "| Basel | 0.250 |",
        "| Zug | 0.250 |",
    ]


def test_a_card_shows_shares_where_weights_do_not_sum_to_1(hospitals):
    trained = co.load(hospitals[0].folder).trained_model("Chur", "adaptive", 0)
    records = hospitals[0].records
    for row, heading, first in (
        ([0.5, 0.0, 1.0, 0.5], "round 3, as shares of their sum, which is 2:", 0.5),
        ([0.25, 0.0, 0.75, 0.0], "round 3:", 0.75),
        ([0.0] * 4, "round 3, as shares of their sum, which is 0:", None),
    ):
        kept = Snapshots(np.array([3]), np.array([[row] * 4]))
        told = replace(records, weights={("adaptive", 0): kept})
        lines = cards.partner_text(told, trained).splitlines()
        assert lines[0] == f"Its weights of collaboration at {heading}"
        shares = [float(line.split("|")[2]) for line in lines[4:]]
        assert sum(shares) == pytest.approx(1.0 if first else 0.0)
        assert first is None or lines[4] == f"| Chur (itself) | {first:.3f} |"


def test_the_score_of_one_seed_is_as_sure_as_its_test_samples_make_it(hospitals):
    records = hospitals[0].records
    outcomes = records.outcomes["local", 1]
    right = outcomes.measures["accuracy"][outcomes.client == 1].astype(float)
    found = client_scores(records, "local", 1).loc[1]
    assert found["mean"] == pytest.approx(right.mean())
    # The standard error of a mean of independent samples.
    error = right.std(ddof=1) / len(right) ** 0.5
    assert found["error"] == pytest.approx(error)


def with_scores(records, best: dict[str, float]):
    """The records with these validation scores, and opposite test scores."""
    metrics = records.metrics.copy()
    values = metrics["algorithm"].map(best)
    metrics["validation_accuracy"], metrics["test_accuracy"] = values, 1 - values
    return replace(records, metrics=metrics)


def test_validation_data_choose_the_algorithm_and_never_an_oracle(hospitals):
    records = hospitals[0].records
    best = {"local": 0.9, "fedavg": 0.8, "adaptive": 0.7}
    assert default_label(with_scores(records, best)) == "fedavg"
    best |= {"adaptive": 0.85}
    assert default_label(with_scores(records, best)) == "adaptive"
    told = replace(with_scores(records, best), oracles=("adaptive",))
    assert default_label(told) == "fedavg"
    assert default_label(replace(told, oracles=("adaptive", "fedavg"))) == "local"
    metrics = told.metrics[told.metrics["algorithm"] == "adaptive"]
    refuses("`algorithm` must be given", default_label, replace(told, metrics=metrics))


def test_an_export_names_what_there_is_where_it_cannot_be_made(hospitals, tmp_path):
    found, to = co.load(hospitals[0].folder), tmp_path / "to"
    for arguments, message in (
        ({"client": "Chor"}, "Did you mean 'Chur'"),
        ({"client": "Chur", "label": "locla"}, "Did you mean 'local'"),
        ({"client": "Chur", "label": "local", "seed": 5}, r"'local' \(seed 0, 1\)"),
    ):
        refuses(message, export_model, found, to=to, **arguments)
    assert not any(tmp_path.iterdir())


def test_a_folder_that_exists_is_replaced_only_if_it_is_an_export_and_said(
    hospitals, tmp_path
):
    found, to = co.load(hospitals[0].folder), tmp_path / "to"
    to.mkdir()
    message = r"must be a new folder, but .* something else"
    refuses(message, export_model, found, "Zug", to, overwrite=True)
    to.rmdir()
    shutil.copytree(hospitals[2].folder, to)
    refuses(r"is an exported model.*--force", export_model, found, "Zug", to)
    (to / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds 'notes\.txt', which is not part"):
        export_model(found, "Zug", to, overwrite=True)
    (to / "notes.txt").unlink()
    export_model(found, "Zug", to, label="local", overwrite=True)
    assert read_export(to).about["client"] == "Zug"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["to"]


@pytest.mark.parametrize("fault", [float("inf"), KeyboardInterrupt, OSError])
def test_an_export_that_fails_leaves_nothing_and_what_was_there(
    hospitals, tmp_path, monkeypatch, fault
):
    def failing(*_):
        if isinstance(fault, float):
            return fault
        raise fault

    found, old = co.load(hospitals[0].folder), tmp_path / "old"
    shutil.copytree(hospitals[2].folder, old)
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    monkeypatch.setattr(folders, "difference", failing)
    places = [old] if isinstance(fault, float) else [old, tmp_path / "new"]
    for place in places:
        with pytest.raises((InputError, KeyboardInterrupt, OSError)):
            export_model(found, "Chur", place, overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before


def test_names_that_mean_something_elsewhere_are_shown_as_they_are(tmp_path):
    names = ("../up", "\x1b[31mred|<b>", "[x](y)", "Zug")
    result = run(tmp_path, tables_of(tmp_path, names=names))
    found = export_model(co.load(result.folder), names[1], tmp_path / "red")
    text = (found.folder / "README.md").read_text()
    assert text.startswith("# Model of \\\\x1b\\[31mred\\|\\<b\\>\n")
    assert "\x1b" not in text and "| \\[x\\]\\(y" not in text
    assert read_export(found.folder).about["client"] == names[1]
    assert escape_markdown("a*b_c") == r"a\*b\_c"


def own_run(folder, monkeypatch, name, **tables):
    monkeypatch.syspath_prepend(str(folder))
    own_module(folder, name)
    base = {"run": {"rounds": 1}, "algorithm": [{"name": "local"}, {"name": "fedavg"}]}
    return run(folder, {**base, **tables})


@pytest.mark.parametrize(
    ("data", "model", "shape"),
    [
        ("sentences", "gru", (4,)),
        ("pictures", "reshaping", (1, 6, 6)),
        ("pictures", "mlp", (1, 6, 6)),
    ],
)
def test_models_of_other_shapes_are_exported(tmp_path, monkeypatch, data, model, shape):
    name = f"own_{data}_{model}"
    named = {"name": model if model == "mlp" else f"{name}:{model}"}
    tables = {"data": {"name": f"{name}:{data}"}, "model": named}
    result = own_run(tmp_path, monkeypatch, name, **tables)
    loaded = co.load(result.folder, trust=[name])
    trained = loaded.trained_model(0, "fedavg")
    found = export_model(loaded, 0, tmp_path / "to", label="fedavg")
    program = torch.export.load(found.folder / "model.pt2").module()
    rows = trained.inputs.samples(None, 9)
    assert rows.shape[1:] == shape
    assert rows.dtype == (torch.int64 if data == "sentences" else torch.float32)
    with torch.no_grad():
        expected = result.model(0, "fedavg")(rows)
        torch.testing.assert_close(program(rows), expected, rtol=1e-5, atol=1e-6)
        again = read_export(found.folder, trust=[name]).module(rows)
        assert torch.equal(again, expected)
    (tmp_path / f"{name}.py").unlink()
    sys.modules.pop(name)
    if ":" in named["name"]:
        with pytest.raises(InputError, match=f"cannot be imported: No module .*{name}"):
            read_export(found.folder, trust=[name])


def test_a_model_that_is_no_program_is_refused_in_a_sentence(tmp_path, monkeypatch):
    tables = {**TENSORS, "model": {"name": "own_counting:counting"}}
    result = own_run(tmp_path, monkeypatch, "own_counting", **tables)
    loaded = co.load(result.folder, trust=["own_counting"])
    with pytest.raises(InputError, match="cannot be written as a program") as error:
        export_model(loaded, 0, tmp_path / "to")
    assert "\n" not in str(error.value) and not (tmp_path / "to").exists()
    assert left_over(tmp_path) == []


def test_regression_with_personal_columns_in_double_precision(tmp_path):
    tables = {
        "data": {"name": "linear", "clients": 3, "dimension": 3, "samples": 30},
        "model": {"name": "mlp", "hidden": [3], "personal": ["head"]},
        "run": {"rounds": 1, "dtype": "float64"},
        "algorithm": [{"name": "fedavg"}],
    }
    result = run(tmp_path, tables)
    found = export_model(co.load(result.folder), 1, tmp_path / "to")
    x = torch.randn(4, 3, dtype=torch.float64)
    with torch.no_grad():
        expected = result.model(1)(x)
        found_by = torch.export.load(found.folder / "model.pt2").module()(x)
    torch.testing.assert_close(found_by, expected, rtol=1e-9, atol=1e-12)
    text = (found.folder / "README.md").read_text()
    assert "no training alone to compare with" in text
    assert "the predicted number" in text
    assert "Its parameters of head were never sent to anybody." in text


def test_newcomers_and_clients_without_a_class_have_their_cards(tmp_path):
    path = tmp_path / "patients.csv"
    settings = {"rounds": 2, "batch_size": 8, "newcomers": 1}
    tables = tables_of(tmp_path, run=settings, split={"name": "natural"})
    lines = path.read_text().splitlines()
    lines = [ln.replace(",well", ",ill") if "Basel" in ln else ln for ln in lines]
    path.write_text("\n".join(lines) + "\n")
    tables["split"]["min_classes"] = 1
    tables["model"] |= {"measures": ["auc"], "score": "auc"}
    result = run(tmp_path, tables)
    late = result.records.newcomers["name"].iloc[0]
    for name in {late, "Basel", "Bern"}:
        found = export_model(co.load(result.folder), name, tmp_path / name)
        text = (found.folder / "README.md").read_text()
        assert ("joined after training" in text) == (name == late)
        if name == late != "Basel":
            assert re.search(
                r"Its test auc for well: \S+ \(95 % interval \S+ to \S+\);", text
            )
        if name == "Basel" != late:
            assert "| this model | not known | |" in text


def test_onnx_gives_what_the_model_gives(hospitals):
    pytest.importorskip("onnx", reason="ONNX is written where onnx is installed")
    pytest.importorskip("onnxscript", reason="torch writes ONNX with onnxscript")
    onnxruntime = pytest.importorskip("onnxruntime", reason="runs ONNX files")
    result, path, found = hospitals
    trained = co.load(result.folder).trained_model("Chur", "adaptive", 0)
    raw = raw_columns(path, trained.preparation)
    session = onnxruntime.InferenceSession(found.folder / "model.onnx")
    for rows in (raw[:1], raw):
        (outputs,) = session.run(None, {"input": rows.numpy()})
        with torch.no_grad():
            expected = trained.module(rows).numpy()
        np.testing.assert_allclose(outputs, expected, rtol=1e-4, atol=1e-5)


def test_without_onnx_a_line_says_why_there_is_none(hospitals, tmp_path, monkeypatch):
    real = importlib.util.find_spec
    absent = ("onnx", "onnxscript")
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda n, *a: None if n in absent else real(n, *a)
    )
    found = export_model(co.load(hospitals[0].folder), "Bern", tmp_path / "to")
    assert found.skipped == (
        "model.onnx was not written: onnx and onnxscript not installed (pip install "
        "coterie[onnx]).",
    )
    assert "not written: onnx" in (found.folder / "README.md").read_text()
