"""Executable theory of All-for-one and All-for-all with known biases.

Client i wants the minimiser x_i^* of its own loss f_i, from gradients of variance at
most sigma^2 = `variance` that all clients draw at every call. All f_i are mu-strongly
convex and beta-smooth (`Losses`). How much client j can help client i is bounded by a

- `distance` b_ij >= |grad f_i - grad f_j|, everywhere for All-for-one, at the optima
  x_j^* for All-for-all, or by a
- `gap` c_ij >= f_i(x_j^*) - f_i(x_i^*), which is at most b_ij^2 / (2 mu).

With `N_i^eps(c) = #{j : c_ij <= eps}`, nobody gets to precision eps with fewer than
sigma^2 / (mu eps) / N_i^eps(b^2 / (4 mu)) calls, up to a constant, and the two methods
need little more. Whatever the weights L, All-for-one is stochastic gradient descent
with variance sigma^2 sum_j l_ij^2, and All-for-all is one with the constants of
`effective`, so that every guarantee is one of `coterie.theory.rates` and a bias.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 8, hal tel-04877971.
    Even, Massoulié, Scaman, "Sample optimality and all-for-all strategies in
    personalized federated and collaborative learning", report hal-03550407, 2022.

Differences (each with a test; see docs/errata.md):
    beta is multiplied by rho(L L^T), which is not 1 for every L; logarithms in step
    sizes are at least 1; rates of All-for-all use the smallest positive eigenvalue of
    L L^T; Theorem 8.4 has other constants; numbers of calls are those that the proofs
    support.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from .. import checks
from ..collaboration.weights import collaboration_radius, spectral_radius, within
from .rates import (
    Losses,
    calls_for,
    convex_sgd_bound,
    convex_sgd_step,
    precision_step,
    sgd_bound,
    sgd_step,
    tuned_bound,
)

# Who is near whom.


def count_near(cost: Float[Tensor, "n n"], eps: float) -> Int[Tensor, " n"]:
    """`N_i^eps(c) = #{j : c_ij <= eps}`, where i counts itself.

    >>> count_near(torch.tensor([[0.0, 1.0], [3.0, 0.0]]), 2.0)
    tensor([2, 1])
    """
    return (within(cost, eps) > 0).sum(1)


def speed_up(distance: Float[Tensor, "n n"], eps: float, mu: float) -> Tensor:
    """By how much All-for-one divides each client's calls: `N_i^eps(2 b^2 / mu)`."""
    return count_near(2 * distance.square() / mu, eps).to(distance.dtype)


def share_of_calls(distance: Float[Tensor, "n n"], eps: float, mu: float) -> float:
    """All-for-all needs this share of local training's calls: `mean 1 / N_i(b^2 / mu)`.

    Only where noise and not conditioning is what takes the calls.
    """
    near = count_near(distance.square() / mu, eps)
    return float((1 / near.to(distance.dtype)).mean())


def gap_of_distance(distance: Float[Tensor, "n n"], mu: float) -> Tensor:
    """The gap `b^2 / (2 mu)` for strongly convex losses; Lemma 8.5.1."""
    return distance.square() / (2 * mu)


def convex_gap_of_distance(distance: Float[Tensor, "n n"], diameter: float) -> Tensor:
    """The gap `D b` for convex losses with optima at most D apart; Proposition 1."""
    return diameter * distance


def gradient_gap_of_distance(distance: Float[Tensor, "n n"]) -> Tensor:
    """The bound `b^2` on |grad f_i - grad f_j|^2; Proposition 1, (B.2)."""
    return distance.square()


def linear_diameter(optima: Float[Tensor, "n d"]) -> float:
    """`D = sqrt(1 + max_i |x_i^*|^2)` for linear regression (a'x - b)^2 / 2.

    A gradient is the moment matrix z z', z = (a, b), times (x, -1). So the distance of
    two clients is at most D |E z_i z_i' - E z_j z_j'|; the printed D forgets the 1.
    """
    return math.sqrt(1 + float(optima.square().sum(1).max()))


