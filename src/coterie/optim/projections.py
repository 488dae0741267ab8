"""Euclidean projections onto sets of models with bounds on their distances.

`project` finds the point nearest to v among all x with |x_i - x_j|^2 <= R_ij for every
pair. With multipliers lam_ij >= 0 and their Laplacian L(lam), the minimiser of

    1/2 |x - v|^2 + 1/2 sum_{i<j} lam_ij (|x_i - x_j|^2 - R_ij)

is x = (I + L)^-1 v, so distances depend only on v v^T. One product (N, D) x (D, N)
gives v v^T. From it, `optim.newton` solves the dual problem. One product (N, N) x (N,
D) then gives x. The curvature of the dual function is

    H_ij,kl = <e_ij, (I + L)^-1 e_kl> <x_i - x_j, x_k - x_l>,      e_ij = e_i - e_j.

`project_onto_balls` is the same for single points and fixed centres.

The result has a bound on its error. The code moves x towards the mean until x is
feasible. The `gap` is the objective at x minus the dual value. The objective is
strongly convex, so the exact projection lies within sqrt(2 gap) of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..checks import number
from .dual_problems import (
    BallProblem,
    PairProblem,
    Pairs,
    squared_distances,
    tied_pairs,
)
from .newton import ascend, product

_EXACT = 2**20
"""Up to this number of values in all models, products are in double precision.
"""

_SAME = 1e-24
"""Squared radii below this share of the largest squared distance count as 0."""


def squared_radii(
    dissimilarity: Float[Tensor, "n n"], t: float, *, among: int | None = None
) -> Float[Tensor, "n n"]:
    """Bounds t D on squared distances, where D is `dissimilarity` scaled to mean 1.

    Args:
        dissimilarity: D; infinite for two clients without a bound.
        t: the mean of the bounds.
        among: D is scaled to the mean 1 over pairs of the first `among` clients; None:
            of all clients.
    """
    here = dissimilarity[:among, :among]
    tied = here.isfinite().fill_diagonal_(False)
    unit = float(here[tied].mean()) if tied.any() else 0.0
    # With t = 0 all clients share one model, so 0 times infinity is 0 here.
    return (t / (unit or 1.0) * dissimilarity).nan_to_num(nan=0.0, posinf=torch.inf)


class Projection(NamedTuple):
    """The projected models, and how good they are."""

    x: Float[Tensor, "n d"]
    multipliers: Float[Tensor, "n n"]  # symmetric; the next call may start from them
    mixing: Float[Tensor, "n n"]  # x = mixing @ v; entries >= 0, rows sum to 1
    gap: float  # |x - exact|^2 <= 2 gap
    distance: float  # |x - v|
    steps: int  # Newton steps


def project(
    x: Float[Tensor, "n d"],
    squared_radius: Float[Tensor, "n n"],
    *,
    tolerance: float = 1e-9,
    start: Float[Tensor, "n n"] | None = None,
) -> Projection:
    """The point nearest to x with |x_i - x_j|^2 <= squared_radius_ij for all pairs.

    The result is feasible up to rounding. A squared radius of 0 makes two models
    exactly equal; an infinite radius sets no bound. Models that are already feasible
    are returned unchanged.

    Args:
        x: the models, on any device; the CPU solves the dual problem.
        squared_radius: R, symmetric with entries >= 0.
        tolerance: stop when gap <= tolerance |x - v|^2 / 2.
        start: multipliers of an earlier call with similar models.

    >>> project(torch.tensor([[0.0], [4.0]]), torch.full((2, 2), 4.0)).x
    tensor([[1.],
            [3.]])
    """
    n = len(x)
    radius = squared_radius.detach().to("cpu", torch.float64).numpy()
    mean, centred, gram = _centred_gram(x.detach())
    still = torch.eye(n, dtype=x.dtype, device=x.device)
    unmoved = Projection(x, still * 0, still, 0.0, 0.0, 0)
    if not np.isfinite(gram).all():
        return unmoved._replace(gap=math.nan)
    pairs = tied_pairs(radius)
    squared, own, limits = (
        squared_distances(gram, pairs),
        gram.diagonal(),
        radius[pairs[:2]],
    )
    noise = 8 * torch.finfo(centred.dtype).eps * (own[pairs.i] + own[pairs.j])
    if ((squared <= limits + noise) & (limits > 0)).all():
        return unmoved
    label = _components(radius <= _SAME * squared.max())
    member = np.equal.outer(np.arange(label.max() + 1), label).astype(float)  # (G, N)
    average = member / member.sum(1, keepdims=True)
    least, place = _between_groups(radius, label)
    first = None
    if start is not None:
        first = start.detach().to("cpu", torch.float64).numpy()
        first = product(member, first, member.T)
    inner = product(average, gram, average.T)
    found = _project_groups(inner, least, member.sum(1), tolerance, first)
    mixing = product(found.mixing, average)  # (G, N)
    multipliers = np.zeros((n, n))
    multipliers.flat[place[found.pairs.i, found.pairs.j]] = found.multipliers
    change = mixing[label] - np.eye(n)
    moved = torch.addmm(mean, torch.from_numpy(mixing).to(centred), centred)
    moved = moved.to(x.dtype)
    return Projection(
        moved if len(mixing) == n else moved[torch.from_numpy(label).to(x.device)],
        torch.from_numpy(multipliers + multipliers.T).to(x),
        torch.from_numpy(mixing[label]).to(x),
        found.gap,
        math.sqrt(max(0.0, float((product(change, gram) * change).sum()))),
        found.steps,
    )


def _centred_gram(x: Tensor) -> tuple[Tensor, Tensor, np.ndarray]:
    """The mean row, the centred rows, and their products (N, N)."""
    if x.numel() <= _EXACT:
        x = x.to(torch.float64)
    mean = x.mean(0)
    centred = x - mean
    gram = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    # We add up products of pieces, because long sums lose digits in single precision.
    for piece in centred.split(16384, dim=1):
        gram += piece @ piece.T
    return mean, centred, gram.cpu().numpy()


def _components(linked: Bool[np.ndarray, "n n"]) -> Int[np.ndarray, " n"]:
    """The number 0, 1, ... of the connected component of each node."""
    linked = linked | np.eye(len(linked), dtype=bool)
    label = np.arange(len(linked))
    while True:
        lowest = np.where(linked, label, len(label)).min(1)
        lowest = lowest[lowest]  # halves the paths that are left
        if np.array_equal(lowest, label):
            return np.unique(label, return_inverse=True)[1]
        label = lowest


def _between_groups(
    radius: Float[np.ndarray, "n n"], label: Int[np.ndarray, " n"]
) -> tuple[Float[np.ndarray, "g g"], Int[np.ndarray, "g g"]]:
    """The smallest squared radius between groups, and its position in `radius`."""
    groups = int(label.max()) + 1
    group = np.add.outer(label * groups, label).ravel()
    # Pairs are sorted by group, then by radius. So the first of each group is the
    # smallest.
    order = np.lexsort((radius.ravel(), group))
    place = order[np.unique(group[order], return_index=True)[1]]
    place = place.reshape(groups, groups)
    return radius.take(place), place


class _Groups(NamedTuple):
    """The projection of groups of equal models."""

    mixing: Float[np.ndarray, "g g"]
    pairs: Pairs
    multipliers: Float[np.ndarray, " p"]
    gap: float
    steps: int


def _project_groups(
    gram: Float[np.ndarray, "g g"],
    radius: Float[np.ndarray, "g g"],
    mass: Float[np.ndarray, " g"],
    tolerance: float,
    start: Float[np.ndarray, "g g"] | None,
) -> _Groups:
    """The projection of groups of equal rows, from their products and masses."""
    pairs = tied_pairs(radius)
    if not len(pairs.i):
        return _Groups(np.eye(len(mass)), pairs, mass[:0], 0.0, 0)
    together = _components(np.isfinite(radius))
    means = np.equal.outer(together, together) * mass
    means = means / means.sum(1, keepdims=True)  # (g, g) of models that are tied
    # The projection does not move means. Without means, small distances lose fewer
    # digits.
    around = np.eye(len(mass)) - means
    even = np.equal.outer(together, together) * np.outer(mass, mass) / mass.sum()
    problem = PairProblem(
        product(around, gram, around.T),
        radius.take(pairs.flat),
        mass,
        pairs,
        together,
        even / len(mass),
    )
    first = problem.even_start() if start is None else start.take(pairs.flat)
    best, steps = ascend(problem, tolerance, first)
    inner, _, shrink = best.parts
    mixing = means + shrink[together, None] * product(inner * mass, around)
    return _Groups(mixing, pairs, best.multipliers, best.gap, steps)


class Balls(NamedTuple):
    """Points after projection, each onto its own balls, and bounds on their errors."""

    x: Float[Tensor, "m d"]
    multipliers: Float[Tensor, "m n"]  # the next call may start from them
    gap: Float[Tensor, " m"]


def onto_balls(
    centres: Float[Tensor, "n d"],
    squared_radius: Float[Tensor, "m n"],
    *,
    tolerance: float = 1e-9,
) -> Callable[..., Balls]:
    """A function that projects points (m, d), each onto the intersection of its balls.

    x_j is the point nearest to points[j] with |x_j - centres_k|^2 <= squared_radius_jk.
    The centres are the same for all rows; the radii differ. Let the excess be the
    largest value of |x_j - centres_k|^2 - squared_radius_jk over k. If the balls of a
    row have no common point, x_j makes the excess as small as possible. In both cases,
    x_j is (nearly) the minimum of

        1/2 |x_j - p_j|^2 + stiffness / 2 excess^2,     excess >= 0.

    If the balls have a common point, the large stiffness keeps the excess below about
    1e-12 of the largest squared distance, times |x_j - p_j| over the radius. A squared
    radius of 0 gives the centre itself (or the mean of several such centres); an
    infinite radius sets no bound. The arguments of the function are points, and
    multipliers of an earlier call with similar points.

    Args:
        centres: fixed models.
        squared_radius: entries >= 0.
        tolerance: stop when gap <= tolerance times the objective.
    """
    radius = squared_radius.detach().to("cpu", torch.float64).numpy()
    shift, at, gram = _centred_gram(centres.detach())

    def nearest(points: Tensor, start: Tensor | None = None) -> Balls:
        to = points.detach().to(at.dtype) - shift
        cross = (to @ at.T).to("cpu", torch.float64).numpy()
        own = to.square().sum(1).to("cpu", torch.float64).numpy()
        mixing, multipliers = np.zeros_like(radius), np.zeros_like(radius)
        gap = np.zeros(len(radius))
        for j, row in enumerate(radius):
            here = np.flatnonzero(np.isfinite(row))
            limits = row[here]
            inner = gram[np.ix_(here, here)] - cross[j, here] - cross[j, here, None]
            inner += own[j]  # <centre_k - p_j, centre_l - p_j>
            if (limits == 0).any():
                mixing[j, here] = (limits == 0) / np.count_nonzero(limits == 0)
            elif np.isfinite(inner).all() and (inner.diagonal() > limits).any():
                if start is not None:
                    first = start[j].to("cpu", torch.float64).numpy()[here]
                problem = BallProblem(inner, limits, 1e12 / inner.diagonal().max())
                best, _ = ascend(problem, tolerance, None if start is None else first)
                mixing[j, here] = best.multipliers / (1 + best.multipliers.sum())
                multipliers[j, here], gap[j] = best.multipliers, best.gap
        # x_j = p_j + sum_k mixing_jk (centre_k - p_j)
        share = torch.from_numpy(mixing).to(to)
        moved = (1 - share.sum(1, keepdim=True)) * to + share @ at + shift
        still = (share == 0).all(1, keepdim=True)
        return Balls(
            torch.where(still, points, moved.to(points.dtype)),
            torch.from_numpy(multipliers).to(points),
            torch.from_numpy(gap),
        )

    return nearest


def onto_simplex_ball(s: Float[Tensor, " k"], radius: float) -> Float[Tensor, " k"]:
    """The numbers >= 0, with a sum of at most `radius`, that are nearest to s >= 0."""
    if float(s.sum()) <= radius:
        return s
    ordered = s.sort(descending=True).values
    excess = (ordered.cumsum(0) - radius) / torch.arange(
        1, len(s) + 1, dtype=s.dtype, device=s.device
    )
    last = int((ordered > excess).sum()) - 1
    return (s - excess[last]).clamp(min=0)


def cap_norms(x: Float[Tensor, "*n d"], cap: float) -> Float[Tensor, "*n d"]:
    """The rows; a row with a norm above `cap` is scaled down to `cap`."""
    number("cap", cap, above=0)
    length = x.norm(dim=-1, keepdim=True)
    return x * (cap / length.clamp(min=cap))
