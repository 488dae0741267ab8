"""Clients whose every gradient hides every single sample."""

from .losses import usual_loss_clip
from .simulation import PrivateSimulation

__all__ = ["PrivateSimulation", "usual_loss_clip"]
