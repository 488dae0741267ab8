"""Weights (N, N) of clients for each other, from their similarities.

Row i of `weights` says how client i mixes the gradients of the clients k in
`x_i <- x_i - eta_i sum_k alpha_ik g_k(x_i)` (All-for-one). With the similarity ratio
r_ik, a criterion phi, psi(x) = x phi(x), and
sigma_{i,f}^2 = 1 / sum_k sigma_k^{-2} f(r_ik), the weights of Definition 1 are

    alpha_ik = phi(r_ik) (sigma_{i,psi} / sigma_k)^2.

Their rows sum to (sigma_{i,psi} / sigma_{i,phi})^2 >= 1, not to 1. Steps must satisfy
`eta_i sum_k alpha_ik < 1 / beta`: see `largest_step` in `coterie_theory.all_for_one`.

References:
    Philippenko, Le Bars, Scaman, Massoulié, "Adaptive collaboration for online
    personalized distributed learning with heterogeneous clients", NeurIPS 2025.
    Even, Massoulié, Scaman, "On sample optimality in personalized collaborative and
    federated learning", NeurIPS 2022 (`threshold_weights`).
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 8 (`interpolation`,
    `collaboration_radius`).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int, Real
from torch import Tensor

from .. import checks

Criterion = Callable[[Tensor], Tensor]
"""phi of Definition 1, applied to every entry."""


def _identity(like: Tensor) -> Tensor:
    """The identity matrix, as truth values, of the size of `like`."""
    return torch.eye(len(like), dtype=torch.bool, device=like.device)


def similarity_ratio(
    distance: Float[Tensor, "n n"], own: Float[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """How similar client k's gradient is to client i's own, from 0 to 1.

    `r_ik = clip(1 - distance_ik / own_i, 0, 1)` and `r_ii = 1`. An unbiased estimate
    can give `own_i <= 0`. Then all other ratios of client i are 0: it learns only from
    itself.

    Args:
        distance: |grad R_k(x_i) - grad R_i(x_i)|^2 or an estimate of it.
        own: |grad R_i(x_i)|^2 or an estimate of it.
    """
    known = own > 0
    ratio = 1 - distance / torch.where(known, own, 1)[:, None]
    ratio = torch.where(known[:, None], ratio.clamp(0, 1), 0)
    return torch.where(_identity(ratio), 1, ratio)


def binary(lam: float = 0.1) -> Criterion:
    """The criterion `phi(x) = lam * 1{x >= lam}`: equal weights above a threshold.

    >>> binary(0.5)(torch.tensor([0.4, 0.5, 1.0]))
    tensor([0.0000, 0.5000, 0.5000])
    """
    checks.number("lam", lam, above=0.0, at_most=1.0)

    def phi(x: Tensor) -> Tensor:
        return torch.where(x >= lam, lam, torch.zeros_like(x))

    return phi


def continuous(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The criterion `phi(x) = x`: weights in proportion to similarity."""
    return x


def valid_criterion(phi: Criterion) -> Criterion:
    """Returns `phi` if it is a criterion in the sense of Definition 1.

    The rules are that `phi(0) = 0`, `phi(x) <= x` and phi does not decrease. We add
    `phi(1) > 0`, because a client must use its own gradient. The function tests these
    rules at 0, 1/1000, ..., 1.

    Raises:
        InputError: if a rule is broken; names the rule and the first such point.
    """
    x = torch.linspace(0, 1, 1001, dtype=torch.float64)
    value = phi(x)
    slack = 1e-12  # rounding inside phi
    drops = torch.cat([value.new_zeros(1), value[:-1]]) > value + slack
    rules = {
        "be 0 at x = 0": (x == 0) & (value != 0),
        "satisfy phi(x) <= x": ~(value <= x + slack),
        "not decrease": drops,
        "be greater than 0 at x = 1": (x == 1) & ~(value > 0),
    }
    for rule, broken in rules.items():
        if broken.any():
            at = int(broken.nonzero()[0])
            raise checks.InputError(
                f"`phi` must {rule}, but phi({x[at]:.4g}) = {value[at]:.4g}."
            )
    return phi


