"""Data sets, ways to divide them, and the federation they make."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..names import late_names

# Imported late: most of these need torch and pandas, and a look at a file does not.
if TYPE_CHECKING:
    from .datasets import DATASETS as DATASETS
    from .datasets import load as load
    from .federation import Federation as Federation
    from .federation import Part as Part
    from .federation import Table as Table
    from .federation import federate as federate
    from .files import raw_columns as raw_columns
    from .hard_instance import hard_samples as hard_samples
    from .libraries.hugging_face import from_hugging_face as from_hugging_face
    from .libraries.torch_datasets import from_torch as from_torch
    from .preparation import Column as Column
    from .preparation import Preparation as Preparation
    from .preparation import Schema as Schema
    from .splits import SPLITS as SPLITS
    from .splits import Assignment as Assignment
    from .splits import divide as divide

__getattr__, __dir__, __all__ = late_names(__name__)
