"""Claims about the notebooks of `examples/`: they run from their first cell on."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from support.notebooks import run_notebook

EXAMPLES = Path(__file__).parents[2] / "examples"
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


def test_there_is_a_notebook_to_begin_with():
    assert "first_model" in {path.stem for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_beside_its_data(path, tmp_path, monkeypatch):
    shutil.copytree(EXAMPLES, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    shown = run_notebook(tmp_path / path.name)
    # Tables and pages show themselves.
    assert all(value is None or "<" in value._repr_html_() for value in shown)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_kept_without_outputs(path):
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs") and cell.get("execution_count") is None


def test_a_cell_that_fails_is_noticed(tmp_path):
    cells = [{"cell_type": "code", "source": ["x = 1\n", "x / 0"]}]
    (tmp_path / "bad.ipynb").write_text(json.dumps({"cells": cells}))
    with pytest.raises(ZeroDivisionError):
        run_notebook(tmp_path / "bad.ipynb")
