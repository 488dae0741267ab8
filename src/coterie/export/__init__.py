"""Models of clients: loaded from a run, exported, and used on new rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..names import late_names

if TYPE_CHECKING:
    from .folders import Export as Export
    from .folders import default_label as default_label
    from .folders import export_all as export_all
    from .folders import export_model as export_model
    from .predictions import ExportedModel as ExportedModel
    from .predictions import Predictions as Predictions
    from .predictions import predict as predict
    from .predictions import read_export as read_export
    from .runs import Run as Run
    from .runs import load as load

__getattr__, __dir__, __all__ = late_names(__name__)
