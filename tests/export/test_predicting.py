"""Claims about predictions of exported models, from their folder alone."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import coterie as co
from coterie.checks import InputError
from coterie.data import raw_columns
from coterie.export import export_model, predict, read_export
from coterie.export.predictions import checksum
from coterie.records.standings import standings_of
from support.called import called
from support.hospital_runs import TENSORS, damage, run, tables_of
from support.hospitals import HOSPITALS, write_hospitals
from support.refusals import refusal, refuses
from support.strangers import forge_json

NEW = """hospital,age,pressure,sex,smokes,outcome
Chur,63,145,m,true,ill
Chur,37,,f,FALSE,well
Genf,41,130,x,false,
"""


@pytest.fixture(scope="module")
def hospitals(tmp_path_factory):
    """The model of Chur without its run and data, and its earlier outputs."""
    folder = tmp_path_factory.mktemp("hospitals")
    result = run(folder, tables_of(folder, run={"rounds": 4, "batch_size": 8}))
    found = co.load(result.folder)
    trained = found.trained_model("Chur", "fedavg")
    path = write_hospitals(folder / "new.csv", seed=7)
    with torch.no_grad():
        outputs = trained.module(raw_columns(path, trained.preparation))[:, 0]
    export_model(found, "Chur", folder / "chur", label="fedavg")
    shutil.rmtree(folder / "runs")
    (folder / "patients.csv").unlink()
    return folder / "chur", path, outputs


@pytest.fixture
def model(hospitals, tmp_path) -> Path:
    """A copy of the exported model, to be damaged."""
    return Path(shutil.copytree(hospitals[0], tmp_path / "chur"))


def test_predictions_are_those_of_the_model_and_scored_where_labels_exist(hospitals):
    folder, path, outputs = hospitals
    found = predict(folder, path)
    truth = pd.read_csv(path)["outcome"]
    assert found.table["row"].tolist() == list(range(2, len(truth) + 2))
    well = 1 / (1 + np.exp(-outputs.double().numpy()))
    # Softmax of (0, a) and 1 / (1 + exp(-a)) differ by rounding.
    np.testing.assert_allclose(found.table["probability of well"], well, rtol=1e-9)
    np.testing.assert_allclose(found.table["probability of ill"], 1 - well, rtol=1e-9)
    said = np.where(outputs.numpy() > 0, "well", "ill")
    assert found.table["predicted"].tolist() == said.tolist()
    assert (found.measure, found.labelled) == ("accuracy", len(truth))
    assert found.score == pytest.approx((said == truth).mean())
    assert found.notes == ()


def test_words_gaps_and_unknown_categories_go_by_the_preparation(hospitals, tmp_path):
    folder, _, _ = hospitals
    new = tmp_path / "new.csv"
    new.write_text(NEW)
    found = predict(folder, new)
    exported = read_export(folder)
    nan = float("nan")
    raw = [[63.0, 145, 1, 1], [37, nan, 0, 0], [41, 130, -1, 0]]
    with torch.no_grad():
        logit = exported.module(torch.tensor(raw))[:, 0].double().numpy()
    well = found.table["probability of well"]
    np.testing.assert_allclose(well, 1 / (1 + np.exp(-logit)), rtol=1e-9)
    assert found.labelled == 2
    (note,) = found.notes
    assert note == (
        "column 'sex': 1 of 3 rows holds a category that training did not have, such "
        "as 'x' in row 4; it counts as no category."
    )


def test_rows_far_from_all_training_data_are_predicted_and_said(hospitals, tmp_path):
    folder, path, _ = hospitals
    table = pd.read_csv(path)
    table.loc[[1, 5], "age"] *= 365  # days in place of years
    table["pressure"] /= 7.5  # kPa in place of mmHg: 130 and 15 are 17 and 2
    table.to_csv(tmp_path / "new.csv", index=False)
    found = predict(folder, tmp_path / "new.csv")
    assert len(found.table) == len(table)
    known, first = table["pressure"].notna(), int(table["pressure"].notna().argmax())
    about = "from what the model was trained on, such as row"
    check = "check the unit of this column, as these predictions mean little."
    assert found.notes == (
        f"column 'age': 2 of 160 rows lie ten or more deviations {about} 3; {check}",
        f"column 'pressure': {known.sum()} of 160 rows lie four or more deviations "
        f"{about} {first + 2}; {check}",
    )
    code, said, noted = called("predict", str(folder), str(tmp_path / "new.csv"))
    assert code == 0 and said.count("\n") == 161 and found.notes[0] in noted


def test_arrays_far_from_all_training_data_are_said(hospitals, tmp_path):
    raw = np.array([[50.0, 130, 0, 1], [50, 1e5, 1, 0]])
    np.savez(tmp_path / "new.npz", features=raw)
    (note,) = predict(hospitals[0], tmp_path / "new.npz").notes
    assert note.startswith("column 'pressure': 1 of 2 rows lies ten or more deviations")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("age,sex,smokes\n1,f,true\n", "new.csv has no column 'pressure', which the"),
        (
            "age,pressur,sex,smokes\n1,1,f,true\n",
            "has a column 'pressur', which the model does not know: leave it out. Did "
            "you mean 'pressure'?",
        ),
        (
            "age,pressure,sex,smokes,pulse\n1,1,f,true,60\n",
            "has a column 'pulse', which the model does not know: leave it out.",
        ),
        ("age,age,sex,smokes\n1,1,f,true\n", "are both called 'age'"),
        ("age,pressure,sex,smokes\nold,1,f,true\n", "row 2 holds 'old'"),
        ("age,pressure,sex,smokes\n1e60,1,f,true\n", "row 2 holds '1e60'"),
        ("age,pressure,sex,smokes\n1,1,f\n", "row 2 of new.csv has 3 cells"),
        ("age,pressure,sex,smokes\n", "new.csv has a header but no rows"),
        (
            "age,pressure,sex,smokes\n1,1,f,1\n1,1,f,2\n",
            "column 'smokes' of new.csv must hold true or false (1 or 0), as in "
            "training, but row 3 holds '2'.",
        ),
        (
            "age,pressure,sex,smokes,outcome\n1,1,f,true,sick\n",
            "must name a class of the model, but row 2 holds 'sick'; the classes are "
            "ill, well.",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused_in_one_sentence(
    hospitals, tmp_path, text, message
):
    new = tmp_path / "new.csv"
    new.write_text(text)
    assert message in refusal(predict, hospitals[0], new)


def test_parquet_gives_what_csv_gives(hospitals, tmp_path):
    pytest.importorskip("pyarrow", reason="Parquet is read with pyarrow")
    folder, path, _ = hospitals
    pd.read_csv(path).to_parquet(tmp_path / "new.parquet")
    one, two = predict(folder, path), predict(folder, tmp_path / "new.parquet")
    columns = ["predicted", "probability of ill"]
    assert one.table[columns].equals(two.table[columns])


def test_quantities_are_predicted_and_scored_in_the_unit_of_the_data(tmp_path):
    rng = random.Random(3)
    lines = ["client,x,target"]
    lines += [f"{'ab'[k % 2]},{rng.gauss(0, 1):.3f},{k / 7:.4f}" for k in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(lines) + "\n")
    data = {"name": "file", "path": str(tmp_path / "own.csv")}
    model = {"name": "linear", "measures": ["rmse"], "loss": "absolute"}
    algorithm = [{"name": "local"}]
    tables = {"data": data, "model": model, "run": {"rounds": 1}}
    result = run(tmp_path, {**tables, "algorithm": algorithm})
    export_model(co.load(result.folder), "b", tmp_path / "b")
    assert "It was trained alone" in (tmp_path / "b" / "README.md").read_text()
    found = predict(tmp_path / "b", tmp_path / "own.csv")
    truth = pd.read_csv(tmp_path / "own.csv")["target"]
    assert list(found.table) == ["row", "predicted"]
    expected = (found.table["predicted"] - truth).pow(2).mean() ** 0.5
    assert found.measure == "rmse"
    # Sums of sixty numbers in single precision.
    assert found.score == pytest.approx(expected, rel=1e-5)


def test_arrays_that_were_scaled_are_columns_and_have_no_target(tmp_path):
    rng = np.random.default_rng(0)
    arrays = {"features": rng.normal(size=(40, 2)), "targets": rng.normal(size=(40, 2))}
    np.savez(tmp_path / "own.npz", **arrays, client=np.arange(40) % 2)
    path = str(tmp_path / "own.npz")
    data = {"name": "file", "path": path, "task": "regression", "scale": "client"}
    tables = {"data": data, "model": {"name": "linear"}, "run": {"rounds": 1}}
    result = run(tmp_path, {**tables, "algorithm": [{"name": "local"}]})
    export_model(co.load(result.folder), "1", tmp_path / "to")
    new = tmp_path / "new.csv"
    new.write_text("feature 0,feature 1\n1.5,2\n0,\n")
    found = predict(tmp_path / "to", new)
    assert list(found.table) == ["row", "predicted 0", "predicted 1"]
    with torch.no_grad():
        expected = result.model("1")(torch.tensor([[1.5, 2], [0, float("nan")]]))
    assert np.array_equal(found.table.iloc[:, 1:], expected)
    new.write_text("feature 0,feature 1,target\n1.5,2,3\n")
    refuses("has a column 'target', which the model", predict, tmp_path / "to", new)


def test_a_model_of_tensors_takes_no_table(tmp_path, hospitals):
    result = run(tmp_path, TENSORS)
    export_model(co.load(result.folder), 0, tmp_path / "to")
    with pytest.raises(InputError, match=r"takes features of shape \(2,\), not the"):
        predict(tmp_path / "to", hospitals[1])


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """A model of images of 8 x 8, and of three classes."""
    folder = tmp_path_factory.mktemp("pictures")
    rng = np.random.default_rng(0)
    arrays = {"features": rng.normal(size=(60, 1, 8, 8)), "client": np.arange(60) % 2}
    np.savez(folder / "train.npz", targets=np.arange(60) // 2 % 3, **arrays)
    data = {"name": "file", "path": str(folder / "train.npz")}
    tables = {
        "data": {**data, "task": "classification"},
        "split": {"name": "natural"},
        "model": {"name": "mlp", "hidden": [4]},
        "run": {"rounds": 1},
        "algorithm": [{"name": "local"}],
    }
    export_model(co.load(run(folder, tables).folder), 0, folder / "to")
    return folder / "to"


def test_images_are_predicted_from_an_npz_file(pictures, tmp_path):
    features = np.random.default_rng(1).normal(size=(7, 1, 8, 8))
    np.savez(tmp_path / "new.npz", features=features)
    found = predict(pictures, tmp_path / "new.npz")
    with torch.no_grad():
        outputs = read_export(pictures).module(torch.tensor(features).float())
    chances = outputs.double().softmax(1).numpy()
    assert found.table["row"].tolist() == list(range(1, 8))
    assert found.labelled == 0
    np.testing.assert_allclose(found.table["probability of 2"], chances[:, 2], 1e-6)
    targets = chances.argmax(1)
    targets[0] = (targets[0] + 1) % 3
    np.savez(tmp_path / "known.npz", features=features, targets=targets)
    known = predict(pictures, tmp_path / "known.npz")
    assert (known.measure, known.labelled) == ("accuracy", 7)
    assert known.score == pytest.approx(6 / 7)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (
            {"features": np.zeros((3, 8, 8))},
            r"must have the shape \(rows, 1, 8, 8\), got",
        ),
        ({"x": np.zeros((3, 1, 8, 8))}, "has no array 'features'; it has x"),
        ({"features": np.full((3, 1, 8, 8), np.nan)}, "must be finite .*, but row 1"),
        (
            {"features": np.zeros((2, 1, 8, 8)), "targets": np.array([0, 3])},
            "must name a class of the model, but row 2 holds '3.0'",
        ),
    ],
)
def test_arrays_that_the_model_does_not_take_are_refused(
    pictures, tmp_path, arrays, message
):
    np.savez(tmp_path / "new.npz", **arrays)
    refuses(message, predict, pictures, tmp_path / "new.npz")
    (tmp_path / "new.csv").write_text("a\n1\n")
    wanted = r"npz file with an array `features` of shape \(rows, 1, 8, 8\)"
    refuses(wanted, predict, pictures, tmp_path / "new.csv")


def test_raw_columns_in_an_npz_file_are_predicted_too(hospitals, tmp_path):
    folder, path, _ = hospitals
    raw = raw_columns(path, read_export(folder).preparation).numpy()
    whole = ~np.isnan(raw).any(1)
    np.savez(tmp_path / "new.npz", features=raw[whole])
    found, expected = predict(folder, tmp_path / "new.npz"), predict(folder, path)
    names = ["predicted", "probability of well"]
    table = expected.table[whole].reset_index(drop=True)
    pd.testing.assert_frame_equal(found.table[names], table[names])


def test_damaged_exports_are_named(model, hospitals):
    path, about = hospitals[1], (model / "model.json").read_text()
    weights = (model / "weights.safetensors").read_bytes()
    (model / "weights.safetensors").write_bytes(weights[:-1] + b"\0")
    refuses(r"weights\.safetensors is damaged or missing", predict, model, path)
    (model / "weights.safetensors").unlink()
    refuses(r"weights\.safetensors is damaged or missing", predict, model, path)
    (model / "weights.safetensors").write_bytes(weights)
    (model / "model.json").write_text(about.replace("{", "[", 1))
    refuses(r"model\.json is damaged or missing", predict, model, path)
    for change in (
        lambda plain: plain["preparation"].pop("fill"),
        lambda plain: plain.update(task="bin"),
        lambda plain: plain["measure"].update(loss="os:abort"),
        lambda plain: plain.pop("checksums"),
    ):
        (model / "model.json").write_text(about)
        forge_json(model / "model.json", change)
        refuses(r"model\.json is damaged or missing", predict, model, path)
    (model / "model.json").write_text(about.replace("export 1", "export 2"))
    refuses("has the format 'coterie export 2'", predict, model, path)
    (model / "model.json").write_text(about)
    forge_json(model / "model.json", lambda plain: plain["model"].update(name="linear"))
    refuses(r"linear has no option|cannot be made for", predict, model, path)
    (model / "model.json").write_text(about)
    forge_json(
        model / "model.json", lambda plain: plain["model"]["options"].update(hidden=[5])
    )
    refuses("does not hold the weights of this model", predict, model, path)
    refuses(r"it has no model\.json", predict, model / "..", path)


def test_any_change_of_model_json_ends_in_predictions_or_a_sentence(model, hospitals):
    path, rng = model / "model.json", random.Random(5)
    damage(path, lambda: predict(model, hospitals[1]), rng)


def test_the_commands_export_and_predict(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = run(tmp_path, tables_of(tmp_path))
    code, output, errors = called("export", str(result.folder), "--client", "Zug")
    assert code == 0 and output.startswith("model of Zug, ")
    assert output.endswith(", seed 0: exports/Zug\n")
    assert errors == "" or errors.startswith("model.onnx was not written: ")
    refuses("use --force", called, "export", str(result.folder), "--client", "Zug")
    words = ("--client", "3", "--algorithm", "local", "--overwrite")
    code, output, _ = called(
        "export", str(result.folder), *words, "--to", "exports/Zug"
    )
    assert output == "model of 3, local, seed 0: exports/Zug\n"
    assert read_export("exports/Zug").about["client"] == HOSPITALS[3]
    Path("new.csv").write_text(NEW)
    code, output, errors = called("predict", "exports/Zug", "new.csv")
    lines = output.splitlines()
    assert lines[0] == "row,predicted,probability of ill,probability of well"
    assert [line.split(",")[0] for line in lines[1:]] == ["2", "3", "4"]
    assert "'x' in row 4" in errors and "accuracy on 2 rows with a label: " in errors
    code, output, _ = called("predict", "exports/Zug", "new.csv", "--out", "out.csv")
    assert output.startswith("predictions of 3 rows: out.csv\naccuracy on 2 rows")
    assert Path("out.csv").read_text().splitlines() == lines


def test_a_client_is_named_by_its_name_before_its_number(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("1", "2", "3", "007")  # in order: 1, 2, 3, 007
    settings = {"rounds": 1, "newcomers": 1}
    result = run(tmp_path, tables_of(tmp_path, names=names, run=settings))
    for text in (*names, "0"):
        code, _, _ = called("export", str(result.folder), "--client", text)
        expected = result.records.names[0] if text == "0" else text
        assert code == 0 and read_export(f"exports/{text}").about["client"] == expected


def test_control_characters_of_a_class_do_not_reach_the_terminal(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tables = tables_of(tmp_path)
    path = tmp_path / "patients.csv"
    path.write_text(path.read_text().replace(",ill", ",\x1b[31mill"))
    result = run(tmp_path, tables)
    called("export", str(result.folder), "--client", "Zug", "--to", "zug")
    _, output, errors = called("predict", "zug", "patients.csv")
    assert "\x1b" not in output + errors and "\\x1b[31mill" in output
    called("predict", "zug", "patients.csv", "--out", "out.csv")
    assert ",\\x1b[31mill," in Path("out.csv").read_text()


def test_predictions_replace_no_file_unasked_and_never_the_input(
    model, hospitals, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    shutil.copy(hospitals[1], "mine.csv")
    Path("link.csv").symlink_to("mine.csv")
    before = Path("mine.csv").read_bytes()
    about = (model / "model.json").read_bytes()
    for target in ("mine.csv", "./mine.csv", "link.csv"):
        for force in ([], ["--force"]):
            with pytest.raises(InputError, match="`--out` must not be the input"):
                called("predict", "chur", "mine.csv", "--out", target, *force)
    for target in ("chur/model.json", "chur/new.csv"):
        with pytest.raises(InputError, match="`--out` must"):
            called("predict", "chur", "mine.csv", "--out", target, "--force")
    Path("out.csv").write_text("precious")
    with pytest.raises(InputError, match=r"a new file, but out\.csv exists"):
        called("predict", "chur", "mine.csv", "--out", "out.csv")
    assert Path("out.csv").read_text() == "precious"
    code, _, _ = called("predict", "chur", "mine.csv", "--out", "out.csv", "--force")
    assert code == 0 and Path("out.csv").read_text().startswith("row,predicted,")
    assert Path("mine.csv").read_bytes() == before
    assert (model / "model.json").read_bytes() == about


def test_names_that_are_formulas_are_text_in_every_table(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = ("=cmd|'/c calc'!A0", "@b\x1b[31m", "+1+1;=2", "-Zug")
    tables = tables_of(tmp_path, names=names)
    tables["algorithm"] = [{"name": "local", "label": "=local()"}]
    result = run(tmp_path, tables)
    assert set(co.load(result.folder).names) == set(names)
    for path in result.folder.glob("*.csv"):
        text = path.read_text()
        assert "\x1b" not in text
        for line in text.replace(";", ",").splitlines():
            assert not line.startswith(("=", "+", "@")), path
            assert not any(sign in line for sign in (",=", ",+", ",@", ",-Z")), path
    assert "'=cmd|'/c calc'!A0" in (result.folder / "clients-0.csv").read_text()
    assert called("report", str(result.folder))[0] == 0
    (cell,) = standings_of(result.folder).cells
    assert cell.label == "=local()" and cell.round == 2
    export_model(co.load(result.folder), names[0], tmp_path / "to")
    assert read_export(tmp_path / "to").about["client"] == names[0]


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        (2, 99, r"column 3 .* 'sex', must hold -1 .* to 1, .* but row 2 holds 99\."),
        (2, 0.5, r"column 3 .* 'sex', must hold -1 .* but row 2 holds 0\.5\."),
        (3, 2, r"column 4 .* 'smokes', must hold 0 or 1, .* but row 2 holds 2\."),
    ],
)
def test_codes_that_stand_for_nothing_are_refused(
    hospitals, tmp_path, place, value, message
):
    rows = np.array([[40.0, 120, 0, 1], [50, 130, 1, 0], [60, 140, -1, 0]])
    np.savez(tmp_path / "new.npz", features=rows)
    assert len(predict(hospitals[0], tmp_path / "new.npz").table) == 3
    rows[1, place] = value
    np.savez(tmp_path / "new.npz", features=rows)
    refuses(message, predict, hospitals[0], tmp_path / "new.npz")


def test_targets_of_two_dimensions_and_weights_that_are_no_numbers_are_refused(
    model, tmp_path
):
    rows = np.array([[40.0, 120, 0, 1], [50, 130, 1, 0]])
    np.savez(tmp_path / "new.npz", features=rows, targets=np.zeros((2, 2)))
    message = r"one target per row, shape \(2,\), got \(2, 2"
    refuses(message, predict, model, tmp_path / "new.npz")
    np.savez(tmp_path / "new.npz", features=rows)
    path = model / "weights.safetensors"
    weights = load_file(path)
    for bad in (float("nan"), float("inf")):
        broken = {k: v.clone() for k, v in weights.items()}
        name = sorted(broken)[0]
        broken[name].view(-1)[0] = bad
        save_file(broken, path)
        sums = {"weights.safetensors": checksum(path)}
        forge_json(model / "model.json", lambda a, new=sums: a["checksums"].update(new))
        with pytest.raises(InputError, match=f"must be finite, but some of '{name}'"):
            predict(model, tmp_path / "new.npz")
