"""The suite that every method must pass, in rounds and in time, also yours."""

from __future__ import annotations

from .cases import Case, NotApplicable, Setting
from .suite import CHECKS, Check, Finding, check_algorithm, faces_of

__all__ = [
    "CHECKS",
    "Case",
    "Check",
    "Finding",
    "NotApplicable",
    "Setting",
    "check_algorithm",
    "faces_of",
]
