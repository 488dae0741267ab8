"""Predictions that a method should beat: a constant, and scikit-learn's models."""

from __future__ import annotations

from .measuring import keep_baselines

__all__ = ["keep_baselines"]
