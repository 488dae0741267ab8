"""What records say of algorithms and clients, in numbers: scores, gains, how sure."""

from __future__ import annotations

from .finals import final_scores, mean_scores
from .gains import Gain, client_scores, gain_of, score_error
from .intervals import Estimate, Trials, client_estimates, mean_estimate, seeds_alone
from .summaries import costs_of, favourite_of, summary

__all__ = [
    "Estimate",
    "Gain",
    "Trials",
    "client_estimates",
    "client_scores",
    "costs_of",
    "favourite_of",
    "final_scores",
    "gain_of",
    "mean_estimate",
    "mean_scores",
    "score_error",
    "seeds_alone",
    "summary",
]
