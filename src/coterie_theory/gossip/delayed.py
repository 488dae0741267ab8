"""Randomised gossip with messages that take time: read, travel, write.

Edge {v, w} of delay tau rings at t. Both ends have read their rows at t - tau and sent
them to each other. At t, both write the same difference to the rows that they have now:

    x_v(t) = x_v(t-) - s_e (x_v(t - tau) - x_w(t - tau)),
    x_w(t) = x_w(t-) + s_e (x_v(t - tau) - x_w(t - tau))                       (4.10)

with `s_e = K_e / (2 p_e)` and, from delays and rates of adjacent edges,

    K_e = p_e / (1 + sum_{e' ~ e} p_e' (tau_e + e tau_e')),    e = 2.718...    (4.11)

Here e' ~ e means that the edges share a node, so e ~ e. Before time 0, rows are x(0).
Messages may overlap in time. Both ends write opposite differences, so the mean of all
rows does not change. With `gamma <= min(lambda_2(K) / 2, 1 / tau_max)`, the average of
the past

    gamma int_0^T e^{gamma s} x(s) ds / (e^{gamma T} - 1)           (Corollary 4.2.1)

obeys the bound of Theorem 4.1, without another mean over time. Every node computes the
average of its own row.

References:
    Even, Hendrikx, Massoulié, "Asynchronous speedup in decentralized optimization",
    2021, arXiv 2106.03585.
    Even, PhD thesis, 2024, 4.2, tel-04877971.

Differences: the thesis prints `s_e = K_e / p_e`. With these shares, two nodes without
delay swap their rows for ever; see docs/errata.md.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from coterie import checks
from coterie.graphs.capacities import RingTimes
from coterie.graphs.families import not_negative

from .rings import by_level, pieces, rows, until_each


def delayed(
    x: Float[Tensor, "n d"],
    edges: Int[Tensor, "e 2"],
    rings: RingTimes,
    at: Float64[Tensor, " k"],
    *,
    delays: Float[Tensor, " e"],
    shares: Float[Tensor, " e"],
) -> Float[Tensor, "k n d"]:
    """All rows at each of these times.

    Args:
        x: the first rows.
        edges: pairs of positions of rows.
        rings: when edges write, ascending, and positions of edges.
        at: times, ascending.
        delays: tau_e, from reading to writing.
        shares: s_e, from `coterie.graphs.delayed_shares`.
    """
    return _run(x, edges, rings, at, delays, shares, None)


def trajectory_means(
    x: Float[Tensor, "n d"],
    edges: Int[Tensor, "e 2"],
    rings: RingTimes,
    at: Float64[Tensor, " k"],
    *,
    delays: Float[Tensor, " e"],
    shares: Float[Tensor, " e"],
    gamma: float,
) -> Float[Tensor, "k n d"]:
    """Averages of the past with weights e^{gamma s}, for the rows of `delayed`.

    `at` must be above 0. The other arguments are the same as for `delayed`.
    """
    checks.number("gamma", gamma, above=0)
    checks.number("at", float(at.min()), above=0)
    return _run(x, edges, rings, at, delays, shares, gamma)


class _Operations(NamedTuple):
    """Reads and writes, in the order of their times."""

    times: Tensor
    rings: Tensor  # positions
    writes: Tensor  # whether it writes
    slots: Tensor  # the place that keeps a difference until it is written


def _operations(rings: RingTimes, delays: Tensor) -> _Operations:
    """The operations of rings; at equal times, earlier rings write before a read."""
    m = len(rings.times)
    times = torch.cat([rings.times - delays.double().cpu()[rings.which], rings.times])
    which = torch.arange(m).repeat(2)
    writes = torch.arange(2 * m) >= m
    order = (2 * which + writes).argsort()
    order = order[times[order].argsort(stable=True)]
    free: deque[int] = deque()
    held, used, found = [0] * m, 0, []
    for ring, write in zip(which[order].tolist(), writes[order].tolist(), strict=True):
        if write:
            free.append(held[ring])
        elif free:
            held[ring] = free.popleft()
        else:
            held[ring], used = used, used + 1
        found.append(held[ring])
    slots = torch.tensor(found, dtype=torch.long)
    return _Operations(times[order], which[order], writes[order], slots)


def _run(
    x: Tensor,
    edges: Tensor,
    rings: RingTimes,
    at: Tensor,
    delays: Tensor,
    shares: Tensor,
    gamma: float | None,
) -> Tensor:
    x = rows(x, edges)
    not_negative("delays", delays, len(edges))
    not_negative("shares", shares, len(edges))
    stop = [some.stop for some in until_each(edges, rings, at)][-1]
    rings = RingTimes(rings.times[:stop], rings.which[:stop])
    todo = _operations(rings, delays)
    moved = shares.to(x)[rings.which.to(x.device)]
    kept = x.new_zeros(int(todo.slots.max()) + 1 if len(todo.slots) else 0, x.shape[1])
    past = None if gamma is None else _Past(x, gamma)
    found, last = [], 0
    # A read before time 0 gives x(0), like every read before the first ring.
    for end, now in zip(
        torch.searchsorted(todo.times, at, right=True).tolist(),
        at.tolist(),
        strict=True,
    ):
        some = _Operations(*(part[last:end] for part in todo))
        ends = edges[rings.which[some.rings]].cpu()
        if past is not None:
            past.note(ends, some)
        # In a layer, no node is both read and written, so reads can come first.
        order = 2 * _levels(ends, some, len(x), len(kept)) + some.writes.long()
        for number, group in enumerate(by_level(order)):
            for piece in pieces(group, x.shape[1]):
                v, w = ends[piece].to(x.device).unbind(1)
                slots = some.slots[piece].to(x.device)
                if number % 2 == 0:
                    difference = x.index_select(0, v) - x.index_select(0, w)
                    kept.index_copy_(0, slots, difference)
                    continue
                if past is not None:
                    past.before_writing(x, ends[piece], piece)
                share = moved.index_select(0, some.rings[piece].to(x.device))
                step = share[:, None] * kept.index_select(0, slots)
                x.index_add_(0, v, step, alpha=-1).index_add_(0, w, step)
        last = end
        found.append(x.clone() if past is None else past.until(x, now))
    return torch.stack(found)


def _levels(ends: Tensor, some: _Operations, nodes: int, slots: int) -> Tensor:
    """The layer of each operation.

    Inside a layer, no operation reads or writes what another operation writes.
    """
    written, read, held = [-1] * nodes, [-1] * nodes, [-1] * slots
    found = []
    for v, w, write, slot in zip(
        *ends.T.tolist(), some.writes.tolist(), some.slots.tolist(), strict=True
    ):
        if write:
            level = 1 + max(written[v], written[w], held[slot], read[v], read[w])
            written[v] = written[w] = level
        else:
            level = 1 + max(written[v], written[w], held[slot])
            if level > read[v]:
                read[v] = level
            if level > read[w]:
                read[w] = level
        held[slot] = level
        found.append(level)
    return torch.tensor(found, dtype=torch.long)


class _Past:
    """Every node's average of its own past, updated when the node writes.

    From t to t' the average becomes `(a mean + b x) / (a + b)` with
    `a = e^{-gamma (t' - t)} - e^{-gamma t'}` and `b = 1 - e^{-gamma (t' - t)}`. The
    weights e^{gamma s} themselves would overflow.
    """

    def __init__(self, x: Tensor, gamma: float) -> None:
        self._mean, self._gamma = torch.zeros_like(x), gamma
        self._seen = torch.zeros(len(x), dtype=torch.float64)
        self._new = torch.empty(0, 2, dtype=torch.float64)

    def note(self, ends: Tensor, some: _Operations) -> None:
        """Computes the weight of x for both ends of each of the next operations."""
        last, found = self._seen.tolist(), []
        for (v, w), write, time in zip(
            ends.tolist(), some.writes.tolist(), some.times.tolist(), strict=True
        ):
            found.append((last[v], last[w], time))
            if write:
                last[v] = last[w] = time
        self._seen = torch.tensor(last, dtype=torch.float64)
        spans = torch.tensor(found, dtype=torch.float64).reshape(-1, 3)
        self._new = self._weight(spans[:, :2], spans[:, 2:])

    def before_writing(self, x: Tensor, ends: Tensor, which: Tensor) -> None:
        """Adds the rows of these ends to their averages, before the rows change."""
        here = ends.flatten().to(x.device)
        new = self._new[which].reshape(-1, 1).to(x)
        self._mean[here] += new * (x[here] - self._mean[here])

    def until(self, x: Tensor, now: float) -> Tensor:
        """The averages of all nodes until the time `now`."""
        new = self._weight(self._seen, torch.full_like(self._seen, now))
        return self._mean + new[:, None].to(x) * (x - self._mean)

    def _weight(self, since: Tensor, now: Tensor) -> Tensor:
        """The weight of x, `b / (a + b)`; it is 0 if no time has passed."""
        b = -torch.expm1(-self._gamma * (now - since))
        both = -torch.expm1(-self._gamma * now)
        return torch.where(both > 0, b / both, torch.zeros_like(b))
