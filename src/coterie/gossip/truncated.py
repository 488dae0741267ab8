"""Which messages are sent where edges and nodes can carry only so many at once.

A ring of edge e at t stands for a message that is under way from t - tau_e to t. It is
kept if fewer than `edge_capacity` points of the edge lie in [t - tau_e, t), and fewer
than `capacity` points of the edges at each of its two ends v in [t - tau_v, t), where
tau_v is the longest delay of an edge at v; otherwise it is dropped, at both ends, and
nobody tries again. So at no time more than that many messages are under way.

`truncated` counts all points, also dropped ones: whether one is kept depends on the
points before it alone, which is what Theorem 4.4 needs. `accepted` counts those that
were kept, and so keeps more; `coterie.graphs.admitted` is the same for rings that begin
an exchange, from its beginning to its end.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, Definition 4.3.1 and 4.5, hal tel-04877971.

Differences: windows of nodes are tau_v, as in Assumption 4.5.1, and not tau_e, as in
its proof; see docs/errata.md.
"""

from __future__ import annotations

from collections import deque

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..checks import integer
from ..graphs.capacities import RingTimes
from ..graphs.families import nodes_of, not_negative


def truncated(
    edges: Int[Tensor, "e 2"],
    rings: RingTimes,
    delays: Float[Tensor, " e"],
    *,
    capacity: int | None = None,
    edge_capacity: int | None = None,
) -> Bool[Tensor, " m"]:
    """Which rings are kept, if dropped ones count too.

    >>> rings = RingTimes(torch.tensor([1.0, 1.5, 2.2]).double(), torch.zeros(3).long())
    >>> truncated(torch.tensor([[0, 1]]), rings, torch.ones(1), edge_capacity=1)
    tensor([ True, False, False])

    Args:
        edges: pairs of nodes.
        rings: when messages are written, ascending, and positions of edges.
        delays: tau_e, how long a message is under way.
        capacity: messages at once on all edges of a node; None: any number.
        edge_capacity: messages at once on an edge; None: any number.
    """
    windows = _windows(edges, delays, capacity, edge_capacity)
    kept = torch.ones(len(rings.times), dtype=torch.bool)
    places = _places(edges, rings)
    for limit, part in ((capacity, places[:, :2]), (edge_capacity, places[:, 2:])):
        if limit is None:
            continue
        for place in part.unique().tolist():
            here = (part == place).any(1)
            times = rings.times[here]
            before = torch.searchsorted(times, times)
            before -= torch.searchsorted(times, times - windows[place])
            kept[here] &= before < limit
    return kept


def accepted(
    edges: Int[Tensor, "e 2"],
    rings: RingTimes,
    delays: Float[Tensor, " e"],
    *,
    capacity: int | None = None,
    edge_capacity: int | None = None,
) -> Bool[Tensor, " m"]:
    """Which rings are kept, if only those that are kept count; as `truncated`."""
    windows = _windows(edges, delays, capacity, edge_capacity).tolist()
    unlimited = len(rings.times) + 1
    node, edge = capacity or unlimited, edge_capacity or unlimited
    under_way: list[deque[float]] = [deque() for _ in windows]
    result = []
    for time, places in zip(
        rings.times.tolist(), _places(edges, rings).tolist(), strict=True
    ):
        free = True
        for place, limit in zip(places, (node, node, edge), strict=True):
            points = under_way[place]
            while points and points[0] < time - windows[place]:
                points.popleft()
            free = free and sum(point < time for point in points) < limit
        if free:
            for place in places:
                under_way[place].append(time)
        result.append(free)
    return torch.tensor(result, dtype=torch.bool)


def _windows(
    edges: Tensor, delays: Tensor, capacity: int | None, edge_capacity: int | None
) -> Tensor:
    """How far back nodes look, and then edges."""
    for name, limit in {"capacity": capacity, "edge_capacity": edge_capacity}.items():
        if limit is not None:
            integer(name, limit, at_least=1)
    tau = not_negative("delays", delays, len(edges)).double().cpu()
    longest = tau.new_zeros(nodes_of(edges))
    longest.scatter_reduce_(
        0, edges.flatten().cpu(), tau.repeat_interleave(2), reduce="amax"
    )
    return torch.cat([longest, tau])


def _places(edges: Tensor, rings: RingTimes) -> Tensor:
    """(m, 3) the two nodes of each ring, and then its edge, behind all nodes."""
    own = nodes_of(edges) + rings.which[:, None]
    return torch.cat([edges.cpu()[rings.which], own], 1)
