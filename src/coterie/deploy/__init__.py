"""Runs the same algorithms in several processes and, later, on several machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..names import late_names

# Late, because the hub of several sites does not need torch.
if TYPE_CHECKING:
    from .processes import Processes as Processes
    from .processes import join_processes as join_processes

__getattr__, __dir__, __all__ = late_names(__name__)
