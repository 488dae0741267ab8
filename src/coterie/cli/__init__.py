"""The command line: what a person types, and what the terminal shows."""

from .commands import main
from .reproductions import Claim, run_shown

__all__ = ["Claim", "main", "run_shown"]
