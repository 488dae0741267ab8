"""Scores, gains and their uncertainty, computed from records."""

from __future__ import annotations

from .finals import final_scores, mean_scores
from .gains import Gain, client_scores, gain_of
from .intervals import Observations
from .roles import epsilon_by_role
from .summaries import favourite_of, summary

__all__ = [
    "Gain",
    "Observations",
    "client_scores",
    "epsilon_by_role",
    "favourite_of",
    "final_scores",
    "gain_of",
    "mean_scores",
    "summary",
]
