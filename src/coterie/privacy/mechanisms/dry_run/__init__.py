"""Runs a method without data, and checks what it declares to release."""

from .declarations import UndeclaredRelease, declaration, is_within
from .foreseen import Call, CallPlan, Refusal, plan_calls, verify_releases

__all__ = [
    "Call",
    "CallPlan",
    "Refusal",
    "UndeclaredRelease",
    "declaration",
    "is_within",
    "plan_calls",
    "verify_releases",
]