def quadratic_gaps(
    matrices: Float[Tensor, "n d d"], optima: Float[Tensor, "n d"]
) -> Float[Tensor, "n n"]:
    """Exact gaps of `f_i(x) = (x - x_i^*)' A_i (x - x_i^*) / 2`."""
    between = optima[None, :] - optima[:, None]  # (N, N, D) x_j^* - x_i^*
    return torch.einsum("ijd,ide,ije->ij", between, matrices, between) / 2


def quadratic_distances(
    matrices: Float[Tensor, "n d d"], optima: Float[Tensor, "n d"]
) -> Float[Tensor, "n n"]:
    """Exact |grad f_i - grad f_j| at x_j^*, that is |A_i (x_j^* - x_i^*)|."""
    between = optima[None, :] - optima[:, None]
    return torch.einsum("ide,ije->ijd", matrices, between).norm(dim=2)


# All-for-one: each client descends along a blend of gradients at its own model.


def all_for_one_weights(
    distance: Float[Tensor, "n n"], eps: float, mu: float
) -> Tensor:
    """`l_ij = 1{b_ij^2 <= mu eps / 2} / N_i`; Theorem 8.2, where mu is missing."""
    return within(distance, collaboration_radius(eps, mu, share=0.25))


def _of_each(weights: Tensor, losses: Losses) -> list[Losses]:
    """Client i's gradients have variance `sigma^2 sum_j l_ij^2`."""
    shares = weights.square().sum(1).tolist()
    return [replace(losses, variance=losses.variance * share) for share in shares]


def all_for_one_step(
    weights: Float[Tensor, "n n"],
    start: Float[Tensor, " n"],
    calls: int,
    losses: Losses,
) -> Float[Tensor, " n"]:
    """Each client's step size, (8.5): `sgd_step` with its variance."""
    pairs = zip(start.tolist(), _of_each(weights, losses), strict=True)
    return start.new_tensor([sgd_step(s, calls, own) for s, own in pairs])


def all_for_one_bound(
    weights: Float[Tensor, "n n"],
    distance: Float[Tensor, "n n"],
    start: Float[Tensor, " n"],
    lr: Float[Tensor, " n"],
    calls: int,
    losses: Losses,
) -> Float[Tensor, " n"]:
    """Each client's bound, for step sizes of at most 1 / beta; Theorem 8.2, its proof.

    `(1 - eta mu)^K start_i + eta beta sigma^2 / (2 mu) sum_j l_ij^2
    + 1 / (2 mu) sum_j l_ij b_ij^2`.
    """
    bias = (weights * gap_of_distance(distance, losses.mu)).sum(1)
    triples = zip(start.tolist(), lr.tolist(), _of_each(weights, losses), strict=True)
    values = [sgd_bound(s, eta, calls, own) for s, eta, own in triples]
    return bias.new_tensor(values) + bias


def all_for_one_relaxed_bound(
    weights: Float[Tensor, "n n"],
    distance: Float[Tensor, "n n"],
    start: Float[Tensor, " n"],
    lr: Float[Tensor, " n"],
    calls: int,
    losses: Losses,
    *,
    slope: float = 0.0,
) -> Float[Tensor, " n"]:
    """The report's bound where gradients differ by a multiple of themselves; 6.b.

    If `|grad f_i - g|^2 <= m |g|^2 + sum_j l_ij b_ij^2` for g = sum_j l_ij grad f_j,
    it is `2 (m + 1) kappa` times `sgd_bound` plus `sum_j l_ij b_ij^2 / mu`. The price
    for m > 0 is the factor kappa.

    Args:
        weights: l.
        distance: b.
        start: sum_j l_ij (f_j(x_i^0) - f_j(x_j^*)), the excess of the blend.
        lr: step sizes of at most 1 / beta.
        calls: K.
        losses: of every client.
        slope: m.
    """
    none = torch.zeros_like(distance)
    blend = all_for_one_bound(weights, none, start, lr, calls, losses)
    bias = (weights * distance.square()).sum(1) / losses.mu
    return 2 * (slope + 1) * losses.beta / losses.mu * blend + bias


