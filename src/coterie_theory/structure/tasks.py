"""Samples of many clients with linear models, their loss and simple baselines.

    L(W) = sum_ij p_ij F(<w_i, x_ij>, y_ij),    sum_j p_ij = p_i,    sum_i p_i = 1

where F(z, y) is (z - y)^2 / 2 for responses, and ln(1 + e^z) - y z for y in {0, 1}. p_i
is 1/N, as in (9.2), or proportional to the client's number of samples. Clients are rows
of W; in the thesis they are columns.

References:
    Even, PhD thesis, 2024, chapter 9, tel-04877971.
"""

from __future__ import annotations

import warnings
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import softplus

from coterie.checks import InputError, finite, integer, number, one_of

from .subspaces import eigen_of, least_in_ball

CURVATURES = {"squared": 1.0, "logistic": 0.25}
"""Maps a loss F(z, y) to a bound on its second derivative in z."""

_STEPS, _MORE = 200, 10
"""The largest numbers of steps for a loss that is not quadratic: without and with a
start.
"""


class FewSamplesWarning(UserWarning):
    """The warning that an estimator has fewer samples than its theorem asks for."""


class Tasks(NamedTuple):
    """Samples of N clients, at most M each; places without a sample have weight 0."""

    features: Float[Tensor, "n m d"]
    targets: Float[Tensor, "n m"]
    weights: Float[Tensor, "n m"]  # p_ij
    loss: str  # of CURVATURES

    @property
    def shape(self) -> tuple[int, int]:
        """Clients and dimensions."""
        return self.features.shape[0], self.features.shape[2]

    @property
    def sizes(self) -> Int[Tensor, " n"]:
        """(N,) the number of samples of each client."""
        return (self.weights > 0).sum(1)


def tasks(
    features: Float[Tensor, "n m d"],
    targets: Float[Tensor, "n m"],
    sizes: Int[Tensor, " n"] | None = None,
    *,
    loss: Literal["squared", "logistic"] = "squared",
    weighting: Literal["clients", "samples"] = "clients",
) -> Tasks:
    """Samples of clients, after checks.

    Args:
        features: the features of samples; if a client has fewer than M samples, they
            are in the first places.
        targets: responses, or 0 and 1 for `logistic`.
        sizes: the number of samples of each client, by default M.
        loss: `squared` or `logistic`.
        weighting: all `clients` have equal weights, or weights in proportion to their
            `samples`.
    """
    one_of("loss", loss, CURVATURES)
    one_of("weighting", weighting, ("clients", "samples"))
    if features.dim() != 3 or targets.shape != features.shape[:2]:
        raise InputError(
            "`features` must have the shape (clients, samples, dimensions) and "
            f"`targets` the first two, got {tuple(features.shape)} and "
            f"{tuple(targets.shape)}."
        )
    finite("features", features)
    finite("targets", targets)
    n, m, _ = features.shape
    if sizes is None:
        sizes = torch.full((n,), m, device=features.device)
    if sizes.shape != (n,) or not bool(((sizes >= 1) & (sizes <= m)).all()):
        raise InputError(f"`sizes` must have {n} whole numbers from 1 to {m}.")
    there = torch.arange(m, device=features.device) < sizes[:, None]
    if loss == "logistic" and not bool(((targets == 0) | (targets == 1))[there].all()):
        raise InputError("`targets` must be 0 or 1 for the loss `logistic`.")
    share = 1 / (n * sizes) if weighting == "clients" else 1 / sizes.sum().expand(n)
    weights = torch.where(there, share[:, None], 0).to(features)
    return Tasks(features, targets.to(features), weights, loss)


def outputs(data: Tasks, x: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
    """(N, M) outputs of each client's model on its samples."""
    return (data.features @ x[:, :, None])[:, :, 0]


def losses_at(data: Tasks, z: Float[Tensor, "... n m"]) -> Float[Tensor, "... n m"]:
    """F of each sample, from outputs."""
    if data.loss == "squared":
        return (z - data.targets).square() / 2
    return softplus(z) - data.targets * z


def slopes_at(data: Tasks, z: Float[Tensor, "n m"]) -> Float[Tensor, "n m"]:
    """The derivative of F by the outputs."""
    return (z if data.loss == "squared" else z.sigmoid()) - data.targets


def loss(data: Tasks, x: Float[Tensor, "n d"]) -> float:
    """L(W)."""
    return float((data.weights * losses_at(data, outputs(data, x))).sum())


def pulled_back(data: Tasks, slopes: Float[Tensor, "n m"]) -> Float[Tensor, "n d"]:
    """Row i is sum_j p_ij slope_ij x_ij."""
    return ((data.weights * slopes)[:, None] @ data.features)[:, 0]


def gradients(data: Tasks, x: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
    """The gradient of L; row i needs only the data of client i."""
    return pulled_back(data, slopes_at(data, outputs(data, x)))


def best_rows(
    z: Float[Tensor, "k s r"],
    targets: Float[Tensor, "k s"],
    weights: Float[Tensor, "k s"],
    kind: str,
    cap: float,
    start: Float[Tensor, "k r"] | None = None,
) -> Float[Tensor, "k r"]:
    """Rows v of norm at most `cap` that minimise the loss of outputs `z v`.

    Each step goes to the minimum of a quadratic above the loss, with the largest
    curvature of F. Steps end when this minimum does not move any more. For squared
    errors, one step is enough. If there is a start, we take only a few steps, because
    the caller alternates.
    """
    c = CURVATURES[kind]
    data = Tasks(z, targets, weights, kind)
    h = c * (z.mT @ (weights[:, :, None] * z))
    v = z.new_zeros(len(z), z.shape[2]) if start is None else start
    bent = eigen_of(h)
    most = _STEPS if start is None else _MORE
    for _ in range(1 if kind == "squared" else most):
        b = (h @ v[:, :, None])[:, :, 0] - gradients(data, v)
        old, v = v, least_in_ball(bent, b, cap)
        if bool((v - old).norm() <= 1e-7 * v.norm()):
            break
    return v


def fit_alone(data: Tasks, *, cap: float) -> Float[Tensor, "n d"]:
    """Each client's best model of norm at most `cap` for its own samples.

    This needs M well above D.
    """
    number("cap", cap, above=0)
    return best_rows(*data[:3], data.loss, cap)


def fit_single(data: Tasks, *, cap: float) -> Float[Tensor, "n d"]:
    """The best common model of norm at most `cap`, the same row for each client."""
    number("cap", cap, above=0)
    features, targets, weights, kind = data
    pooled = features.flatten(0, 1)[None], targets.reshape(1, -1)
    return best_rows(*pooled, weights.reshape(1, -1), kind, cap).expand(data.shape)


def warn_of_few(data: Tasks, what: str, *, samples: int, each: int) -> None:
    """Warns if all clients together, or one client, have fewer samples than needed.

    Args:
        data: the samples.
        what: the estimator, with its theorem.
        samples: the number of samples that all clients need together.
        each: the number of samples that every client needs.
    """
    integer("samples", samples, at_least=0)
    total, fewest = int(data.sizes.sum()), int(data.sizes.min())
    if total < samples or fewest < each:
        warnings.warn(
            f"{what} needs {samples} samples in all and {each} per client, but there "
            f"are {total}, and one client has {fewest}. Errors may be large.",
            FewSamplesWarning,
            stacklevel=3,
        )
