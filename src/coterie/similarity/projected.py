"""Distances between clients' data by random frequencies and random directions.

`fourier_distances` estimates the maximum mean discrepancy by random frequencies, and
`sliced_distances` the sliced Wasserstein distance. Both compute features of samples,
and then estimate distances and standard errors as in `distances`.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from .. import checks
from ..seeds import generator
from .distances import (
    Distances,
    bandwidth_of,
    by_features,
    centre,
    check_samples,
    mean_features,
)
from .samples import Samples


def fourier_distances(
    samples: Samples,
    *,
    bandwidth: float | None = None,
    frequencies: int = 256,
    seed: int = 0,
) -> Distances:
    """Estimates of `mmd_distances` by random frequencies, fast for many samples.

    The discrepancy is the mean of |E e^{iwz_i} - E e^{iwz_j}|^2 over normal w of
    variance 1 / h^2 (Rahimi, Recht, "Random features for large-scale kernel machines",
    NeurIPS 2007). The time grows linearly with the number of samples. Estimates are
    still unbiased. The standard error includes the noise of the random frequencies.
    """
    check_samples(samples)
    checks.integer("frequencies", frequencies, at_least=2)
    samples = centre(samples)
    d, rng = samples.values.shape[2], generator(seed, "frequencies")
    w = torch.randn(d, frequencies, generator=rng, dtype=torch.float64)
    w = w.to(samples.values) / bandwidth_of(samples, bandwidth)

    def waves(z: Tensor) -> Tensor:
        angle = z @ w
        return torch.cat([angle.cos(), angle.sin()], -1) / math.sqrt(frequencies)

    means = mean_features(samples, waves)
    found = by_features(samples, waves, means)
    halves = torch.stack(means.tensor_split(2, 1)) * math.sqrt(frequencies)
    drawing = _variance_over_frequencies(halves) / frequencies
    return Distances(found.squared, (found.error.square() + drawing).sqrt())


def sliced_distances(
    samples: Samples, *, projections: int = 50, folds: int = 5, seed: int = 0
) -> Distances:
    """Squared sliced Wasserstein-2 distances: a mean over directions on the sphere.

    In one dimension, the squared distance is int (F_i^-1 - F_j^-1)^2, with the quantile
    functions F^-1. Each client divides its samples into folds (parts). The quantile
    functions of a fold, in all directions and on a common grid, are one vector. The
    estimate is the distance of the clients' means of these vectors, as in
    `moment_distances`.

    If two clients are equal and have equally many samples, the estimate is unbiased.
    For other pairs, the bias vanishes as folds grow. The standard error is for the
    drawn directions: it includes the noise of samples, but not the noise of the
    directions. In one dimension there is only one direction, so nothing is random.

    Args:
        samples: the samples of the clients.
        projections: the number of directions.
        folds: the number of parts of a client's samples, of at least two samples each.
        seed: names the stream of directions.
    """
    check_samples(samples)
    checks.integer("projections", projections, at_least=1)
    checks.integer("folds", folds, at_least=4)
    least = int(samples.size.min())
    if least < 2 * folds:
        raise checks.InputError(
            f"`samples` must have at least {2 * folds} of every client for {folds} "
            f"folds, but client {int(samples.size.argmin())} has {least}."
        )
    quantiles = _quantiles(samples, _directions(samples, projections, seed), folds)
    size = torch.full_like(samples.size, folds)
    return by_features(centre(Samples(quantiles, size)), lambda z: z)


def _directions(samples: Samples, projections: int, seed: int) -> Tensor:
    """(d, P) unit vectors."""
    d = samples.values.shape[2]
    if d == 1:
        return samples.values.new_ones(1, 1)
    rng = generator(seed, "directions")
    drawn = torch.randn(d, projections, generator=rng, dtype=torch.float64)
    return (drawn / drawn.norm(dim=0)).to(samples.values)


def _quantiles(
    samples: Samples, directions: Float[Tensor, "d p"], folds: int
) -> Float[Tensor, "n f q"]:
    """Quantile functions of every fold, scaled so that squared norms are means."""
    n, most, _ = samples.values.shape
    each = samples.size // folds  # (N,) samples of a fold
    grid = int(each.max())
    device = samples.size.device
    place = torch.arange(grid, device=device)
    fold = torch.arange(folds, device=device)[:, None] * each[:, None, None]
    index = (fold + place).clamp(max=most - 1).flatten(1)  # (N, folds * grid)
    line = samples.values @ directions
    line = line.gather(1, index[..., None].expand(-1, -1, line.shape[2]))
    line = line.view(n, folds, grid, -1)
    beyond = place >= each[:, None]  # (N, grid)
    line = line.masked_fill(beyond[:, None, :, None], torch.inf).sort(2).values
    # The grid has as many points as the largest fold has samples.
    level = ((place + 0.5) / grid * each[:, None]).long()
    level = level[:, None, :, None].expand_as(line)
    return line.gather(2, level).flatten(2) / math.sqrt(grid * line.shape[3])


def _variance_over_frequencies(means: Float[Tensor, "2 n r"]) -> Tensor:
    """(N, N) variance over w of |a_i(w) - a_j(w)|^2, with a = cosines + i sines."""
    cosine, sine = means
    size = means.square().sum(0)  # |a|^2
    total = size.sum(1)
    cross = cosine @ cosine.T + sine @ sine.T
    first = total[:, None] + total - 2 * cross
    mixed = (size * cosine) @ cosine.T + (size * sine) @ sine.T
    second = size.square().sum(1)
    second = second[:, None] + second + 2 * size @ size.T - 4 * (mixed + mixed.T)
    second += 4 * cosine.square() @ cosine.square().T
    second += 4 * sine.square() @ sine.square().T
    second += 8 * (cosine * sine) @ (cosine * sine).T
    r = means.shape[2]
    apart = ~torch.eye(len(size), dtype=torch.bool, device=size.device)
    return ((second / r - (first / r).square()) * apart).clamp(min=0)
