"""Euclidean projections onto sets of models that must stay near each other.

`project` finds the point nearest to v among all x with |x_i - x_j|^2 <= R_ij for every
pair. With multipliers lam_ij >= 0 and their Laplacian L(lam), the minimiser of

    1/2 |x - v|^2 + 1/2 sum_{i<j} lam_ij (|x_i - x_j|^2 - R_ij)

is x = (I + L)^-1 v, so distances depend on v v^T alone. One product (N, D) x (D, N)
gives that matrix, the dual problem is solved in it (`coterie.ascents`), and one product
(N, N) x (N, D) gives x. The curvature of the dual function is

    H_ij,kl = <e_ij, (I + L)^-1 e_kl> <x_i - x_j, x_k - x_l>,      e_ij = e_i - e_j.

`project_onto_balls` is the same for single points and fixed centres.

The certificate: x, scaled towards the mean, is feasible, and its objective less the
dual value is `gap`. As the objective is strongly convex, the exact projection lies
within sqrt(2 gap) of x.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from .ascents import (
    ROUNDING,
    DenseModel,
    Model,
    Point,
    ascend,
    conjugate_gradients,
    inverse,
    product,
)

_DIRECT = 1800
"""Pairs in a working set from which on conjugate gradients are faster."""

_EXACT = 2**20
"""Models of so many values in all are multiplied in double precision."""

_SAME = 1e-24
"""Squared radii below this part of the largest squared distance count as 0."""


class Projection(NamedTuple):
    """The projected models, and how good they are."""

    x: Float[Tensor, "n d"]
    multipliers: Float[Tensor, "n n"]  # symmetric; the next call may start from them
    mixing: Float[Tensor, "n n"]  # x = mixing @ v: rows sum to 1, nothing below 0
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

    It is feasible up to the rounding of its precision. A squared radius of 0 makes two
    models exactly equal, one of infinity does not tie them. What is feasible already
    comes back as it is.

    Args:
        x: the models, on any device; the dual problem is solved on the CPU.
        squared_radius: R, symmetric with entries >= 0.
        tolerance: stop when gap <= tolerance |x - v|^2 / 2.
        start: multipliers of an earlier call with nearby models.

    >>> project(torch.tensor([[0.0], [4.0]]), torch.full((2, 2), 4.0)).x
    tensor([[1.],
            [3.]])
    """
    n = len(x)
    radius = squared_radius.detach().to("cpu", torch.float64).numpy()
    mean, centred, gram = _centred_gram(x.detach())
    pairs = _pairs(radius)
    squared, own = _between(gram, pairs), gram.diagonal()
    noise = 8 * torch.finfo(centred.dtype).eps * (own[pairs.i] + own[pairs.j])
    inside = bool((squared <= radius.take(pairs.flat) + noise).all())
    if inside or not np.isfinite(gram).all():
        still = torch.eye(n, dtype=x.dtype, device=x.device)
        return Projection(x, still * 0, still, 0.0 if inside else math.nan, 0.0, 0)
    label = _components(radius <= _SAME * squared.max())
    member = np.equal.outer(np.arange(label.max() + 1), label).astype(float)  # (G, N)
    average = member / member.sum(1, keepdims=True)
    least, place = _between_groups(radius, label)
    first = None if start is None else start.detach().to("cpu", torch.float64).numpy()
    found = _project_groups(
        average @ gram @ average.T,
        least,
        member.sum(1),
        tolerance,
        None if first is None else member @ first @ member.T,
    )
    mixing = found.mixing @ average  # (G, N)
    multipliers = np.zeros((n, n))
    multipliers.flat[place[found.pairs.i, found.pairs.j]] = found.multipliers
    change = mixing[label] - np.eye(n)
    moved = mean + torch.from_numpy(mixing).to(centred) @ centred
    return Projection(
        moved.to(x.dtype)[torch.from_numpy(label).to(x.device)],
        torch.from_numpy(multipliers + multipliers.T).to(x),
        torch.from_numpy(mixing[label]).to(x),
        found.gap,
        math.sqrt(max(0.0, float((change @ gram * change).sum()))),
        found.steps,
    )


def _centred_gram(x: Tensor) -> tuple[Tensor, Tensor, np.ndarray]:
    """Mean row, centred rows, and the products (N, N) of these."""
    if x.numel() <= _EXACT:
        x = x.to(torch.float64)
    mean = x.mean(0)
    centred = x - mean
    gram = torch.zeros(len(x), len(x), dtype=torch.float64, device=x.device)
    # In pieces, or else single precision would lose digits in long sums.
    for piece in centred.split(16384, dim=1):
        gram += piece @ piece.T
    return mean, centred, gram.cpu().numpy()


