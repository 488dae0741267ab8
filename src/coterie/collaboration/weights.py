"""Whom to trust: from similarities between clients to weights (N, N).

Row i of `weights` says how client i mixes the gradients of the clients k in
`x_i <- x_i - eta_i sum_k alpha_ik g_k(x_i)` (All-for-one). With the similarity ratio
r_ik, a criterion phi, psi(x) = x phi(x), and
sigma_{i,f}^2 = 1 / sum_k sigma_k^{-2} f(r_ik), the weights of Definition 1 are

    alpha_ik = phi(r_ik) (sigma_{i,psi} / sigma_k)^2.

Their rows do not sum to 1 but to (sigma_{i,psi} / sigma_{i,phi})^2 >= 1, and the step
size must respect `eta_i sum_k alpha_ik < 1 / beta`: `coterie_theory.all_for_one` has it
as `largest_step`.

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
    """A true diagonal of the size of the square matrix `like`."""
    return torch.eye(len(like), dtype=torch.bool, device=like.device)


def similarity_ratio(
    distance: Float[Tensor, "n n"], own: Float[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """How similar client k's gradient is to client i's own, from 0 to 1.

    `r_ik = clip(1 - distance_ik / own_i, 0, 1)` and `r_ii = 1`. Where `own_i <= 0`,
    which an unbiased estimate can be, nothing can be said about client i: its row is
    that of the identity, nobody but oneself.

    Args:
        distance: |grad R_k(x_i) - grad R_i(x_i)|^2 or an estimate of it.
        own: |grad R_i(x_i)|^2 or an estimate of it.
    """
    known = own > 0
    ratio = 1 - distance / torch.where(known, own, 1)[:, None]
    ratio = torch.where(known[:, None], ratio.clamp(0, 1), 0)
    return torch.where(_identity(ratio), 1, ratio)


def binary(lam: float = 0.1) -> Criterion:
    """The criterion `phi(x) = lam * 1{x >= lam}`: a threshold, then equal trust.

    >>> binary(0.5)(torch.tensor([0.4, 0.5, 1.0]))
    tensor([0.0000, 0.5000, 0.5000])
    """
    checks.number("lam", lam, above=0.0, at_most=1.0)

    def phi(x: Tensor) -> Tensor:
        return torch.where(x >= lam, lam, torch.zeros_like(x))

    return phi


def continuous(x: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """The criterion `phi(x) = x`: trust in proportion to similarity."""
    return x


def valid_criterion(phi: Criterion) -> Criterion:
    """Returns `phi` if it is a criterion in the sense of Definition 1.

    The rules are `phi(0) = 0`, `phi(x) <= x` and that phi does not decrease, tried at
    0, 1/1000, ..., 1. We add `phi(1) > 0`: a client must use its own gradient.

    Raises:
        InputError: names the rule and the first point at which it is broken.
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

    It bounds `noise_variance` from above, and loosely so for the binary criterion: a
    client on its own has sigma_i^2 / lam there, not sigma_i^2.
    """
    psi = ratio * phi(ratio)
    return 1 / (psi @ precision)


def collaboration_weights(
    ratio: Float[Tensor, "n n"], precision: Float[Tensor, " n"], phi: Criterion
) -> Float[Tensor, "n n"]:
    """Weights `alpha_ik = phi(r_ik) (sigma_{i,psi} / sigma_k)^2` of Definition 1.

    Args:
        ratio: r_ik with r_ii = 1, as from `similarity_ratio`.
        precision: sigma_k^{-2} > 0; only proportions matter, so that batch or sample
            sizes will do where all samples are equally noisy (Remark 1).
        phi: `binary(lam)`, `continuous`, or what `valid_criterion` accepts.

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

    Against `1 / precision`, that of a client on its own, it shows the speed-up.
    """
    return weights.square() @ (1 / precision)


def normalised(weights: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """Rows divided by their sums, as in the public code; rows of zeros stay zero."""
    total = weights.sum(1, keepdim=True)
    return weights / torch.where(total > 0, total, 1)


def restrict_to_neighbours(
    weights: Float[Tensor, "n n"], near: Bool[Tensor, "n n"]
) -> Float[Tensor, "n n"]:
    """Weights for oneself and one's neighbours alone, whose rows sum to 1.

    Who has weights only for others keeps its own model.

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
    """Rows sum to 1 and lie on the members of one's own true cluster.

    Args:
        clusters: the label of each client's cluster.
        precision: weights within a cluster are in proportion to it; None is uniform.
    """
    if precision is None:
        precision = torch.ones(len(clusters), device=clusters.device)
    same = clusters[:, None] == clusters[None, :]
    return normalised(same * precision)


