"""Runs a method without data, and verifies what the method declares to release."""

from .declarations import Undeclared, is_within, written
from .foreseen import Call, Foreseen, Refusal, foresee, verify_releases

__all__ = [
    "Call",
    "Foreseen",
    "Refusal",
    "Undeclared",
    "foresee",
    "is_within",
    "verify_releases",
    "written",
]
