"""Runs the same algorithms in several processes and, later, on several machines."""

from .processes import Processes, join_processes

__all__ = ["Processes", "join_processes"]