def effective_variance(
    ratio: Float[Tensor, "n n"], precision: Float[Tensor, " n"], phi: Criterion
) -> Float[Tensor, " n"]:
    """The variance `sigma_{i,psi}^2 = 1 / sum_k sigma_k^{-2} psi(r_ik)` of Theorem 1.

    It is an upper bound of `noise_variance`. For the binary criterion the bound is
    loose: for a client alone it is sigma_i^2 / lam, not sigma_i^2.
    """
    psi = ratio * phi(ratio)
    return 1 / (psi @ precision)


def collaboration_weights(
    ratio: Float[Tensor, "n n"], precision: Float[Tensor, " n"], phi: Criterion
) -> Float[Tensor, "n n"]:
    """Weights `alpha_ik = phi(r_ik) (sigma_{i,psi} / sigma_k)^2` of Definition 1.

    Args:
        ratio: r_ik with r_ii = 1, as from `similarity_ratio`.
        precision: sigma_k^{-2} > 0. Only ratios matter, so numbers of samples are
            enough if all samples are equally noisy (Remark 1).
        phi: `binary(lam)`, `continuous`, or another criterion that `valid_criterion`
            accepts.

    >>> collaboration_weights(torch.ones(2, 2), torch.tensor([1.0, 3.0]), continuous)
    tensor([[0.2500, 0.7500],
            [0.2500, 0.7500]])
    """
    variance = effective_variance(ratio, precision, phi)  # (N,) sigma_{i,psi}^2
    return phi(ratio) * variance[:, None] * precision[None, :]


