"""The suite that every method must pass, in rounds and in time, including yours."""

from __future__ import annotations

from .cases import Setting
from .suite import Check, Finding, check_algorithm, faces_of

__all__ = [
    "Check",
    "Finding",
    "Setting",
    "check_algorithm",
    "faces_of",
]
