"""The public names of packages, each written once."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from inspect import getsource
from typing import Any


def _public_imports(package: str) -> dict[str, str]:
    """What a package imports "as" itself, and the module of each of these names."""
    found: dict[str, str] = {}
    for node in ast.walk(ast.parse(getsource(sys.modules[package]))):
        if isinstance(node, ast.ImportFrom):
            own = "." * node.level + (node.module or "")
            found |= {a.name: own for a in node.names if a.asname == a.name}
    return found


def public_names(package: str) -> list[str]:
    """The names that a package imports "as" themselves.

    For type checkers, too, `from .file import name as name` makes a name public. So a
    package writes each of its public names once.
    """
    return sorted(_public_imports(package))


def publish(package: str, *more: str) -> list[str]:
    """Sets `__all__` of a package to its public names and `more`, and returns it.

    A type checker would take names that it does not find in a literal `__all__` for
    private ones. So a package calls this function, and assigns nothing.
    """
    found = sorted([*public_names(package), *more])
    sys.modules[package].__all__ = found  # type: ignore[attr-defined]
    return found


def late_names(
    package: str,
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """`__getattr__`, `__dir__` and `__all__` of a package that imports names late.

    Its public names are imported for type checkers alone, and otherwise when they are
    first used. Importing torch and pandas takes seconds, during which the user cannot
    stop a command. Algorithms and sites do not need pandas.
    """
    module_of, names = _public_imports(package), public_names(package)

    def import_name(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}.")
        if module_of[name] == ".":
            return import_module(f".{name}", package)
        return getattr(import_module(module_of[name], package), name)

    return import_name, lambda: names, names