class _Pairs(NamedTuple):
    """The pairs i < j that are tied, and where they stand in a matrix (n, n)."""

    i: Int[np.ndarray, " p"]
    j: Int[np.ndarray, " p"]
    flat: Int[np.ndarray, " p"]


def _pairs(radius: Float[np.ndarray, "n n"]) -> _Pairs:
    i, j = np.nonzero(np.triu(np.isfinite(radius), 1))
    return _Pairs(i, j, i * len(radius) + j)


def _between(gram: Float[np.ndarray, "n n"], pairs: _Pairs) -> Float[np.ndarray, " p"]:
    """Squared distances of pairs, from the products of their rows."""
    own = gram.diagonal()
    return own[pairs.i] + own[pairs.j] - 2 * gram.take(pairs.flat)


def _components(linked: Bool[np.ndarray, "n n"]) -> Int[np.ndarray, " n"]:
    """Numbers 0, 1, ... of the connected components of a symmetric relation."""
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
    """The least squared radius between groups, and where in `radius` it stands."""
    groups = int(label.max()) + 1
    group = np.add.outer(label * groups, label).ravel()
    # Sorted by group, then by radius: the first of each group is the least.
    order = np.lexsort((radius.ravel(), group))
    place = order[np.unique(group[order], return_index=True)[1]]
    place = place.reshape(groups, groups)
    return radius.take(place), place


class _Groups(NamedTuple):
    """The projection of groups of equal models."""

    mixing: Float[np.ndarray, "g g"]
    pairs: _Pairs
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
    """The projection of rows with these products and masses."""
    pairs = _pairs(radius)
    if not len(pairs.i):
        return _Groups(np.eye(len(mass)), pairs, mass[:0], 0.0, 0)
    together = _components(np.isfinite(radius))
    means = np.equal.outer(together, together) * mass
    means = means / means.sum(1, keepdims=True)  # (g, g) of models that are tied
    # Means do not move. Without them, small distances lose fewer digits.
    around = np.eye(len(mass)) - means
    even = np.equal.outer(together, together) * np.outer(mass, mass) / mass.sum()
    problem = _PairProblem(
        around @ gram @ around.T,
        radius.take(pairs.flat),
        mass,
        pairs,
        together,
        even / len(mass),
    )
    first = None if start is None else start.take(pairs.flat)
    best, steps = ascend(problem, tolerance, first)
    inner, _, shrink = best.parts
    mixing = means + shrink[together, None] * (inner * mass @ around)
    return _Groups(mixing, pairs, best.multipliers, best.gap, steps)


def _symmetric(
    n: int, values: Float[np.ndarray, " p"], flat: Int[np.ndarray, " p"]
) -> Float[np.ndarray, "{n} {n}"]:
    """The matrix with these entries, and the same below the diagonal."""
    matrix = np.zeros((n, n))
    matrix.flat[flat] = values
    return matrix + matrix.T


def _laplacian(
    n: int, weights: Float[np.ndarray, " p"], flat: Int[np.ndarray, " p"]
) -> Float[np.ndarray, "{n} {n}"]:
    """The Laplacian of a graph with weights on some pairs."""
    matrix = -_symmetric(n, weights, flat)
    matrix.flat[:: n + 1] = -matrix.sum(1)
    return matrix


