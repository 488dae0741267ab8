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
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
COMMANDS = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
]


def run(command: str) -> tuple[int, str]:
    """Exit code and output of a command as a shell runs it; ours without a process."""
    first, *words = shlex.split(command)
    if first != "coterie":
        found = subprocess.run(command, shell=True, capture_output=True, text=True)
        return found.returncode, found.stdout
    expanded = [path for word in words for path in glob.glob(word) or [word]]
    code, output, _ = called(*expanded)
    return code, output


def test_it_is_short_and_has_no_python():
    everything = re.findall(r"^```sh[^\n]*\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len([line for block in everything for line in block.splitlines()]) < 10
    assert len(COMMANDS) >= 5 and "```python" not in PAGE


def test_what_it_shows_of_files_is_in_them():
    (block,) = re.findall(r"^```toml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    study = (ROOT / "examples" / "hospitals.toml").read_text(encoding="utf-8")
    assert study.endswith(block)
    lines = (ROOT / "examples" / "hospitals.csv").read_text().splitlines()
    assert "\n".join(["```", *lines[:4], "```"]) in PAGE


@pytest.fixture
def here(tmp_path, monkeypatch) -> Path:
    """The examples, of which the study takes a moment."""
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    study = tmp_path / "examples" / "hospitals.toml"
    text = study.read_text().replace("rounds = 20", "rounds = 4")
    study.write_text(text.replace("seeds = [0, 1, 2, 3, 4]", "seeds = [0]"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_its_commands_end_in_a_model_that_was_exported_reloaded_and_checked(here):
    said = {}
    for command in COMMANDS:
        code, output = run(command)
        assert code == 0, command
        said[command.split()[1]] = output
    assert said["predict"].startswith("predictions of 40 rows: predictions.csv\n")
    names = {path.name for path in (here / "chur").iterdir()}
    assert {"weights.safetensors", "model.pt2", "model.json", "README.md"} <= names
    # What was exported says of the new patients what the run's own model says.
    (folder,) = (path for path in here.glob("runs/*") if path.name[0] != ".")
    about = read_export(here / "chur").about
    trained = co.load(folder).trained("Chur", about["algorithm"], about["seed"])
    new = here / "examples" / "new_patients.csv"
    logits = trained.module(raw_columns(new, trained.preparation))[:, 0]
    expected = ["well" if logit > 0 else "ill" for logit in logits.tolist()]
    assert pd.read_csv("predictions.csv")["predicted"].tolist() == expected
    right = [a == b for a, b in zip(expected, pd.read_csv(new)["outcome"], strict=True)]
    score = f"accuracy on 40 rows with a label: {100 * sum(right) / 40:.1f} %\n"
    assert said["predict"].endswith(score)


def test_the_patients_are_made_by_the_script_beside_them(tmp_path):
    shutil.copy(ROOT / "examples" / "make_hospitals.py", tmp_path)
    runpy.run_path(str(tmp_path / "make_hospitals.py"), run_name="__main__")
    for name in ("hospitals.csv", "new_patients.csv"):
        assert (tmp_path / name).read_text() == (ROOT / "examples" / name).read_text()
