"""Data sets, ways to divide them, and the federation they make."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .federation import PARTS, Federation, Part, PartName, Table, federate
from .preparation import Column, Preparation, Preparations, Schema
from .splits import SPLITS, Assignment, divide

if TYPE_CHECKING:
    from .datasets import DATASETS, load
    from .files import raw_columns

_LATE = {"DATASETS": "datasets", "load": "datasets", "raw_columns": "files"}


def __getattr__(name: str) -> Any:
    """Imports data sets when one is asked for: they bring pandas with them."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    return getattr(import_module(f".{_LATE[name]}", __name__), name)


__all__ = [
    "DATASETS",
    "PARTS",
    "SPLITS",
    "Assignment",
    "Column",
    "Federation",
    "Part",
    "PartName",
    "Preparation",
    "Preparations",
    "Schema",
    "Table",
    "divide",
    "federate",
    "load",
    "raw_columns",
]
