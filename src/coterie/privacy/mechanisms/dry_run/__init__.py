"""Runs a method without data, and sees what it would release."""

from .foreseen import Call, Foreseen, Refusal, foresee

__all__ = ["Call", "Foreseen", "Refusal", "foresee"]
