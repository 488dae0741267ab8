"""What leaves a client, and what it tells: ledger, accountants, mechanisms, audits."""

from .ledger import Event, Exchange, Input, Ledger, Release
from .per_sample import PrivateSimulation
from .subsampled import sampled_epsilon, sampled_epsilons, sampled_noise

__all__ = [
    "Event",
    "Exchange",
    "Input",
    "Ledger",
    "PrivateSimulation",
    "Release",
    "sampled_epsilon",
    "sampled_epsilons",
    "sampled_noise",
]
