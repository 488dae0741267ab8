"""The same algorithms between processes and, later, machines."""

from .processes import Disconnected, Processes, joined

__all__ = ["Disconnected", "Processes", "joined"]
