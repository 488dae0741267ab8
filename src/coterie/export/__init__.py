"""Models of clients: loaded from a run, exported, and used on new rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names
from .runs import Run, load

if TYPE_CHECKING:
    from .folders import Export, default_label, export_all, export_model
    from .predictions import ExportedModel, Predictions, predict, read_export

__getattr__ = late_names(
    __name__,
    {
        "folders": "Export default_label export_all export_model",
        "predictions": "ExportedModel Predictions predict read_export",
    },
)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted(__all__)


__all__ = [
    "Export",
    "ExportedModel",
    "Predictions",
    "Run",
    "default_label",
    "export_all",
    "export_model",
    "load",
    "predict",
    "read_export",
]
