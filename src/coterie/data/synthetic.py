"""Generated data sets whose best models are known.

Client i belongs to cluster i mod C. Unless a data set says otherwise, the centre c of
its cluster is uniform in (-spread, spread)^d, and its best model is theta_i = c +
variation * N(0, I_d). Values have double precision, so that an error of 1e-30 can be
measured.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..checks import InputError, integer, number
from ..seeds import generator
from .federation import Table

_MOST = 2_000_000_000
"""The most values in one table, 16 GB in double precision."""


def check_size(product: str, values: int) -> None:
    """Refuses more values than fit into memory."""
    if values > _MOST:
        raise InputError(f"{product} must be at most {_MOST:,}, got {values:,}.")


def _optima(
    clients: int,
    clusters: int,
    dimension: int,
    samples: int,
    spread: float,
    variation: float,
    seed: int,
) -> tuple[Float[Tensor, "n d"], Int[Tensor, " n"]]:
    """The best model and the cluster of every client."""
    integer("clients", clients, at_least=1)
    integer("clusters", clusters, at_least=1, at_most=1e6)
    integer("dimension", dimension, at_least=1)
    integer("samples", samples, at_least=1)
    check_size("`clients` * `samples` * `dimension`", clients * samples * dimension)
    number("spread", spread, at_least=0)
    number("variation", variation, at_least=0)
    real, rng = torch.float64, generator(seed, "synthetic", "optima")
    centres = spread * (
        2 * torch.rand(clusters, dimension, generator=rng, dtype=real) - 1
    )
    own = variation * torch.randn(clients, dimension, generator=rng, dtype=real)
    cluster = torch.arange(clients) % clusters
    return centres[cluster] + own, cluster


def _normal(
    seed: int, purpose: str, clients: int, samples: int, dimension: int
) -> Float[Tensor, "n s d"]:
    """Standard normal values from a stream for this purpose."""
    rng = generator(seed, "synthetic", purpose)
    return torch.randn(clients, samples, dimension, generator=rng, dtype=torch.float64)


def regression_table(
    name: str,
    features: Float[Tensor, "n s p"],
    targets: Float[Tensor, "n s *d"],
    cluster: Int[Tensor, " n"],
    optima: Float[Tensor, "n d"],
) -> Table:
    """The table of a regression problem in which every client has s samples."""
    clients, samples = features.shape[:2]
    return Table(
        name,
        features.flatten(0, 1),
        targets.flatten(0, 1),
        "regression",
        1 if targets.ndim == 2 else targets.shape[2],
        group=torch.arange(clients).repeat_interleave(samples),
        clusters=cluster,
        optima=optima,
    )


def linear(
    *,
    clients: int = 20,
    clusters: int = 2,
    dimension: int = 10,
    samples: int = 2000,
    spread: float = 10.0,
    variation: float = 0.0,
    noise: float = 0.0,
    seed: int = 0,
) -> Table:
    """Linear regression in clusters: y = <x, theta_i> + noise * N(0, 1).

    The features x are N(0, I_d), and theta_i is the best linear model without bias.

    >>> linear(clients=3, dimension=2, samples=5).clusters
    tensor([0, 1, 0])
    """
    number("noise", noise, at_least=0)
    theta, cluster = _optima(
        clients, clusters, dimension, samples, spread, variation, seed
    )
    x = _normal(seed, "features", clients, samples, dimension)
    error = _normal(seed, "noise", clients, samples, 1)[:, :, 0]
    y = torch.einsum("nsd,nd->ns", x, theta) + noise * error
    return regression_table("linear", x, y, cluster, theta)


def linear_thirds(
    *,
    clients: int = 30,
    dimension: int = 50,
    smallest: int = 10,
    largest: int = 100,
    tests: int = 200,
    variation: float = 0.1,
    contrast: float = 0.2,
    noise: float = 0.75,
    seed: int = 0,
) -> Table:
    """Linear regression by thirds of unequal size: y = <x, theta_i> + noise * N(0, 1).

    Client i belongs to third c = i mod 3. The entries of theta_i are N(1 + c / 2,
    variation^2). The entries of the client's features are N(0, s^2) with s = 1 + (c -
    1) contrast. Its number of samples is uniform between `smallest` and `largest`.
    `tests` more samples are for testing. A client cannot learn alone with fewer samples
    than dimensions.

    Erickson and Johansson, "Personalized federated learning under model dissimilarity
    constraints", 2025, section 5.1. The paper does not print the standard deviations.

    >>> linear_thirds(clients=4, dimension=2, tests=5).clusters
    tensor([0, 1, 2, 0])
    """
    integer("clients", clients, at_least=1)
    integer("dimension", dimension, at_least=1)
    integer("smallest", smallest, at_least=1)
    integer("largest", largest, at_least=smallest)
    integer("tests", tests, at_least=1)
    number("variation", variation, at_least=0)
    number("contrast", contrast, at_least=0, below=1)
    number("noise", noise, at_least=0)
    drawn = largest + tests
    check_size("`clients` * samples * `dimension`", clients * drawn * dimension)
    third = torch.arange(clients) % 3
    own = _normal(seed, "optima", clients, 1, dimension)[:, 0]
    theta = 1 + third[:, None] / 2 + variation * own
    scale = 1 + (third - 1) * contrast
    x = scale[:, None, None] * _normal(seed, "features", clients, drawn, dimension)
    error = _normal(seed, "noise", clients, drawn, 1)[:, :, 0]
    y = torch.einsum("nsd,nd->ns", x, theta) + noise * error
    rng = generator(seed, "synthetic", "sizes")
    size = torch.randint(smallest, largest + 1, (clients,), generator=rng)
    place = torch.arange(drawn).expand(clients, -1)
    kept = (place < size[:, None]) | (place >= largest)
    group, place = kept.nonzero(as_tuple=True)
    return Table(
        "linear_thirds",
        x[kept],
        y[kept],
        "regression",
        1,
        group=group,
        is_test=place >= largest,
        clusters=third,
        optima=theta,
    )


def logistic(
    *,
    clients: int = 20,
    clusters: int = 2,
    dimension: int = 10,
    samples: int = 2000,
    spread: float = 2.0,
    variation: float = 0.0,
    seed: int = 0,
) -> Table:
    """Logistic regression in clusters: y is 1 with probability sigmoid(<x, theta_i>).

    theta_i minimises the expected logistic loss among linear models without bias.
    """
    table = linear(
        clients=clients,
        clusters=clusters,
        dimension=dimension,
        samples=samples,
        spread=spread,
        variation=variation,
        seed=seed,
    )
    rng = generator(seed, "synthetic", "labels")
    labels = torch.bernoulli(table.targets.sigmoid(), generator=rng).long()
    return table._replace(name="logistic", targets=labels, task="binary")


def mean_estimation(
    *,
    clients: int = 20,
    clusters: int = 2,
    dimension: int = 10,
    samples: int = 100,
    spread: float = 1.0,
    variation: float = 0.0,
    noise: float = 1.0,
    seed: int = 0,
) -> Table:
    """Estimating the mean of each client: y = theta_i + noise * N(0, I_d).

    The only feature is the constant 1, and a target has d entries. So a linear model
    without bias has d weights, which estimate the mean.
    """
    number("noise", noise, at_least=0)
    theta, cluster = _optima(
        clients, clusters, dimension, samples, spread, variation, seed
    )
    y = theta[:, None] + noise * _normal(seed, "noise", clients, samples, dimension)
    return regression_table(
        "mean_estimation", torch.ones_like(y[..., :1]), y, cluster, theta
    )


def volumes(
    *,
    scanners: int = 4,
    samples: int = 16,
    size: int = 16,
    noise: float = 0.3,
    seed: int = 0,
) -> Table:
    """Small 3-D volumes with a ball to segment; scanners differ in contrast.

    Scanner i shows the ball with contrast 1 + i / scanners, of alternating sign, on a
    background of level i / scanners.
    """
    integer("scanners", scanners, at_least=1)
    integer("samples", samples, at_least=1)
    integer("size", size, at_least=4)
    check_size("`scanners` * `samples` * `size`^3", scanners * samples * size**3)
    number("noise", noise, at_least=0)
    rng = generator(seed, "synthetic", "volumes")
    scanner = torch.arange(scanners).repeat_interleave(samples)
    count = len(scanner)
    radius = size * (0.15 + 0.15 * torch.rand(count, 1, 1, 1, generator=rng))
    centre = size * (0.3 + 0.4 * torch.rand(3, count, 1, 1, 1, generator=rng))
    place = torch.arange(size)
    z, y, x = torch.meshgrid(place, place, place, indexing="ij")
    distance = (x - centre[0]) ** 2 + (y - centre[1]) ** 2 + (z - centre[2]) ** 2
    ball = distance <= radius**2  # (M, S, S, S)
    level = (scanner / scanners)[:, None, None, None]
    sign = (1 - 2 * (scanner % 2))[:, None, None, None]
    static = noise * torch.randn(ball.shape, generator=rng)
    image = level + sign * (1 + level) * ball + static
    return Table(
        "volumes",
        image[:, None],
        ball[:, None].to(torch.uint8),
        "segmentation",
        1,
        group=scanner,
    )
