"""What a run leaves behind, and how it is read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names

if TYPE_CHECKING:
    from .cells import SNAPSHOT_CLIENTS, SPANS, Baselines, Cell, pack, unpack
    from .files import locked, replacing
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

# Folders and tables bring pandas with them, which packing a state does not need; cells
# bring torch, which writing a study does not need.
__getattr__ = late_names(
    __name__,
    {
        "cells": "SNAPSHOT_CLIENTS SPANS Baselines Cell pack unpack",
        "files": "locked replacing",
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
    "locked",
    "pack",
    "replacing",
    "rungs",
    "search_of",
    "unpack",
]
