"""The command line: what a person types, and what the terminal shows."""

from .commands import main

__all__ = ["main"]