def all_for_one_calls(
    distance: Float[Tensor, "n n"],
    eps: float,
    start: Float[Tensor, " n"],
    losses: Losses,
) -> Int[Tensor, " n"]:
    """Each client's calls to precision eps with `all_for_one_weights`; Theorem 8.2.

    `2 kappa max(1, sigma^2 / (mu eps N_i)) ln(2 start_i / eps)`, N_i = N_i^eps(2 b^2 /
    mu), for the step of `precision_step`: a half of eps for the start, a quarter for
    the noise, a quarter for the bias.
    """
    weights = all_for_one_weights(distance, eps, losses.mu)
    pairs = zip(start.tolist(), _of_each(weights, losses), strict=True)
    calls = [calls_for(2 * s / eps, precision_step(eps, own), own) for s, own in pairs]
    return torch.tensor(calls, device=distance.device)


def all_for_one_bounded_step(
    weights: Float[Tensor, "n n"], calls: int, *, diameter: float, bound: float
) -> Float[Tensor, " n"]:
    """`D / (B sqrt(K n sum_j l_ij^2))` for one active client per call; report, 6.a.

    There is a factor 1 / sqrt(2) more in print, which costs 6 percent of the bound.
    """
    spread = len(weights) * weights.square().sum(1)
    return diameter / (bound * (calls * spread).sqrt())


def all_for_one_bounded_bound(
    weights: Float[Tensor, "n n"],
    gap: Float[Tensor, "n n"],
    calls: int,
    *,
    diameter: float,
    bound: float,
) -> Float[Tensor, " n"]:
    """Bound on the mean excess over K samples of all clients, one by one; report, 6.a.

    `D B sqrt(n sum_j l_ij^2 / K) + sum_j l_ij c_ij`, for models within D of the optima
    and c_ij = D |grad f_i - grad f_j|; n is missing in print.
    """
    spread = len(weights) * weights.square().sum(1)
    return diameter * bound * (spread / calls).sqrt() + (weights * gap).sum(1)


def all_for_one_bounded_samples(
    gap: Float[Tensor, "n n"], eps: float, *, diameter: float, bound: float
) -> Float[Tensor, " n"]:
    """Samples of all clients: `4 D^2 B^2 n / (eps^2 N_i^eps(2 c))`; report, 2.1."""
    near = count_near(2 * gap, eps).to(gap.dtype)
    return 4 * (diameter * bound / eps) ** 2 * len(gap) / near


# All-for-all: one gradient of each client, at its own model.


def all_for_all_weights(
    distance: Float[Tensor, "n n"], eps: float, mu: float
) -> Tensor:
    """`l_ij = 1{b_ij^2 <= mu eps} / N_i`; Corollary 8.5.1.

    Where gaps c are known, `within(2 * c, eps)` has a bias of at most eps / 2 as well.
    """
    return within(distance, collaboration_radius(eps, mu, share=0.5))


def mean_bias(weights: Float[Tensor, "n n"], gap: Float[Tensor, "n n"]) -> float:
    """`1/n sum_ij l_ij (f_i(x_j^*) - f_i(x_i^*))`; Lemma 8.5.2.

    No less than what the best models of the form x = L y lose to the optima. The
    theorem prints f_j(x_i^*), which can be less.
    """
    return float((weights * gap).sum()) / len(weights)


def smallest_eigenvalue(weights: Float[Tensor, "n n"]) -> float:
    """The smallest positive eigenvalue of L L^T."""
    singular = torch.linalg.svdvals(weights.double())
    floor = float(singular[0]) * len(weights) * torch.finfo(weights.dtype).eps
    return float(singular[singular > floor].min()) ** 2


def effective(weights: Float[Tensor, "n n"], losses: Losses) -> Losses:
    """The constants of the loss `1/n sum_i f_i((L y)_i)` that All-for-all descends.

    `mu s, beta rho, sigma^2 / n sum_ij l_ij^2`, with the smallest positive and the
    largest eigenvalue s and rho of L L^T. Both are 1 for clusters, and there alone is
    Theorem 8.3 as it is printed.
    """
    variance = losses.variance * float(weights.square().sum()) / len(weights)
    return Losses(
        losses.mu * smallest_eigenvalue(weights),
        losses.beta * spectral_radius(weights),
        variance,
    )


def all_for_all_step(
    weights: Float[Tensor, "n n"], start: float, calls: int, losses: Losses
) -> float:
    """The step size (8.6), with beta rho(L L^T) in place of beta.

    `sgd_step` with mu as it is: the eigenvalue s of `effective` is what the worst
    direction would need, and in practice too careful.
    """
    there = effective(weights, losses)
    return sgd_step(start, calls, replace(there, mu=losses.mu))


