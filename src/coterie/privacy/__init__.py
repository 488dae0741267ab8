"""What leaves a client, and what it tells: ledger, accountants, mechanisms, audits."""

from .ledger import Event, Exchange, Input, Ledger, Release

__all__ = ["Event", "Exchange", "Input", "Ledger", "Release"]
