"""Graphs whose edges ring, and rows of their nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.graphs import RingTimes, edges_of
from coterie_theory.gossip import poisson_rings

REAL = torch.float64


def uniform(name: str, n: int) -> tuple[Tensor, Tensor]:
    """A graph, and the same rate for all its edges, 1 in all."""
    edges = edges_of(name, n)
    return edges, torch.full((len(edges),), 1 / len(edges), dtype=REAL)


def drawn(rates: Tensor, until: float, seed: int = 0) -> RingTimes:
    return poisson_rings(rates, until, torch.Generator().manual_seed(seed))


def normal(n: int, d: int, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=rng, dtype=REAL)


def times(*values: float) -> Tensor:
    return torch.tensor(values, dtype=REAL)


def deviation(x: Tensor) -> Tensor:
    """|x - x_bar|^2 over the last two axes."""
    return (x - x.mean(-2, keepdim=True)).square().sum((-2, -1))