def all_for_all_bound(
    weights: Float[Tensor, "n n"],
    gap: Float[Tensor, "n n"],
    start: float,
    lr: float,
    calls: int,
    losses: Losses,
) -> float:
    """A bound on the mean excess, for steps of at most 1 / (beta rho); Theorem 8.3.

    `(1 - eta mu s)^K F^0 + eta beta rho sigma^2 / (2 n mu s) sum_ij l_ij^2` and
    `mean_bias`.
    """
    bound = sgd_bound(start, lr, calls, effective(weights, losses))
    return bound + mean_bias(weights, gap)


def all_for_all_calls(
    weights: Float[Tensor, "n n"], eps: float, start: float, losses: Losses
) -> int:
    """Calls to a mean excess of eps where the bias is at most half; Corollary 8.5.1.

    `2 kappa max(1, sigma^2 / (mu eps) mean_i 1 / N_i) ln(4 F^0 / eps)` for clusters,
    and with the constants of `effective` for others, at the step of `precision_step`
    with these. The printed logarithm has no 4: the parts of its proof add up to 7/4
    eps.
    """
    there = effective(weights, losses)
    return calls_for(4 * start / eps, precision_step(eps, there), there)


def all_for_all_convex_step(
    weights: Float[Tensor, "n n"],
    calls: int,
    *,
    radius: float,
    beta: float,
    variance: float,
) -> float:
    """`min(1 / (2 beta rho), R sqrt(n) / (sigma sqrt(K sum_ij l_ij^2)))` for mu = 0.

    R^2 is at least the mean of |x_i^0 - x_i^*|^2. In print, a beta is inside the root.
    """
    share = float(weights.square().sum()) / len(weights)
    there = beta * spectral_radius(weights)
    return convex_sgd_step(radius, calls, beta=there, variance=variance * share)


def all_for_all_convex_bound(
    weights: Float[Tensor, "n n"],
    gap: Float[Tensor, "n n"],
    calls: int,
    *,
    radius: float,
    beta: float,
    variance: float,
) -> float:
    """A bound on the mean of F^k over k < K for mu = 0; Theorem 8.3, report Theorem 8.

    `2 beta rho R^2 / K + 2 R sigma sqrt(sum_ij l_ij^2 / (n K)) + 2 mean_bias`.
    """
    share = float(weights.square().sum()) / len(weights)
    there = beta * spectral_radius(weights)
    bound = convex_sgd_bound(radius, calls, beta=there, variance=variance * share)
    return bound + 2 * mean_bias(weights, gap)


def all_for_all_bounded_step(
    weights: Float[Tensor, "n n"], calls: int, *, radius: float, bound: float
) -> float:
    """`R n / (B sqrt(K sum_ij l_ij^2))` for one active client per call; report, 3.a.

    R^2 is at least the mean of |y_i^0 - y_i|^2 for the minimiser y of f(L y). There is
    a factor sqrt(2) more in print, which costs 6 percent of the bound.
    """
    spread = float(weights.square().sum())
    return radius * len(weights) / (bound * math.sqrt(calls * spread))


def all_for_all_bounded_bound(
    weights: Float[Tensor, "n n"],
    gap: Float[Tensor, "n n"],
    calls: int,
    *,
    radius: float,
    bound: float,
) -> float:
    """A bound on the mean of F^k over K samples, one client at a time; report, 3.a.

    `R B sqrt(sum_ij l_ij^2 / K) + mean_bias`, for gradients with E|g|^2 <= B^2.
    """
    spread = float(weights.square().sum())
    return radius * bound * math.sqrt(spread / calls) + mean_bias(weights, gap)


def all_for_all_bounded_samples(
    gap: Float[Tensor, "n n"], eps: float, *, radius: float, bound: float
) -> float:
    """Samples of all clients: `4 R^2 B^2 / eps^2 sum_i 1 / N_i(2 c)`; report, 4.1."""
    near = count_near(2 * gap, eps).to(gap.dtype)
    return 4 * (radius * bound / eps) ** 2 * float((1 / near).sum())


