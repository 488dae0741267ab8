"""Which of many solutions gradient descent finds: diagonal linear networks.

The model is beta = u v, entry by entry, with u_0 = sqrt(2) alpha and v_0 = 0. Its loss
is L(beta) = (1/2n) sum_i (<beta, x_i> - y_i)^2. Let g_k be the gradient of minibatch k
by beta. Then

    q_-+(x) = +-2 x - ln((1 +- x)^2),    q = (q_+ + q_-) / 2 = -ln |1 - x^2|
    alpha_+-^2 = alpha^2 exp(-sum_k q_+-(lr g_k)),    alpha_k^2 = alpha_+ alpha_-
    beta_inf = argmin {psi_alpha(beta) - <phi, beta> : X beta = y},  alpha = alpha_inf,
    psi_alpha(beta) = 1/2 sum_i (b_i arcsinh(b_i / alpha_i^2) - sqrt(b_i^2 + alpha_i^4)
    + alpha_i^2),  phi = ln(alpha_+ / alpha_-) / 2.

Large steps shrink alpha in coordinates with large gradients. The gain is ln(alpha^2 /
alpha_inf^2). Gradient flow has gain 0.

References:
    Even, PhD thesis, 2024, chapter 11, tel-04877971.
    Even, Pesme, Gunasekar, Flammarion, "(S)GD over diagonal linear networks: implicit
    regularisation, large stepsizes and edge of stability", NeurIPS 2023, arXiv
    2302.08982.

Differences: the thesis prints the opposite sign of 2 x in q. For large alpha, psi is
|beta|^2 / (4 alpha^2), printed with 2 in place of 4. For small alpha, gains count half.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.checks import InputError, number

_NEWTON, _HALVINGS = 200, 60
"""Limits on Newton steps, and on halvings of a step in a line search."""


class RunGains(NamedTuple):
    """The gain of a run so far, in every coordinate."""

    plus: Tensor  # (d,) sum of q_+
    minus: Tensor  # (d,) sum of q_-

    @property
    def total(self) -> Tensor:
        """(d,) ln(alpha^2 / alpha_k^2), infinite if a step has |lr g| = 1."""
        return (self.plus + self.minus) / 2


def no_gain(like: Tensor) -> RunGains:
    """The gains at the start of a run."""
    return RunGains(torch.zeros_like(like), torch.zeros_like(like))


def track_gains(gains: RunGains, g: Float[Tensor, " d"], lr: float) -> RunGains:
    """The gains after a step along the gradient g in beta."""
    x = lr * g
    return RunGains(
        gains.plus - 2 * x - (1 - x).square().log(),
        gains.minus + 2 * x - (1 + x).square().log(),
    )


def scales(alpha: Float[Tensor, " d"], gains: RunGains) -> tuple[Tensor, Tensor]:
    """alpha_k^2 and the tilt phi_k."""
    tilt = (gains.minus - gains.plus) / 4  # ln(alpha_+ / alpha_-) / 2
    return alpha.square() * (-gains.total).exp(), tilt


def hypentropy(beta: Float[Tensor, " d"], alpha: Float[Tensor, " d"]) -> Tensor:
    """The potential psi_alpha(beta), like |beta|_1 or (large alpha) like |beta|^2.

    >>> hypentropy(torch.zeros(2), torch.ones(2))
    tensor(0.)
    """
    a = alpha.square()
    root = (beta.square() + a.square()).sqrt()
    return (beta * (beta / a).arcsinh() - root + a).sum() / 2


def mirror(
    beta: Float[Tensor, " d"], alpha: Float[Tensor, " d"], gains: RunGains
) -> Float[Tensor, " d"]:
    """The gradient of h_k = psi_{alpha_k} - <phi_k, .> at beta (11.8).

    Step k moves this gradient by -lr g_k.
    """
    square, tilt = scales(alpha, gains)
    return (beta / square).arcsinh() / 2 - tilt


def limit(
    features: Float[Tensor, "n d"],
    targets: Float[Tensor, " n"],
    alpha: Float[Tensor, " d"],
    gains: RunGains,
    *,
    tolerance: float = 1e-12,
) -> Float[Tensor, " d"]:
    """The solution of X beta = y to which a run with these gains converges.

    beta = alpha_k^2 sinh(2 (X' nu + phi)), where Newton's method on the dual problem
    finds nu.

    Raises:
        InputError: if X beta = y has no solution, or a gain is infinite.
    """
    square, tilt = scales(alpha, gains)
    if not bool((square > 0).all()):
        raise InputError("`gains` must be finite, got an infinite one.")
    nu = torch.zeros_like(targets)

    def value(nu: Tensor) -> Tensor:
        return nu @ targets - (square * (2 * (features.T @ nu + tilt)).cosh()).sum() / 2

    size = float(targets.norm()) + 1
    for _ in range(_NEWTON):
        inner = 2 * (features.T @ nu + tilt)
        left = targets - features @ (square * inner.sinh())
        if float(left.norm()) <= tolerance * size:
            return square * inner.sinh()
        curvature = (features * (2 * square * inner.cosh())) @ features.T
        step = torch.linalg.lstsq(curvature, left[:, None]).solution[:, 0]
        length, now, slope = 1.0, value(nu), float(left @ step)
        for _ in range(_HALVINGS):
            if value(nu + length * step) >= now + 1e-4 * length * slope:
                break
            length /= 2
        if length <= 0.5**_HALVINGS:
            break
        nu = nu + length * step
    inner = 2 * (features.T @ nu + tilt)
    beta = square * inner.sinh()
    rest = float((targets - features @ beta).norm()) / size
    if rest > 1e-6:
        raise InputError(
            "`targets` must allow a solution of X beta = y, but the smallest residual "
            f"is {rest:.2g}."
        )
    return beta


def network_hessian(
    u: Float[Tensor, " d"],
    v: Float[Tensor, " d"],
    features: Float[Tensor, "n d"],
    targets: Float[Tensor, " n"],
) -> Float[Tensor, "m m"]:
    """The Hessian of F(u, v) = L(u v), whose largest eigenvalue is the sharpness."""
    n = len(targets)
    h, g = features.T @ features / n, features.T @ (features @ (u * v) - targets) / n
    cross = v[:, None] * h * u + g.diag()
    upper = torch.cat([v[:, None] * h * v, cross], 1)
    return torch.cat([upper, torch.cat([cross.T, u[:, None] * h * u], 1)])


def batch_curvatures(features: Float[Tensor, "n d"], batch: int) -> tuple[float, float]:
    """The numbers lambda_b and Lambda_b with lambda_b H <= E[H_B^2] <= Lambda_b H.

    With w = X v / sqrt(n), v' H v = |w|^2 and v' E[H_B^2] v = w' K w. For batches
    without repetition, K = (1 - s) X X' / n + s diag(|x_i|^2).
    """
    n = len(features)
    if not 1 <= batch <= n:
        raise InputError(f"`batch` must be from 1 to {n}, got {batch}.")
    gram = features @ features.T / n
    s = 1.0 if n == 1 else (n - batch) / (batch * (n - 1))
    mean = (1 - s) * gram + s * features.square().sum(1).diag()
    values, basis = torch.linalg.eigh(gram)
    basis = basis[:, values > 1e-10 * values.max()]
    found = torch.linalg.eigvalsh(basis.T @ mean @ basis)
    return float(found.min()), float(found.max())


def gain_bounds(
    losses: Float[Tensor, " k"], lr: float, curvatures: tuple[float, float]
) -> tuple[float, float]:
    """A lower and an upper bound on the expected |Gain|_1, from all losses (11.10)."""
    total = number("lr", lr, above=0) ** 2 * float(losses.sum())
    return curvatures[0] * total, 2 * curvatures[1] * total


def loss_bound(k: int, start: float, lr: float, alpha: float, smallest: float) -> float:
    """A bound on the mean loss after k small steps (Proposition 11.3.1)."""
    return (1 - lr * alpha**2 * smallest / 2) ** k * start
