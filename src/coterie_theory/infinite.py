"""All-for-all among infinitely many agents, such as all places of a region.

Agents are points theta of a space, such as sensors or places, with a distribution nu.
At call t one agent theta_t becomes active (it wakes), draws one sample, and computes a
gradient g_t at its own model. With the windows `l(theta, z) = 1{|theta - z| <= h} /
nu(window)` and the kernel `w(theta, theta') = int l(theta, z) l(theta', z) nu(dz)`,
All-for-all becomes

    x_theta <- x_theta - eta_t w(theta, theta_t) g_t   for every theta,

so that the model of any agent, also of one that never woke, is a sum over past events:

    x_theta = x^0 - sum_t eta_t w(theta, theta_t) g_t.

Only the events are stored. For n agents of equal mass, w is n times the matrix W =
Lambda Lambda^T of All-for-all with one active client at a time.

References:
    Even, Massoulié, Scaman, "Sample optimality and all-for-all strategies in
    personalized federated and collaborative learning", report hal-03550407, 2022,
    section 6.3 and appendix A.4.

Differences: the report does not define the kernel; ours is the limit of All-for-all as
n grows. The report says that theta gets g_t if w(theta, theta_t) is small, but it means
a small bias. Proposition 2 prints the inverse of the density (see docs/errata.md).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from coterie.checks import InputError, number

AgentKernel = Callable[[Tensor, Tensor], Tensor]
"""The kernel w: maps agents (a, p) and (b, p) to the weights (a, b) of their pairs."""

_AT_ONCE = 4_000_000
"""The largest number of entries of the kernel, agents times events, in one pass."""


class History(NamedTuple):
    """All events so far."""

    start: Float[Tensor, " d"]  # x^0
    theta: Float[Tensor, "t p"]  # who woke
    move: Float[Tensor, "t d"]  # eta_t g_t


def windows(half_width: float, *, low: float = 0.0, high: float = 1.0) -> AgentKernel:
    """The kernel of a uniform distribution on the cube [low, high]^p, in closed form.

    The window of theta is the part of {z : |z_k - theta_k| <= h for all k} in the cube.
    For two windows, w is the volume that they share, divided by the product of their
    volumes, and multiplied by the volume of the cube.

    Args:
        half_width: h; for |theta - theta'|^q <= eps / 2 it is (eps / 2)^(1/q).
        low: the lower end of the cube in every direction.
        high: the upper end of the cube in every direction.
    """
    number("half_width", half_width, above=0.0)
    number("high", high, above=low)

    def kernel(theta: Tensor, other: Tensor) -> Tensor:
        ends = [(t - half_width, t + half_width) for t in (theta, other)]
        (a, b), (c, d) = [(x.clamp(min=low), y.clamp(max=high)) for x, y in ends]
        shared = torch.minimum(b[:, None], d) - torch.maximum(a[:, None], c)
        sizes = (b - a)[:, None] * (d - c)
        return ((high - low) * shared.clamp(min=0) / sizes).prod(2)

    return kernel


def nodes(
    points: Float[Tensor, "m p"],
    masses: Float[Tensor, " m"],
    near: Callable[[Tensor, Tensor], Tensor],
) -> AgentKernel:
    """The kernel of a distribution on finitely many points, or approximated by them.

    Args:
        points: the agents, or a grid, or draws from the distribution.
        masses: the masses of the points; they sum to 1.
        near: a function of agents (a, p) and points (m, p) that says (a, m) whether the
            bias is small.

    Raises:
        InputError: raised by the kernel, if an agent is not near any point.
    """
    total = float(masses.sum())
    if not bool((masses > 0).all()) or abs(total - 1) > 1e-5:
        raise InputError(f"`masses` must be positive and sum to 1, but sum to {total}.")

    def window(theta: Tensor) -> Tensor:
        inside = near(theta, points).to(masses.dtype)
        mass = inside @ masses
        if bool((mass == 0).any()):
            alone = int((mass == 0).nonzero()[0])
            raise InputError(
                f"`near` must join agent {alone} to at least one point, got none."
            )
        return inside / mass[:, None]

    def kernel(theta: Tensor, other: Tensor) -> Tensor:
        return (window(theta) * masses) @ window(other).T

    return kernel


def models(
    log: History, theta: Float[Tensor, "a p"], kernel: AgentKernel
) -> Float[Tensor, "a d"]:
    """The models of any agents, whether or not they woke in `log`."""
    if not len(log.theta):
        return log.start.expand(len(theta), -1).clone()
    size = max(1, _AT_ONCE // len(log.theta))
    parts = [kernel(some, log.theta) @ log.move for some in theta.split(size)]
    return log.start - torch.cat(parts)


def run_agents(
    kernel: AgentKernel,
    start: Float[Tensor, " d"],
    theta: Float[Tensor, "t p"],
    gradient: Callable[[int, Tensor], Tensor],
    lr: Callable[[int], float],
) -> History:
    """The log of a run, in which agents wake one after the other.

    Args:
        kernel: w, from `windows` or `nodes`.
        start: the model that all agents begin with.
        theta: theta_t, the agent that wakes at call t = 0, 1, ...
        gradient: `gradient(t, x)` is g_t, at the model x of the agent that wakes at
            call t.
        lr: eta_t of call t; stable below 2 / (beta w(theta, theta)).
    """
    move = start.new_zeros(len(theta), len(start))
    for t in range(len(theta)):
        past = History(start, theta[:t], move[:t])
        here = models(past, theta[t : t + 1], kernel)[0]
        move[t] = lr(t) * gradient(t, here)
    return History(start, theta, move)


def one_agents_calls(
    eps: float,
    *,
    mass: float,
    diameter: float,
    bound: float,
) -> float:
    """Calls until precision eps for one agent: `4 D^2 B^2 / (eps^2 nu(window))`.

    Proposition 2, first part, for gradients with E|g|^2 <= B^2 and the window of bias
    eps / 2. Around a point of density nu(theta) it grows like
    `eps^(-2 - p/q) / nu(theta)`. The report prints a factor nu(theta) instead of its
    inverse.
    """
    number("eps", eps, above=0.0)
    number("mass", mass, above=0.0, at_most=1.0)
    return 4 * (diameter * bound / eps) ** 2 / mass


def all_agents_calls(
    eps: float, masses: Float[Tensor, " a"], *, diameter: float, bound: float
) -> float:
    """Calls until mean excess eps: `4 D^2 B^2 / eps^2 int nu(dtheta) / nu(window)`.

    Proposition 2, second part; it grows like eps^(-2 - p/q).

    Args:
        eps: the precision.
        masses: nu(window) of agents that are drawn from nu.
        diameter: D, the distance from the start to the optima.
        bound: B.
    """
    number("eps", eps, above=0.0)
    return 4 * (diameter * bound / eps) ** 2 * float((1 / masses).mean())