def anytime_samples(
    gap: Float[Tensor, "n n"], eps: float, *, radius: float, bound: float
) -> float:
    """Samples of all clients after which the time-adaptive method is eps-precise.

    `64 R^2 B^2 / (3 eps^2) sum_i 1 / N_i^(eps / 2)(2 c)`, for every eps <= 1, and
    without knowing it: phases of precision 2^-p take `all_for_all_bounded_samples`
    each, and the first that is precise enough may be twice as precise as it need be.
    The printed 16 and N_i^eps are right where eps is a power of 2.
    """
    near = count_near(2 * gap, eps / 2).to(gap.dtype)
    return 64 / 3 * (radius * bound / eps) ** 2 * float((1 / near).sum())


# All-for-all in clusters that are found from a few samples: section 8.6.


def noise_of(covariance: Float[Tensor, "p p"]) -> tuple[float, float]:
    """The largest eigenvalue nu^2 of a covariance and `d_eff = Tr / nu^2`.

    The printed |.|_2 / nu^2 is 1 for every covariance.
    """
    nu = float(torch.linalg.eigvalsh(covariance)[-1])
    return nu, float(covariance.trace()) / nu


@dataclass(frozen=True)
class Clusters:
    """M clusters of C clients, found by thresholding distances of sample means.

    Clients i and j are joined where |m_i - m_j|^2 <= u, with m_i the mean of S samples
    of Gaussian-like vectors (Assumption 8.6.1), whose means differ by at least Delta
    between clusters.
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
    def missed(self) -> float:
        """A bound on the chance to miss one's like: `exp(-S u / (16 nu^2))`.

        The difference of two means has twice the variance of one; the printed exponent
        has 8.
        """
        return math.exp(-self.samples * self.threshold / (16 * self.noise))

    @property
    def confused(self) -> float:
        """A bound on the chance to join a stranger at distance Delta or 2 sqrt(u).

        `exp(-S max(2 u, Delta^2 - 2 u) / (8 nu^2))`.
        """
        u, gap = self.threshold, self.separation**2
        return math.exp(-self.samples * max(2 * u, gap - 2 * u) / (8 * self.noise))

    @property
    def inverse_size(self) -> float:
        """A bound on the share E[1 / N_i] of the variance: `1 / C + (C - 1) missed`."""
        return min(1.0, 1 / self.size + (self.size - 1) * self.missed)

    def bias(self, farthest: float) -> float:
        """A bound on E[sum_j l_ij |E xi_i - E xi_j|^2], from the farthest two clusters.

        `b_max^2 ((M - 1) confused + (C - 1) missed) + 4 u 1{4 u >= Delta^2}`.
        """
        strangers = (self.clusters - 1) * self.confused
        strangers = min(1.0, strangers + (self.size - 1) * self.missed)
        mixed = 4 * self.threshold >= self.separation**2
        return farthest**2 * strangers + (4 * self.threshold if mixed else 0.0)


def cluster_threshold(separation: float) -> float:
    """The threshold `u = Delta^2 / 4` on squared distances; printed is Delta / 4."""
    return separation**2 / 4


def cluster_samples(separation: float, *, noise: float, dimension: float) -> int:
    """Samples to tell who is who: `S >= 32 nu^2 d_eff / Delta^2`; Corollary 8.6.1.

    So that `cluster_threshold` is above the noise; the printed 16 is for one mean.
    """
    return math.ceil(32 * noise * dimension / separation**2)


def estimated_bound(
    found: Clusters,
    start: float,
    calls: int,
    losses: Losses,
    *,
    diameter: float,
    farthest: float,
) -> float:
    """A bound on the mean excess of All-for-all in found clusters; Theorem 8.4.

    `tuned_bound` with variance `sigma^2 inverse_size`, and the bias
    `D^2 / (2 mu) bias(farthest)`. As in the thesis, its first part takes the weights
    that were found for those of clusters, with rho = s = 1.

    Args:
        found: how the clusters are found.
        start: F^0.
        calls: K, with other samples than those the clusters are found with.
        losses: of every client.
        diameter: D, from means to gradients, see `linear_diameter`.
        farthest: b_max, the largest |E xi_i - E xi_j|.
    """
    own = replace(losses, variance=losses.variance * found.inverse_size)
    bias = diameter**2 / (2 * losses.mu) * found.bias(farthest)
    return tuned_bound(start, calls, own) + bias
