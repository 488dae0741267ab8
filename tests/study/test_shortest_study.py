"""Claims about the shortest study of a user's file."""

from __future__ import annotations

import pytest

from coterie.checks import InputError
from coterie.study.config import read_study, study_of
from coterie.study.experiment import run_study

ROWS = [
    (("Bern", "Chur")[k % 2], 30 + k % 37, k % 7 / 3, ("ill", "well")[k % 3 > 0])
    for k in range(80)
]
CSV = "hospital,age,dose,outcome\n" + "".join(
    f"{place},{age},{dose:.2f},{outcome}\n" for place, age, dose, outcome in ROWS
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
    with pytest.raises(InputError, match="at least one"):
        study_of({"data": {"name": "digits"}})
    assert study_of(
        {"data": {"name": "digits"}, "algorithm": {"name": "local"}}
    ).model == {"name": "mlp"}
