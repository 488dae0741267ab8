"""The user's files that a module needs without an `import` statement.

A module can load them with `importlib` by name or by path, or find them elsewhere on
Python's path. We find them in `sys.modules`, in the objects that the module holds, and
in its texts.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import re
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

PACKAGE = Path(__file__).parents[1]

_LOADERS = ("import_module", "__import__", "run_module", "find_spec")


def file_of(module: object) -> Path | None:
    """The file of a module; None if it has none."""
    file = getattr(module, "__file__", None)
    return Path(file) if isinstance(file, str) else None


def is_installed(path: Path) -> bool:
    """Whether a file belongs to Python, to this package or to an installed package.

    >>> is_installed(Path(ast.__file__))
    True
    """
    if {"site-packages", "dist-packages"} & {*path.parts} or PACKAGE in path.parents:
        return True
    places = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return any(Path(place) in path.parents for place in places)


def modules_loaded_by(name: str, path: Path) -> Iterator[tuple[str, Path]]:
    """Modules and files that a user's module loads, or that its objects come from."""
    module = sys.modules.get(name)
    holds = dict(vars(module)) if file_of(module) == path else {}
    for each in sorted(holds.pop("__brought__", ())):
        if file := file_of(sys.modules.get(each)):
            yield each, file
    for value in holds.values():
        # Importing a part of a package makes it an attribute of the package.
        if not isinstance(value, ModuleType) or not value.__name__.startswith(
            f"{name}."
        ):
            yield from _origins(value)
    for text in _texts(_nodes(path.read_bytes())):
        if text.endswith(".py"):
            yield Path(text).stem, path.parent / text


def _origins(value: Any) -> Iterator[tuple[str, Path]]:
    """The modules and files that a module, function, class or object comes from."""
    if isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, ModuleType):
        if file := file_of(value):
            yield value.__name__, file
        return
    kind = value if isinstance(value, type) else type(value)
    for each in [value, *vars(kind).values()]:
        if isinstance(each, FunctionType):
            each = each.__dict__.get("__wrapped__", each)
            code = getattr(each, "__code__", None)
            if code is not None:
                yield str(each.__module__), Path(code.co_filename)
    if file := file_of(sys.modules.get(str(kind.__module__))):
        yield str(kind.__module__), file


def modules_named_in(name: str, path: Path) -> Iterator[str]:
    """The modules that texts of a file may name, if it has `import_module` or similar.

    The text may be anywhere in the file, such as in `NAME = "helper"`.
    """
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    nodes = _nodes(path.read_bytes())
    loads = any(
        getattr(node, field, None) in _LOADERS
        for node in nodes
        for field in ("attr", "id", "name")
    )
    for text in _texts(nodes) if loads else ():
        if re.fullmatch(r"\.*\w+(\.\w+)*", text):
            try:
                yield importlib.util.resolve_name(text, package)
            except ImportError:  # not a module: a text that begins with dots
                continue


def _texts(nodes: Iterator[ast.AST] | list[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


@functools.cache
def _nodes(source: bytes) -> list[ast.AST]:
    try:
        return [*ast.walk(ast.parse(source))]
    except (SyntaxError, ValueError):  # compiled, or not a module
        return []
