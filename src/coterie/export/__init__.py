"""The model in one's hands: a run that is read without its data."""

from __future__ import annotations

from .runs import Run, load

__all__ = ["Run", "load"]
