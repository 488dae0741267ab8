"""Claims about the house: which rooms there are, and who may import whom."""

from __future__ import annotations

import ast
import io
import re
import statistics
import subprocess
import sys
import tokenize
import tomllib
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path

import pytest

import coterie
import coterie_theory
from coterie.algorithms import ALGORITHMS

PACKAGE = Path(coterie.__file__).parent
THEORY = Path(coterie_theory.__file__).parent
TESTS = Path(__file__).parent

ROOMS = (
    "models",
    "graphs",
    "optim",
    "collaboration",
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

TOP = {"__init__", "__main__", "types", "checks", "options", "seeds", "methods"}
TOP |= {"names"}
PURE = {"types", "checks", "options", "collaboration", "optim", "graphs", "algorithms"}
PURE |= {"names"}


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
    """The name of a module: below `coterie`, or in full."""
    above = PACKAGE if path.is_relative_to(PACKAGE) else THEORY.parent
    return str(path.relative_to(above).with_suffix(""))


NAMES = [relative(path) for _, path in FILES]


@pytest.mark.parametrize(("room", "path"), FILES, ids=NAMES)
def test_imports_point_one_way(room, path):
    before = ROOMS[: ROOMS.index(room) + 1]
    allowed = PURE if room == "algorithms" else {*before, *TOP, "__version__"}
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
        used = imported_rooms(path)
        assert used <= {"privacy", "checks", "types", "names"}, relative(path)


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


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=relative)
def test_the_theory_is_never_imported(path):
    named = [
        name
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        for name in names_imported(node)
    ]
    assert not [name for name in named if name.split(".")[0] == THEORY.name]


def names_imported(node: ast.AST) -> list[str]:
    """What an import names in full, also one by a string."""
    if isinstance(node, ast.ImportFrom) and not node.level:
        return [node.module or ""]
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
        return [a.value for a in node.args if isinstance(a, ast.Constant)]
    return []


def test_the_reader_of_full_names_sees_every_way_to_write_one():
    lines = (
        "from coterie_theory.rates import sgd_bound",
        "import coterie_theory.rates as rates",
        "importlib.import_module('coterie_theory.rates')",
        "from .rates import sgd_bound",
    )
    found = [names_imported(n) for n in ast.walk(ast.parse("\n".join(lines)))]
    assert [name for names in found for name in names] == ["coterie_theory.rates"] * 3


def test_the_top_stands_on_nothing_of_the_house():
    for name in ("types", "checks", "options", "seeds"):
        path = PACKAGE / f"{name}.py"
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                own = [node.module] if node.module else [a.name for a in node.names]
                assert set(own) <= TOP


def test_rooms_of_the_theory_are_of_a_readable_size():
    for room in (THEORY, *(path.parent for path in THEORY.glob("*/__init__.py"))):
        assert 1 <= len(list(room.glob("*.py"))) - 1 <= 13, room
        assert not list(room.glob("*/*/*.py")), "it has no rooms inside rooms"


def test_every_module_stands_in_a_room_and_rooms_are_of_a_readable_size():
    assert {path.stem for path in PACKAGE.glob("*.py")} <= TOP
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert rooms == set(ROOMS)
    for room in rooms - {"algorithms"}:
        assert len(list((PACKAGE / room).glob("*.py"))) - 1 <= 12, room
        inside = {path.stem for path in (PACKAGE / room).rglob("*.py")}
        assert inside > {"__init__"}, room


ENDS = ("algorithms", "cli", "conformance", "deploy")
ENDS += ("export", "planning", "report", "study")
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path
    for path in PACKAGE.rglob("*.py")
}
MODULES = {name.removesuffix(".__init__"): path for name, path in MODULES.items()}


def modules_used(name: str) -> set[str]:
    """The modules of the house from which a module takes something."""
    path, found = MODULES[name], set()
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = resolve_name("." * node.level + (node.module or ""), package)
            names = [alias.name for alias in node.names]
            for taken in import_module(base).__all__ if names == ["*"] else names:
                inside = f"{base}.{taken}"
                if inside not in MODULES and MODULES[base].stem == "__init__":
                    thing = getattr(import_module(base), taken)
                    inside = getattr(thing, "__module__", base)
                found.add(inside if inside in MODULES else base)
    return found


def test_every_module_serves_a_command_a_method_or_a_study():
    """What serves none of them belongs to the theory."""
    reached: set[str] = set()
    todo = {n for n in MODULES if n.split(".")[1:2] and n.split(".")[1] in ENDS}
    while todo:
        reached |= todo
        todo = {used for name in todo for used in modules_used(name)} - reached
    top = {f"coterie.{name}" for name in TOP}
    packages = {n for n, path in MODULES.items() if path.stem == "__init__"}
    assert MODULES.keys() - packages - top <= reached


def test_a_wheel_has_every_package():
    text = (TESTS.parent / "pyproject.toml").read_text(encoding="utf-8")
    packages = tomllib.loads(text)["tool"]["hatch"]["build"]["targets"]["wheel"]
    there = {f"src/{path.parent.name}" for path in PACKAGE.parent.glob("*/__init__.py")}
    assert set(packages["packages"]) == there


EVERYTHING = sorted([*PACKAGE.rglob("*.py"), *THEORY.rglob("*.py")])


