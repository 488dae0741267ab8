"""Gradient descent without a server: rates, gains and conditions.

The methods are `coterie.algorithms.decentralised_sgd` and its variants,
`coterie_theory.descent.dual` (Theorem 2.6) and `coterie_theory.descent.delayed` (DDO,
Theorems 4.2 to 4.4). Rates of chapter 1 are orders, without constants. For
decentralised SGD, use the bounds of `coterie_theory.agraf` without delays.

Bounds of chapter 4 are on weighted means over time,

    int_0^T e^{gamma t} E h(t) dt / int_0^T e^{gamma t} h(0) dt <= `delayed_bound`

of `coterie_theory.decentralised.gossip`. Here h is the excess of the dual problem; for
DDO, it is the squared distance of models.

References are those of the methods, and:
    Koloskova, Loizou, Boreiri, Jaggi, Stich, "A unified theory of decentralized SGD
    with changing topology and local updates", ICML 2020, arXiv 2003.10422.

Differences (each with a test; see docs/errata.md): the dual rate has kappa = L / mu and
2 R. Gains and the rate of DDO include all neighbours in the augmented graph.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from coterie import checks
from coterie.graphs.spectra import eigengap
from coterie.optim.meetings import MeetingRates

from ..descent.delayed import Gains, Network
from ..rates import ConvexLosses, convex_sgd_bound
from .gossip import CAPACITY, delayed_bound

# Rounds: chapter 1.


def minibatch_bound(rounds: int, clients: int, losses: ConvexLosses) -> float:
    """`2 L B^2 / K + 2 sqrt(sigma^2 B^2 / (n K))`, for means of n gradients; (1.6)."""
    checks.integer("clients", clients, at_least=1)
    mean = losses._replace(variance=losses.variance / clients)
    return convex_sgd_bound(rounds, mean)


def local_rate(rounds: int, clients: int, steps: int, losses: ConvexLosses) -> float:
    """The order of the rate of local SGD with H >= 2 local steps in a round; (1.7).

    `L B^2 / K + (sqrt(L) sigma B^2 / K)^{2/3} + sqrt(sigma^2 B^2 / (n H K))`.
    """
    checks.integer("steps", steps, at_least=2)
    return _rate(rounds, clients * steps, 1.0, losses)


def decentralised_rate(
    rounds: int, clients: int, rho: float, losses: ConvexLosses
) -> float:
    """The order of the rate of decentralised SGD; (1.8).

    `L B^2 / (rho K) + (sqrt(L) sigma B^2 / (rho K))^{2/3} + sqrt(sigma^2 B^2 / (n K))`.
    The matrices W satisfy E|W y|^2 <= (1 - rho) |y|^2. After enough rounds, the graph
    has no effect on the order.
    """
    checks.number("rho", rho, above=0, at_most=1)
    return _rate(rounds, clients, rho, losses)


def _rate(rounds: int, samples: int, rho: float, losses: ConvexLosses) -> float:
    checks.integer("rounds", rounds, at_least=1)
    radius, beta, variance = losses
    start = beta * radius**2 / (rho * rounds)
    drift = (math.sqrt(beta * variance) * radius**2 / (rho * rounds)) ** (2 / 3)
    return start + drift + math.sqrt(variance * radius**2 / (samples * rounds))


# Dual acceleration: chapter 2.


def dual_rate(graph: MeetingRates, smoothness: float, curvature: float) -> float:
    """`sqrt(mu_gossip / (2 kappa R))`, of the squared distance to x*; Theorem 2.6.

    >>> round(dual_rate(MeetingRates(0.010876, 9.0), 10.0, 1.0), 6)
    0.007773
    """
    checks.number("curvature", curvature, above=0, at_most=smoothness)
    return graph.eta * math.sqrt(curvature / smoothness)


# Delays: chapter 4.


def coordinate_gains(
    rates: Float[Tensor, " m"], delays: Float[Tensor, " m"], ratio: Float[Tensor, "m m"]
) -> Float64[Tensor, " m"]:
    """The gains K of delayed coordinate descent, with equality in (4.21).

    `K_k = p_k / (1 + sum_{l ~ k} p_l (tau_k m_kl + e tau_l m_lk))`; a step is
    K_k / (p_k L_k).

    Args:
        rates: p, how often each block is updated.
        delays: tau.
        ratio: `m_kl = M_kl / sqrt(L_k L_l)`, 0 if the gradient in one block does not
            depend on the other. Otherwise 1 is always enough, also for k = l.
    """
    p, tau, m = rates.double(), delays.double(), ratio.double()
    return p / (1 + tau * (m @ p) + math.e * (m.T @ (p * tau)))


def coordinate_rate(
    gains: Float[Tensor, " m"],
    smoothness: Float[Tensor, " m"],
    delays: Float[Tensor, " m"],
    *,
    curvature: float,
    accepted: float = 1.0,
) -> float:
    """A bound on gamma: `min(sigma min_k eps K_k / L_k, 1 / tau_max)`; (4.22).

    Args:
        gains: K.
        smoothness: L of each block.
        delays: tau.
        curvature: sigma.
        accepted: eps, a lower bound on the share of updates that are kept.
    """
    descent = curvature * accepted * float((gains / smoothness).min())
    return min(descent, _patience(delays))


def _patience(*delays: Tensor) -> float:
    longest = max(float(tau.max()) for tau in delays)
    return 1 / longest if longest else math.inf


class AugmentedGraph(NamedTuple):
    """The graph of DDO: every node v has an additional node n + v, which computes."""

    edges: Int[Tensor, "m 2"]
    rates: Float64[Tensor, " m"]
    delays: Float64[Tensor, " m"]

    @property
    def neighbours(self) -> Float64[Tensor, "m m"]:
        """Entry (e, e') is 1 if edges e and e' share a node; this includes e' = e."""
        here = self.edges[:, None, :, None] == self.edges[None, :, None, :]
        return here.flatten(2).any(2).double()


def augmented_graph(network: Network) -> AugmentedGraph:
    """The augmented graph: all edges, then an edge from each node v to node n + v."""
    edges, rates, delays, computing, lengths = network.check()
    own = torch.arange(len(computing))
    return AugmentedGraph(
        torch.cat([edges, torch.stack([own, len(own) + own], 1)]),
        torch.cat([rates, computing]),
        torch.cat([delays, lengths]),
    )


def ddo_gains(network: Network) -> Gains:
    """The gains K of DDO: equality in (4.27), for all neighbours of augmented edges.

    The printed condition leaves out computations at both ends of an edge, and a node's
    own computations.
    """
    whole = augmented_graph(network)
    gains = coordinate_gains(whole.rates, whole.delays, whole.neighbours)
    e = len(network.edges)
    return Gains(gains[:e], gains[e:])


def ddo_rate(
    network: Network,
    gains: Gains,
    *,
    smoothness: float,
    curvature: float,
    accepted: float = 1.0,
) -> float:
    """The gamma of Theorem 4.3: `min((sigma / 4L) lambda_2(K), 1 / tau_max)`.

    lambda_2 belongs to the augmented graph; (4.28) prints the lambda_2 of the graph.
    The lambda_2 of the augmented graph is at least a quarter of `min(lambda_2 of the
    graph, min_v K_v)` (Lemma 4.A.4). With capacities and `limited_rates`, at least half
    of all ticks are accepted, and the first term is half as large: Theorem 4.4.
    """
    checks.number("curvature", curvature, above=0, at_most=smoothness)
    checks.number("accepted", accepted, above=0, at_most=1)
    gap = eigengap(
        augmented_graph(network).edges, torch.cat([gains.edges, gains.nodes])
    )
    descent = accepted * curvature / (4 * smoothness) * gap
    return min(descent, _patience(network.delays, network.lengths))


def ddo_bound(
    gamma: float, time: float, longest: float, *, smoothness: float, curvature: float
) -> float:
    """`2 L / sigma` times `delayed_bound`: (4.29), in the form that its proof gives.

    It bounds a ratio: the weighted mean of E sum_v |x_v(t) - x*|^2 over time, divided
    by `sum_v |x_v(0) - x*|^2 + sum_v |grad phi_v^*(y_v(0)) - x*|^2`.
    """
    return 2 * smoothness / curvature * delayed_bound(gamma, time, longest)


def limited_rates(
    network: Network,
    *,
    link: int | None = None,
    node: int | None = None,
    computing: int | None = None,
) -> Network:
    """The network with the given rates, lowered as far as (4.33) requires.

    (4.33) is `c p tau <= q` for edges and computations, and `c tau_v sum_w p_vw <= q`
    for nodes, where tau_v is the longest delay at v. Then at least half of all ticks
    are kept, and gamma is half as large (Theorem 4.4).
    """
    edges, rates, delays, clients, lengths = network.check()
    if link is not None:
        rates = rates.minimum(link / (CAPACITY * delays))
    if node is not None:
        at = [(edges == v).any(1) for v in range(len(clients))]
        longest = torch.stack([delays[here].max() for here in at])
        load = torch.stack([rates[here].sum() for here in at])
        share = (node / (CAPACITY * longest * load)).clamp(max=1)
        rates = rates * share[edges].amin(1)
    if computing is not None:
        clients = clients.minimum(computing / (CAPACITY * lengths))
    return Network(edges, rates, delays, clients, lengths)
