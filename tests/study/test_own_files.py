"""Claims about studies of users' files: the shortest, names, and what is odd."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pandas as pd
import pytest
import torch

import coterie as co
from coterie import report
from coterie.checks import InputError
from coterie.conformance.divided import run_divided
from coterie.data import files
from coterie.data.looking.disguises import gives_away, repeats
from coterie.records import Folder, load_records
from coterie.study.config import read_study, study_of
from coterie.study.experiment import run_study
from coterie.study.setup import federation_of, prepare
from support.hospitals import HOSPITALS, write_hospitals
from support.refusals import refusal, refuses
from support.study_runs import stopped

RUN = {"rounds": 2, "batch_size": 8, "checkpoint_seconds": 0.0}


def study(folder, *, run=(), tune=None, **data):
    path = folder / "patients.csv"
    if not path.exists():
        write_hospitals(path)
    columns = {"client": "hospital", "target": "outcome"}
    tables = {
        "name": "hospitals",
        "data": {"name": "file", "path": str(path), **columns, **data},
        "split": {"name": "natural"},
        "model": {"name": "linear"},
        "run": {**RUN, **dict(run)},
        "algorithm": [{"name": "local"}, {"name": "fedavg"}],
    }
    return study_of(tables | ({} if tune is None else {"tune": tune}))


def run(made, folder, **options):
    return run_study(made, runs=folder / "runs", notice=lambda line: None, **options)


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    return run(study(folder, run={"newcomers": 1}), folder)


def test_clients_features_and_classes_keep_their_names_in_records(result):
    records = load_records(result.folder)
    assert records.names == HOSPITALS
    assert records.classes == ("ill", "well")
    assert records.features == ("age", "pressure", "sex = f", "sex = m", "smokes")
    for table in (records.clients, records.metrics, records.newcomers):
        assert (table["name"] == table["client"].map(dict(enumerate(HOSPITALS)))).all()
    for name in ("clients", "metrics", "newcomers"):
        assert set(pd.read_csv(result.folder / f"{name}.csv")["name"]) <= set(HOSPITALS)


def test_names_stand_in_metrics_also_while_a_stopped_run_goes_on(tmp_path):
    made, seen = study(tmp_path), []

    def look(p):
        (path,) = tmp_path.glob("runs/*/metrics.csv")
        seen.append(set(pd.read_csv(path)["name"]))

    stopped(made, lambda p: True, runs=tmp_path / "runs", notice=lambda line: None)
    run(made, tmp_path, progress=look)
    assert seen and all(names == set(HOSPITALS) for names in seen)


def test_a_model_is_asked_for_by_name_or_position(result):
    for place, name in enumerate(HOSPITALS):
        one, two = result.model(name), result.model(place)
        for a, b in zip(one.parameters(), two.parameters(), strict=True):
            assert torch.equal(a, b)
    said = refusal(result.model, "Chor")
    assert said == "there is no client 'Chor'. Did you mean 'Chur'?"


def test_clients_without_names_are_numbered(tmp_path):
    made = study(tmp_path)
    split = {"name": "iid", "clients": 3}
    made = study_of(made.tables() | {"split": split, "name": "numbers"})
    found = run(made, tmp_path)
    assert set(found.records.metrics["name"]) == {"client 0", "client 1", "client 2"}
    assert torch.equal(*(found.model(k).model.head.weight for k in (2, "client 2")))


def test_the_report_and_figures_name_the_hospitals(result):
    from coterie.report import clients, gains

    bars = gains(result.records)
    assert set(bars.layout.xaxis.ticktext) <= set(HOSPITALS)
    assert set(clients(result.records).layout.xaxis2.ticktext) <= set(HOSPITALS)


def test_each_clients_preparation_is_kept_with_the_run(result):
    setup = prepare(result.study, 0)
    kept = Folder(result.folder).preparations(0)
    assert kept.plain() == setup.federation.preparations.plain()
    assert len(kept.mean) == len(HOSPITALS)  # the newcomer with them
    whole = setup.newcomers.everybody
    for place in range(len(whole)):
        for part in ("train", "validation", "test"):
            index, _ = whole.part(part).rows(torch.tensor([place]))
            module = kept.of(int(whole.clients[place])).module()
            # All categories are known to those who train, so that codes are the same.
            features = module(whole.raw[index[0]]).float()
            assert torch.equal(features, whole.features[index[0]])


def test_newcomers_change_nothing_that_is_agreed(tmp_path):
    made = study(tmp_path, run={"newcomers": 1})
    setup = prepare(made, 0)
    (new,) = setup.newcomers.federation.clients.tolist()
    path = tmp_path / "patients.csv"
    lines = path.read_text().splitlines()
    older = [
        line.replace(",true,", ",false,") if line.startswith(HOSPITALS[new]) else line
        for line in lines
    ]
    path.write_text("\n".join(older))
    again = prepare(made, 0).federation.preparations
    before = setup.federation.preparations
    assert torch.equal(again.mean, before.mean)
    assert not torch.equal(again.fill[new], before.fill[new])


@pytest.mark.parametrize("scale", ["agreed", "client"])
def test_folds_are_prepared_by_their_own_training_parts(tmp_path, scale):
    made = study(tmp_path, tune={"folds": 3, "trials": 1}, scale=scale)
    setup = prepare(made, 0)
    for fold in setup.folds:
        federation = fold.simulation.federation
        rows = federation.train.rows(torch.arange(len(federation)))
        age = federation.features[rows[0][rows[1]], 0]
        assert float(age.mean()) == pytest.approx(0, abs=1e-5)
        assert float(age.std(unbiased=False)) == pytest.approx(1, abs=1e-5)
        assert federation.columns == setup.federation.columns
    assert (
        len({float(fold.simulation.federation.features[0, 0]) for fold in setup.folds})
        > 1
    )


def test_a_divided_study_of_a_file_has_the_same_records(tmp_path):
    made = study(
        tmp_path,
        run={"newcomers": 1, "dtype": "float64"},
        tune={"folds": 2, "trials": 2},
    )
    alone = run(made, tmp_path)
    several = run_divided(lambda group: run(made, tmp_path / "two", group=group), 2)[0]
    for name in ("metrics", "newcomers", "trials"):
        mine, theirs = (getattr(r.records, name) for r in (alone, several))
        # Sums over processes are sums in another order.
        pd.testing.assert_frame_equal(mine, theirs, rtol=1e-6, atol=1e-9)


def test_another_scale_is_another_run(tmp_path):
    one, two = (
        run(study(tmp_path, scale=scale), tmp_path) for scale in ("agreed", "none")
    )
    assert one.folder != two.folder
    read = json.loads((one.folder / "read.json").read_text())
    data = {"the data file patients.csv", "the columns of patients"}
    assert set(read) == data | {"the key"}  # which digests were made with


def test_the_order_of_rows_names_no_other_clients(tmp_path):
    made = study(tmp_path)
    before = federation_of(made, 0)
    path = tmp_path / "patients.csv"
    head, *rows = path.read_text().splitlines()
    path.write_text("\n".join([head, *reversed(rows)]))
    after = federation_of(made, 0)
    assert after.names == before.names
    assert after.train.size.tolist() == before.train.size.tolist()


def notices_of(folder, text: str, **data) -> list[str]:
    (folder / "patients.csv").write_text(text)
    lines: list[str] = []
    made = study(folder, **data)
    run_study(made, runs=folder / "runs", notice=lines.append)
    return lines


def rows(make) -> str:
    lines = ["hospital,outcome,x,z"]
    lines += [make(k) for k in range(40)]
    return "\n".join(lines)


def hospital(k: int) -> str:
    return "AB"[k % 2]


def noise(k: int) -> int:
    return k * 7 % 11


def label(k: int) -> int:
    return k // 2 % 2


def test_features_that_will_not_train_are_said(tmp_path):
    text = rows(lambda k: f"{hospital(k)},{label(k)},{noise(k)},{100 * noise(k + 3)}")
    (line,) = notices_of(tmp_path, text, scale="none")
    assert line.startswith("features of `patients` will train badly as they are: 'z'")
    assert notices_of(tmp_path, text) == []


def test_a_constant_column_is_said(tmp_path):
    text = rows(lambda k: f"{hospital(k)},{label(k)},{noise(k)},7")
    assert notices_of(tmp_path, text) == [
        "column 'z' is constant in all training data and can be left out."
    ]


@pytest.mark.parametrize("tells", [("5", "4"), ("no", "yes"), ("", "late")])
def test_a_column_that_gives_the_label_away_is_said(tmp_path, tells):
    text = rows(lambda k: f"{hospital(k)},{label(k)},{noise(k)},{tells[label(k)]}")
    lines = notices_of(tmp_path, text)
    assert lines[-1].startswith("column 'z' is enough to know the label of every")
    assert notices_of(tmp_path, text, drop=["z"]) == []


def test_what_gives_labels_away_is_not_what_differs_everywhere():
    labels = np.arange(40) % 2
    steps = np.arange(40.0)
    assert not gives_away(steps, labels)
    assert gives_away(steps * labels, labels)  # a threshold
    assert gives_away(labels.astype(float), labels)
    assert not gives_away(np.ones(40), labels)
    wrong = labels.astype(float)
    wrong[:5] = 0
    assert not gives_away(wrong, labels)
    assert repeats(2 - 3 * steps, steps)
    assert not repeats(np.square(steps), steps)


def test_labels_that_only_test_data_have_are_said(tmp_path):
    def row(k: int) -> str:
        rare = k in (0, 1)
        return (
            f"{hospital(k)},{2 if rare else label(k)},{noise(k)},{k * 5 % 13},{k < 8:d}"
        )

    text = rows(row).replace("x,z", "x,z,is_test")
    lines = notices_of(tmp_path, text, task="classification")
    assert lines == [
        "no client trains on class 2, which is in validation or test data: it cannot "
        "be learnt.",
        "2 of 2 clients (A, B) are tested on classes that are not in their training "
        "data: training alone cannot learn these.",
    ]


def test_without_a_listener_doubts_are_warnings(tmp_path):
    text = rows(lambda k: f"{hospital(k)},{label(k)},{noise(k)},7")
    (tmp_path / "patients.csv").write_text(text)
    with pytest.warns(UserWarning, match="column 'z' is constant"):
        run_study(study(tmp_path), runs=tmp_path / "runs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run_study(study(tmp_path, drop=["z"]), runs=tmp_path / "runs")


def test_the_unit_of_a_quantity_is_said_and_that_of_classes_refused(tmp_path):
    lines = rows(lambda k: f"{hospital(k)},{k * 0.37 % 5:.2f},{noise(k)},{k * 5 % 13}")
    (tmp_path / "yields.csv").write_text(lines)
    known = {"target": "outcome", "client": "hospital", "unit": "bushels"}
    path = tmp_path / "yields.csv"
    methods = ["local", "fedavg"]
    result = co.train(path, method=methods, rounds=1, runs=tmp_path, **known)
    assert (
        "bushels alone, which is"
        in report.headline(result.records, report.summary(result.records))["Verdict"]
    )
    (tmp_path / "classes.csv").write_text(
        rows(lambda k: f"{hospital(k)},{label(k)},{noise(k)},{k * 5 % 13}")
    )
    assert refusal(files.table, tmp_path / "classes.csv", **known) == (
        "`data.unit` is the unit of a quantity, but column 'outcome' of classes.csv is "
        "for binary: leave `unit` out."
    )
    with pytest.raises(InputError, match="at most 20 characters, such as 'kg', got"):
        files.table(path, **{**known, "unit": "k" * 21})


PATIENTS = [
    (("Bern", "Chur")[k % 2], 30 + k % 37, k % 7 / 3, ("ill", "well")[k % 3 > 0])
    for k in range(80)
]
CSV = "hospital,age,dose,outcome\n" + "".join(
    f"{place},{age},{dose:.2f},{outcome}\n" for place, age, dose, outcome in PATIENTS
)
DATA = '[data]\npath = "patients.csv"\nclient = "hospital"\ntarget = "outcome"\n'


@pytest.fixture
def study_file(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "patients.csv").write_text(CSV)
    path = tmp_path / "there" / "study.toml"
    path.write_text(DATA)
    return path


def test_a_study_that_names_only_the_file_runs(study_file, tmp_path):
    study = read_study(study_file, ["run.rounds=3"])
    result = run_study(study, runs=tmp_path / "runs")
    assert set(result.records.metrics["algorithm"]) == {"local", "fedavg", "coteries"}
    assert study.model["name"] == "linear" and study.data["name"] == "file"
    assert not any(entry.options for entry in study.algorithms)  # they choose


@pytest.mark.parametrize("folder", [".", "there", "elsewhere"])
def test_the_file_is_found_from_every_folder(study_file, tmp_path, monkeypatch, folder):
    (tmp_path / "elsewhere").mkdir()
    # A file of that name in the current folder is not the one beside the study.
    (tmp_path / "elsewhere" / "patients.csv").write_text("nothing")
    monkeypatch.chdir(tmp_path / folder)
    study = read_study(study_file)
    result = run_study(read_study(study_file, ["run.rounds=1"]), runs=tmp_path / "runs")
    assert len(result.records.clients) == 2
    assert not study.data["path"].startswith("/")


def test_a_file_that_is_not_beside_the_study_may_be_in_the_current_folder(
    study_file, tmp_path, monkeypatch
):
    (tmp_path / "there" / "patients.csv").rename(tmp_path / "patients.csv")
    monkeypatch.chdir(tmp_path)
    run_study(read_study(study_file, ["run.rounds=1"]), runs=tmp_path / "runs")
    (tmp_path / "patients.csv").unlink()
    with pytest.raises(InputError, match=r"there is no data file patients\.csv"):
        run_study(read_study(study_file), runs=tmp_path / "runs")


def test_other_data_need_an_algorithm():
    refuses("at least one", study_of, {"data": {"name": "digits"}})
    assert study_of(
        {"data": {"name": "digits"}, "algorithm": {"name": "local"}}
    ).model == {"name": "mlp"}
