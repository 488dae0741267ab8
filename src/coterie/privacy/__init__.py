"""What leaves a client, and what it tells: ledger, accountants, mechanisms, audits."""

from .gaussian import (
    added,
    composed,
    delta_of,
    epsilon_by_renyi,
    epsilon_of,
    epsilons_of,
    mu_from,
    mu_of,
    noise_of,
    order_of,
    renyi,
    replaced,
)
from .ledger import Event, Exchange, Input, Ledger, Release

__all__ = [
    "Event",
    "Exchange",
    "Input",
    "Ledger",
    "Release",
    "added",
    "composed",
    "delta_of",
    "epsilon_by_renyi",
    "epsilon_of",
    "epsilons_of",
    "mu_from",
    "mu_of",
    "noise_of",
    "order_of",
    "renyi",
    "replaced",
]
