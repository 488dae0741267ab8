"""The hard problem that proves the lower bound for collaboration."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..checks import integer, number
from ..seeds import generator
from .federation import Table
from .synthetic import check_size, regression_table


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

    A sample of client i shows a coordinate k, uniform among `dimension`, and a coin
    that is 1 with probability 1/2 + delta_i alpha_k. The signs alpha_k, 1 or -1, are
    the same for all clients.

    The first `twins` clients have delta_i = delta. The others have delta_i = delta -
    distance, or 0 if that is negative. With delta_i = 0, samples reveal nothing about
    alpha. Use a linear model without bias.

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
    return regression_table(
        "hard_instance", hard.features, hard.targets, cluster, hard.optima
    )


class HardInstance(NamedTuple):
    """Samples of the hard problem of Theorem 8.1."""

    features: Float[Tensor, "n s d"]  # unit vectors e_k, k uniform
    targets: Float[Tensor, "n s"]  # of mean 1/2 + delta_i alpha_k
    optima: Float[Tensor, "n d"]  # 1/2 + delta_i alpha
    tilts: Float[Tensor, " n"]  # delta_i


def tilts_of(distance: Float[Tensor, " n"], delta: float) -> Float[Tensor, " n"]:
    """`delta_i = (delta - b_i1)_+`: how much client i's samples tell client 1."""
    number("delta", delta, above=0.0, at_most=0.5)
    return (delta - distance).clamp(min=0)


def hard_samples(
    distance: Float[Tensor, " n"],
    rng: torch.Generator,
    *,
    delta: float,
    dimension: int,
    samples: int,
    variance: float = 1.0,
) -> HardInstance:
    """Samples of clients at given distances from the first client, which needs help.

    A sample shows one coordinate k, and a coin that is 1 with probability 1/2 + delta_i
    alpha_k, with alpha in {-1, 1}^d. The loss of a model x is (x_k - coin)^2. So its
    strong convexity mu and smoothness beta are 2 / d. Let x_i^* minimise the expected
    loss f_i. Then f_i(x_j^*) - f_i(x_i^*) = (delta_i - delta_j)^2 <= b_ij^2. Only a
    model with most signs of alpha right can have an excess loss below delta^2 / 36.

    Args:
        distance: b_i1, which is 0 for the first client.
        rng: draws alpha and the samples.
        delta: delta_1, at most 1/2.
        dimension: d.
        samples: the number of samples of each client.
        variance: about the variance of a target, at least 1. Each target is multiplied
            by this number with probability 1 / variance, and is set to 0 otherwise.
    """
    integer("dimension", dimension, at_least=1)
    integer("samples", samples, at_least=1)
    number("variance", variance, at_least=1.0)
    real, shape = distance.dtype, (len(distance), samples)
    tilts = tilts_of(distance, delta)
    alpha = 2.0 * torch.randint(2, (dimension,), generator=rng).to(real) - 1
    optima = 0.5 + tilts[:, None] * alpha
    k = torch.randint(dimension, shape, generator=rng)
    coin = torch.bernoulli(optima.gather(1, k), generator=rng)
    kept = torch.rand(shape, generator=rng, dtype=real) * variance < 1
    features = torch.nn.functional.one_hot(k, dimension).to(real)
    return HardInstance(features, variance * coin * kept, optima, tilts)
