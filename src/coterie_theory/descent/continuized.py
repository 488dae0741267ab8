"""Nesterov acceleration in continuous time, with gradients at random times.

Two points x and z flow towards each other. At the times T_1 < T_2 < ... of a Poisson
process of rate 1, both take a step along the same gradient, taken at the x just before
this time:

    dx = eta_t (z - x) dt,         dz = eta'_t (x - z) dt
    x <- x - gamma_t grad f(x),    z <- z - gamma'_t grad f(x)

A `Schedule` has the four parameters, and the flow between two times in closed form. So
we compute the process exactly. At the times T_k it is Nesterov's recursion with random
parameters (`recursion`). If T_k = k, it is a deterministic method of the same form.

    convex            eta = 2/t,            eta' = 0,             gamma' = t/(2L)
    strongly_convex   eta = r,              eta' = r,             gamma' = 1/sqrt(mu L)
    unified           eta = r coth(rt/2),   eta' = r tanh(rt/2),
                                            gamma' = tanh(rt/2)/sqrt(mu L)

with r = sqrt(mu/L) and gamma = 1/L. `unified` is near `convex` for small t and near
`strongly_convex` for large t. A gradient oracle is a function `grad(x, rng)`, which may
be noisy. To compute several runs at once, give points (runs, d) and times (runs, k).
Guarantees are in `coterie_theory.decentralised.continuized`.

References:
    Even, Berthier, Bach, Flammarion, Hendrikx, Gaillard, Massoulié, Taylor,
    "Continuized accelerations of deterministic and stochastic gradient descents, and of
    gossip algorithms", NeurIPS 2021, arXiv 2106.07644.
    Even, PhD thesis, 2024, chapter 2, tel-04877971.

Differences (each with a test; see docs/errata.md): we take gamma' at the time of the
jump, T_{k+1}, not at T_k. The unified schedule is ours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from coterie import checks
from coterie.optim.meetings import share_of_way

Gradient = Callable[[Tensor, torch.Generator], Tensor]
"""`grad(x, rng)`, exact or with noise."""


class Mix(NamedTuple):
    """A flow: x <- x + forward (z - x) and z <- z + back (x - z), at the same time."""

    forward: Tensor
    back: Tensor


class Jump(NamedTuple):
    """Steps of x and z along one gradient."""

    x: float  # gamma
    z: Tensor | float  # gamma'


@dataclass(frozen=True)
class Schedule:
    """The parameters of a continuized method, each a function of times.

    Attributes:
        flow: the mixture from one time to a later one.
        jump: the step sizes gamma and gamma' at a time.
    """

    flow: Callable[[Tensor, Tensor], Mix]
    jump: Callable[[Tensor], Jump]


def convex(smoothness: float, *, second: float | None = None) -> Schedule:
    """The schedule for mu = 0; Theorems 2.2.1, 2.4.1 and 2.8.1.

    Args:
        smoothness: L, or R^2 of least squares.
        second: gamma' is t / (2 second). By default, `second` is L. For least squares,
            give R^2 times the statistical condition number.
    """
    checks.number("smoothness", smoothness, above=0)
    second = smoothness if second is None else checks.number("second", second, above=0)

    def flow(t0: Tensor, t1: Tensor) -> Mix:
        return Mix(1 - (t0 / t1) ** 2, torch.zeros_like(t1))

    return Schedule(flow, lambda t: Jump(1 / smoothness, t / (2 * second)))


def steady(eta: float, jump: Jump) -> Schedule:
    """The schedule with parameters that are constant in time, and eta' = eta."""

    def flow(t0: Tensor, t1: Tensor) -> Mix:
        share = share_of_way(t1 - t0, eta)
        return Mix(share, share)

    return Schedule(flow, lambda t: jump)


def strongly_convex(smoothness: float, curvature: float) -> Schedule:
    """The schedule for mu > 0; Theorems 2.2.2 and 2.8.2."""
    _check(smoothness, curvature)
    root = math.sqrt(curvature * smoothness)
    return steady(math.sqrt(curvature / smoothness), Jump(1 / smoothness, 1 / root))


def unified(smoothness: float, curvature: float) -> Schedule:
    """A schedule for mu > 0: first near `convex`, later near `strongly_convex`."""
    _check(smoothness, curvature)
    r, root = math.sqrt(curvature / smoothness), math.sqrt(curvature * smoothness)
    late = strongly_convex(smoothness, curvature).flow

    def primitive(u: Tensor) -> Tensor:
        return (u.tanh().log() + 1 / (2 * u.cosh() ** 2)) / 2

    def flow(t0: Tensor, t1: Tensor) -> Mix:
        back = (r * t0).sinh() ** 2 * (primitive(r * t1 / 2) - primitive(r * t0 / 2))
        kept = ((r * t0).sinh() / (r * t1).sinh()) ** 2
        early = Mix(1 - back - kept, back)
        start = Mix(torch.ones_like(t1), torch.zeros_like(t1))
        # For long times, the difference of two values of the primitive loses digits.
        found = (
            torch.where(t0 == 0, first, torch.where(r * t0 > 12, last, between))
            for first, last, between in zip(start, late(t0, t1), early, strict=True)
        )
        return Mix(*found)

    def jump(t: Tensor) -> Jump:
        return Jump(1 / smoothness, (r * t / 2).tanh() / root)

    return Schedule(flow, jump)


