"""Claims about the command `compare`."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from coterie.checks import InputError
from coterie.cli.commands.comparisons import compare_runs
from coterie.study.experiment import run_study
from support.called import called
from support.tiny_studies import made

SPLIT = {"name": "iid", "clients": 4, "max_samples": 40}
LONG = "adaptive_all_for_one, cautious"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Runs that each differ in one setting."""
    place = tmp_path_factory.mktemp("runs")
    longer = [{"name": "fedavg", "lr": 0.3}, {"name": "local", "label": LONG}]
    studies = {
        "plain": made(),
        "longer": made(rounds=5, algorithm=longer),
        "split": made(split=SPLIT),
        "seeds": made(seeds=[1]),
    }
    return {
        name: run_study(study, runs=place).folder for name, study in studies.items()
    }


def compare_json(*folders: Path) -> dict:
    code, output, _ = called("compare", *map(str, folders), "--json")
    assert code == 0
    return json.loads(output)


def test_runs_on_the_same_data_compare_with_their_scores_and_costs(runs):
    found = compare_json(runs["plain"], runs["longer"])
    assert found["same_data"] is True
    assert found["sentence"] == (
        "The runs have the same data, split and seeds: their scores can be compared."
    )
    assert found["settings"] == {"run.rounds": [4, 5]}
    for run, folder in zip(found["runs"], (runs["plain"], runs["longer"]), strict=True):
        ends = pd.read_csv(folder / "rounds.csv").groupby(["algorithm", "seed"]).last()
        rounds = ends.groupby("algorithm").median()
        metrics = pd.read_csv(folder / "metrics.csv").groupby(["algorithm", "round"])
        for row in run["algorithms"]:
            label = row["algorithm"]
            last = metrics["test_accuracy"].mean()[label].iloc[-1]
            assert row["mean"] == pytest.approx(last)
            assert row["bytes"] == rounds.loc[label, "bytes"]
            assert row["seconds"] == pytest.approx(rounds.loc[label, "seconds"])
    assert [run["run"] for run in found["runs"]] == ["A", "B"]
    assert found["runs"][0]["versions"].keys() >= {"coterie", "torch"}


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ("split", "`split.name` is 'label_swap' in A and 'iid' in B."),
        ("seeds", "the seeds are [0] in A and [1] in B."),
    ],
)
def test_one_sentence_says_where_data_part(runs, other, reason):
    found = compare_json(runs["plain"], runs[other])
    assert found["same_data"] is False
    assert found["sentence"] == f"The scores cannot be compared: {reason}"


def test_other_content_of_the_same_file_and_other_samples_are_seen(runs, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(runs["plain"], other)
    (other / "read.json").write_text('{"the data file x.csv": "1"}')
    assert (
        "the data file x.csv has other content in A"
        in compare_runs([runs["plain"], other]).sentence
    )
    shutil.copy(runs["plain"] / "read.json", other)
    table = pd.read_csv(other / "clients-0.csv")
    table.assign(train=table["train"] + 1).to_csv(other / "clients-0.csv", index=False)
    sentence = compare_runs([runs["plain"], other]).sentence
    assert sentence.endswith("clients of B have other samples than those of A.")


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_the_table_cuts_no_name_and_uses_the_units_of_the_report(
    runs, monkeypatch, columns
):
    monkeypatch.setenv("COLUMNS", columns)
    code, output, _ = called("compare", *(str(runs[k]) for k in ("plain", "longer")))
    assert code == 0 and "…" not in output
    assert LONG in " ".join(output.split()) or columns == "60"
    assert "test accuracy, higher is better" in output
    assert " %" in output and "fedavg" in output and "run.rounds" in output
    # Each has an algorithm that the other one has not.
    assert " - " in output


def test_what_is_no_run_is_refused(runs, tmp_path):
    with pytest.raises(InputError, match="is not the folder of a run that has begun"):
        compare_runs([runs["plain"], tmp_path])
    with pytest.raises(InputError, match="needs two or more run folders"):
        compare_runs([runs["plain"]])
    with pytest.raises(InputError, match="different run folders, got one twice"):
        compare_runs([runs["plain"], runs["plain"]])
