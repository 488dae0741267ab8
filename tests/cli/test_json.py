"""Claims about --json: one object on standard output with the numbers of the tables."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import tomli_w

import coterie as co
from coterie.algorithms import ALGORITHMS
from coterie.cli.commands.listings import KINDS
from coterie.data.datasets import DATASETS
from coterie.data.splits import SPLITS
from coterie.graphs.families import GRAPHS
from coterie.models import LOSSES, MEASURES, MODELS
from coterie.records import load_records
from coterie.study.ingredients import RECIPES, ingredients_of
from support.called import called
from support.tiny_studies import TABLES


def json_of(*words: str) -> dict:
    """The object that a command prints, and nothing else."""
    code, output, _ = called(*words, "--json")
    assert code == 0
    return json.loads(output, parse_constant=pytest.fail)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder to work in, with study.toml."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("study.toml").write_text(tomli_w.dumps({**TABLES, "name": "[x] → y"}))
    return tmp_path


def test_run_and_report_give_the_numbers_of_the_table(here):
    found = json_of("run", "study.toml")
    records = load_records(found["folder"])
    assert Path(found["report"]).exists()
    assert (found["study"], found["measure"]) == ("[x] → y", "accuracy")
    assert found["higher_is_better"] is True
    last = records.metrics.query("round == 4").groupby("algorithm")["test_accuracy"]
    means = {row["algorithm"]: row["mean"] for row in found["algorithms"]}
    assert means == pytest.approx(last.mean().to_dict())
    assert [row["algorithm"] for row in found["algorithms"]] == ["local", "fedavg"]
    assert found["algorithms"][0]["standard_error"] > 0  # of finite test data
    assert found["newcomers"] == found["chosen"] == []
    assert found["versions"]["coterie"] == co.__version__
    assert json_of("report", found["folder"]) == found


def test_export_and_predict_give_where_and_what(here):
    folder = json_of("run", "study.toml", "--set", "run.rounds=1")["folder"]
    found = json_of("export", folder, "--client", "1", "--to", "to")
    assert found["client"] == "1" and found["folder"] == "to"
    assert found["label"] == "fedavg" and found["seed"] == 0
    assert isinstance(found["skipped"], list)
    about = json.loads(Path("to/model.json").read_text())
    features = np.zeros((3, *about["model"]["shape"]))
    np.savez("new.npz", features=features, targets=np.array([0, 1, 2]))
    found = json_of("predict", "to", "new.npz")
    assert [row["row"] for row in found["predictions"]] == [1, 2, 3]
    assert found["rows"] == found["labelled"] == 3 and found["file"] is None
    assert found["measure"] == "accuracy" and 0 <= found["score"] <= 1
    chances = [v for k, v in found["predictions"][0].items() if k.startswith("prob")]
    assert sum(chances) == pytest.approx(1)
    written = json_of("predict", "to", "new.npz", "--out", "out.csv")
    assert written["predictions"] == [] and written["file"] == "out.csv"
    assert len(Path("out.csv").read_text().splitlines()) == 4


def test_plan_gives_a_row_for_each_client(here):
    found = json_of("plan", "study.toml", "--rounds", "2", "--out", "plan")
    assert [row["client"] for row in found["clients"]] == [0, 1, 2, 3]
    assert {"verdict", "worth", "partners", "together"} <= found["clients"][0].keys()
    assert Path(found["page"]).exists() and Path(found["weights"]).exists()
    assert all(sentence.endswith(".") for sentence in found["summary"])


def test_list_gives_defaults_and_who_takes_which_ingredient():
    found = json_of("list")
    assert tuple(found) == tuple(KINDS)
    by_name = {item["name"]: item for item in found["algorithms"]}
    assert by_name.keys() == ALGORITHMS.keys()
    assert by_name["fedavg"]["options"]["lr"] == 0.1
    assert by_name["fedavg"]["ingredients"] == {"sizes": "samples"}
    assert by_name["ditto"]["goes_by"] == ["rounds", "time"]
    assert by_name["ditto"]["group"] == "Personal models"
    for item in found["ingredients"]:
        assert item["options"] == {item["name"]: RECIPES[item["name"]][1]}
        takes = {a for a, f in ALGORITHMS.items() if item["name"] in ingredients_of(f)}
        assert set(item["used_by"]) == takes
    (file,) = (item for item in found["datasets"] if item["name"] == "file")
    assert "path" in file["required"]
    assert tuple(json_of("list", "graphs")) == ("graphs",)


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_no_name_of_a_list_is_cut(monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", columns)
    output = called("list")[1]
    assert "…" not in output
    first = {line.split()[0] for line in output.splitlines() if line.strip()}
    known = ALGORITHMS, RECIPES, DATASETS, SPLITS, MODELS, GRAPHS, MEASURES, LOSSES
    assert set().union(*known) <= first


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_check_leaves_out_what_it_is_told_to_and_cuts_no_name(monkeypatch, columns):
    from coterie.conformance import suite

    few = {name: suite.CHECKS[name] for name in ("info", "shapes_and_dtype")}
    monkeypatch.setattr(suite, "CHECKS", few)
    monkeypatch.setenv("COLUMNS", columns)
    output = called("check", "local", "--skip", "shapes_and_dtype")[1]
    assert "shapes_and_dtype" in output and "…" not in output
    assert "skipped" in output and "request." in output
    found = json_of("check", "local", "--skip", "info", "--skip", "shapes_and_dtype")
    outcomes = {one["check"]: one["outcome"] for one in found["findings"]}
    assert outcomes == dict.fromkeys(few, "skipped")
    assert found["passed"] is True and found["algorithm"] == "local"


def test_a_failed_check_is_told_by_the_exit_code_too(monkeypatch):
    from coterie.conformance import suite

    def check_nothing(case):
        raise AssertionError("it never holds.")

    monkeypatch.setattr(suite, "CHECKS", {"nothing": suite.Check(check_nothing)})
    code, output, _ = called("check", "fedavg", "--json")
    assert code == 1
    assert json.loads(output)["findings"] == [
        {
            "check": "nothing",
            "outcome": "failed",
            "message": "it never holds.",
            "face": "rounds",
        }
    ]