def test_complexity_is_bounded_in_the_whole_package():
    """Ruff holds it. Length is not bounded: a file is as long as its one idea needs."""
    lint = tomllib.loads((TESTS.parent / "pyproject.toml").read_text("utf-8"))
    lint = lint["tool"]["ruff"]["lint"]
    assert "C901" in lint["select"] and "C901" not in lint["ignore"]
    assert lint["mccabe"]["max-complexity"] == 12
    excused = [at for at, codes in lint["per-file-ignores"].items() if "C901" in codes]
    assert excused == ["tests/*"]
    for path in EVERYTHING:
        assert "noqa: C901" not in path.read_text(encoding="utf-8"), path.name


def code_lines(path: Path) -> int:
    """How many lines of code a file has, besides imports, docstrings and comments."""
    text = path.read_text(encoding="utf-8")
    layout = {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout | {tokenize.COMMENT, tokenize.ENDMARKER}:
            found |= {*range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(text)):
        words = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if words or isinstance(node, ast.Import | ast.ImportFrom):
            found -= {*range(node.lineno, node.end_lineno + 1)}
    return len(found)


def test_half_of_the_methods_have_at_most_sixty_lines_of_code():
    lines = {
        name: code_lines(PACKAGE / "algorithms" / f"{name}.py") for name in ALGORITHMS
    }
    assert lines["fedavg"] == 30
    assert statistics.median(lines.values()) <= 60


LIBRARIES = {
    "Console": "rich",
    "Exception": "Python",
    "Extension": "jinja2",
    "Generic": "Python",
    "NamedTuple": "Python",
    "pickle.Unpickler": "Python",
    "Protocol": "Python",
    "RenderHook": "rich",
    "RuntimeError": "Python",
    "TorchDispatchMode": "torch",
    "TorchFunctionMode": "torch",
    "UserWarning": "Python",
    "ValueError": "Python",
    "nn.Module": "torch",
    "torch.autograd.Function": "torch",
}
"""Classes that a library requires one to inherit from."""

OURS = {
    "InputError": "an error that is caught as one",
    "Wrapping": "attributes and verbs that an oracle which wraps another passes on",
    "_TableFields": "a named tuple that refuses bad fields needs a second class",
}
"""Our own classes with an implementation that others inherit, and why."""


def test_no_class_inherits_an_implementation_except_where_a_library_requires_it():
    classes = [
        node
        for path in EVERYTHING
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    bases = {
        node.name: [ast.unparse(base).partition("[")[0] for base in node.bases]
        for node in classes
    }
    interfaces = {name for name, above in bases.items() if "Protocol" in above}
    for name, above in bases.items():
        allowed = {*LIBRARIES, *OURS, *(interfaces if name in interfaces else ())}
        assert set(above) <= allowed, name
    used = {base for above in bases.values() for base in above}
    assert used >= {*LIBRARIES, *OURS}  # or the lists are longer than they must be


def changes_vars(node: ast.AST) -> bool:
    """Whether it changes an object behind its back: vars(x)["y"] = 1 and the like."""
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del):
        inner = node.value
    elif isinstance(node, ast.Attribute):
        changing = ("setdefault", "update", "pop", "clear", "popitem")
        inner = node.value if node.attr in changing else node
    else:
        return False
    return isinstance(inner, ast.Call) and ast.unparse(inner.func) == "vars"


def test_no_object_is_changed_through_vars():
    for line in ("vars(x)['y'] = 1", "vars(x).setdefault('y', 1)", "del vars(x)['y']"):
        assert any(map(changes_vars, ast.walk(ast.parse(line)))), line
    assert not any(map(changes_vars, ast.walk(ast.parse("y = vars(x)['y']"))))
    for path in EVERYTHING:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        assert not any(map(changes_vars, ast.walk(tree))), path.name


def test_a_class_has_a_name_of_its_own():
    """Methods aside, each of which has a `State` of its own."""
    found: dict[str, list[str]] = {}
    for path in EVERYTHING:
        if path.parent.name != "algorithms":
            for node in ast.parse(path.read_text(encoding="utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    found.setdefault(node.name, []).append(relative(path))
    assert not {name: where for name, where in found.items() if len(where) > 1}


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


LISTED = {"graphs", "optim", "collaboration", "data", "similarity"}
LISTED |= {"scores", "export", "report", "planning", "cli"}
SHOWN = ("docs", "benchmarks", "examples", "reproductions")


def test_what_is_shown_uses_only_what_rooms_list():
    use = re.compile(r"from (coterie(?:_theory)?)([.\w]*) import (\([^)]*\)|[^\n]*)")
    files = [path for name in SHOWN for path in (TESTS.parent / name).rglob("*.*")]
    for path in [p for p in files if p.suffix in (".py", ".md")]:
        for top, below, names in use.findall(path.read_text(encoding="utf-8")):
            if top == THEORY.name or below[1:].split(".")[0] in LISTED:
                package = import_module(f"{top}{below}")
                inside = hasattr(package, "__path__")
                listed = package.__all__ if inside else ()
                named = {
                    n.split()[0] for n in names.strip("()").split(",") if n.strip()
                }
                assert named <= set(listed), f"{path.name}: {top}{below}"


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
