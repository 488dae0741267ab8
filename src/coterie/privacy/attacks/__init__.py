"""Attacks on the releases of clients, and the proofs that follow from their success.

Attacks may use `mechanisms` and `accounting`. Other rooms may use the listed names.
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
from .listening import FirstRows, Listener, ListeningOracle, OverheardClients
from .membership import (
    Audit,
    audit_scores,
    confidence_of,
    likelihood_scores,
    scores_along,
)
from .residuals import NoiseCheck, Residuals, probe_residuals
from .told_losses import telling_losses_to

__all__ = [
    "TRIALS",
    "Audit",
    "Decisions",
    "FirstRows",
    "Listener",
    "ListeningOracle",
    "NoiseCheck",
    "OverheardClients",
    "Residuals",
    "View",
    "audit_scores",
    "confidence_of",
    "decisions",
    "epsilon_of_one_run",
    "epsilon_of_rates",
    "heard_events",
    "inputs_of_layer",
    "likelihood_scores",
    "mu_of_rates",
    "pair_canaries",
    "probe_residuals",
    "rebuilt",
    "row_canaries",
    "scores_along",
    "telling_losses_to",
    "view_of",
]
