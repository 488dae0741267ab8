"""Attacks on what clients released, and what their success proves."""

from .bounds import epsilon_of_one_run, epsilon_of_rates
from .inversion import inputs_of_layer, rebuilt
from .listening import Heard, Listening, Overheard, Recorded
from .membership import (
    Audit,
    audited,
    canary_scores,
    confidence_of,
    directions,
    likelihood_scores,
    released,
    scores_along,
)
from .one_run import audit_client
from .residuals import NoiseCheck, Residuals, probed
from .told_losses import telling_losses_to

__all__ = [
    "Audit",
    "Heard",
    "Listening",
    "NoiseCheck",
    "Overheard",
    "Recorded",
    "Residuals",
    "audit_client",
    "audited",
    "canary_scores",
    "confidence_of",
    "directions",
    "epsilon_of_one_run",
    "epsilon_of_rates",
    "inputs_of_layer",
    "likelihood_scores",
    "probed",
    "rebuilt",
    "released",
    "scores_along",
    "telling_losses_to",
]
