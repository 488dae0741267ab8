"""Attacks what clients released, and says what the success of attacks proves.

Attacks may use `mechanisms` and `accounting`. Other rooms may use what is listed.
"""

from .bounds import epsilon_of_one_run, epsilon_of_rates, mu_of_rates
from .canary_rows import (
    TRIALS,
    Decisions,
    View,
    decisions,
    heard_events,
    pair_canaries,
    row_canaries,
    view_of,
)
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
    "TRIALS",
    "Audit",
    "Decisions",
    "Heard",
    "Listening",
    "NoiseCheck",
    "Overheard",
    "Recorded",
    "Residuals",
    "View",
    "audit_client",
    "audited",
    "canary_scores",
    "confidence_of",
    "decisions",
    "directions",
    "epsilon_of_one_run",
    "epsilon_of_rates",
    "heard_events",
    "inputs_of_layer",
    "likelihood_scores",
    "mu_of_rates",
    "pair_canaries",
    "probed",
    "rebuilt",
    "released",
    "row_canaries",
    "scores_along",
    "telling_losses_to",
    "view_of",
]
