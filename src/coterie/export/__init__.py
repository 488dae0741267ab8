"""The model in one's hands: loaded from a run, exported, and used on new rows."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .runs import Run, load

if TYPE_CHECKING:
    from .folders import Export, default_label, export_model
    from .predictions import Exported, Predictions, predict, read_export

_LATE = {
    "folders": "Export default_label export_model",
    "predictions": "Exported Predictions predict read_export",
}


def __getattr__(name: str) -> Any:
    """Imports what is used first."""
    for module, names in _LATE.items():
        if name in names.split():
            return getattr(import_module(f".{module}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")


__all__ = [
    "Export",
    "Exported",
    "Predictions",
    "Run",
    "default_label",
    "export_model",
    "load",
    "predict",
    "read_export",
]
