"""Audits of studies: attacks on what their own training releases."""

from .inversions import Inversion
from .trainings import AuditFindings, Proof, audit_study

__all__ = ["AuditFindings", "Inversion", "Proof", "audit_study"]
