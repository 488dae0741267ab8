"""Newton's method for maximising a concave function of multipliers lam >= 0.

The function is the dual of projecting v onto {x : d_p(x)^2 <= R_p for all p}, where d_p
is a distance, for example between the two models of a pair p. Its gradient is (d_p^2 -
R_p) / 2. Every step maximises the quadratic model of this function over lam >= 0 on a
working set. This set has all p with a positive multiplier, and those other p that are
most violated. If v violates the bounds by far, Newton steps would be short and the
working set large. So the code lowers the squared radii to R in stages.

Vectors and matrices are small and in double precision. NumPy starts an operation faster
than torch, so we use torch only for large matrices, where several threads help.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int

_STAGE = 4.0
"""The factor between the squared radii of two stages."""

_STEPS, _PIVOTS, _DAMPINGS = 300, 6, 16
"""Limits on Newton steps, exchanges in a step, and attempts at one step.
"""

_LARGE = 64
"""From this size on, torch computes with matrices; then only torch uses threads."""

ROUNDING = 32 * float(np.finfo(np.float64).eps)
"""The relative error of a few operations."""


class Point(NamedTuple):
    """The dual problem at some multipliers."""

    multipliers: Float[np.ndarray, " p"]
    squared: Float[np.ndarray, " p"]  # d_p^2: the gradient is (squared - R) / 2
    value: float  # of the dual function
    objective: float  # of a feasible x: 1/2 |x - v|^2
    gap: float  # objective less value
    rounding: float  # about the rounding error of gap and value
    parts: Any  # what else the problem remembers


@runtime_checkable
class Model(Protocol):
    """The curvature H (minus the Hessian) on a working set of m multipliers."""

    @property
    def diagonal(self) -> Float[np.ndarray, " m"]:
        """The diagonal of H."""

    def times(self, p: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """The product H p."""

    def solve(
        self,
        free: Bool[np.ndarray, " m"],
        b: Float[np.ndarray, " f"],
        shift: Float[np.ndarray, " f"],
    ) -> Float[np.ndarray, " f"] | None:
        """The product (H + shift)^-1 b on free multipliers; None if there is none."""


@runtime_checkable
class DualProblem(Protocol):
    """A concave function of multipliers, and its quadratic models."""

    @property
    def limits(self) -> Float[np.ndarray, " p"]:
        """The squared radii R > 0."""

    def evaluate(self, multipliers: Float[np.ndarray, " p"]) -> Point:
        """The problem at these multipliers."""

    def model(self, point: Point, chosen: Int[np.ndarray, " m"]) -> Model:
        """The curvature at a point on a working set."""

    def choose(
        self, held: Bool[np.ndarray, " p"], violated: Float[np.ndarray, " p"], room: int
    ) -> Int[np.ndarray, " m"]:
        """The working set: all held constraints, and some of the violated ones.

        Args:
            held: which constraints have a positive multiplier.
            violated: how much each constraint without a multiplier is violated; 0 if it
                is not.
            room: the number of violated constraints to take, if this is more than
                usual.
        """


def ascend(
    problem: DualProblem, tolerance: float, start: Float[np.ndarray, " p"] | None = None
) -> tuple[Point, int]:
    """The maximum, up to a gap of tolerance * objective; and the number of steps.

    If rounding errors stop the method earlier, the gap of the result is larger.
    """
    radius = problem.limits
    point = None if start is None else problem.evaluate(start)
    if point is None or not point.value > 0:  # the value of multipliers 0
        point = problem.evaluate(np.zeros_like(radius))
    stage = max(1.0, float((point.squared / radius).max()) / _STAGE)
    damping, room = 0.0, 0
    for steps in range(_STEPS):
        if stage == 1 and point.gap <= tolerance * point.objective + point.rounding:
            return point, steps
        target = stage * radius
        held = point.multipliers > 0
        violated = np.where(held | (point.squared <= target), 0.0, point.squared)
        chosen = problem.choose(held, violated / target, room)
        after = None
        if len(chosen):
            after, damping = _newton(problem, point, chosen, target, damping)
        if after is None:
            return point, steps
        # If most of the newly chosen constraints were needed, take twice as many next
        # time.
        new = chosen[~held[chosen]]
        needed = np.count_nonzero(after.multipliers[new]) > 0.9 * len(new)
        room = 2 * len(new) if needed else 0
        point = after
        if stage > 1 and (point.squared < _STAGE * target).all():
            lower = max(1.0, stage / _STAGE)
            # Far from the feasible set, multipliers grow while distances shrink.
            point = problem.evaluate(point.multipliers * math.sqrt(stage / lower))
            stage = lower
    return point, _STEPS


def _newton(
    problem: DualProblem,
    point: Point,
    chosen: Int[np.ndarray, " m"],
    target: Float[np.ndarray, " p"],
    damping: float,
) -> tuple[Point | None, float]:
    """The point after one step towards squared radii `target`, and the next damping.

    If a step gains less than its model predicts, we try it again with more damping. If
    no damping helps, the result is None; only rounding errors cause this.
    """
    model, more = problem.model(point, chosen), 0.5 * (target - problem.limits)
    before = point.value - dot(more, point.multipliers)
    slope = 0.5 * (point.squared - target)[chosen]
    now = point.multipliers[chosen]
    for attempt in range(_DAMPINGS):
        # There is always a small shift, because in few dimensions many pairs are
        # redundant.
        shift = damping * model.diagonal + 1e-13 * model.diagonal.max()
        # If one sign in a hundred is wrong, solving again usually does not pay.
        few = 0 if attempt else len(now) // 100
        step = _model_step(model, slope, now, shift, few)
        if step is not None:
            moved = point.multipliers.copy()
            moved[chosen] = now + step
            after = problem.evaluate(moved)
            gain = after.value - dot(more, moved) - before
            promise = dot(slope, step)
            if gain >= 0.01 * promise - point.rounding:
                damping = damping / 10 if gain > 0.3 * promise else damping
                return after, damping if damping > 1e-9 else 0.0
        if attempt or few == 0:
            damping = max(10 * damping, 1e-7)
    return None, damping


def _model_step(
    model: Model,
    slope: Float[np.ndarray, " m"],
    now: Float[np.ndarray, " m"],
    shift: Float[np.ndarray, " m"],
    few: int,
) -> Float[np.ndarray, " m"] | None:
    """The p >= -now that nearly maximises slope.p - p.(H + shift).p / 2.

    This is block principal pivoting. We solve for the free entries of p, and exchange
    all entries with the wrong sign between free and fixed entries. We repeat this until
    we exchange at most `few` entries.
    """
    free: Bool[np.ndarray, " m"] = np.ones(len(now), dtype=bool)
    wrong = 1e-12 * np.abs(slope).max()
    step = -now
    for _ in range(_PIVOTS):
        step = np.where(free, 0.0, -now)
        rest = slope if free.all() else slope - model.times(step)
        inner = model.solve(free, rest[free], shift[free])
        if inner is None:
            return None
        step[free] = inner
        rising = slope - model.times(step) - shift * step
        leave, enter = free & (now + step < 0), ~free & (rising > wrong)
        if np.count_nonzero(leave | enter) <= few:
            break
        free = (free & ~leave) | enter
    return np.maximum(step, -now)


def dot(a: Float[np.ndarray, " p"], b: Float[np.ndarray, " p"]) -> float:
    """The inner product, without the threads that NumPy's function would start."""
    return float((a * b).sum())


