"""Distances between clients' data, with standard errors, from a few samples of each.

Every distance here is |E phi(z_i) - E phi(z_j)|^2, where phi is a function of a sample
z: z itself, its square z z', or the Gaussian kernel at z. Let m_i be the mean of phi
over the S_i samples of client i, and C_i the covariance of phi(z_i). The plain estimate
|m_i - m_j|^2 is too large by the noise tr C_i / S_i + tr C_j / S_j of the means. With
few samples, this noise is larger than the distance. So our estimate leaves out the
products of a sample with itself. With k(z, z') = <phi(z), phi(z')>, the estimate is

    squared_ij = mean_{s != t} k(z_is, z_it) + mean_{s != t} k(z_js, z_jt)
                 - 2 mean_{s, t} k(z_is, z_jt).

Our estimate is unbiased. If two clients are equal, it is negative half of the time. Let
d = E phi(z_i) - E phi(z_j). The variance of our estimate is

    L + Q,   L = 4 d'C_i d / S_i + 4 d'C_j d / S_j,
             Q = 2 tr C_i^2 / S_i^2 + 2 tr C_j^2 / S_j^2 + 4 tr C_i C_j / (S_i S_j).

`error` is the root of the variance. We estimate tr C^2 from products of different
samples, without bias (Chen, Zhang, Zhong, "Tests for high-dimensional covariance
matrices", JASA 2010). For tr C_i C_j we use an upper bound: the root of tr C_i^2 tr
C_j^2. With estimates in place of d and C, L becomes L + 2 Q on average, so we subtract
Q once.

We treat clients in blocks, so that no array of N x N x D numbers is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .. import checks
from .samples import Samples

_FEWEST = 4
"""The smallest number of samples with which we can estimate a client's noise."""

_LEAN = 4
"""In a client's estimated noise, the mean over all clients counts as these samples."""

_BLOCK = 1e6
"""The number of values in one block of work."""

Block = tuple[Tensor, Tensor, Tensor]
"""Clients (c,), mean kernels (c, l, n) of their samples with every client, and kernels
(c, l, l) of a client's samples with each other."""


class Distances(NamedTuple):
    """Unbiased estimates of squared distances, and their standard errors.

    Estimates and errors are 0 on the diagonal. An estimate can be negative.
    """

    squared: Float[Tensor, "n n"]
    error: Float[Tensor, "n n"]


def from_halves(
    cross: Float[Tensor, "n n"],
    spread: Float[Tensor, "n n"],
    known: Bool[Tensor, "n n"],
) -> Distances:
    """Distances from products of two independent estimates of a difference.

    Two independent estimates of a vector d have covariance S each. Their inner product
    has the variance 2 d'S d + tr S^2. This is at most 2 |d|^2 s + s^2, with s^2 = tr
    S^2.

    Args:
        cross: the products.
        spread: s of each pair.
        known: whether a pair has a product; the error of other pairs is infinite.
    """
    apart = ~torch.eye(len(cross), dtype=torch.bool, device=cross.device)
    variance = 2 * cross.clamp(min=0) * spread + spread.square()
    error = torch.where(known, variance.sqrt(), torch.inf)
    return Distances(cross * (known & apart), torch.where(apart, error, 0))


def moment_distances(samples: Samples, *, order: int = 1) -> Distances:
    """Distances of means, |E z_i - E z_j|^2, or of second moments, |E z z' - E z z'|^2.

    Args:
        samples: the samples of the clients.
        order: 1 for means; 2 for second moments in Frobenius norm. If z consists of
            features and response, second moments determine linear regression.
    """
    check_samples(samples)
    checks.integer("order", order, at_least=1, at_most=2)
    if order == 1:
        return by_features(centre(samples), lambda z: z)
    n, size, d = samples.values.shape
    # Uses features if this is less work than products of all pairs of samples.
    if d + 1 <= 2 * size and n * d * (d + 1) / 2 <= 40 * _BLOCK:
        return by_features(samples, squares_of)
    return _by_products(samples, lambda z, other: (z @ other.T).square_())


def mmd_distances(samples: Samples, *, bandwidth: float | None = None) -> Distances:
    """Squared maximum mean discrepancies with kernel exp(-|z - z'|^2 / (2 h^2)).

    The function compares all pairs of samples. 10,000 samples in total take half a
    second on one core. 100,000 samples take a hundred times as long; use
    `fourier_distances` instead.

    Args:
        samples: the samples of the clients.
        bandwidth: h; None takes half of `median_distance`. With a small bandwidth,
            details count more (such as the question which label belongs to which
            features), but more samples are needed.
    """
    check_samples(samples)
    samples = centre(samples)
    h = bandwidth_of(samples, bandwidth)

    def kernel(z: Tensor, other: Tensor) -> Tensor:
        z, other = z / h, other / h
        exponent = torch.addmm(-other.square().sum(1)[None] / 2, z, other.T)
        return exponent.sub_(z.square().sum(1, keepdim=True) / 2).clamp_(max=0).exp_()

    return _by_products(samples, kernel)


