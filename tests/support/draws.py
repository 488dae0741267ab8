"""Random numbers by a seed alone."""

from __future__ import annotations

import torch


def rng(seed: int = 0) -> torch.Generator:
    """A generator that is given to one function."""
    return torch.Generator().manual_seed(seed)
