"""The checks that every method must pass, in rounds and in time, also your own."""

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
