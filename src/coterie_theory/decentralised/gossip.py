"""How fast averaging over a graph is: bounds, and exact rates on small graphs.

A rate r means that `E |x(t) - x_bar|^2` falls like exp(-r t). If the rates of edges sum
to 1, time is the expected number of meetings. With mu the eigengap of the Laplacian of
the rates, and R the largest effective resistance between the ends of an edge,

    randomised    mu / 2 at least, mu at most
    accelerated   sqrt(mu / (2 R)) at least
    delayed       gamma <= min(lambda_2(K) / 2, 1 / tau_max), with (4.12) as the bound

The second moment S of the rows obeys a linear equation. Its slowest eigenvalue is the
exact rate. This eigenvalue is real, because S stays positive semi-definite. A
factorisation and a few steps find it.

References:
    Even, PhD thesis, 2024, chapters 1, 2, 4 and 6, tel-04877971.

Differences (each with a test; see docs/errata.md): randomised gossip has half the
printed rate. Accelerated gossip has half the printed eta, as its theorem needs.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.sparse.linalg import LinearOperator, eigs
from torch import Tensor

from coterie import checks
from coterie.checks import InputError
from coterie.graphs.families import nodes_of, not_negative
from coterie.graphs.spectra import eigengap

from ..gossip.accelerated import GossipPace, pace

CAPACITY = 1 / (1 - math.sqrt(math.log(6) / 2))  # 18.6948
"""c of (4.33): with c times fewer messages than the capacity, half of them are kept."""

_NODES = 30
"""The largest number of nodes for exact rates; unknowns grow with the square of it."""


# In rounds.


def synchronous_bound(gap: float, rounds: int) -> float:
    """`(1 - rho)^{2t}`: the share of |x - x_bar|^2 after t rounds of x <- W x.

    >>> round(synchronous_bound(0.1, 10), 4)
    0.1216

    Args:
        gap: rho, `1 - contraction([W])`.
        rounds: t.
    """
    checks.number("gap", gap, at_least=0, at_most=1)
    return (1 - gap) ** (2 * checks.integer("rounds", rounds, at_least=0))


def chebyshev_bound(gap: float, rounds: int) -> float:
    """`2 exp(-t sqrt(l))`: a bound on this share after t rounds of Chebyshev gossip.

    >>> round(chebyshev_bound(0.01, 100), 7)
    9.08e-05
    """
    checks.number("gap", gap, at_least=0, at_most=1)
    rounds = checks.integer("rounds", rounds, at_least=0)
    return 2 * math.exp(-rounds * math.sqrt(gap))


# By random pairs.


def randomised_rate(edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"]) -> float:
    """The rate mu / 2, exact on complete graphs, and a lower bound on other graphs."""
    return eigengap(edges, rates) / 2


def accelerated_rate(edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"]) -> float:
    """`theta = sqrt(mu / (2 R))`, a lower bound for accelerated gossip; Theorem 2.5.

    It is never below `randomised_rate`, and far above it on long graphs.
    """
    return pace(edges, rates).eta


def accelerated_bound(rate: float, time: float) -> float:
    """`2 exp(-theta t)`, a bound on E |x - x_bar|^2, relative to the start."""
    checks.number("rate", rate, at_least=0)
    return 2 * math.exp(-rate * checks.number("time", time, at_least=0))


def exact_randomised_rate(
    edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"]
) -> float:
    """The exact rate of E |x(t) - x_bar|^2 from the worst start; at most 30 nodes."""
    a, p = _differences(edges, rates)
    return _exact(np.zeros((a.shape[1],) * 2), a / 2, a, p)


def exact_accelerated_rate(
    edges: Int[Tensor, "e 2"],
    rates: Float[Tensor, " e"],
    given: GossipPace | None = None,
) -> float:
    """The exact rate of the second moment of x and z, negative if it diverges.

    The graph has at most 30 nodes.

    `dS/dt = B S + S B' + sum_e p_e (J_e S J_e' - S)`, where the flow is
    `B = eta [[-I, I], [I, -I]]` and a meeting `J_e = I - [a/2; gamma a] [a; 0]'`.

    Args:
        edges: the edges of a connected graph.
        rates: how often the clocks of edges ring.
        given: eta and gamma; by default, they are computed from the graph.
    """
    eta, gamma = pace(edges, rates) if given is None else given
    a, p = _differences(edges, rates)
    flow = eta * np.kron([[-1.0, 1.0], [1.0, -1.0]], np.eye(a.shape[1]))
    return _exact(
        flow, np.hstack([a / 2, gamma * a]), np.hstack([a, np.zeros_like(a)]), p
    )


def _differences(edges: Tensor, rates: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """Rows e_v - e_w of edges, in a basis of vectors with the sum 0, and rates."""
    n = nodes_of(edges)
    checks.integer("number of nodes", n, at_least=2, at_most=_NODES)
    eigengap(edges, rates)  # refuses a graph that is not connected
    a = np.zeros((len(edges), n))
    which = np.arange(len(edges))
    a[which, edges[:, 0].cpu()] = 1
    a[which, edges[:, 1].cpu()] = -1
    basis = np.linalg.svd(np.ones((1, n)))[2][1:]
    return a @ basis.T, rates.double().cpu().numpy()


def _exact(flow: np.ndarray, out: np.ndarray, read: np.ndarray, p: np.ndarray) -> float:
    """Minus the largest real part of S -> flow S + S flow' + sum_e p_e (J S J' - S).

    Edge e meets at rate p_e by J = I - out_e read_e', with row e of `out` and `read`.
    """
    m = flow.shape[0]
    i, k = np.triu_indices(m)  # S is symmetric
    s = np.zeros((len(i), m, m))
    s[np.arange(len(i)), i, k] = s[np.arange(len(i)), k, i] = 1.0
    moved = flow @ s
    for u, r, rate in zip(out, read, p, strict=True):
        along = s @ r
        moved -= rate * along[:, :, None] * u
        moved += rate / 2 * (along @ r)[:, None, None] * np.outer(u, u)
    moved += moved.swapaxes(1, 2)
    generator = moved[:, i, k].T
    if len(generator) < 200:
        return -float(np.linalg.eigvals(generator).real.max())
    # The largest eigenvalue is the one nearest to any number above it.
    above = 2 * np.abs(flow).sum(1).max() + 1e-9
    inverse = np.linalg.inv(generator - above * np.eye(len(generator)))
    solver = LinearOperator(inverse.shape, matvec=inverse.dot, dtype=np.float64)
    start = np.eye(m)[i, k]
    found = eigs(
        generator,
        k=1,
        sigma=above,
        OPinv=solver,
        v0=start,
        return_eigenvectors=False,
    )
    return -float(found[0].real)


# With delays.


def delayed_rate(
    edges: Int[Tensor, "e 2"],
    gains: Float[Tensor, " e"],
    delays: Float[Tensor, " e"],
    *,
    kept: float = 1.0,
) -> float:
    """The largest gamma of Theorem 4.1, `min(q lambda_2(K) / 2, 1 / tau_max)`.

    The bound (4.12) itself needs a gamma below 1 / tau_max.

    Args:
        edges: the edges of a connected graph.
        gains: K_e of (4.11), as of `coterie.graphs.delayed_gains`.
        delays: tau_e.
        kept: q, a lower bound on the probability that a message is kept; 1/2 under
            (4.33), Theorem 4.4.
    """
    checks.number("kept", kept, above=0, at_most=1)
    longest = float(not_negative("delays", delays, len(edges)).max())
    slow = kept * eigengap(edges, gains) / 2
    return min(slow, 1 / longest) if longest else slow


def delayed_bound(gamma: float, time: float, longest: float) -> float:
    """The bound `e^{-gamma T/2} (1 + tau/T) / (1 - gamma tau)` of (4.12) and (4.23).

    For gossip, it bounds the mean of E |x(t) - x_bar|^2 over [0, T] with weights
    e^{gamma t}, divided by |x(0) - x_bar|^2. It also bounds the deviation of the
    average of the past (Corollary 4.2.1).

    Args:
        gamma: at most `delayed_rate`, and below 1 / tau.
        time: T.
        longest: tau, the longest delay.
    """
    checks.number("gamma", gamma, at_least=0)
    checks.number("time", time, above=0)
    checks.number("longest", longest, at_least=0)
    if not gamma * longest < 1:
        raise InputError(
            f"`gamma` must be below 1 / (longest delay) = {1 / longest:g}, got {gamma}."
        )
    return math.exp(-gamma * time / 2) * (1 + longest / time) / (1 - gamma * longest)


def capacity_load(
    edges: Int[Tensor, "e 2"],
    rates: Float[Tensor, " e"],
    delays: Float[Tensor, " e"],
    *,
    capacity: int | None = None,
    edge_capacity: int | None = None,
) -> float:
    """The largest ratio of the two sides of (4.33).

    If this load is at most 1, at least half of the messages are kept. The ratios are `c
    p_e tau_e / q_e` of edges and `c tau_v sum_w p_vw / q_v` of nodes, where tau_v is
    the longest delay at v. If the load is above 1, divide the rates by it.

    Args:
        edges: pairs of nodes.
        rates: p_e.
        delays: tau_e.
        capacity: q_v, messages at once on all edges of a node; None: any number.
        edge_capacity: q_e, messages at once on an edge; None: any number.
    """
    p = not_negative("rates", rates, len(edges)).double()
    tau = not_negative("delays", delays, len(edges)).double()
    ends = edges.flatten()
    loads = [0.0]
    if edge_capacity is not None:
        checks.integer("edge_capacity", edge_capacity, at_least=1)
        loads.append(float((p * tau).max()) / edge_capacity)
    if capacity is not None:
        checks.integer("capacity", capacity, at_least=1)
        longest, total = torch.zeros(2, nodes_of(edges), dtype=p.dtype).to(p.device)
        longest.scatter_reduce_(0, ends, tau.repeat_interleave(2), "amax")
        total.index_add_(0, ends, p.repeat_interleave(2))
        loads.append(float((longest * total).max()) / capacity)
    return CAPACITY * max(loads)