def median_distance(samples: Samples) -> float:
    """The median distance between two samples of any clients.

    With more than 2,000 samples, the function uses the first few of every client.
    """
    n = len(samples.size)
    few = max(2, -(-2000 // n))
    some = samples.values[:, :few][samples.mask[:, :few]]
    some = some[:: max(1, len(some) // 4000)]
    median = float(torch.nn.functional.pdist(some.double()).median())
    return (
        median if median > 0 else 1.0
    )  # most samples are the same, so any scale will do


def bandwidth_of(samples: Samples, bandwidth: float | None) -> float:
    """The given bandwidth, or half of the median distance."""
    if bandwidth is None:
        return median_distance(samples) / 2
    return checks.number("bandwidth", bandwidth, above=0)


def check_samples(samples: Samples) -> None:
    """Refuses samples that are not finite, and clients with too few of them."""
    checks.finite("samples", samples.values)
    if int(samples.size.min()) < _FEWEST:
        client = int(samples.size.argmin())
        raise checks.InputError(
            f"`samples` must have at least {_FEWEST} of every client, "
            f"but client {client} has {int(samples.size[client])}."
        )


def centre(samples: Samples) -> Samples:
    """The samples minus their mean: the same distances with less rounding error."""
    mask = samples.mask[..., None]
    mean = (samples.values * mask).sum((0, 1)) / samples.size.sum()
    return samples._replace(values=(samples.values - mean) * mask)


def squares_of(z: Float[Tensor, "*n l d"]) -> Float[Tensor, "*n l p"]:
    """Features of z with the same inner products as the matrices z z'."""
    row, column = torch.triu_indices(z.shape[-1], z.shape[-1], device=z.device)
    twice = (2 - (row == column).to(z)).sqrt()  # off the diagonal
    return z[..., row] * z[..., column] * twice


def _blocks(clients: int, each: float) -> Iterator[Tensor]:
    """The clients, in groups that fit into one block."""
    yield from torch.arange(clients).split(max(1, int(_BLOCK / each)))


def mean_features(samples: Samples, features: Callable[[Tensor], Tensor]) -> Tensor:
    """(N, P) the mean features of every client."""
    width = features(samples.values[:1, :1]).shape[2]
    means = []
    for who in _blocks(len(samples.size), samples.values.shape[1] * width):
        mask, size = samples.mask[who, :, None], samples.size[who, None]
        means.append((features(samples.values[who]) * mask).sum(1) / size)
    return torch.cat(means)


def by_features(
    samples: Samples, features: Callable[[Tensor], Tensor], means: Tensor | None = None
) -> Distances:
    """Distances for a kernel that is the inner product of features."""
    means = mean_features(samples, features) if means is None else means

    def blocks() -> Iterator[Block]:
        n, size, _ = samples.values.shape
        for who in _blocks(n, size * max(n, size, means.shape[1])):
            phi = features(samples.values[who])
            yield who.to(phi.device), phi @ means.T, phi @ phi.mT

    return _estimate(samples, blocks())


def _by_products(
    samples: Samples, kernel: Callable[[Tensor, Tensor], Tensor]
) -> Distances:
    """Distances for a kernel of pairs of samples."""
    n, size, _ = samples.values.shape
    everybody = samples.values.flatten(0, 1)
    share = samples.mask / samples.size[:, None].to(everybody)

    def blocks() -> Iterator[Block]:
        for who in _blocks(n, size * n * size):
            product = kernel(samples.values[who].flatten(0, 1), everybody)
            product = product.view(len(who), size, n, size)
            own = product[torch.arange(len(who)), :, who]
            yield who.to(own.device), product.mul_(share).sum(3), own

    return _estimate(samples, blocks())


def _estimate(samples: Samples, blocks: Iterator[Block]) -> Distances:
    """The distances by the formulas of the module, from blocks of kernels."""
    n, count = len(samples.size), samples.size.to(samples.values)
    product, linear = samples.values.new_zeros(2, n, n)
    own_product, power = samples.values.new_zeros(2, n)
    for who, reach, own in blocks:
        mask, size = samples.mask[who].to(own), count[who, None]
        own.diagonal(dim1=1, dim2=2).zero_()
        own *= mask[:, :, None] * mask[:, None]
        others = own.sum(2) / (size - 1)
        # How much closer each sample is to its own client than to another.
        nearer = reach.neg_().add_(others[..., None])
        nearer[torch.arange(len(who)), :, who] = 0
        share = (mask / size)[:, None]  # (c, 1, l)
        mean = (share @ nearer)[:, 0]
        square = (share @ nearer.square_())[:, 0]
        own_product[who] = (share @ others[..., None])[:, 0, 0]
        product[who] = own_product[who][:, None] - mean
        linear[who] = 4 * (square - mean.square()).clamp(min=0) / (size - 1)
        power[who] = _power(own, size[:, 0])
    squared = own_product[:, None] + own_product - product - product.T
    # A client's estimate has the weight of its samples, minus those used for its means.
    worth = count - _FEWEST + 1
    power = ((worth * power + _LEAN * power.mean()) / (worth + _LEAN)).clamp(min=0)
    single = power.sqrt() / (count * (count - 1)).sqrt()
    quadratic = 2 * (single[:, None] + single).square()
    variance = torch.maximum(linear + linear.T - quadratic, quadratic)
    apart = ~torch.eye(n, dtype=torch.bool, device=squared.device)
    return Distances(squared * apart, variance.sqrt() * apart)


def _power(own: Float[Tensor, "c l l"], size: Float[Tensor, " c"]) -> Tensor:
    """(c,) unbiased estimates of tr C^2; `own` is 0 on its diagonals."""
    row, size = own.sum(2, dtype=torch.float64), size.double()
    two = own.square().sum((1, 2), dtype=torch.float64)
    three = row.square().sum(1) - two
    four = row.sum(1).square() - 2 * two - 4 * three
    value = (two - (2 * three - four / (size - 3)) / (size - 2)) / (size * (size - 1))
    return value.to(own)
