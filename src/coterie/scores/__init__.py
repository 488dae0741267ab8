"""Scores, gains and their uncertainty, computed from records."""

from __future__ import annotations

from ..names import publish
from .finals import final_scores as final_scores
from .finals import mean_scores as mean_scores
from .gains import Gain as Gain
from .gains import client_scores as client_scores
from .gains import gain_of as gain_of
from .intervals import Observations as Observations
from .roles import epsilon_by_role as epsilon_by_role
from .summaries import favourite_of as favourite_of
from .summaries import summary as summary

publish(__name__)
