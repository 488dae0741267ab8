"""Data sets, ways to divide them, and the federation they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names

if TYPE_CHECKING:
    from .datasets import DATASETS, load
    from .federation import Federation, Part, Table, federate
    from .files import raw_columns
    from .hard_instance import hard_samples
    from .libraries.hugging_face import from_hugging_face
    from .libraries.torch_datasets import from_torch
    from .preparation import Column, Preparation, Schema
    from .splits import SPLITS, Assignment, divide

# Imported late: most of these need torch and pandas, and a look at a file does not.
__getattr__ = late_names(
    __name__,
    {
        "datasets": "DATASETS load",
        "federation": "Federation Part Table federate",
        "files": "raw_columns",
        "hard_instance": "hard_samples",
        "libraries.hugging_face": "from_hugging_face",
        "libraries.torch_datasets": "from_torch",
        "preparation": "Column Preparation Schema",
        "splits": "SPLITS Assignment divide",
    },
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
    "from_hugging_face",
    "from_torch",
    "hard_samples",
    "load",
    "raw_columns",
]
