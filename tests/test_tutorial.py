"""Claims about the tutorials: their very commands lead to what they promise."""

from __future__ import annotations

import glob
import io
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pytest

import coterie as co
from coterie.data import raw_columns
from coterie.export import read_export
from support.called import called

ROOT = Path(__file__).parents[1]


def page_of(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def commands_of(page: str) -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


PAGES = ("tutorial.md", "tutorial_regression.md")
QUICK = "[run]\nrounds = 4\n"


def run(command: str) -> tuple[int, str]:
    """Exit code and output of a command as a shell runs it; ours without a process."""
    first, *words = shlex.split(command)
    if first != "coterie":
        found = subprocess.run(command, shell=True, capture_output=True, text=True)
        return found.returncode, found.stdout
    expanded = [path for word in words for path in glob.glob(word) or [word]]
    code, output, errors = called(*expanded)
    return code, output + errors


@pytest.mark.parametrize("name", PAGES)
def test_it_is_short_and_has_neither_python_nor_a_step_size(name):
    page = page_of(name)
    everything = re.findall(r"^```sh[^\n]*\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert len([line for block in everything for line in block.splitlines()]) < 10
    assert len(commands_of(page)) >= 5
    assert not re.search(r"```python|\blr\b", page)


@pytest.mark.parametrize(
    ("name", "file", "lines"),
    [("tutorial.md", "hospitals.csv", 4), ("tutorial_regression.md", "plants.csv", 3)],
)
def test_what_it_shows_of_files_is_in_them(name, file, lines):
    first = (ROOT / "examples" / file).read_text().splitlines()[:lines]
    assert "\n".join(["```", *first, "```"]) in page_of(name)


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """A folder with the examples."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def followed(name: str) -> dict[str, str]:
    """What the commands of a page say, by command; a study takes a moment."""
    said = {}
    for command in commands_of(page_of(name)):
        code, output = run(command)
        assert code == 0, command
        said[command.split()[1]] = output
        if command.startswith("coterie init"):
            (study,) = Path().glob("*.toml")
            text = study.read_text(encoding="utf-8")
            assert "[run]\n" in text
            study.write_text(text.replace("[run]\n", QUICK), encoding="utf-8")
    return said


def test_its_commands_end_in_a_model_that_was_exported_reloaded_and_checked(here):
    said = followed("tutorial.md")
    assert said["predict"].startswith("predictions of 40 rows: predictions.csv\n")
    names = {path.name for path in (here / "chur").iterdir()}
    assert {"weights.safetensors", "model.pt2", "model.json", "README.md"} <= names
    # What was exported says of the new patients what the run's own model says.
    (folder,) = (path for path in here.glob("runs/*") if path.name[0] != ".")
    about = read_export(here / "chur").about
    trained = co.load(folder).trained_model("Chur", about["algorithm"], about["seed"])
    new = here / "examples" / "new_patients.csv"
    logits = trained.module(raw_columns(new, trained.preparation))[:, 0]
    expected = ["ill" if logit > 0 else "well" for logit in logits.tolist()]
    assert pd.read_csv("predictions.csv")["predicted"].tolist() == expected
    right = [a == b for a, b in zip(expected, pd.read_csv(new)["outcome"], strict=True)]
    score = f"accuracy on 40 rows with a label: {100 * sum(right) / 40:.1f} %\n"
    assert said["predict"].endswith(score)


def test_quantities_come_back_in_kilograms(here):
    said = followed("tutorial_regression.md")
    assert said["predict"].startswith("predictions of 30 rows: kilograms.csv\n")
    found = pd.read_csv("kilograms.csv")["predicted"]
    true = pd.read_csv("examples/new_batches.csv", sep=";", decimal=",")["yield_kg"]
    error = float((found - true).pow(2).mean()) ** 0.5
    assert said["predict"].rstrip().endswith(f" {error:,.4g}")
    assert error < true.std()  # better than always the mean


@pytest.mark.parametrize(
    ("script", "files"),
    [
        ("make_hospitals.py", ("hospitals.csv", "new_patients.csv")),
        ("make_plants.py", ("plants.csv", "new_batches.csv")),
    ],
)
def test_examples_are_made_by_the_script_beside_them(tmp_path, script, files):
    shutil.copy(ROOT / "examples" / script, tmp_path)
    runpy.run_path(str(tmp_path / script), run_name="__main__")
    for name in files:
        assert (tmp_path / name).read_text() == (ROOT / "examples" / name).read_text()


RESEARCH = "tutorial_research.md"
QUICKER = {
    "rounds = 20": "rounds = 2",
    "[0, 1, 2, 3, 4]": "[0, 1]",
    "evaluate_every = 5": "evaluate_every = 1",
    "trials = 8": "trials = 2",
    "run.rounds=40": "run.rounds=4",
}


class Paper(NamedTuple):
    """What a researcher has after following the page."""

    folder: Path
    said: list[tuple[str, str]]  # each command and what it said
    printed: str  # by Python


@pytest.fixture(scope="module")
def paper(tmp_path_factory) -> Iterator[Paper]:
    """The page followed to its end, with fewer rounds, seeds and trials."""
    page = page_of(RESEARCH)
    for long, short in QUICKER.items():
        assert long in page
        page = page.replace(long, short)
    said, names, printed = list[tuple[str, str]](), dict[str, object](), io.StringIO()
    blocks = re.findall(r"^```(\w+)[^\n]*\n(.*?)^```$", page, re.M | re.S)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("paper"))
        patch.setattr(sys, "path", [*sys.path])
        patch.setattr(sys, "meta_path", [*sys.meta_path])
        for kind, code in blocks:
            if kind == "toml":
                with Path("study.toml").open("a", encoding="utf-8") as file:
                    file.write(f"{code}\n")
            elif file := re.match(r"# (\w+\.py)\n", code):
                Path(file[1]).write_text(code, encoding="utf-8")
            elif kind == "python":
                with redirect_stdout(printed):
                    exec(compile(code, RESEARCH, "exec"), names)
            else:
                for command in code.splitlines():
                    status, output = run(command)
                    assert status == 0, f"{command}: {output}"
                    said.append((command, output))
        yield Paper(Path.cwd(), said, printed.getvalue())
        sys.modules.pop("answers", None)


def last_words(paper: Paper, start: str) -> list[str]:
    """What the commands that begin like this said."""
    found = [said for command, said in paper.said if command.startswith(start)]
    assert found
    return found


def test_the_method_of_the_page_passes_all_checks(paper):
    (said,) = last_words(paper, "coterie check")
    assert "passed" in said
    assert "failed" not in said
    assert page_of(RESEARCH).count("\n") < 170


def trained_here(folder: Path) -> set[str]:
    """Which cells a run folder has trained itself."""
    notes = {p.stem: json.loads(p.read_text()) for p in folder.glob("cells/*.key.json")}
    assert len(notes) >= 6
    return {name for name, note in notes.items() if note["run"] == folder.name}


def test_another_baseline_trains_nothing_else(paper):
    first, second = sorted(
        paper.folder.glob("runs/study-*"), key=lambda path: path.stat().st_ctime
    )
    assert len(trained_here(first)) == 3 * 2
    assert {name.rsplit("-", 1)[0] for name in trained_here(second)} == {"ditto"}
    said = last_words(paper, "coterie run study.toml")[1]
    assert f"local, fedavg, answers with seed 0: the results come from {first}" in said


def test_more_rounds_go_on_and_another_split_begins(paper):
    said = last_words(paper, "coterie run study.toml --set")
    for label in ("local", "fedavg", "answers", "ditto"):
        assert f"{label} with seed 1 continues from round 2 in" in said[0]
    assert "continue" not in said[1]


def test_its_table_has_the_mean_of_each_run_and_marks_the_best(paper):
    text = (paper.folder / "results.tex").read_text()
    assert "Method & alpha 0.1 & alpha 1 \\\\" in text
    rows = re.findall(r"^ +(\w+) & (.*) & (.*) \\\\$", text, re.M)
    shown = {name: cells for name, *cells in rows if name != "Method"}
    assert [*shown] == ["local", "fedavg", "answers", "ditto"]
    for place, name in enumerate(("skewed", "mild")):
        (run,) = paper.folder.glob(f"runs/{name}-*")
        table = pd.read_csv(run / "metrics.csv").query("round == 4")
        means = 100 * table.groupby("algorithm")["test_accuracy"].mean()
        for label, cells in shown.items():
            best = means[label] == means.max()
            mean = f"{means[label]:.1f}"
            assert cells[place].startswith(f"\\textbf{{{mean}}}" if best else mean)


def test_its_figures_are_pdf_files(paper):
    names = {path.name for path in (paper.folder / "figures").iterdir()}
    gains = {f"gains-{label}.pdf" for label in ("fedavg", "answers", "ditto")}
    assert names == {"curves.pdf"} | gains
    for name in names:
        assert (paper.folder / "figures" / name).read_bytes().startswith(b"%PDF-")


def test_its_data_frame_has_the_worst_clients(paper):
    (run,) = paper.folder.glob("runs/skewed-*")
    table = pd.read_csv(run / "metrics.csv").query("round == 4")
    for label in ("local", "answers"):
        mine = table[table["algorithm"] == label]
        worst = [mine[mine["seed"] == seed]["test_accuracy"].min() for seed in (0, 1)]
        printed = re.search(rf"{label} +(\S+)", paper.printed)
        assert float(printed[1]) == pytest.approx(sum(worst) / 2, abs=1e-6)


def test_its_archive_repeats_every_score(paper):
    (said,) = last_words(paper, "coterie run skewed-*.zip")
    assert said.rstrip().endswith(
        "All scores are those in the archive, digit by digit."
    )
    (run,) = paper.folder.glob("again/skewed-*")
    assert len(trained_here(run)) == 4 * 2


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="there is no pdflatex")
def test_latex_reads_its_table_and_its_figure(paper):
    (paper.folder / "paper.tex").write_text(
        "\\documentclass{article}\\usepackage{booktabs,graphicx}\\begin{document}"
        "\\input{results}\\includegraphics{figures/curves.pdf}\\end{document}"
    )
    words = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    made = subprocess.run(words, cwd=paper.folder, capture_output=True, text=True)
    assert made.returncode == 0, made.stdout
    assert "Overfull" not in made.stdout
