"""Claims about the house: which rooms there are, and who may import whom."""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import coterie
from coterie.algorithms import ALGORITHMS

PACKAGE = Path(coterie.__file__).parent
TESTS = Path(__file__).parent

ROOMS = (
    "models",
    "graphs",
    "optim",
    "gossip",
    "structure",
    "collaboration",
    "theory",
    "data",
    "similarity",
    "clients",
    "privacy",
    "algorithms",
    "engine",
    "records",
    "scores",
    "export",
    "report",
    "study",
    "planning",
    "deploy",
    "conformance",
    "cli",
)
"""Every room may import those before it, and what stands at the top."""

TOP = {"__init__", "__main__", "types", "checks", "options", "seeds"}
PURE = {"types", "checks", "options", "collaboration", "optim", "graphs", "algorithms"}
PURE |= {"gossip", "structure"}


def imported_modules(path: Path) -> set[str]:
    """Dotted names below `coterie` of all that a file imports."""
    package, names = path.relative_to(PACKAGE).parts[:-1], set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            above = package[: len(package) - node.level + 1]
            last = [node.module] if node.module else [a.name for a in node.names]
            whole = [".".join(("coterie", *above, name)) for name in last]
        elif isinstance(node, ast.ImportFrom) and node.module == "coterie":
            whole = [f"coterie.{a.name}" for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            whole = [node.module or ""]
        elif isinstance(node, ast.Import):
            whole = [a.name for a in node.names]
        else:
            continue
        names |= {n.removeprefix("coterie.") for n in whole if n.startswith("coterie.")}
    return names


def imported_rooms(path: Path) -> set[str]:
    """First names below `coterie` of all that a file imports."""
    return {name.split(".")[0] for name in imported_modules(path)}


FILES = [(room, path) for room in ROOMS for path in (PACKAGE / room).rglob("*.py")]


def relative(path: Path) -> str:
    return str(path.relative_to(PACKAGE).with_suffix(""))


NAMES = [relative(path) for _, path in FILES]


@pytest.mark.parametrize(("room", "path"), FILES, ids=NAMES)
def test_imports_point_one_way(room, path):
    before = ROOMS[: ROOMS.index(room) + 1]
    allowed = (
        PURE if room == "algorithms" else {*before, *TOP, "__version__", "late_names"}
    )
    assert imported_rooms(path) <= allowed


INSIDE = {
    "privacy": ("accounting", "mechanisms", "attacks"),
    "study/private": ("mechanisms", "accounting"),
}
"""Rooms inside a room: each may import those before it."""

WITHIN = [(place, room) for place, rooms in INSIDE.items() for room in rooms]


@pytest.mark.parametrize(("place", "room"), WITHIN)
def test_imports_inside_a_room_point_one_way_too(place, room):
    before = INSIDE[place][: INSIDE[place].index(room) + 1]
    start = place.replace("/", ".")
    files = list((PACKAGE / place / room).rglob("*.py"))
    assert files
    for path in files:
        names = {f"{name}." for name in imported_modules(path)}
        own = {name for name in names if name.startswith(f"{start}.")}
        allowed = tuple(f"{start}.{name}." for name in before)
        assert all(name.startswith(allowed) for name in own), relative(path)


def test_accounting_is_made_of_ledgers_alone():
    for path in (PACKAGE / "privacy" / "accounting").glob("*.py"):
        assert imported_rooms(path) <= {"privacy", "checks", "types"}, relative(path)


@pytest.mark.parametrize("room", INSIDE["privacy"])
def test_a_room_of_privacy_says_what_it_is_for_and_what_others_may_use(room):
    package = import_module(f"coterie.privacy.{room}")
    assert package.__doc__.splitlines()[0].endswith(".")
    assert all(getattr(package, name) is not None for name in package.__all__)


def test_studies_do_not_import_the_attacks_on_them():
    for path in (PACKAGE / "study").rglob("*.py"):
        if "attacks" not in path.parts:
            names = imported_modules(path)
            assert not any("attacks" in name.split(".") for name in names)


def test_the_top_stands_on_nothing_of_the_house():
    for name in ("types", "checks", "options", "seeds"):
        path = PACKAGE / f"{name}.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                own = [node.module] if node.module else [a.name for a in node.names]
                assert set(own) <= TOP


def test_every_module_stands_in_a_room_and_rooms_are_of_a_readable_size():
    assert {path.stem for path in PACKAGE.glob("*.py")} <= TOP
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(ROOMS)
    for room in rooms - {"algorithms"}:
        assert 1 <= len(list((PACKAGE / room).glob("*.py"))) - 1 <= 12, room


def is_factory(function: ast.FunctionDef) -> bool:
    """Whether it makes a method of functions inside it, which share what it knows."""
    made = function.returns is not None and ast.unparse(function.returns)
    return made in ("Algorithm", "Flow")


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=relative)
def test_functions_are_short(path):
    """At most 60 lines, factories of methods aside; ruff bounds their complexity."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef) and not is_factory(node):
            assert node.end_lineno - node.lineno < 60, node.name


def test_a_class_has_a_name_of_its_own():
    """Methods aside, each of which has a `State` of its own."""
    found: dict[str, list[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name != "algorithms":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(relative(path))
    assert not {name: where for name, where in found.items() if len(where) > 1}


def code_lines(path: Path) -> int:
    """Lines that are neither blank nor comment nor docstring."""
    text = path.read_text(encoding="utf-8")
    words = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        for line in range(node.lineno, node.end_lineno + 1)
    }
    lines = enumerate((line.strip() for line in text.splitlines()), start=1)
    return sum(bool(s) and s[0] != "#" and n not in words for n, s in lines)


def test_a_method_is_a_short_file():
    """About 60 lines: what methods share has a name in `optim` or `collaboration`."""
    lengths = [code_lines(PACKAGE / "algorithms" / f"{n}.py") for n in ALGORITHMS]
    assert statistics.median(lengths) <= 62


def test_the_reader_of_imports_sees_every_way_to_write_one():
    lines = [
        "from ..clients.simulation import Simulation",
        "from .. import seeds",
        "from .local import local",
        "from coterie.data.federation import Federation",
        "from coterie import types",
        "import coterie.engine.rounds",
        "import torch",
    ]
    file = PACKAGE / "algorithms" / "written.py"
    tree = ast.parse("\n".join(lines))
    expected = {"clients", "seeds", "algorithms", "data", "types", "engine"}

    class Written(type(file)):
        def read_text(self, *_, **__):
            return ast.unparse(tree)

    assert imported_rooms(Written(file)) == expected


def test_no_test_imports_another():
    wrong = re.compile(
        r"^\s*(?:from|import) +(?:[^#\n]*, *)?(?:test_|conftest)\w*", re.M
    )
    assert wrong.search("    from test_pages import x\nimport re, test_house")
    for path in TESTS.rglob("*.py"):
        found = wrong.findall(path.read_text(encoding="utf-8"))
        assert not found, f"{path.name}: {found}"


def test_no_two_test_files_have_the_same_name():
    """Or the second is not collected, where all are run together."""
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert len(names) == len(set(names))


LISTED = {"graphs", "optim", "gossip", "collaboration", "theory", "data", "similarity"}
LISTED |= {"scores", "export", "report", "planning", "cli", "structure"}
SHOWN = ("docs", "benchmarks", "examples", "reproductions")


def test_what_is_shown_uses_only_what_rooms_list():
    use = re.compile(r"from coterie\.(\w+)([.\w]*) import (\([^)]*\)|[^\n]*)")
    files = [path for name in SHOWN for path in (TESTS.parent / name).rglob("*.*")]
    for path in [p for p in files if p.suffix in (".py", ".md")]:
        for room, more, names in use.findall(path.read_text(encoding="utf-8")):
            if room in LISTED:
                package = import_module(f"coterie.{room}{more}")
                inside = hasattr(package, "__path__")
                listed = package.__all__ if inside else ()
                named = {
                    n.split()[0] for n in names.strip("()").split(",") if n.strip()
                }
                assert named <= set(listed), f"{path.name}: {room}{more}"


HEAVY = ("pandas", "plotly", "sklearn", "typer", "rich", "ot", "flwr", "zenoh")


@pytest.fixture(scope="module")
def imported() -> list[set[str]]:
    """All modules after what training, a study and its numbers need, one by one.

    One process will do, since a module that was imported stays so.
    """
    script = """
