"""The problem on which nobody can do better than the lower bound of collaboration."""

from __future__ import annotations

import torch

from ..checks import integer, number
from ..seeds import generator
from ..theory.lower_bounds import hard_samples
from .federation import Table
from .synthetic import check_size, clustered


def hard_instance(
    *,
    clients: int = 20,
    twins: int = 5,
    dimension: int = 20,
    samples: int = 200,
    delta: float = 0.25,
    distance: float = 0.25,
    variance: float = 1.0,
    seed: int = 0,
) -> Table:
    """Coins of hidden bias, one coordinate per sample: hard for every method.

    A sample of client i shows coordinate k, uniform among `dimension`, and a coin of
    chance 1/2 + delta_i alpha_k with signs alpha that all share. The first `twins`
    clients have delta_i = delta, the others delta_i = delta - distance, or 0 if that
    is less: then they know nothing of alpha. Use a linear model without bias.

    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, proof of Theorem 8.1.

    >>> hard_instance(clients=3, twins=2, dimension=4, samples=5).clusters
    tensor([0, 0, 1])
    """
    integer("clients", clients, at_least=1)
    integer("twins", twins, at_least=1, at_most=clients)
    integer("samples", samples, at_least=1)
    integer("dimension", dimension, at_least=1)
    number("distance", distance, at_least=0)
    check_size("`clients` * `samples` * `dimension`", clients * samples * dimension)
    cluster = (torch.arange(clients) >= twins).long()
    hard = hard_samples(
        distance * cluster.double(),
        generator(seed, "synthetic", "hard_instance"),
        delta=delta,
        dimension=dimension,
        samples=samples,
        variance=variance,
    )
    return clustered("hard_instance", hard.features, hard.targets, cluster, hard.optima)
