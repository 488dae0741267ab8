"""Everything that is shown to a person, made from records alone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .figures import (
        clients,
        collaboration,
        curves,
        gains,
        newcomers,
        partners,
        spread,
        trials,
    )
    from .pages import write_report
    from .similarity import similarity_map
    from .tables import chosen, newcomer_summary, summary
    from .timelines import delays, timeline
    from .waiting import wait_summary

_LATE = {
    "chosen": "tables",
    "clients": "figures",
    "collaboration": "figures",
    "curves": "figures",
    "delays": "timelines",
    "gains": "figures",
    "newcomer_summary": "tables",
    "newcomers": "figures",
    "partners": "figures",
    "similarity_map": "similarity",
    "spread": "figures",
    "summary": "tables",
    "timeline": "timelines",
    "trials": "figures",
    "wait_summary": "waiting",
    "write_report": "pages",
}


def __getattr__(name: str) -> Any:
    """Imports what is used first, so that numbers need no drawing."""
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}.")
    return getattr(import_module(f".{_LATE[name]}", __name__), name)


__all__ = [
    "chosen",
    "clients",
    "collaboration",
    "curves",
    "delays",
    "gains",
    "newcomer_summary",
    "newcomers",
    "partners",
    "similarity_map",
    "spread",
    "summary",
    "timeline",
    "trials",
    "wait_summary",
    "write_report",
]
