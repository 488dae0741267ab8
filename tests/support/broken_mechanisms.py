"""Mechanisms that hide less than their ledger says, while a patch lasts."""

from __future__ import annotations

import pytest
import torch

from coterie.privacy.mechanisms import Mechanism


def lessen_noise(patch: pytest.MonkeyPatch, factor: float) -> None:
    """Rows leave with so much of their noise."""
    released = Mechanism.release

    def less(self, x, ref, stream, clients, share=1.0, **options):
        return released(self, x, ref, stream, clients, share * factor, **options)

    patch.setattr(Mechanism, "release", less)


def stop_clipping(patch: pytest.MonkeyPatch) -> None:
    """Rows leave as long as they are, with their noise."""
    released = Mechanism.release

    def whole(self, x, ref, *names, **options):
        return x + released(self, torch.zeros_like(x), 0.0, *names, **options)

    patch.setattr(Mechanism, "release", whole)
