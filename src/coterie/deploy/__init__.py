"""Runs the same algorithms in several processes and, later, on several machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import late_names

if TYPE_CHECKING:
    from .processes import Processes, join_processes

# Late, because the hub of several sites does not need torch.
__getattr__ = late_names(__name__, {"processes": "Processes join_processes"})


def __dir__() -> list[str]:
    """The public names, also those that are not imported yet."""
    return sorted(__all__)


__all__ = ["Processes", "join_processes"]
