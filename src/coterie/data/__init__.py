"""Data sets, ways to divide them, and the federation they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names
from .federation import Federation, Part, Table, federate
from .preparation import Column, Preparation, Schema
from .splits import SPLITS, Assignment, divide

if TYPE_CHECKING:
    from .datasets import DATASETS, load
    from .files import raw_columns

# Data sets bring pandas with them.
__getattr__ = late_names(
    __name__, {"datasets": "DATASETS load", "files": "raw_columns"}
)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted(__all__)


__all__ = [
    "DATASETS",
    "SPLITS",
    "Assignment",
    "Column",
    "Federation",
    "Part",
    "Preparation",
    "Schema",
    "Table",
    "divide",
    "federate",
    "load",
    "raw_columns",
]