import gc, sys
gc.disable()
import coterie.clients.simulation, coterie.algorithms
import torch
from coterie.clients.kernels import Kernel
from coterie.clients.samples import Batch
from coterie.models import OBJECTIVES
model, sample = torch.nn.Linear(2, 2), torch.ones(1, 2)
kernel = Kernel(model, OBJECTIVES["classification"], sample, torch.zeros(1).long())
kernel.grad(torch.ones(3, 6), Batch(torch.zeros(1).long(), torch.ones(3, 1)))
print(*sys.modules)
coterie.run_study, coterie.read_study
print(*sys.modules)
import coterie.report.tables
print(*sys.modules)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return [set(line.split()) for line in run.stdout.splitlines()]


def test_heavy_packages_are_not_imported_to_train(imported):
    assert not imported[0] & {*HEAVY, "torch._dynamo"}  # the last takes two seconds
    assert {"torch", "coterie.clients.simulation"} <= imported[0]


def test_plots_are_not_needed_to_run_a_study(imported):
    assert not imported[1] & {"plotly", "coterie.report.figures"}
    assert "coterie.study.experiment" in imported[1]


def test_numbers_of_a_study_are_computed_without_drawing(imported):
    assert "plotly" not in imported[2]
    assert "coterie.report.tables" in imported[2]
