"""DDO, delayed decentralised optimisation: messages and computations take time.

    minimise sum_v f_v(x),    f_v sigma-strongly convex and L-smooth

Node v has a model x_v and a dual value y_v of phi_v(x) = f_v(x) - (sigma / 4) |x|^2.
Edges and nodes have clocks, which tick at the times of Poisson processes of rates p. At
a tick T, a node writes a change that is computed from values at T - tau:

    edge {v, w}:  x_v <- x_v - (K / 2p) (x_v - x_w)(T - tau),   and the opposite for w
    node v:       g = argmin_x phi_v(x) - <y_v(T - tau), x>
                  y_v <- y_v - (sigma K / 4p) (g - x_v(T - tau))
                  x_v <- x_v - (K / 2p) (x_v(T - tau) - g)

All start at x = y = 0. (sigma / 2) sum_v x_v + sum_v y_v stays 0, and models x_v
converge to x*. The gains K depend on adjacent delays
(`coterie_theory.decentralised.descent`). With capacities, a tick is dropped if too many
other ticks are in progress (`admissible`).

`coterie.algorithms.ddo` is this method on clients' data, without capacities.

References:
    Even, Hendrikx, Massoulié, "Asynchronous speedup in decentralized optimization",
    2021, arXiv 2106.03585.
    Even, PhD thesis, 2024, chapter 4, tel-04877971.

Differences (each with a test; see docs/errata.md): steps of y are sigma K / 4p; the
printed sigma K / p leads to another point. The output is x_v.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from coterie import checks
from coterie.graphs.capacities import RingTimes
from coterie.graphs.families import nodes_of, not_negative, refuse_apart

from ..gossip.capacities import kept_by_truncation
from .dual import DualGradient


class Network(NamedTuple):
    """Edges and nodes, with rates of their ticks and the times of their work."""

    edges: Int[Tensor, "e 2"]
    rates: Float64[Tensor, " e"]
    delays: Float64[Tensor, " e"]
    computing: Float64[Tensor, " n"]  # rates of computations
    lengths: Float64[Tensor, " n"]  # durations of computations

    def check(self) -> Network:
        """Returns the network if its graph is connected and its rates are positive."""
        n, e = nodes_of(self.edges), len(self.edges)
        checks.positive("rates", self.rates, e)
        checks.positive("computing", self.computing, n)
        not_negative("delays", self.delays, e)
        not_negative("lengths", self.lengths, n, of="node")
        refuse_apart("edges", self.edges, n)
        return self


class Gains(NamedTuple):
    """K of edges and of nodes."""

    edges: Float64[Tensor, " e"]
    nodes: Float64[Tensor, " n"]


def ticks(network: Network, until: float, rng: torch.Generator) -> RingTimes:
    """The ticks of all edges (numbers 0 to E - 1) and all nodes (E to E + n - 1)."""
    checks.number("until", until, above=0)
    rates = torch.cat([network.rates, network.computing])
    counts = torch.poisson(rates * until, generator=rng).long()
    which = torch.arange(len(rates)).repeat_interleave(counts)
    times = torch.rand(len(which), generator=rng, dtype=torch.float64) * until
    order = times.argsort()
    return RingTimes(times[order], which[order])


class DdoState(NamedTuple):
    """Models and dual values after a tick; the next one changes them in place."""

    time: float
    x: Float[Tensor, "n d"]
    y: Float[Tensor, "n d"]


def ddo(
    gradient: DualGradient,
    network: Network,
    gains: Gains,
    when: RingTimes,
    *,
    sigma: float,
    dimension: int,
) -> Iterator[DdoState]:
    """Models after each tick.

    Args:
        gradient: argmin_x phi_v(x) - <y, x>, such as `quadratic_phi`.
        network: edges and nodes with their delays.
        gains: K.
        when: the ticks, in ascending order.
        sigma: strong convexity of all losses.
        dimension: the number of parameters of a model.
    """
    network.check()
    checks.number("sigma", sigma, above=0)
    pairs, e = network.edges.tolist(), len(network.edges)
    x = torch.zeros(len(network.computing), dimension, dtype=torch.float64)
    y = torch.zeros_like(x)
    rates = torch.cat([network.rates, network.computing])
    shares = (torch.cat([gains.edges, gains.nodes]) / (2 * rates)).tolist()
    which = when.which.tolist()
    read: dict[int, Tensor] = {}

    def difference(tick: int) -> Tensor:
        """What a tick reads: the difference of two models, or of x_v and `gradient`."""
        k = which[tick]
        if k < e:
            v, w = pairs[k]
            return x[v] - x[w]
        return x[k - e] - gradient(k - e, y[k - e])

    for time, tick, writes in _timeline(network, when):
        if not writes:
            read[tick] = difference(tick)
            continue
        k, away = which[tick], read.pop(tick)
        if k < e:
            v, w = pairs[k]
            x[v] -= shares[k] * away
            x[w] += shares[k] * away
        else:
            x[k - e] -= shares[k] * away
            y[k - e] += sigma / 2 * shares[k] * away
        yield DdoState(time, x, y)


def _timeline(network: Network, when: RingTimes) -> list[tuple[float, int, bool]]:
    """(time, tick, whether it writes) in order; each tick reads before it writes."""
    late = torch.cat([network.delays, network.lengths])[when.which]
    reads, writes = (when.times - late).clamp(min=0).tolist(), when.times.tolist()
    every = [(time, tick, False) for tick, time in enumerate(reads)]
    every += [(time, tick, True) for tick, time in enumerate(writes)]
    return sorted(every)


def quadratic_phi(
    curvatures: Float[Tensor, " n"], optima: Float[Tensor, "n d"], *, sigma: float
) -> DualGradient:
    """`(y + a_v b_v) / (a_v - sigma / 2)`, for f_v(x) = a_v |x - b_v|^2 / 2."""
    checks.number("sigma", sigma, above=0, at_most=float(curvatures.min()))
    bent = (curvatures - sigma / 2).tolist()
    pull = curvatures[:, None] * optima
    return lambda v, y: (y + pull[v]) / bent[v]


class Capacities(NamedTuple):
    """The largest numbers of messages and computations at once; None: no limit."""

    link: int | None = None  # messages on an edge
    node: int | None = None  # messages at a node
    computing: int | None = None  # computations of a node


def admissible(
    network: Network, when: RingTimes, limits: Capacities
) -> Bool[Tensor, " m"]:
    """(m,) which ticks are kept if capacities limit how many are in progress at a time.

    The rule is the same as in `coterie_theory.gossip.kept_by_truncation`. For the tick
    of an edge, it limits the edge and all edges at each end. For the tick of a node, it
    limits the computations of this node.
    """
    for name, value in limits._asdict().items():
        if value is not None:
            checks.integer(name, value, at_least=1)
    n, e = len(network.computing), len(network.edges)
    own = torch.stack([torch.arange(n), n + torch.arange(n)], 1)  # node and computation
    sent = when.which < e
    messages = RingTimes(when.times[sent], when.which[sent])
    computed = RingTimes(when.times[~sent], when.which[~sent] - e)
    kept = torch.empty(len(sent), dtype=torch.bool)
    kept[sent] = kept_by_truncation(
        network.edges,
        messages,
        network.delays,
        capacity=limits.node,
        edge_capacity=limits.link,
    )
    kept[~sent] = kept_by_truncation(
        own, computed, network.lengths, edge_capacity=limits.computing
    )
    return kept