def noise_variance(
    weights: Float[Tensor, "n n"], precision: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """The variance `sum_k alpha_ik^2 sigma_k^2` of the mixed gradient, for any weights.

    `1 / precision` is the variance of a client alone. The quotient of the two variances
    shows the speed-up.
    """
    return weights.square() @ (1 / precision)


def normalised(weights: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Rows divided by their sums, as in the public code; rows of zeros stay zero."""
    total = weights.sum(1, keepdim=True)
    return weights / torch.where(total > 0, total, 1)


def restrict_to_neighbours(
    weights: Float[Tensor, "n n"], near: Bool[Tensor, "n n"]
) -> Float[Tensor, "n n"]:
    """The weights of each client for itself and its neighbours; rows sum to 1.

    If a client has weights only for clients that are not its neighbours, it uses its
    own model.

    >>> near = torch.tensor([[0, 1, 0], [1, 0, 1], [0, 1, 0]]).bool()
    >>> weights = torch.tensor([[1, 1, 2], [1, 1, 2], [1, 0, 0]]) / 4
    >>> restrict_to_neighbours(weights, near)
    tensor([[0.5000, 0.5000, 0.0000],
            [0.2500, 0.2500, 0.5000],
            [0.0000, 0.0000, 1.0000]])
    """
    own = _identity(weights)
    kept = weights * (near | own)
    nobody = (kept.sum(1) == 0)[:, None]
    return normalised(torch.where(nobody, own.to(weights), kept))


def same_cluster(
    clusters: Int[Tensor, " n"], precision: Float[Tensor, " n"] | None = None
) -> Float[Tensor, "n n"]:
    """Weights for the members of each client's own cluster; rows sum to 1.

    Args:
        clusters: the label of each client's cluster.
        precision: weights within a cluster are in proportion to this; None: uniform.
    """
    if precision is None:
        precision = torch.ones(len(clusters), device=clusters.device)
    same = clusters[:, None] == clusters[None, :]
    return normalised(same * precision)


def threshold_weights(
    bias: Float[Tensor, "n n"], threshold: float
) -> Float[Tensor, "n n"]:
    """Uniform weights over {k : bias_ik <= threshold} and client i; rows sum to 1.

    In Even et al. (2022), a bound `bias_ik` on the distance between gradients is known
    in advance. They choose the threshold for a target precision.
    """
    near = (bias <= threshold) | _identity(bias)
    return normalised(near.to(bias.dtype))


def interpolation(
    alpha: float | Float[Tensor, " n"], n: int
) -> Float[Tensor, "{n} {n}"]:
    """Weights `1 - alpha_i` for the client itself, `alpha_i / (n - 1)` for others.

    With alpha = 0 this is local training; with (n - 1) / n, it is one model for all.

    Args:
        alpha: one number for all clients or one for each, from 0 to 1.
        n: the number of clients; a single client has weight 1.

    >>> interpolation(0.5, 3)[0]
    tensor([0.5000, 0.2500, 0.2500])
    """
    checks.integer("n", n, at_least=1)
    share = 1.0 * torch.as_tensor(alpha)
    if not bool(((share >= 0) & (share <= 1)).all()):
        raise checks.InputError(f"`alpha` must be from 0 to 1, got {alpha}.")
    own = torch.eye(n, dtype=share.dtype, device=share.device)
    if n == 1:
        return own
    share = share.expand(n)[:, None]
    return (1 - share) * own + share * (1 - own) / (n - 1)


def water_filling(bias: Float[Tensor, "n m"], c: float) -> Float[Tensor, "n m"]:
    """Weights on the simplex that minimise `c sum_k l_ik^2 + sum_k l_ik a_ik`.

    The first term is the variance of the mixed gradient, the second its bias. The
    minimiser is `l_ik = (tau_i - a_ik)_+ / (2 c)`, with tau_i such that the row sums to
    1. The name comes from a picture: water of the volume 2 c fills a vessel with the
       bottom a_i. These weights are never worse than `threshold_weights` with the best
    threshold.

    Args:
        bias: a, for example b^2 / (2 mu) or the gap f_i(x_k^*) - f_i(x_i^*).
        c: factor of the variance, for example kappa sigma^2 / (mu K) after K gradients.

    >>> water_filling(torch.tensor([[0.0, 1.0, 9.0]]), 1.0)
    tensor([[0.7500, 0.2500, 0.0000]])
    """
    checks.number("c", c, above=0.0)
    rising = bias.sort(1).values
    count = torch.arange(1, bias.shape[1] + 1, dtype=bias.dtype, device=bias.device)
    level = (2 * c + rising.cumsum(1)) / count  # where the first `count` would end
    wet = (level > rising).sum(1, keepdim=True)
    tau = level.gather(1, wet - 1)
    filled = (tau - bias).clamp(min=0)
    return filled / filled.sum(1, keepdim=True)


def metropolis(weights: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """Symmetric weights `min(l_ik, l_ki)`; the rest is for the client itself.

    Rows and columns sum to 1, so the spectral radius of All-for-all is 1 on any graph.
    If the weights come from `threshold_weights`, the results are the Metropolis weights
    1 / max(N_i, N_k).
    """
    mutual = torch.where(_identity(weights), 0, torch.minimum(weights, weights.T))
    return mutual + torch.diag(1 - mutual.sum(1))


def spectral_radius(weights: Float[Tensor, "n n"]) -> float:
    """The largest eigenvalue of `W = L L^T`, that is |L|_2^2, for weights L.

    All-for-all is stable for steps below 2 / (beta rho). If rows sum to 1, rho is at
    least 1; if columns sum to 1 too, rho is 1. If n - 1 clients average only two
    gradients, their own and the gradient of one common client, rho is n / 4.
    """
    return float(torch.linalg.matrix_norm(weights.double(), ord=2)) ** 2


def restrict_to_active(
    weights: Float[Tensor, "n n"], active: Bool[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """The weights of a round in which only some clients take part.

    Columns of inactive contributors become zero. Each row of an active client is
    rescaled to its former sum, so that stable step sizes stay stable. If an active
    client had weights only for inactive clients, it gets all the weight itself. Rows of
    inactive readers become zero, because their models do not move.

    The paper leaves partial participation open; this rule is ours.
    """
    total = weights.sum(1, keepdim=True)
    kept = weights * active
    share = kept.sum(1, keepdim=True)
    alone = _identity(weights).to(weights.dtype)
    rows = torch.where(share > 0, kept / torch.where(share > 0, share, 1), alone)
    return rows * total * active[:, None]


def shares_of(sizes: Real[Tensor, " n"], weighting: str) -> Real[Tensor, " n"]:
    """The weights of clients in an average: by `samples`, or all equal (`uniform`).

    >>> shares_of(torch.tensor([10, 30]), "uniform")
    tensor([1, 1])
    """
    checks.one_of("weighting", weighting, ("samples", "uniform"))
    return sizes if weighting == "samples" else torch.ones_like(sizes)


def count_links(weights: Float[Tensor, "n n"]) -> float:
    """The number of ordered pairs of different clients that have a weight.

    >>> count_links(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    1.0
    """
    entries = weights.to_sparse().coalesce()
    i, k = entries.indices()
    return float(((entries.values() != 0) & (i != k)).sum())
