"""The files of a run, and how they are written and read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names

if TYPE_CHECKING:
    from .cells import SNAPSHOT_CLIENTS, SPANS, Baselines, Cell, pack, unpack
    from .files import lock_folder, replacing
    from .folders import Folder
    from .searches import (
        COLUMNS,
        FoundSettings,
        Options,
        Rung,
        Search,
        Step,
        rungs,
        search_of,
    )
    from .tables import GroupLabels, Outcomes, Records, Snapshots, load_records

# Imported late: folders and tables import pandas, which packing a state does not need.
# Cells import torch, which writing a study does not need.
__getattr__ = late_names(
    __name__,
    {
        "cells": "SNAPSHOT_CLIENTS SPANS Baselines Cell pack unpack",
        "files": "lock_folder replacing",
        "folders": "Folder",
        "searches": "COLUMNS FoundSettings Options Rung Search Step rungs search_of",
        "tables": "GroupLabels Outcomes Records Snapshots load_records",
    },
)


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted(__all__)


__all__ = [
    "COLUMNS",
    "SNAPSHOT_CLIENTS",
    "SPANS",
    "Baselines",
    "Cell",
    "Folder",
    "FoundSettings",
    "GroupLabels",
    "Options",
    "Outcomes",
    "Records",
    "Rung",
    "Search",
    "Snapshots",
    "Step",
    "load_records",
    "lock_folder",
    "pack",
    "replacing",
    "rungs",
    "search_of",
    "unpack",
]
