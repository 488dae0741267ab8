"""The dual problems of `coterie.optim.projections`, small and in double precision.

These problems depend on the rows of v only through the products v v^T. Each problem is
a `DualProblem` of `coterie.optim.newton`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from .newton import (
    ROUNDING,
    DenseModel,
    Model,
    Point,
    conjugate_gradients,
    dot,
    inverse,
    product,
)

_NEARLY = 0.01
"""Equal multipliers are a start if their relative duality gap is at most this.
"""

_DIRECT = 2500
"""For working sets larger than this, conjugate gradients are faster."""


class Pairs(NamedTuple):
    """The pairs i < j with a bound, and their positions in a matrix (n, n)."""

    i: Int[np.ndarray, " p"]
    j: Int[np.ndarray, " p"]
    flat: Int[np.ndarray, " p"]


def tied_pairs(radius: Float[np.ndarray, "n n"]) -> Pairs:
    """The pairs with a finite radius."""
    i, j = np.nonzero(np.triu(np.isfinite(radius), 1))
    return Pairs(i, j, i * len(radius) + j)


def squared_distances(
    gram: Float[np.ndarray, "n n"], pairs: Pairs
) -> Float[np.ndarray, " p"]:
    """The squared distances of pairs, from the products of rows."""
    own = gram.diagonal()
    return own[pairs.i] + own[pairs.j] - 2 * gram.take(pairs.flat)


def _symmetric(
    n: int, values: Float[np.ndarray, " p"], flat: Int[np.ndarray, " p"]
) -> Float[np.ndarray, "{n} {n}"]:
    """The symmetric matrix with these entries above the diagonal."""
    matrix = np.zeros((n, n))
    matrix.flat[flat] = values
    return matrix + matrix.T


def _laplacian(
    n: int, weights: Float[np.ndarray, " p"], flat: Int[np.ndarray, " p"]
) -> Float[np.ndarray, "{n} {n}"]:
    """The Laplacian of the graph with these weights on these pairs."""
    matrix = -_symmetric(n, weights, flat)
    matrix.flat[:: n + 1] = -matrix.sum(1)
    return matrix


class PairProblem(NamedTuple):
    """The dual problem of pairs: x = (M + L)^-1 M v, with masses M on the diagonal."""

    gram: Float[np.ndarray, "g g"]  # v v^T; where models are tied, v is 0 on average
    limits: Float[np.ndarray, " p"]  # squared radii
    mass: Float[np.ndarray, " g"]  # the number of clients that share a row
    pairs: Pairs
    together: Int[np.ndarray, " g"]  # the set of tied models of each row
    # This number times the trace of L is added to every entry of M + L. It keeps the
    # inverse of a large L small, and changes nothing for rows with mean 0.
    even: Float[np.ndarray, "g g"]

    def even_start(self) -> Float[np.ndarray, " p"] | None:
        """Equal multipliers if they are nearly optimal, None otherwise.

        Equal multipliers lam shrink all distances by the factor s = 1 / (1 + n lam). If
        every distance is too large by the same factor, this gives the projection.
        """
        squared = squared_distances(self.gram, self.pairs)
        if not (squared > self.limits).all():
            return None
        s = float(np.sqrt(self.limits / squared).mean())
        even = np.full(len(squared), (1 / s - 1) / float(self.mass.sum()))
        found = self.evaluate(even)
        return even if found.gap <= _NEARLY * found.objective else None

    def evaluate(self, multipliers: Float[np.ndarray, " p"]) -> Point:
        """The problem at these multipliers."""
        mass, pairs, limits = self.mass, self.pairs, self.limits
        system = _laplacian(len(mass), multipliers, pairs.flat)
        system += self.even * system.trace()
        system.flat[:: len(mass) + 1] += mass
        inner = inverse(system)  # (M + L)^-1
        mixed = product(inner * mass, self.gram)  # x v^T
        moved = product(mixed * mass, inner)  # x x^T
        squared = np.maximum(squared_distances(moved, pairs), 0)
        tension = multipliers * squared
        # The sum of multipliers times <x_i - x_j, v_i - v_j>, which is <v, v - x>.
        work = dot(multipliers, squared_distances((mixed + mixed.T) / 2, pairs))
        # A feasible point: x shrunk towards the mean until every pair meets its bound.
        group, sets = self.together[pairs.i], int(self.together.max()) + 1
        shrink = np.ones(sets)
        np.minimum.at(shrink, group, np.sqrt(limits / np.maximum(squared, limits)))
        spread = np.bincount(self.together, mass * moved.diagonal(), sets)
        pull = np.bincount(group, tension, sets)
        extra = dot(1 - shrink, pull + 0.5 * (1 - shrink) * spread)
        price, stress = dot(multipliers, limits), float(tension.sum())
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
        some = Pairs(*(part[chosen] for part in self.pairs))
        if len(chosen) > _DIRECT:
            return _ImplicitModel(inner, moved, some)
        curvature = _differences(inner, some)
        curvature *= _differences(moved, some)
        return DenseModel(curvature)

    def choose(
        self, held: Bool[np.ndarray, " p"], violated: Float[np.ndarray, " p"], room: int
    ) -> Int[np.ndarray, " m"]:
        """All held pairs, and the most violated pairs of every model."""
        n = len(self.mass)
        wanted = max(n, room, int(held.sum()) // 2)
        if int((violated > 0).sum()) > wanted:
            # Chooses pairs of every model, because the most violated pairs of all are
            # redundant.
            matrix = _symmetric(n, violated, self.pairs.flat)
            few = min(n, -(-wanted // n))
            least = np.partition(matrix, n - few, axis=1)[:, n - few]
            near = matrix >= np.minimum(least[:, None], least)
            violated = violated * near.take(self.pairs.flat)
        return np.flatnonzero(held | (violated > 0))


class _ImplicitModel(NamedTuple):
    """The curvature on a working set whose matrix would be too large."""

    inner: Float[np.ndarray, "g g"]
    moved: Float[np.ndarray, "g g"]
    pairs: Pairs

    @property
    def diagonal(self) -> Float[np.ndarray, " m"]:
        """The diagonal of the curvature."""
        return squared_distances(self.inner, self.pairs) * squared_distances(
            self.moved, self.pairs
        )

    def times(self, p: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """The product H p."""
        laplacian = _laplacian(len(self.inner), p, self.pairs.flat)
        bent = product(self.inner, laplacian, self.moved)
        return squared_distances((bent + bent.T) / 2, self.pairs)

    def solve(
        self,
        free: Bool[np.ndarray, " m"],
        b: Float[np.ndarray, " f"],
        shift: Float[np.ndarray, " f"],
    ) -> Float[np.ndarray, " f"] | None:
        """The product (H + shift)^-1 b on the free pairs."""
        return conjugate_gradients(self, free, b, shift)


def _differences(
    matrix: Float[np.ndarray, "g g"], pairs: Pairs
) -> Float[np.ndarray, "m m"]:
    """<e_ij, matrix e_kl> for all pairs ij and kl."""
    half = (matrix.take(pairs.i, 0) - matrix.take(pairs.j, 0)).T.copy()
    whole = half.take(pairs.i, 0)
    whole -= half.take(pairs.j, 0)
    return whole


class BallProblem(NamedTuple):
    """The dual problem of projecting one point p onto balls around some centres."""

    gram: Float[np.ndarray, "n n"]  # <centre_k - p, centre_l - p>
    limits: Float[np.ndarray, " n"]  # squared radii
    stiffness: float

    def evaluate(self, multipliers: Float[np.ndarray, " n"]) -> Point:
        """The problem at these multipliers."""
        own, limits = self.gram.diagonal(), self.limits
        total = float(multipliers.sum())
        pull = product(self.gram, multipliers) / (1 + total)  # <x - p, centre_k - p>
        moved = dot(pull, multipliers) / (1 + total)  # |x - p|^2
        squared = np.maximum(own - 2 * pull + moved, 0)
        excess = max(0.0, float((squared - limits).max()))
        penalty = 0.5 * self.stiffness * excess**2
        # At the maximum, the excess is this.
        soft = total / (2 * self.stiffness)
        return Point(
            multipliers,
            squared - soft,
            value=0.5 * dot(multipliers, own - pull - limits) - total * soft / 4,
            objective=0.5 * moved + penalty,
            gap=0.5 * dot(multipliers, limits - squared) + total * soft / 4 + penalty,
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
        """All balls that are held or violated."""
        del room
        return np.flatnonzero(held | (violated > 0))
