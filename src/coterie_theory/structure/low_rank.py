"""Models in a common subspace of few dimensions.

Equation (9.4) is

    min L(W)   over   rank W <= r,  |w_i| <= cap.

Burer-Monteiro writes w_i = U v_i with orthonormal U (D, r) and alternates

    v_i <- argmin_{|v| <= cap} L_i(U v)                     at every client
    U   <- argmin_U L(V U')  by conjugate gradients, then U R = qr(U), v_i <- R v_i,

so that clients and a server would send only U and its gradients, sum_i g_i v_i'. The
first U has the main directions of -grad L(0); for squared errors, this is the method of
moments. Hard thresholding is

    W <- cap_norms(SVD_r(W - eta N grad L(W))).

The cap is necessary. With about r samples per client and without a cap, some v_i become
huge, even if the subspace is already good.

References:
    Even, PhD thesis, 2024, chapter 9, Theorem 9.1, tel-04877971.
    Collins, Hassani, Mokhtari, Shakkottai, "Exploiting shared representations for
    personalized federated learning", ICML 2021, arXiv 2102.07078.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.checks import integer, number
from coterie.optim.heads import refuse_rank
from coterie.optim.projections import cap_norms

from .subspaces import cut_to_rank, top_subspace
from .tasks import (
    CURVATURES,
    Tasks,
    best_rows,
    gradients,
    loss,
    outputs,
    pulled_back,
    warn_of_few,
)

_INNER = 8
"""Steps of conjugate gradients on the subspace, before heads change again."""


class LowRankModels(NamedTuple):
    """Models of low rank."""

    x: Float[Tensor, "n d"]
    basis: Float[Tensor, "d r"]  # orthonormal
    heads: Float[Tensor, "n r"]  # x = heads basis'
    loss: float
    steps: int


def _refuse(data: Tasks, rank: int, cap: float) -> None:
    refuse_rank(rank, *data.shape)
    number("cap", cap, above=0)
    d = data.shape[1]
    what = f"a common subspace of {rank} dimensions (Theorem 9.1)"
    warn_of_few(data, what, samples=rank * d, each=rank)


def burer_monteiro(
    data: Tasks,
    *,
    rank: int,
    cap: float,
    steps: int = 50,
    tolerance: float = 1e-7,
) -> LowRankModels:
    """Models of the given rank, computed by alternating between heads and subspace.

    Args:
        data: samples of all clients.
        rank: dimensions of the subspace.
        cap: the largest norm of a model.
        steps: the most alternations.
        tolerance: stop when the relative decrease of the loss is at most this.
    """
    _refuse(data, rank, cap)
    integer("steps", steps, at_least=1)
    first = gradients(data, data.features.new_zeros(data.shape))
    u = torch.linalg.qr(top_subspace(first, rank).to(data.features))[0]
    v = heads_of(data, u, cap)
    before, t = loss(data, v @ u.T), 0
    for t in range(1, steps + 1):  # noqa: B007
        u, turned = _better_subspace(data, u, v)
        v = heads_of(data, u, cap, v @ turned.T)
        now = loss(data, v @ u.T)
        if before - now <= tolerance * before:
            break
        before = now
    x = v @ u.T
    return LowRankModels(x, u, v, loss(data, x), t)


def heads_of(
    data: Tasks,
    basis: Float[Tensor, "d r"],
    cap: float,
    start: Float[Tensor, "n r"] | None = None,
) -> Float[Tensor, "n r"]:
    """(N, r) each client's best head v_i with |v_i| <= cap, for a given basis."""
    z = data.features @ basis
    return best_rows(z, data.targets, data.weights, data.loss, cap, start)


def _better_subspace(data: Tasks, u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """The next U and R: conjugate gradients on a quadratic above L(V U'), then QR."""
    c = CURVATURES[data.loss]

    def times_curvature(p: Tensor) -> Tensor:
        return c * pulled_back(data, outputs(data, v @ p.T)).T @ v

    step = torch.zeros_like(u)
    rest = -gradients(data, v @ u.T).T @ v  # (D, r)
    way, size = rest, rest.square().sum()
    for _ in range(_INNER):
        if not size > 0:
            break
        bent = times_curvature(way)
        alpha = size / (way * bent).sum()
        step, rest = step + alpha * way, rest - alpha * bent
        old, size = size, rest.square().sum()
        way = rest + size / old * way
    u, turned = torch.linalg.qr(u + step)
    return u, turned


def hard_thresholding(
    data: Tasks,
    *,
    rank: int,
    cap: float,
    steps: int = 500,
    tolerance: float = 1e-9,
) -> LowRankModels:
    """Models of the given rank, by gradient steps with a projection to this rank.

    The step size is 1 over the largest curvature of a client's loss.

    Args:
        data: samples of all clients.
        rank: the rank of the models.
        cap: the largest norm of a model.
        steps: the most steps.
        tolerance: stop when the relative change of the loss is at most this.
    """
    _refuse(data, rank, cap)
    n, _ = data.shape
    eta = 1 / largest_curvature(data)
    x = data.features.new_zeros(data.shape)
    before, t = loss(data, x), 0
    for t in range(1, integer("steps", steps, at_least=1) + 1):  # noqa: B007
        x = cap_norms(cut_to_rank(x - eta * n * gradients(data, x), rank), cap)
        now = loss(data, x)
        if abs(before - now) <= tolerance * before:
            break
        before = now
    basis = top_subspace(x, rank)
    return LowRankModels(x, basis, x @ basis, loss(data, x), t)


def largest_curvature(data: Tasks) -> float:
    """The largest curvature of N times a client's part of L; steps are its inverse."""
    scaled = data.features * data.weights[:, :, None].sqrt()
    if scaled.shape[1] > scaled.shape[2]:
        scaled = scaled.mT
    grams = scaled @ scaled.mT
    bound = torch.linalg.eigvalsh(grams).amax() * data.shape[0]
    return CURVATURES[data.loss] * float(bound)
