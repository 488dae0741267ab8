"""Oracles that wrap an oracle of clients, and change or count what it sends."""

from .personal import PersonalOracle

__all__ = ["PersonalOracle"]
