"""Networks with capacities: which rings begin an exchange, and which have no effect.

When an edge rings at time t, an exchange begins under two conditions: at t, each end
has fewer than `capacity` exchanges in progress, and the edge fewer than
`edge_capacity`. The exchange keeps both ends busy until t plus its length; at that time
it is over. If a condition fails, the ring has no effect (it is lost), and nobody waits.
With capacity 1 this is a loss network.

A message with a delay arrives when its edge rings. So it travels before the ring, not
after it (`kept_by_truncation`, `accepted_messages`).

References:
    Even, PhD thesis, 2024, Definition 4.3.1, Assumption 4.5.1 and 5.5.2, tel-04877971.

Differences: the time windows of nodes are tau_v long, as in Assumption 4.5.1; in its
proof they are tau_e. See docs/errata.md.
"""

from __future__ import annotations

import heapq
from collections import deque

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from coterie.checks import InputError, integer
from coterie.graphs.capacities import RingTimes
from coterie.graphs.families import nodes_of, not_negative


def admitted_rings(
    edges: Int[Tensor, "e 2"],
    rings: RingTimes,
    lengths: Float64[Tensor, " m"],
    *,
    capacity: int = 1,
    edge_capacity: int | None = None,
) -> Bool[Tensor, " m"]:
    """(m,) which rings begin an exchange, decided in the order of the rings.

    >>> line = torch.tensor([[0, 1], [1, 2]])
    >>> times = torch.tensor([0.0, 0.5, 1.0, 1.5], dtype=torch.float64)
    >>> rings = RingTimes(times, torch.tensor([0, 1, 1, 0]))
    >>> admitted_rings(line, rings, torch.ones_like(times))
    tensor([ True, False,  True, False])

    Args:
        edges: pairs of nodes.
        rings: times of rings, ascending, and positions in `edges`.
        lengths: how long the exchange of each ring takes if it begins.
        capacity: the largest number of exchanges at once at a node.
        edge_capacity: exchanges at once on an edge; None: any number.
    """
    _check(edges, rings, lengths, capacity, edge_capacity)
    nodes = int(edges.max()) + 1 if len(edges) else 0
    # When exchanges in progress end, by node and then by edge.
    ends: list[list[float]] = [[] for _ in range(nodes + len(edges))]
    limits = [capacity] * nodes + [edge_capacity or len(rings.times) + 1] * len(edges)
    pairs, result = edges.tolist(), []
    for time, edge, length in zip(
        rings.times.tolist(), rings.which.tolist(), lengths.tolist(), strict=True
    ):
        places = (*pairs[edge], nodes + edge)
        free = True
        for place in places:
            going = ends[place]
            while going and going[0] <= time:
                heapq.heappop(going)
            free = free and len(going) < limits[place]
        if free:
            for place in places:
                heapq.heappush(ends[place], time + length)
        result.append(free)
    return torch.tensor(result, dtype=torch.bool)


def kept_by_truncation(
    edges: Int[Tensor, "e 2"],
    rings: RingTimes,
    delays: Float[Tensor, " e"],
    *,
    capacity: int | None = None,
    edge_capacity: int | None = None,
) -> Bool[Tensor, " m"]:
    """(m,) which messages are sent, if dropped messages also count towards limits.

    A ring of edge e at t stands for a message that travels from t - tau_e to t. The
    message is kept under two conditions:

    - fewer than `edge_capacity` rings of the edge lie in [t - tau_e, t);
    - at both ends v, fewer than `capacity` rings of edges at v lie in [t - tau_v, t),
      with tau_v the longest delay at v.

    Otherwise both ends drop it, and nobody tries again. So only the rings before a
    message decide whether it is kept. Theorem 4.4 needs this.

    >>> rings = RingTimes(torch.tensor([1.0, 1.5, 2.2]).double(), torch.zeros(3).long())
    >>> edge, delay = torch.tensor([[0, 1]]), torch.ones(1)
    >>> kept_by_truncation(edge, rings, delay, edge_capacity=1)
    tensor([ True, False, False])

    Args:
        edges: pairs of nodes.
        rings: when messages are written, ascending, and positions of edges.
        delays: tau_e, how long a message travels.
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


def accepted_messages(
    edges: Int[Tensor, "e 2"],
    rings: RingTimes,
    delays: Float[Tensor, " e"],
    *,
    capacity: int | None = None,
    edge_capacity: int | None = None,
) -> Bool[Tensor, " m"]:
    """(m,) which messages are sent, if dropped messages do not count towards limits."""
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
    """(n + e,) the length of the time window of each node, and then of each edge."""
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
    """(m, 3) the two nodes and the edge of each ring; edge numbers follow nodes."""
    own = nodes_of(edges) + rings.which[:, None]
    return torch.cat([edges.cpu()[rings.which], own], 1)


def _check(
    edges: Tensor,
    rings: RingTimes,
    lengths: Tensor,
    capacity: int,
    edge_capacity: int | None,
) -> None:
    integer("capacity", capacity, at_least=1)
    if edge_capacity is not None:
        integer("edge_capacity", edge_capacity, at_least=1)
    times, which = rings
    if not len(times) == len(which) == len(lengths):
        raise InputError(
            "`rings` and `lengths` must have one entry per ring, got "
            f"{len(times)}, {len(which)} and {len(lengths)}."
        )
    for name, values in {"times": times, "lengths": lengths}.items():
        wrong = ~((values >= 0) & values.isfinite())
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise InputError(
                f"`{name}` must be finite and at least 0, but entry {row} is "
                f"{float(values[row]):g}."
            )
    if (times.diff() < 0).any():
        row = int((times.diff() < 0).nonzero()[0])
        raise InputError(
            f"`times` must be ascending, but {float(times[row]):g} is before "
            f"{float(times[row + 1]):g}."
        )
    if len(which) and not 0 <= int(which.min()) <= int(which.max()) < len(edges):
        raise InputError(
            f"`rings` must name edges 0 to {len(edges) - 1}, got "
            f"{int(which.min())} to {int(which.max())}."
        )
