"""Smoothness, bias and noise of the meta-gradients of Per-FedAvg.

Client i has the loss f_i, and `F_i(w) = f_i(w - alpha grad f_i(w))` is its loss after
one step. There are three estimates of the gradient

    grad F_i(w) = (I - alpha H_i(w)) grad f_i(w - alpha grad f_i(w))

with independent minibatches of D, D' and D'' samples:

    exact   (I - alpha H_i(w; D'')) u,   u = g_i(w - alpha g_i(w; D); D')
    fo      u
    hf      u - alpha (g_i(w + delta u; D'') - g_i(w - delta u; D'')) / (2 delta)

All bounds hold for `alpha <= 1 / L`.

Reference:
    Fallah, Mokhtari, Ozdaglar, "Personalized federated learning with theoretical
    guarantees: a model-agnostic meta-learning approach", NeurIPS 2020, arXiv
    2002.07948.

Differences: section 5 prints a wrong formula of `hf`. The proof of Theorem 4.5 holds
only if all clients take part, so we leave out this theorem (see docs/errata.md).
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass

from jaxtyping import Float
from torch import Tensor

from coterie import checks


@dataclass(frozen=True)
class MetaProblem:
    """The constants of the bounds: those of Assumptions 2 to 4 and minibatch sizes."""

    alpha: float  # step size inside F_i, at most 1 / smoothness
    smoothness: float  # L, gradients of f_i are L-Lipschitz
    steepness: float  # B, gradients of f_i are at most that long
    twist: float  # rho, Hessians of f_i are rho-Lipschitz
    gradient_noise: float = 0.0  # sigma_G, of the gradient of one sample
    hessian_noise: float = 0.0  # sigma_H, of the Hessian of one sample
    batches: tuple[int, int, int] = (1, 1, 1)  # samples in D, D', D''

    def __post_init__(self) -> None:
        """Refuses numbers that cannot belong to one problem."""
        checks.number("smoothness", self.smoothness, above=0.0)
        # A value slightly above 1 / L may come from rounding.
        most = (1 + 1e-12) / self.smoothness
        checks.number("alpha", self.alpha, at_least=0.0, at_most=most)
        for name in ("steepness", "twist", "gradient_noise", "hessian_noise"):
            checks.number(name, getattr(self, name), at_least=0.0)
        for size in self.batches:
            checks.integer("batches", size, at_least=1)


def meta_smoothness(problem: MetaProblem) -> float:
    """The Lipschitz constant `L_F = 4 L + alpha rho B` of grad F_i (Lemma 4.2).

    >>> meta_smoothness(MetaProblem(0.5, smoothness=2.0, steepness=1.0, twist=3.0))
    9.5
    """
    alpha, smooth, steep, twist, *_ = astuple(problem)
    return 4 * smooth + alpha * twist * steep


def exact_bias(problem: MetaProblem) -> float:
    """A bound `2 alpha L sigma_G / sqrt(D)` on the bias of `exact` (Lemma 4.3).

    Only the inner gradient, on D, causes this bias. So larger minibatches D' or D'' do
    not lower it.
    """
    alpha, smooth, _, _, noise, _, (first, _, _) = astuple(problem)
    return 2 * alpha * smooth * noise / math.sqrt(first)


def exact_variance(problem: MetaProblem) -> float:
    """A bound sigma_F^2 on the mean squared error of `exact` (Lemma 4.3).

    `12 (B^2 + s^2) (1 + alpha^2 sigma_H^2 / (4 D'')) - 12 B^2` with
    `s^2 = sigma_G^2 (1 / D' + (alpha L)^2 / D)`.
    """
    alpha, _, steep, _, _, noise, (_, _, third) = astuple(problem)
    relative = alpha**2 * noise**2 / (4 * third)
    # We multiply the formula out, so that no digits are lost if the noise is small.
    inner = _inner_variance(problem)
    return 12 * (inner + (steep**2 + inner) * relative)


def first_order_bias(problem: MetaProblem) -> float:
    """A bound `alpha L (sigma_G / sqrt(D) + B)` on the bias of `fo` (Lemma H.1)."""
    alpha, smooth, steep, _, noise, _, (first, _, _) = astuple(problem)
    return alpha * smooth * (noise / math.sqrt(first) + steep)


def first_order_variance(problem: MetaProblem) -> float:
    """A bound `2 s^2 + 2 (alpha L B)^2` on the squared error of `fo` (Lemma H.1).

    Here `s^2 = sigma_G^2 (1 / D' + (alpha L)^2 / D)`. The second term does not depend
    on the sizes of minibatches.
    """
    alpha, smooth, steep, *_ = astuple(problem)
    return 2 * _inner_variance(problem) + 2 * (alpha * smooth * steep) ** 2


def hessian_free_bias(problem: MetaProblem, delta: float) -> float:
    """A bound on the bias of `hf` (Lemma H.2).

    `alpha (2 L sigma_G / sqrt(D) + L sigma_G / sqrt(D') + rho delta B^2)`.
    """
    checks.number("delta", delta, above=0.0)
    alpha, smooth, steep, twist, noise, _, (first, second, _) = astuple(problem)
    drawn = smooth * noise * (2 / math.sqrt(first) + 1 / math.sqrt(second))
    return alpha * (drawn + twist * delta * steep**2)


def hessian_free_variance(problem: MetaProblem, delta: float) -> float:
    """A bound on the mean squared error of `hf` (Lemma H.2).

    `6 sigma_G^2 (2 (alpha L)^2 / D + 2 / D' + alpha^2 / (2 delta^2 D'')) + 2 (alpha rho
    delta)^2 B^4`. The term with 1 / delta^2 assumes that the noise of the two gradients
    is independent. In fact both use D'', so their noise cancels, and a small delta does
    no harm.
    """
    checks.number("delta", delta, above=0.0)
    alpha, smooth, steep, twist, noise, _, (first, second, third) = astuple(problem)
    drawn = 2 * (alpha * smooth) ** 2 / first + 2 / second
    drawn += alpha**2 / (2 * delta**2 * third)
    return 6 * noise**2 * drawn + 2 * (alpha * twist * delta) ** 2 * steep**4


def meta_dissimilarity(
    problem: MetaProblem, gradients: float, hessians: float
) -> float:
    """A bound gamma_F^2 on `mean_i |grad F_i - grad F|^2` (Lemma 4.4).

    `3 (alpha B gamma_H)^2 + 192 gamma_G^2`.

    Args:
        problem: alpha and the bound B.
        gradients: gamma_G^2, at least mean_i |grad f_i - grad f|^2 at every w.
        hessians: gamma_H^2, at least mean_i |H_i - H|^2 at every w, in operator norm.
    """
    alpha, _, steep, *_ = astuple(problem)
    return 3 * (alpha * steep) ** 2 * hessians + 192 * gradients


def total_variation(p: Float[Tensor, "n z"]) -> Float[Tensor, " n"]:
    """Distances `|p_i - p|_TV = sum_z |p_i(z) - p(z)| / 2` of the rows to their mean.

    >>> import torch
    >>> total_variation(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    tensor([0.5000, 0.5000])
    """
    return (p - p.mean(0)).abs().sum(1) / 2


def wasserstein_on_a_line(
    p: Float[Tensor, "n z"], points: Float[Tensor, " z"]
) -> Float[Tensor, " n"]:
    """Distances W_1(p_i, p) of the rows to their mean, on points in ascending order.

    The distance of points is |z - z'|. On a line, W_1 is the area between the two
    distribution functions. In more dimensions, use a solver of optimal transport.

    >>> import torch
    >>> wasserstein_on_a_line(torch.eye(2), torch.tensor([0.0, 3.0]))
    tensor([1.5000, 1.5000])
    """
    if (points.diff() <= 0).any():
        raise checks.InputError(f"`points` must grow, got {points.tolist()}.")
    between = (p - p.mean(0)).cumsum(1)[:, :-1].abs()
    return between @ points.diff()


def dissimilarity_by_total_variation(
    distances: Float[Tensor, " n"], *, steepness: float, smoothness: float
) -> tuple[float, float]:
    """(gamma_G^2, gamma_H^2) from total variation to the mean distribution (eq. 14).

    These are `4 B^2 mean_i TV_i^2` and `4 L^2 mean_i TV_i^2`, if every single sample
    has a gradient of at most B and a Hessian of at most L.
    """
    mean = float(distances.square().mean())
    return 4 * steepness**2 * mean, 4 * smoothness**2 * mean


def dissimilarity_by_wasserstein(
    distances: Float[Tensor, " n"], *, gradients: float, hessians: float
) -> tuple[float, float]:
    """(gamma_G^2, gamma_H^2) from W_1 to the mean distribution (eq. 16).

    `L_Z^2 mean_i W_i^2` and `rho_Z^2 mean_i W_i^2`.

    Args:
        distances: W_1(p_i, p).
        gradients: L_Z, how fast the gradient changes with the sample.
        hessians: rho_Z, how fast the Hessian changes with the sample.
    """
    mean = float(distances.square().mean())
    return gradients**2 * mean, hessians**2 * mean


def _inner_variance(problem: MetaProblem) -> float:
    """The variance bound `sigma_G^2 (1 / D' + (alpha L)^2 / D)` of u (equation 36)."""
    alpha, smooth, _, _, noise, _, (first, second, _) = astuple(problem)
    return noise**2 * (1 / second + (alpha * smooth) ** 2 / first)
