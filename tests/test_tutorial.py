"""Claims about the tutorial: its very commands lead to a model that was checked."""

from __future__ import annotations

import glob
import re
import runpy
import shlex
import shutil
import subprocess
from pathlib import Path

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
    code, output, _ = called(*expanded)
    return code, output


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
