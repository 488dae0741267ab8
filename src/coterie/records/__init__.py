"""What a run leaves behind, and how it is read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names
from .cells import SNAPSHOT_CLIENTS, SPANS, Baselines, Cell, pack, unpack
from .files import locked, replacing
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

if TYPE_CHECKING:
    from .folders import Folder
    from .tables import GroupLabels, Outcomes, Records, Snapshots, load_records

# These bring pandas with them, which packing a state does not need.
__getattr__ = late_names(
    __name__,
    {
        "folders": "Folder",
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
