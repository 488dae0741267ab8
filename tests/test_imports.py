"""Claims about who imports whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import coterie

PACKAGE = Path(coterie.__file__).parent
ALLOWED = {
    "types",
    "checks",
    "weights",
    "descent",
    "beliefs",
    "selection",
    "projections",
    "graphs",
    "algorithms",
}
FILES = sorted((PACKAGE / "algorithms").glob("*.py"))


def own_imports(path: Path) -> set[str]:
    """First names of the modules of coterie that a file in `algorithms` imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level == 2:
            names |= {node.module} if node.module else {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 1:
            names.add("algorithms")
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= (
                {node.module.partition(".")[2]} if "coterie" in node.module else set()
            )
        elif isinstance(node, ast.Import):
            whole = [a.name for a in node.names if a.name.startswith("coterie")]
            names |= {name.partition(".")[2] for name in whole}
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_algorithms_import_only_pure_pieces_and_each_other(path):
    assert own_imports(path) <= ALLOWED


def test_the_reader_of_imports_sees_every_way_to_write_one(tmp_path):
    lines = [
        "from ..oracle import Simulation",
        "from .. import seeds",
        "from .local import local",
        "from coterie.data.federation import Federation",
        "import coterie.rounds",
        "import torch",
    ]
    file = tmp_path / "written.py"
    file.write_text("\n".join(lines), encoding="utf-8")
    expected = {"oracle", "seeds", "algorithms", "data", "rounds"}
    assert own_imports(file) == expected


HEAVY = ("pandas", "plotly", "sklearn", "typer", "rich", "ot", "flwr", "zenoh")


@pytest.fixture(scope="module")
def imported() -> list[set[str]]:
    """All modules after what training, a study and its numbers need, one by one.

    One process will do, since a module that was imported stays so.
    """
    script = """
import sys
import coterie.oracle, coterie.algorithms
print(*sys.modules)
coterie.run_study, coterie.read_study
print(*sys.modules)
import coterie.tables
print(*sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return [set(line.split()) for line in run.stdout.splitlines()]


def test_heavy_packages_are_not_imported_to_train(imported):
    assert not imported[0] & set(HEAVY)
    assert {"torch", "coterie.oracle"} <= imported[0]


def test_plots_are_not_needed_to_run_a_study(imported):
    assert not imported[1] & {"plotly", "coterie.report"}
    assert "coterie.experiment" in imported[1]


def test_numbers_of_a_study_are_computed_without_drawing(imported):
    assert "plotly" not in imported[2]
    assert "coterie.tables" in imported[2]
