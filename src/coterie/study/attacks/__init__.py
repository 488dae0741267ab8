"""Attacks on studies: audits of what their own training releases."""

from .inversions import Inversion
from .proofs import Proof
from .trainings import AuditFindings, audit_study

__all__ = ["AuditFindings", "Inversion", "Proof", "audit_study"]
