"""The software and hardware that made a cell, and the source files of modules."""

from __future__ import annotations

import ast
import functools
import hashlib
import platform
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from .. import __version__
from .dependencies import (
    PACKAGE,
    file_of,
    is_installed,
    modules_loaded_by,
    modules_named_in,
)
from .digests import code_digest

_ELSEWHERE = (
    "algorithms",
    "attacks",
    "cli",
    "conformance",
    "deploy",
    "export",
    "planning",
    "records",
    "report",
    "reproductions",
    "scores",
)
"""Packages and subpackages that can change a cell only if its method uses them."""


def versions(device: torch.device, method: str) -> dict[str, str]:
    """The software and hardware that results of a method's module may depend on."""
    hardware = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else f"{platform.machine()}, {torch.get_num_threads()} threads"
    )
    return {
        "coterie": __version__,
        "source": _source(method),
        "python": platform.python_version(),
        "torch": str(torch.__version__),  # it has its own type
        "numpy": np.__version__,
        "system": platform.system(),
        "device": hardware,
    }


@functools.cache
def _source(method: str) -> str:
    """A digest of the code of this package that the cells of a method depend on."""
    return code_digest(sorted(shared_files() | method_files(method)))


def shared_files() -> set[Path]:
    """The files of this package that train every method."""
    return {
        file
        for file in PACKAGE.rglob("*.py")
        if not {*_ELSEWHERE} & {*file.relative_to(PACKAGE).parts[:2]}
    }


@functools.cache
def method_files(method: str) -> frozenset[Path]:
    """The files of this package that a method's module needs, with its own file."""
    files = sources_of(method).values()
    return frozenset(file for file in files if PACKAGE in file.parents)


def used_methods(module: str) -> set[Path]:
    """The files of our methods that a user's module and its helpers may use.

    If the module imports the package itself, the result is the files of all methods.
    """
    found: set[Path] = set()
    for name, path in sources_of(module).items():
        for named in _packaged_names(name.partition(" in ")[0], path):
            found |= _methods_of(named)
    return found


def _packaged_names(module: str, path: Path) -> Iterator[str]:
    """The names in this package that a user's file may import."""
    own = f"{PACKAGE.name}."
    for node in _import_statements(path.read_bytes()):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            names *= not node.level
        yield from (name for name in names if f"{name}.".startswith(own))
    for name in modules_named_in(module, path):
        if f"{name}.".startswith(own):
            yield name


def _methods_of(name: str) -> set[Path]:
    """The files of the methods that a name in this package may give."""
    room, method = [*name.split("."), "", ""][1:3]
    if room not in ("", "*", "algorithms", "methods"):
        return set()
    if room == "algorithms" and (PACKAGE / room / f"{method}.py").is_file():
        return {*method_files(f"{PACKAGE.name}.{room}.{method}")}
    return {*(PACKAGE / "algorithms").glob("*.py")}


def digest_of(files: Iterable[Path]) -> str:
    """A digest of the contents of files in this order."""
    hashed = hashlib.blake2b(digest_size=8)
    for file in files:
        with file.open("rb") as stream:
            hashed.update(hashlib.file_digest(stream, "blake2b").digest())
    return hashed.hexdigest()


def sources_of(module: str) -> dict[str, Path]:
    """The files of an imported module and of all modules that it uses, by module.

    For modules of Python and of installed packages, we do not look further.
    """
    path = file_of(sys.modules.get(module))
    if path is None:
        return {}
    found, todo = {module: path}, [(module, path)]
    if PACKAGE not in path.parents and is_installed(path):
        return found
    while todo:
        for name, file in _used_by(*todo.pop()):
            if file in found.values() or not file.is_file():
                continue
            key = f"{name} in {file.parent.name}" if name in found else name
            found[key] = file
            todo.append((name, file))
    return found


def _used_by(module: str, path: Path) -> Iterator[tuple[str, Path]]:
    """The modules that a module uses or may import, and where their files may be."""
    place = path.parent if path.name == "__init__.py" else path
    root = place.parents[module.count(".")]
    ours = PACKAGE in path.parents  # our modules use `import` statements only
    names = [*_imports(path, module)]
    leads: list[tuple[str, Path]] = []
    if not ours:
        names += modules_named_in(module, path)
        names += [above for name in names for above in _packages(name)]
        leads += modules_loaded_by(module, path)
    for name in names:
        here = root.joinpath(*name.split("."))
        leads += [(name, here.parent / f"{here.name}.py"), (name, here / "__init__.py")]
        if not ours and (loaded := file_of(sys.modules.get(name))):
            leads.append((name, loaded))
    for name, file in leads:
        if name != "__main__" and (ours or not is_installed(file)):
            yield name, file


def _packages(name: str) -> list[str]:
    """The packages that contain a module, which an import of it also runs.

    >>> _packages("a.b.c")
    ['a', 'a.b']
    """
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def _imports(path: Path, module: str) -> Iterator[str]:
    """The names of all modules that a file may import."""
    parts = module.split(".")
    for node in _import_statements(path.read_bytes()):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            up = node.level - (path.name == "__init__.py")
            package = parts[: len(parts) - up] if node.level else []
            whole = ".".join([*package, *([node.module] if node.module else [])])
            beside = [path.parents[node.level - 1] / a.name for a in node.names]
            # The `__init__` of our package only lists names of its rooms.
            if whole != PACKAGE.name or not all(map(_is_module, beside)):
                yield whole
            yield from (f"{whole}.{alias.name}" for alias in node.names)


@functools.cache
def _import_statements(source: bytes) -> list[ast.Import | ast.ImportFrom]:
    """The import statements of a file; cached, because methods share files."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # not a module that can be imported
        return []
    nodes = ast.walk(tree)
    return [node for node in nodes if isinstance(node, ast.Import | ast.ImportFrom)]


def _is_module(place: Path) -> bool:
    return place.with_suffix(".py").is_file() or (place / "__init__.py").is_file()