def least_squares(smoothness: float, condition: float, curvature: float) -> Schedule:
    """The schedule for noiseless least squares from single samples; Theorem 2.4.2.

    Args:
        smoothness: R^2, with E |a|^2 a a' <= R^2 H.
        condition: the statistical condition number.
        curvature: mu, the smallest eigenvalue of H; for 0 use `convex`.
    """
    _check(smoothness, curvature)
    kappa = smoothness / curvature
    checks.number("condition", condition, above=0, at_most=kappa * (1 + 1e-9))
    jump = Jump(1 / smoothness, math.sqrt(kappa / condition) / smoothness)
    return steady(1 / math.sqrt(kappa * condition), jump)


def _check(smoothness: float, curvature: float) -> None:
    checks.number("smoothness", smoothness, above=0)
    checks.number("curvature", curvature, above=0, at_most=smoothness)


# Times.


def arrivals(
    *shape: int, rng: torch.Generator, tick: float = 0.0
) -> Float64[Tensor, "*runs k"]:
    """The times of the first gradients, from a Poisson process or from coin flips.

    Args:
        shape: the number of runs, and last the number of times.
        rng: the generator of the times.
        tick: 0 for Exp(1) waiting times. Otherwise a coin is flipped every `tick`
            seconds, and a gradient comes with probability `tick`; 1 gives the times 1,
            2, ...
    """
    checks.number("tick", tick, at_least=0, at_most=1)
    waiting = torch.ones(shape, dtype=torch.float64, device=rng.device)
    if tick == 0:
        waiting.exponential_(generator=rng)
    elif tick < 1:
        waiting.geometric_(tick, generator=rng).mul_(tick)
    return waiting.cumsum(-1)


# Methods.


class Points(NamedTuple):
    """The two points after a jump, and the time of the jump."""

    x: Tensor  # (..., d)
    z: Tensor  # (..., d)
    time: Tensor  # (...)


def flow_to(schedule: Schedule, points: Points, time: Tensor) -> Points:
    """The points at a later time, if no gradient arrives until then."""
    x, z, now = points
    forward, back = (share[..., None].to(x) for share in schedule.flow(now, time))
    return Points(x + forward * (z - x), z + back * (x - z), time)


def continuized(
    grad: Gradient,
    schedule: Schedule,
    x: Float[Tensor, "*runs d"],
    times: Float64[Tensor, "*times k"],
    rng: torch.Generator,
) -> Iterator[Points]:
    """The points just after each gradient; both start at `x`.

    Args:
        grad: the gradient oracle.
        schedule: the schedule of the parameters.
        x: the start.
        times: the times of gradients, ascending, for each run or for all.
        rng: the generator for the oracle.
    """
    points = Points(x, x, torch.zeros_like(times[..., 0]))
    for time in times.unbind(-1):
        x, z, _ = flow_to(schedule, points, time)
        g, steps = grad(x, rng), schedule.jump(time)
        points = Points(x - steps.x * g, z - _each(steps.z, x) * g, time)
        yield points


def recursion(
    grad: Gradient,
    schedule: Schedule,
    x: Float[Tensor, "*runs d"],
    times: Float64[Tensor, "*times k"],
    rng: torch.Generator,
) -> Iterator[Points]:
    """`continuized` as a recursion of three points, like Nesterov's; (2.10) to (2.12).

    `y = x + tau (z - x)`, `x <- y - gamma grad f(y)` and
    `z <- z + tau' (y - z) - gamma' grad f(y)`, with tau the forward share of the flow
    and `tau' = back / (1 - tau)`.
    """
    z, now = x, torch.zeros_like(times[..., 0])
    for time in times.unbind(-1):
        forward, back = (share[..., None].to(x) for share in schedule.flow(now, time))
        y = x + forward * (z - x)
        g, steps = grad(y, rng), schedule.jump(time)
        # For tau = 1, y is z, and x is forgotten.
        toward = back / torch.where(forward < 1, 1 - forward, 1)
        x = y - steps.x * g
        z, now = z + toward * (y - z) - _each(steps.z, x) * g, time
        yield Points(x, z, now)


def _each(step: Tensor | float, x: Tensor) -> Tensor | float:
    """The step of each run, in a shape that fits all coordinates of x."""
    return step[..., None].to(x) if isinstance(step, Tensor) else step


def nesterov(
    grad: Gradient,
    x: Float[Tensor, "*runs d"],
    steps: int,
    rng: torch.Generator,
    *,
    smoothness: float,
    curvature: float = 0.0,
) -> Iterator[Points]:
    """Nesterov's method in discrete time, for mu = 0 or above; Theorem 2.1."""
    checks.number("smoothness", smoothness, above=0)
    checks.number("curvature", curvature, at_least=0, at_most=smoothness)
    r, z, weight = math.sqrt(curvature / smoothness), x, 0.0
    for k in range(steps):
        if curvature:
            tau, toward, far = r / (1 + r), r, 1 / math.sqrt(curvature * smoothness)
        else:
            grown = weight + (1 + math.sqrt(4 * weight + 1)) / 2
            tau, toward, far = 1 - weight / grown, 0.0, (grown - weight) / smoothness
            weight = grown
        y = x + tau * (z - x)
        g = grad(y, rng)
        x, z = y - g / smoothness, z + toward * (y - z) - far * g
        yield Points(x, z, torch.tensor(float(k + 1)))
