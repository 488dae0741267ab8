"""Claims about the commands `table` and `figures`."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from coterie.records import load_records
from coterie.report.paper import as_latex, as_markdown, paper_columns
from coterie.report.paper.tables import cell_of
from coterie.scores.summaries import standings
from coterie.study.experiment import run_study
from support.called import called, refused
from support.tiny_studies import made


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> dict[str, Path]:
    """Two runs of other lengths, of studies with the same name."""
    place = tmp_path_factory.mktemp("runs")
    studies = {"plain": made(seeds=[0, 1]), "longer": made(rounds=5)}
    return {
        name: run_study(study, runs=place).folder for name, study in studies.items()
    }


def output_of(*words: str | Path) -> str:
    code, output, _ = called(*map(str, words))
    assert code == 0
    return output


def test_latex_and_markdown_are_those_of_python(runs):
    columns = paper_columns({"tiny": load_records(runs["plain"])})
    assert output_of("table", runs["plain"], "--latex") == as_latex(columns, "tiny")
    assert output_of("table", runs["plain"], "--markdown") == as_markdown(columns)


def test_the_terminal_shows_the_same_cells(runs):
    shown = output_of("table", runs["plain"], "--measure", "accuracy")
    (column,) = paper_columns({"tiny": load_records(runs["plain"])})
    for label in ("local", "fedavg"):
        cell = cell_of(column, label)
        assert f"{cell.mean} {cell.interval}" in shown
    assert "*: the best mean." in " ".join(shown.split())


def test_csv_and_json_have_the_numbers(runs):
    table = standings(load_records(runs["plain"]))
    rows = list(csv.DictReader(io.StringIO(output_of("table", runs["plain"], "--csv"))))
    (found,) = json.loads(output_of("table", runs["plain"], "--json")).values()
    for row, other in zip(rows, found, strict=True):
        assert row["algorithm"] == other["algorithm"]
        mean = table.loc[row["algorithm"], "mean"]
        assert float(row["mean"]) == pytest.approx(mean)
        assert other["mean"] == pytest.approx(mean)
        assert other["best"] == bool(table.loc[row["algorithm"], "best"])


def test_runs_of_one_name_need_names(runs):
    both = runs["plain"], runs["longer"]
    shown = output_of("table", *both, "--name", "A", "--name", "B", "--markdown")
    assert shown.startswith("| Method | A | B |")
    message = refused("table", *map(str, both))
    assert message == "`--name` must tell the runs apart, but two are called 'tiny'."
    message = refused("table", *map(str, both), "--name", "A")
    assert message == "`--name` must be given once for each run, 2, got 1."


def test_two_formats_and_a_file_without_a_format_are_refused(runs):
    here = str(runs["plain"])
    assert "at most one of" in refused("table", here, "--latex", "--csv")
    message = refused("table", here, "--out", "table.txt")
    assert message == "`--out` needs --latex, --markdown or --csv."
    assert "`measure` must be one of" in refused("table", here, "--measure", "auc")


def test_a_table_goes_to_a_new_file_only(runs, tmp_path):
    file = tmp_path / "table.tex"
    words = ("table", runs["plain"], "--latex", "--out", file)
    assert "table.tex" in "".join(output_of(*words).split())
    assert file.read_text() == output_of("table", runs["plain"], "--latex")
    assert "exists" in refused(*map(str, words))
    output_of(*words, "--force")
    inside = str(runs["plain"] / "table.tex")
    message = refused("table", str(runs["plain"]), "--latex", "--out", inside)
    assert "`--out` must not be in the folder of a run" in message


def test_figures_are_written_and_listed(runs, tmp_path):
    pytest.importorskip("matplotlib")
    answer = json.loads(output_of("figures", runs["plain"], "--to", tmp_path, "--json"))
    names = [Path(file).name for file in answer["files"]]
    assert names == ["curves.pdf", "gains-fedavg.pdf"]
    assert "exists" in refused("figures", str(runs["plain"]), "--to", str(tmp_path))
    shown = output_of("figures", runs["plain"], "--to", tmp_path, "--force")
    assert "curves.pdf" in shown
