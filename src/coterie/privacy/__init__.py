"""What leaves a client, and what it tells: ledger, accountants, mechanisms, audits."""

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
from .per_sample import PrivateSimulation
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
    "PrivateSimulation",
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
