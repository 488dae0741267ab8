"""What a ledger of releases reveals of each client: exact numbers and bounds.

All functions of this room are pure functions of a ledger. They do not train, draw noise
or touch data. Other rooms may use the listed names, and the modules `accounts` (squares
of mu by client, pair and role), `calibration`, `gaussian`, `ledger` and `subsampled`.
"""

from .gaussian import (
    compose_mu,
    delta_of,
    epsilon_of,
    epsilons_of,
    mu_from,
    mu_of,
    noise_of,
    removal_sensitivity,
    renyi,
    replacement_sensitivity,
)
from .joint import joint_losses
from .ledger import Event, Exchange, Input, Ledger, Meetings, Release
from .losses import Losses
from .projection import Knowledge, Observer, seen_by
from .subsampled import sampled_epsilon, sampled_epsilons, sampled_noise

__all__ = [
    "Event",
    "Exchange",
    "Input",
    "Knowledge",
    "Ledger",
    "Losses",
    "Meetings",
    "Observer",
    "Release",
    "compose_mu",
    "delta_of",
    "epsilon_of",
    "epsilons_of",
    "joint_losses",
    "mu_from",
    "mu_of",
    "noise_of",
    "removal_sensitivity",
    "renyi",
    "replacement_sensitivity",
    "sampled_epsilon",
    "sampled_epsilons",
    "sampled_noise",
    "seen_by",
]