class _PairProblem(NamedTuple):
    """The dual problem: x = (M + L)^-1 M v with masses M on the diagonal."""

    gram: Float[np.ndarray, "g g"]  # v v^T; where models are tied, v is 0 on average
    limits: Float[np.ndarray, " p"]  # squared radii
    mass: Float[np.ndarray, " g"]  # clients that a row stands for
    pairs: _Pairs
    together: Int[np.ndarray, " g"]  # the set of tied models of each row
    # Times the trace of L, added to M + L: for rows with mean 0 that changes nothing,
    # and it keeps the inverse of a large L small.
    even: Float[np.ndarray, "g g"]

    def evaluate(self, multipliers: Float[np.ndarray, " p"]) -> Point:
        """The problem at these multipliers."""
        mass, pairs, limits = self.mass, self.pairs, self.limits
        system = _laplacian(len(mass), multipliers, pairs.flat)
        system += self.even * system.trace()
        system.flat[:: len(mass) + 1] += mass
        inner = inverse(system)  # (M + L)^-1
        mixed = product(inner * mass, self.gram)  # x v^T
        moved = product(mixed * mass, inner)  # x x^T
        squared = np.maximum(_between(moved, pairs), 0)
        tension = multipliers * squared
        # <x_i - x_j, v_i - v_j>, whose sum with the multipliers is <v, v - x>.
        work = float(multipliers @ _between((mixed + mixed.T) / 2, pairs))
        # Towards the mean, until every pair is near enough.
        group, sets = self.together[pairs.i], int(self.together.max()) + 1
        shrink = np.ones(sets)
        np.minimum.at(shrink, group, np.sqrt(limits / np.maximum(squared, limits)))
        spread = np.bincount(self.together, mass * moved.diagonal(), sets)
        pull = np.bincount(group, tension, sets)
        extra = float((1 - shrink) @ (pull + 0.5 * (1 - shrink) * spread))
        price, stress = float(multipliers @ limits), float(tension.sum())
        return Point(
            multipliers,
            squared,
            value=0.5 * (work - price),
            objective=0.5 * (work - stress) + extra,
            gap=0.5 * (price - stress) + extra,
            rounding=ROUNDING * (work + float(multipliers.sum() * moved.max())),
            parts=(inner, moved, shrink),
        )

    def model(self, point: Point, chosen: Int[np.ndarray, " m"]) -> Model:
        """The curvature at a point on some pairs."""
        inner, moved, _ = point.parts
        some = _Pairs(*(part[chosen] for part in self.pairs))
        if len(chosen) > _DIRECT:
            return _ImplicitModel(inner, moved, some)
        curvature = _differences(inner, some)
        curvature *= _differences(moved, some)
        return DenseModel(curvature)

    def choose(
        self, held: Bool[np.ndarray, " p"], violated: Float[np.ndarray, " p"], room: int
    ) -> Int[np.ndarray, " m"]:
        """All that are held, and the most violated pairs of every model."""
        n = len(self.mass)
        wanted = max(n, room, int(held.sum()) // 4)
        if int((violated > 0).sum()) > wanted:
            # Of every model, since the most violated of all repeat each other.
            matrix = _symmetric(n, violated, self.pairs.flat)
            few = min(n, -(-wanted // n))
            least = np.partition(matrix, n - few, axis=1)[:, n - few]
            near = matrix >= np.minimum(least[:, None], least)
            violated = violated * near.take(self.pairs.flat)
        return np.flatnonzero(held | (violated > 0))


class _ImplicitModel(NamedTuple):
    """The curvature on so many pairs that its matrix would be too large."""

    inner: Float[np.ndarray, "g g"]
    moved: Float[np.ndarray, "g g"]
    pairs: _Pairs

    @property
    def diagonal(self) -> Float[np.ndarray, " m"]:
        """Of the curvature."""
        return _between(self.inner, self.pairs) * _between(self.moved, self.pairs)

    def times(self, p: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """The product H p."""
        laplacian = _laplacian(len(self.inner), p, self.pairs.flat)
        bent = product(product(self.inner, laplacian), self.moved)
        return _between((bent + bent.T) / 2, self.pairs)

    def solve(
        self,
        free: Bool[np.ndarray, " m"],
        b: Float[np.ndarray, " f"],
        shift: Float[np.ndarray, " f"],
    ) -> Float[np.ndarray, " f"] | None:
        """The product (H + shift)^-1 b on the free pairs."""
        return conjugate_gradients(self, free, b, shift)


def _differences(
    matrix: Float[np.ndarray, "g g"], pairs: _Pairs
) -> Float[np.ndarray, "m m"]:
    """<e_ij, matrix e_kl> for all pairs ij and kl."""
    half = (matrix.take(pairs.i, 0) - matrix.take(pairs.j, 0)).T.copy()
    whole = half.take(pairs.i, 0)
    whole -= half.take(pairs.j, 0)
    return whole


class Balls(NamedTuple):
    """Points projected each onto its own balls, and how good they are."""

    x: Float[Tensor, "m d"]
    multipliers: Float[Tensor, "m n"]  # the next call may start from them
    gap: Float[Tensor, " m"]


def project_onto_balls(
    points: Float[Tensor, "m d"],
    centres: Float[Tensor, "n d"],
    squared_radius: Float[Tensor, "m n"],
    *,
    tolerance: float = 1e-9,
    start: Float[Tensor, "m n"] | None = None,
) -> Balls:
    """The nearest point to points[j] with |x_j - centres_k|^2 <= squared_radius_jk.

    All rows have the same centres and radii of their own. Where the balls of a row have
    no common point, x_j makes the largest excess |x_j - centres_k|^2 -
    squared_radius_jk as small as possible. Both are (nearly) the minimum of

        1/2 |x_j - p_j|^2 + stiffness / 2 excess^2,     excess >= 0,

    for a stiffness so large that an excess which need not be stays below about 1e-12 of
    the largest squared distance, times |x_j - p_j| over the radius. A squared radius of
    0 gives the centre itself (the mean of several), one of infinity is no ball.

    Args:
        points: p, one row for each client that looks for a model.
        centres: fixed models.
        squared_radius: entries >= 0.
        tolerance: stop when gap <= tolerance times the objective.
        start: multipliers of an earlier call with nearby points.
    """
    return onto_balls(centres, squared_radius, tolerance=tolerance)(points, start)


def onto_balls(
    centres: Float[Tensor, "n d"],
    squared_radius: Float[Tensor, "m n"],
    *,
    tolerance: float = 1e-9,
) -> Callable[[Tensor, Tensor | None], Balls]:
    """`project_onto_balls` as a function of points and start, to be used many times."""
    radius = squared_radius.detach().to("cpu", torch.float64).numpy()
    shift, at, gram = _centred_gram(centres.detach())

    def nearest(points: Tensor, start: Tensor | None) -> Balls:
        to = points.detach().to(at.dtype) - shift
        cross = (to @ at.T).to("cpu", torch.float64).numpy()
        own = to.square().sum(1).to("cpu", torch.float64).numpy()
        mixing, multipliers = np.zeros_like(radius), np.zeros_like(radius)
        gap = np.zeros(len(radius))
        for j, limits in enumerate(radius):
            here = np.flatnonzero(np.isfinite(limits))
            limits = limits[here]
            inner = gram[np.ix_(here, here)] - cross[j, here] - cross[j, here, None]
            inner += own[j]  # <centre_k - p_j, centre_l - p_j>
            if (limits == 0).any():
                mixing[j, here] = (limits == 0) / np.count_nonzero(limits == 0)
            elif (inner.diagonal() > limits).any() and np.isfinite(inner).all():
                first = None if start is None else start[j].cpu().double().numpy()
                problem = _BallProblem(inner, limits, 1e12 / inner.diagonal().max())
                best, _ = ascend(
                    problem, tolerance, None if first is None else first[here]
                )
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


class _BallProblem(NamedTuple):
    """The dual problem for one point p and the balls around some centres."""

    gram: Float[np.ndarray, "n n"]  # <centre_k - p, centre_l - p>
    limits: Float[np.ndarray, " n"]  # squared radii
    stiffness: float

    def evaluate(self, multipliers: Float[np.ndarray, " n"]) -> Point:
        """The problem at these multipliers."""
        own, limits = self.gram.diagonal(), self.limits
        total = float(multipliers.sum())
        pull = self.gram @ multipliers / (1 + total)  # <x - p, centre_k - p>
        moved = float(pull @ multipliers) / (1 + total)  # |x - p|^2
        squared = np.maximum(own - 2 * pull + moved, 0)
        excess = max(0.0, float((squared - limits).max()))
        penalty = 0.5 * self.stiffness * excess**2
        # At the maximum, the excess is this.
        soft = total / (2 * self.stiffness)
        return Point(
            multipliers,
            squared - soft,
            value=0.5 * float(multipliers @ (own - pull - limits)) - total * soft / 4,
            objective=0.5 * moved + penalty,
            gap=0.5 * float(multipliers @ (limits - squared))
            + total * soft / 4
            + penalty,
            rounding=ROUNDING * total * float(own.max()),
            parts=(pull, moved, total),
        )

    def model(self, point: Point, chosen: Int[np.ndarray, " m"]) -> Model:
        """The curvature at a point for some balls."""
        pull, moved, total = point.parts
        some = self.gram[np.ix_(chosen, chosen)] + moved
        some -= np.add.outer(pull[chosen], pull[chosen])
        return DenseModel(some / (1 + total) + 1 / (4 * self.stiffness))

    def choose(
        self, held: Bool[np.ndarray, " n"], violated: Float[np.ndarray, " n"], room: int
    ) -> Int[np.ndarray, " m"]:
        """All that are held or violated."""
        del room
        return np.flatnonzero(held | (violated > 0))