def product(*factors: np.ndarray) -> np.ndarray:
    """The product of matrices, from left to right; the last factor may be a vector."""
    result, *rest = factors
    if max(len(factor) for factor in factors) >= _LARGE:
        tensor = torch.from_numpy(result)
        for factor in rest:
            tensor = tensor @ torch.from_numpy(factor)
        return tensor.numpy()
    for factor in rest:
        result = result @ factor
    return result


def inverse(matrix: Float[np.ndarray, "p p"]) -> Float[np.ndarray, "p p"]:
    """The inverse of a positive definite matrix."""
    if len(matrix) < _LARGE:
        return np.linalg.inv(matrix)
    factor = torch.linalg.cholesky(torch.from_numpy(matrix))
    return torch.cholesky_inverse(factor).numpy()


class DenseModel(NamedTuple):
    """The model whose curvature is a matrix."""

    curvature: Float[np.ndarray, "m m"]

    @property
    def diagonal(self) -> Float[np.ndarray, " m"]:
        """The diagonal of the matrix."""
        return self.curvature.diagonal()

    def times(self, p: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        """The product H p."""
        return product(self.curvature, p)

    def solve(
        self,
        free: Bool[np.ndarray, " m"],
        b: Float[np.ndarray, " f"],
        shift: Float[np.ndarray, " f"],
    ) -> Float[np.ndarray, " f"] | None:
        """The product (H + shift)^-1 b on free multipliers; None if there is none."""
        here = np.flatnonzero(free)
        if len(here) < len(free):
            part = self.curvature.take(here, 0).take(here, 1)
        else:  # several times faster
            part = self.curvature.copy()
        part.flat[:: len(here) + 1] += shift
        if len(here) < _LARGE:
            try:
                return np.linalg.solve(part, b)
            except np.linalg.LinAlgError:
                return None
        factor, failed = torch.linalg.cholesky_ex(torch.from_numpy(part))
        if bool(failed):
            return None
        return torch.cholesky_solve(torch.from_numpy(b[:, None]), factor).numpy()[:, 0]


def conjugate_gradients(
    model: Model,
    free: Bool[np.ndarray, " m"],
    b: Float[np.ndarray, " f"],
    shift: Float[np.ndarray, " f"],
) -> Float[np.ndarray, " f"] | None:
    """The result of `solve`, for a model that only gives products with H."""
    whole = np.zeros(len(free))
    scale = model.diagonal[free] + shift
    x, r = np.zeros_like(b), b
    p = z = r / scale
    rz = start = dot(r, z)
    for _ in range(200):
        # The next Newton step removes the remaining thousandth.
        if rz <= 1e-6 * start:
            break
        whole[free] = p
        bent = model.times(whole)[free] + shift * p
        curve = dot(p, bent)
        if curve <= 0:
            return None
        x, r = x + rz / curve * p, r - rz / curve * bent
        z = r / scale
        rz, before = dot(r, z), rz
        p = z + rz / before * p
    return x
