"""What a run leaves behind, and how it is read again."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .cells import SNAPSHOT_CLIENTS, SPANS, Cell, pack, unpack
from .files import locked, replacing
from .searches import COLUMNS, Options, Rung, Search, Step, rungs, search_of

if TYPE_CHECKING:
    from .folders import Folder
    from .tables import Outcomes, Records, Snapshots, load_records

# These bring pandas with them, which packing a state does not need.
_LATE = {
    "Folder": "folders",
    "Outcomes": "tables",
    "Records": "tables",
    "Snapshots": "tables",
    "load_records": "tables",
}


def __getattr__(name: str) -> Any:
    """Imports the names of `_LATE` when they are used first."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    return getattr(import_module(f".{_LATE[name]}", __name__), name)


__all__ = [
    "COLUMNS",
    "SNAPSHOT_CLIENTS",
    "SPANS",
    "Cell",
    "Folder",
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
