"""The command line: what a person types, and what the terminal shows."""

from .commands import main
from .reproductions import Claim, items_of, lead, run_shown, settings

__all__ = ["Claim", "items_of", "lead", "main", "run_shown", "settings"]
