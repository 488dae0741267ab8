"""Clients whose every gradient hides every single sample."""

from .simulation import PrivateSimulation

__all__ = ["PrivateSimulation"]
