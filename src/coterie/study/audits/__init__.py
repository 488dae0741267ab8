"""Audits of studies: attacks on what their own training releases."""

from .inversions import Inversion
from .trainings import Findings, Proof, audit_study

__all__ = ["Findings", "Inversion", "Proof", "audit_study"]
