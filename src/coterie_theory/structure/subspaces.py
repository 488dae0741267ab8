"""Subspaces of models: angles, nearest matrices of low rank, and minima in a ball.

With orthonormal U and U', the sines of the principal angles are the singular values of
(I - U U') U', and

    dist_F^2 = sum_k sin^2 theta_k = r - |U' U|_F^2,  dist_rho^2 = max_k sin^2 theta_k.

These distances do not depend on the bases of the two subspaces.

References:
    Even, PhD thesis, 2024, chapter 9, Definition 9.2.1, tel-04877971.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.checks import InputError
from coterie.optim.heads import refuse_rank
from coterie.optim.projections import cap_norms

_SECULAR = 20
"""The largest number of Newton steps for a multiplier; each doubles the right digits.
"""


def principal_sines(
    one: Float[Tensor, "d r"], other: Float[Tensor, "d r"]
) -> Float[Tensor, " r"]:
    """Sines of the principal angles between the spans of columns, largest first.

    >>> plane = torch.eye(3)[:, :2]
    >>> [round(sine, 6) for sine in principal_sines(plane, plane.flip(0)).tolist()]
    [1.0, 0.0]
    """
    if one.shape != other.shape:
        raise InputError(
            f"two subspaces must have bases of the same shape, got {tuple(one.shape)} "
            f"and {tuple(other.shape)}."
        )
    one, other = _orthonormal(one), _orthonormal(other)
    return torch.linalg.svdvals(other - one @ (one.T @ other)).clamp(max=1)


def squared_distance(
    one: Float[Tensor, "d r"], other: Float[Tensor, "d r"], *, norm: str = "frobenius"
) -> float:
    """`dist_F^2`, the sum of squared sines; with `norm="spectral"` the largest one."""
    squared = principal_sines(one, other).square()
    if norm == "frobenius":
        return float(squared.sum())
    if norm != "spectral":
        raise InputError(f"`norm` must be frobenius or spectral, got {norm!r}.")
    return float(squared[0])


def _orthonormal(basis: Tensor) -> Tensor:
    return torch.linalg.qr(basis)[0]


def top_subspace(x: Float[Tensor, "n d"], rank: int) -> Float[Tensor, "d r"]:
    """An orthonormal basis of the first `rank` main directions of the rows."""
    refuse_rank(rank, *x.shape)
    if x.shape[0] < x.shape[1]:
        return torch.linalg.svd(x, full_matrices=False)[2][:rank].T
    return torch.linalg.eigh(x.T @ x)[1][:, -rank:].flip(1)


def cut_to_rank(x: Float[Tensor, "n d"], rank: int) -> Float[Tensor, "n d"]:
    """The nearest matrix of this rank, SVD_r, with only the largest singular values."""
    basis = top_subspace(x, rank)
    return (x @ basis) @ basis.T


class Eigen(NamedTuple):
    """Eigenvalues and eigenvectors of a semi-definite H for each row."""

    values: Float[Tensor, "n r"]
    vectors: Float[Tensor, "n r r"]


def eigen_of(h: Float[Tensor, "n r r"]) -> Eigen:
    """Eigenvalues and eigenvectors; an eigenvalue that is due to rounding is 0."""
    values, vectors = torch.linalg.eigh(h)
    least = values.amax(-1, keepdim=True) * h.shape[-1] * 4 * torch.finfo(h.dtype).eps
    return Eigen(torch.where(values > least, values, 0), vectors)


def least_in_ball(
    h: Eigen, b: Float[Tensor, "n r"], cap: float
) -> Float[Tensor, "n r"]:
    """Rows v that minimise `v' H v / 2 - b' v` over |v| <= cap.

    v = (H + lam I)^-1 b, with the smallest lam >= 0 for which |v| <= cap. If there are
    several such v with lam = 0, v is the shortest. As a function of lam, 1/|v| is
    concave. So with Newton steps from lam = 0, 1/|v| rises to 1/cap and never exceeds
    it.
    """
    known = h.values > 0
    inside = torch.where(known, (h.vectors.mT @ b[..., None])[..., 0], 0)
    values = torch.where(known, h.values, 1)
    lam = torch.zeros_like(inside[..., :1])
    for _ in range(_SECULAR):
        length = (inside / (values + lam)).norm(dim=-1, keepdim=True)
        more = (length / cap - 1).clamp(min=0)
        if not bool((more > 0).any()):
            break
        bend = (inside.square() / (values + lam) ** 3).sum(-1, keepdim=True)
        lam = lam + torch.where(more > 0, length.square() / bend * more, 0)
    v = (h.vectors @ (inside / (values + lam))[..., None])[..., 0]
    return cap_norms(v, cap)  # of what is left, rounding
