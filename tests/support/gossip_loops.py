"""Gossip as plain loops, one ring after the other, in the words of the papers."""

from __future__ import annotations

import bisect
import math

import torch
from torch import Tensor

from coterie.graphs import RingTimes


def pairwise_loop(x: Tensor, edges: Tensor, rings: RingTimes) -> Tensor:
    x = x.clone()
    for edge in rings.which.tolist():
        v, w = edges[edge].tolist()
        mean = (x[v] + x[w]) * 0.5
        x[v] = mean
        x[w] = mean
    return x


def dense_accelerated(
    x: Tensor, edges: Tensor, rings: RingTimes, until: float, eta: float, gamma: float
) -> tuple[Tensor, Tensor]:
    """All nodes flow at every ring, with the exponential of the flow."""
    x, z, now = x.clone(), x.clone(), 0.0

    def flow(span: float) -> tuple[Tensor, Tensor]:
        half, gap = (x + z) / 2, (x - z) / 2 * math.exp(-2 * eta * span)
        return half + gap, half - gap

    for time, edge in zip(*(part.tolist() for part in rings), strict=True):
        x, z = flow(time - now)
        now = time
        v, w = edges[edge].tolist()
        step = x[w] - x[v]
        x[v], x[w] = x[v] + step / 2, x[w] - step / 2
        z[v], z[w] = z[v] + gamma * step, z[w] - gamma * step
    return flow(until - now)


def delayed_path(
    x: Tensor, edges: Tensor, rings: RingTimes, delays: Tensor, shares: Tensor
) -> list[tuple[float, Tensor]]:
    """Times and rows after each of them, the past read from this very list."""
    path, written = [(0.0, x.clone())], [0.0]
    pairs, tau = edges.tolist(), delays.tolist()
    for time, edge in zip(*(part.tolist() for part in rings), strict=True):
        # Those that wrote at that very time have, if they are earlier rings.
        place = bisect.bisect_right(written, time - tau[edge])
        (v, w), old = pairs[edge], path[max(place - 1, 0)][1]
        new = path[-1][1].clone()
        step = shares[edge] * (old[v] - old[w])
        new[v] -= step
        new[w] += step
        path.append((time, new))
        written.append(time)
    return path


def weighted_past(
    path: list[tuple[float, Tensor]], gamma: float, until: float
) -> Tensor:
    """`gamma int_0^T e^{gamma s} x(s) ds / (e^{gamma T} - 1)`, piece by piece."""
    total = torch.zeros_like(path[0][1])
    ends = [time for time, _ in path[1:]] + [until]
    for (start, x), end in zip(path, ends, strict=True):
        total += (math.exp(gamma * end) - math.exp(gamma * start)) * x
    return total / math.expm1(gamma * until)
