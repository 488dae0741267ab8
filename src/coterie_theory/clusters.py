"""All-for-all in clusters that are found from a few samples; section 8.6.

Notation as in `coterie_theory.collaboration`.

References:
    Even, PhD thesis, 2024, section 8.6, tel-04877971.

Differences (each with a test; see docs/errata.md): Theorem 8.4 has other constants,
d_eff uses a trace, and the threshold is for squared distances.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from coterie import checks
from coterie.similarity.distances import check_samples
from coterie.similarity.samples import Samples

from .rates import LossClass, tuned_bound


def noise_of(covariance: Float[Tensor, "p p"]) -> tuple[float, float]:
    """The largest eigenvalue nu^2 of a covariance and `d_eff = Tr / nu^2`.

    The printed |.|_2 / nu^2 is 1 for every covariance.
    """
    nu = float(torch.linalg.eigvalsh(covariance)[-1])
    return nu, float(covariance.trace()) / nu


@dataclass(frozen=True)
class Clusters:
    """M clusters of C clients, found by thresholding distances of sample means.

    Clients i and j are joined if |m_i - m_j|^2 <= u. Here m_i is the mean of S samples
    of Gaussian-like vectors (Assumption 8.6.1). The expectations of these vectors
    differ by at least Delta between clusters.
    """

    clusters: int  # M
    size: int  # C
    samples: int  # S
    separation: float  # Delta
    noise: float  # nu^2
    dimension: float  # d_eff
    threshold: float  # u

    def __post_init__(self) -> None:
        """Checks that the threshold is above the noise."""
        least = 8 * self.noise * self.dimension / self.samples
        checks.number("threshold", self.threshold, at_least=least)

    @property
    def miss_chance(self) -> float:
        """A bound on the chance to miss a member: `exp(-S u / (16 nu^2))`.

        The exponent has 16, because the difference of two means has twice the variance
        of one mean. The thesis prints 8.
        """
        return math.exp(-self.samples * self.threshold / (16 * self.noise))

    @property
    def confusion_chance(self) -> float:
        """A bound on the probability that a client of another cluster is joined.

        The distance of the two clients is Delta or 2 sqrt(u):

        `exp(-S max(2 u, Delta^2 - 2 u) / (8 nu^2))`.
        """
        u, gap = self.threshold, self.separation**2
        return math.exp(-self.samples * max(2 * u, gap - 2 * u) / (8 * self.noise))

    @property
    def inverse_size(self) -> float:
        """A bound on the share E[1 / N_i] of the variance.

        `1 / C + (C - 1) miss_chance`.
        """
        return min(1.0, 1 / self.size + (self.size - 1) * self.miss_chance)

    def bias(self, farthest: float) -> float:
        """A bound on E[sum_j l_ij |E xi_i - E xi_j|^2], from the farthest two clusters.

        `b_max^2 ((M - 1) confusion_chance + (C - 1) miss_chance)
        + 4 u 1{4 u >= Delta^2}`.
        """
        strangers = (self.clusters - 1) * self.confusion_chance
        strangers = min(1.0, strangers + (self.size - 1) * self.miss_chance)
        mixed = 4 * self.threshold >= self.separation**2
        return farthest**2 * strangers + (4 * self.threshold if mixed else 0.0)


def cluster_threshold(separation: float) -> float:
    """The threshold `u = Delta^2 / 4` on squared distances, printed as Delta / 4."""
    return separation**2 / 4


def cluster_samples(separation: float, *, noise: float, dimension: float) -> int:
    """Samples to separate clusters: `S >= 32 nu^2 d_eff / Delta^2`; Corollary 8.6.1.

    Then `cluster_threshold` is above the noise. The thesis prints 16, which ignores
    that both means have noise.
    """
    return math.ceil(32 * noise * dimension / separation**2)


def linear_diameter(optima: Float[Tensor, "n d"]) -> float:
    """`D = sqrt(1 + max_i |x_i^*|^2)` for linear regression (a'x - b)^2 / 2.

    Let z = (a, b). A gradient is the matrix z z' times the vector (x, -1). So the
    distance of two clients is at most D |E z_i z_i' - E z_j z_j'|. The printed D lacks
    the 1.
    """
    return math.sqrt(1 + float(optima.square().sum(1).max()))


def estimated_bound(
    found: Clusters,
    start: float,
    calls: int,
    losses: LossClass,
    *,
    diameter: float,
    farthest: float,
) -> float:
    """A bound on the mean excess of All-for-all in found clusters; Theorem 8.4.

    It is `tuned_bound` with variance `sigma^2 inverse_size`, and the bias `D^2 / (2 mu)
    bias(farthest)`. As in the thesis, its first part treats the found weights as if
    they were the weights of the true clusters, with rho = s = 1.

    Args:
        found: how the clusters are found.
        start: F^0.
        calls: K. Their samples must be different from the samples with which the
            clusters are found.
        losses: the losses of every client.
        diameter: D, the factor from means to gradients, see `linear_diameter`.
        farthest: b_max, the largest |E xi_i - E xi_j|.
    """
    own = replace(losses, variance=losses.variance * found.inverse_size)
    bias = diameter**2 / (2 * losses.mu) * found.bias(farthest)
    return tuned_bound(start, calls, own) + bias


def samples_needed(samples: Samples, separation: float) -> int:
    """The number of samples per client that the theorem needs to separate clusters.

    32 nu^2 d_eff / Delta^2 for clusters whose means differ by Delta = `separation`,
    with the noise nu^2 and effective dimension of the clients' pooled covariance.
    """
    check_samples(samples)
    checks.number("separation", separation, above=0)
    mask, size = samples.mask[..., None], samples.size[:, None, None]
    own = (samples.values * mask).sum(1, keepdim=True) / size
    rest = ((samples.values - own) * mask).flatten(0, 1).double()
    covariance = rest.T @ rest / int((samples.size - 1).sum())
    noise, dimension = noise_of(covariance)
    return cluster_samples(separation, noise=noise, dimension=dimension)
