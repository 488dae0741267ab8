"""Accelerated randomised gossip, in continuous time: two rows for every node.

Every edge has a clock. Between rings, x_v and z_v flow towards each other,
`dx = eta (z - x) dt` and `dz = eta (x - z) dt`, without messages. When the clock of the
edge {v, w} rings,

    x_v, x_w <- (x_v + x_w) / 2,   z_v <- z_v + gamma (x_w - x_v),
                                   z_w <- z_w - gamma (x_w - x_v)

where the right sides have the rows from just before the ring. Only x is sent. In a time
D without a meeting, x and z of a node each move `(1 - exp(-2 eta D)) / 2` of the way to
the other. So it is enough to compute this move when the node meets a neighbour. Let mu
be the eigengap of the Laplacian of the rates, and R the largest effective resistance
between ends of an edge. Then

    eta = sqrt(mu / (2 R)),  gamma = 1 / sqrt(2 mu R),
    E |x(t) - x_bar|^2 <= 2 exp(-eta t) |x(0) - x_bar|^2.

With a smaller mu or a larger R, the method is stable but slower. With a larger mu or a
smaller R, it may diverge.

References:
    Even, Berthier, Bach, Flammarion, Gaillard, Hendrikx, Massoulié, Taylor,
    "Continuized accelerations of deterministic and stochastic gradient descents, and
    of gossip algorithms", NeurIPS 2021, arXiv 2106.07644.
    Even, PhD thesis, 2024, 2.7, tel-04877971.

Differences: the thesis prints twice this eta. With the printed eta, the mean square
diverges on a line of 20 nodes; see docs/errata.md.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from coterie import checks
from coterie.graphs.capacities import RingTimes
from coterie.optim.meetings import MeetingRates, meetings, share_of_way

from .rings import layers, pieces, rows, until_each


class GossipPace(NamedTuple):
    """The speed eta of the flow, and how far a meeting moves z (gamma)."""

    eta: float
    gamma: float


class RowPairs(NamedTuple):
    """Both rows of all nodes, at several times."""

    x: Float[Tensor, "k n d"]
    z: Float[Tensor, "k n d"]


def pace(edges: Int[Tensor, "e 2"], rates: Float[Tensor, " e"]) -> GossipPace:
    """The pace of a connected graph, computed from the whole graph.

    >>> eta, gamma = pace(torch.tensor([[0, 1], [1, 2]]), torch.tensor([0.5, 0.5]))
    >>> round(eta, 4), round(gamma, 4)
    (0.3536, 0.7071)
    """
    return pace_of(*meetings(edges, rates))


def pace_of(gap: float, resistance: float) -> GossipPace:
    """A stable pace if the eigengap is >= `gap` and resistances are <= `resistance`."""
    checks.number("gap", gap, above=0)
    checks.number("resistance", resistance, above=0)
    found = MeetingRates(gap, resistance)
    return GossipPace(found.eta, found.alpha)


def accelerated(
    x: Float[Tensor, "n d"],
    edges: Int[Tensor, "e 2"],
    rings: RingTimes,
    at: Float64[Tensor, " k"],
    pace: GossipPace,
) -> RowPairs:
    """All rows at each of these times; arguments as for `randomised`.

    With `eta = 0`, x is the result of `randomised`. Use double precision if x must come
    nearer to the mean by many orders of magnitude.

    Args:
        x: the rows at time 0, of x and of z.
        edges: pairs of positions of rows.
        rings: times, ascending, and positions of edges.
        at: times, ascending.
        pace: a result of `pace`, for the rates at which edges ring.
    """
    checks.number("eta", pace.eta, at_least=0)
    checks.number("gamma", pace.gamma, at_least=0)
    x = rows(x, edges)
    z, seen, found = x.clone(), torch.zeros(len(x), dtype=torch.float64), []
    for some, now in zip(until_each(edges, rings, at), at.tolist(), strict=True):
        ends, times = edges[rings.which[some]].cpu(), rings.times[some]
        spans = times[:, None] - _times_before(ends, times, seen)
        gone = share_of_way(spans, pace.eta).to(x)
        for layer in layers(ends, len(x)):
            for piece in pieces(layer, 2 * x.shape[1]):
                flow = gone[piece.to(x.device)]
                _meet(x, z, ends[piece].to(x.device), flow, pace.gamma)
        share = share_of_way(now - seen, pace.eta).to(x)[:, None]
        way = share * (z - x)
        found.append((x + way, z - way))
    return RowPairs(*(torch.stack(each) for each in zip(*found, strict=True)))


def flow_shares(
    ends: Int[Tensor, "m 2"], times: Float64[Tensor, " m"], nodes: int, eta: float
) -> Float64[Tensor, "m 2"]:
    """Shares of the way from x to z that each end has moved since its last ring.

    >>> ends, times = torch.tensor([[0, 1], [1, 2]]), torch.tensor([1.0, 1.0]).double()
    >>> flow_shares(ends, times, 3, 10.0)
    tensor([[0.5000, 0.5000],
            [0.0000, 0.5000]], dtype=torch.float64)

    Args:
        ends: nodes of each ring.
        times: the times of rings, ascending.
        nodes: n.
        eta: the eta of a `GossipPace`.
    """
    seen = torch.zeros(nodes, dtype=torch.float64)
    return share_of_way(times[:, None] - _times_before(ends, times, seen), eta)


def _times_before(ends: Tensor, times: Tensor, seen: Tensor) -> Tensor:
    """(m, 2) the time when each end of a ring last met another node; updates `seen`."""
    last, found = seen.tolist(), []
    for v, w, time in zip(*ends.T.tolist(), times.tolist(), strict=True):
        found.append((last[v], last[w]))
        last[v] = last[w] = time
    seen.copy_(torch.tensor(last, dtype=torch.float64))
    return torch.tensor(found, dtype=torch.float64).reshape(-1, 2)


def _meet(x: Tensor, z: Tensor, ends: Tensor, flown: Tensor, gamma: float) -> None:
    """Moves both ends along the flow and lets them meet; rings must not share nodes."""
    here = ends.flatten()
    one, other = x.index_select(0, here), z.index_select(0, here)
    way = flown.reshape(-1, 1) * (other - one)
    one, other = one + way, other - way
    v, w = one[0::2], one[1::2]
    step = gamma * (w - v)
    mean = (v + w) * 0.5
    x.index_copy_(0, here, mean.repeat_interleave(2, 0))
    z.index_copy_(0, here, other + torch.stack([step, -step], 1).flatten(0, 1))
