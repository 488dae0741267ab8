"""The same algorithms between processes and, later, machines."""

from .processes import Processes, joined

__all__ = ["Processes", "joined"]
