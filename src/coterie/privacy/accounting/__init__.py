"""Says what a ledger of releases tells about each client: exact numbers and bounds.

Everything here is a pure function of a ledger. Nothing here trains, draws noise or
touches data. Other rooms may use what is listed, and the modules `accounts` (squares of
mu by client, pair and role), `calibration`, `gaussian`, `ledger` and `subsampled`.
"""

from .gaussian import (
    added,
    composed,
    delta_of,
    epsilon_of,
    epsilons_of,
    mu_from,
    mu_of,
    noise_of,
    renyi,
    replaced,
)
from .joint import joint_losses
from .ledger import Event, Exchange, Input, Ledger, Meetings, Release
from .losses import Losses
from .projection import Observer, Seen, seen_by
from .subsampled import sampled_epsilon, sampled_epsilons, sampled_noise

__all__ = [
    "Event",
    "Exchange",
    "Input",
    "Ledger",
    "Losses",
    "Meetings",
    "Observer",
    "Release",
    "Seen",
    "added",
    "composed",
    "delta_of",
    "epsilon_of",
    "epsilons_of",
    "joint_losses",
    "mu_from",
    "mu_of",
    "noise_of",
    "renyi",
    "replaced",
    "sampled_epsilon",
    "sampled_epsilons",
    "sampled_noise",
    "seen_by",
]