def threshold_weights(
    bias: Float[Tensor, "n n"], threshold: float
) -> Float[Tensor, "n n"]:
    """Uniform weights over {k : bias_ik <= threshold} and oneself; rows sum to 1.

    The oracle of Even et al. (2022), who know a bound `bias_ik` on the distance between
    gradients beforehand and choose the threshold for a target precision.
    """
    near = (bias <= threshold) | _identity(bias)
    return normalised(near.to(bias.dtype))


def interpolation(
    alpha: float | Float[Tensor, " n"], n: int
) -> Float[Tensor, "{n} {n}"]:
    """Between local and global: `1 - alpha_i` for oneself, `alpha_i / (n - 1)` else.

    0 is local training, (n - 1) / n one model for all.

    Args:
        alpha: one number for everybody or one for each client, from 0 to 1.
        n: how many clients there are; alone there is nothing to mix.

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
    """Rows on the simplex with the least `c sum_k l_ik^2 + sum_k l_ik a_ik`.

    The first term is the variance of the mixed gradient, the second its bias. The
    minimiser is `l_ik = (tau_i - a_ik)_+ / (2 c)` with tau_i such that the row sums to
    1: water of volume 2 c is poured into the row of a. It never does worse than the
    best threshold of `threshold_weights`.

    Args:
        bias: a, for example b^2 / (2 mu) or the gap f_i(x_k^*) - f_i(x_i^*).
        c: how much variance weighs, for example kappa sigma^2 / (mu K) after K calls.

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
    """Symmetric weights on mutual links: `min(l_ik, l_ki)`, the rest for oneself.

    Rows and columns sum to 1, so the spectral radius of All-for-all is 1 on any graph.
    For the uniform weights of `threshold_weights` these are the Metropolis weights
    1 / max(N_i, N_k).
    """
    mutual = torch.where(_identity(weights), 0, torch.minimum(weights, weights.T))
    return mutual + torch.diag(1 - mutual.sum(1))


def spectral_radius(weights: Float[Tensor, "n n"]) -> float:
    """The largest eigenvalue of `W = L L^T`, that is |L|_2^2, for weights L.

    All-for-all is stable for steps below 2 / (beta rho). Rows that sum to 1 make rho at
    least 1; columns that do so too make it 1. For a hub with n - 1 neighbours who
    average with nobody else it is n / 4.
    """
    return float(torch.linalg.matrix_norm(weights.double(), ord=2)) ** 2


def restrict_to_active(
    weights: Float[Tensor, "n n"], active: Bool[Tensor, " n"]
) -> Float[Tensor, "n n"]:
    """The weights when only some clients take part in a round.

    Columns of inactive contributors become zero and each active row is rescaled to its
    former total, so that a step size allowed before is allowed still. If all of a row's
    weight lay on inactive clients, its total goes to the client itself. Rows of
    inactive readers become zero: they do not move.

    The paper leaves partial participation open; this rule is ours.
    """
    total = weights.sum(1, keepdim=True)
    kept = weights * active
    share = kept.sum(1, keepdim=True)
    alone = _identity(weights).to(weights.dtype)
    rows = torch.where(share > 0, kept / torch.where(share > 0, share, 1), alone)
    return rows * total * active[:, None]


def shares_of(sizes: Real[Tensor, " n"], weighting: str) -> Real[Tensor, " n"]:
    """How much clients count in an average: by `samples`, or all alike (`uniform`).

    >>> shares_of(torch.tensor([10, 30]), "uniform")
    tensor([1, 1])
    """
    checks.one_of("weighting", weighting, ("samples", "uniform"))
    return sizes if weighting == "samples" else torch.ones_like(sizes)


def count_links(weights: Float[Tensor, "n n"]) -> float:
    """How many ordered pairs of different clients have a weight, sparse or dense.

    >>> count_links(torch.tensor([[0.5, 0.5], [0.0, 1.0]]))
    1.0
    """
    entries = weights.to_sparse().coalesce()
    i, k = entries.indices()
    return float(((entries.values() != 0) & (i != k)).sum())
