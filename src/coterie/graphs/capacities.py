"""Loss networks: how often edges should start exchanges, and how often they succeed.

Every edge has a clock that rings at random times. A ring starts an exchange, which
keeps both ends of the edge busy for some time, its length. If an end is already busy,
the ring has no effect, and nobody waits.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, 5.5.2, hal tel-04877971.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ..checks import positive
from .families import degrees, nodes_of


class RingTimes(NamedTuple):
    """Rings of all edges of a graph, in the order of their times."""

    times: Float64[Tensor, " m"]
    which: Int[Tensor, " m"]  # positions of their edges


_WIDTH = 14
"""The most nodes at once for which a sum over matchings distinguishes all cases."""

_TURNS = 1000
"""Iterations of `_nearly_free`; on a tree, as many as its diameter are enough."""


def exchange_rates(
    edges: Int[Tensor, "e 2"],
    rates: Float64[Tensor, " e"],
    lengths: Float64[Tensor, " e"],
) -> Float64[Tensor, " e"]:
    """How often per second each edge rings while both its ends are free.

    In a loss network, let rho_e = rate_e length_e. The probability that exactly the
    exchanges of a set M of edges are in progress is proportional to the product of
    rho_e over M. This holds for any distribution of the lengths. The result is exact on
    trees, and on graphs for which `free_chances` can sum over all M: those of up to 14
    nodes, and long ones such as rings. On others, u_vw is the probability that v is not
    busy with a neighbour other than w, as if there were no circles:

        u_vw = 1 / (1 + sum_{w' != w} rho_vw' u_w'v).

    Both ends of e = {v, w} are then free with probability u_vw u_wv / (1 + rho_e u_vw
    u_wv). `exchange_rate_bounds` says how far off that can be.

    >>> one = torch.ones(1, dtype=torch.float64)
    >>> exchange_rates(torch.tensor([[0, 1]]), one, one)
    tensor([0.5000], dtype=torch.float64)
    """
    rho = rates * lengths
    if girth(edges) < math.inf:
        exact = free_chances(edges, rho)
        if exact is not None:
            return rates * exact
    *_, u = _nearly_free(edges, rho, _TURNS)
    return rates * _both_free(u, rho)


def exchange_rate_bounds(
    edges: Int[Tensor, "e 2"],
    rates: Float64[Tensor, " e"],
    lengths: Float64[Tensor, " e"],
) -> tuple[Float64[Tensor, " e"], Float64[Tensor, " e"]]:
    """Two numbers for each edge between which the exact rate lies.

    `exchange_rates` lies between them too. The first values of u, from u = 1 on, are in
    turn above and below the exact ones. This holds as long as paths with as many edges
    have no circle. If the shortest circle has g edges, we use turns g - 3 and g - 2. So
    the bounds are near each other if edges are seldom busy, or circles are long.

    Reference:
        Bayati, Gamarnik, Katz, Nair, Tetali, "Simple deterministic approximation
        algorithms for counting matchings", STOC 2007.

    >>> two = torch.full((2,), 2.0, dtype=torch.float64)
    >>> exchange_rate_bounds(torch.tensor([[0, 1], [1, 2]]), two, two / 4)
    (tensor([0.6667, 0.6667], dtype=torch.float64), tensor([0.6667, 0.6667], dtype=torch.float64))
    """  # noqa: E501
    rho, turns = rates * lengths, min(girth(edges) - 2, _TURNS)
    *_, before, last = _nearly_free(edges, rho, int(turns))
    found = [rates * _both_free(u, rho) for u in (before, last)]
    return torch.minimum(*found), torch.maximum(*found)


def _nearly_free(edges: Tensor, rho: Tensor, turns: int) -> list[Tensor]:
    """The last two u, from u = 1 on: (2 e,) of v without w, both ways."""
    v, e = torch.cat([edges[:, 0], edges[:, 1]]), len(edges)
    rho = rho.repeat(2)
    found = [torch.ones_like(rho)]
    for _ in range(turns):
        load = rho * found[-1].roll(e)  # that w puts on v
        around = torch.zeros(nodes_of(edges), dtype=load.dtype).index_add(0, v, load)
        found = [*found[-1:], 1 / (1 + around[v] - load)]
        if float((found[1] - found[0]).abs().max()) < 1e-12:
            return [found[1], found[1]]
    return found


def _both_free(u: Tensor, rho: Tensor) -> Tensor:
    both = u[: len(rho)] * u[len(rho) :]
    return both / (1 + rho * both)


def free_chances(
    edges: Int[Tensor, "e 2"], rho: Float64[Tensor, " e"]
) -> Float64[Tensor, " e"] | None:
    """The probability that both ends of each edge are unmatched; None: too many states.

    A matching M has a probability proportional to the product of rho_e over M. Let Z be
    the sum of all these products. Those matchings without v and w have the sum dZ /
    drho_vw, so that the probability is d ln Z / drho_vw.

    Nodes are added one by one. The table has the sum for each set of matched nodes,
    among those that still have edges to nodes which are not there yet.

    >>> triangle = torch.tensor([[0, 1], [1, 2], [0, 2]])
    >>> free_chances(triangle, torch.ones(3, dtype=torch.float64))
    tensor([0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    neighbours = _neighbours(edges)
    order = _narrow_order(neighbours)
    if order is None:
        return None
    with torch.enable_grad():
        rho = rho.detach().requires_grad_()
        table, there = rho.new_ones(()), list[int]()
        left = [len(around) for around in neighbours]
        for v in order:
            table = torch.stack([table, torch.zeros_like(table)], -1)
            there.append(v)
            for w, e in neighbours[v].items():
                if w in there:
                    table = _with_edge(table, there.index(w), rho[e])
                    left[v], left[w] = left[v] - 1, left[w] - 1
            for w in [w for w in there if not left[w]]:
                table = table.sum(there.index(w))
                there.remove(w)
            # A constant factor changes no derivative of ln Z.
            table = table / table.detach().max()
        (found,) = torch.autograd.grad(table.log(), rho)
    return found


def _with_edge(table: Tensor, axis: int, rho: Tensor) -> Tensor:
    """The sums with and without an edge from the last node to the one of this axis."""
    moved = table.movedim(axis, -2)  # (..., w, v)
    both = moved[..., 1, 1] + rho * moved[..., 0, 0]
    there = torch.stack([moved[..., 1, 0], both], -1)
    return torch.stack([moved[..., 0, :], there], -2).movedim(-2, axis)


def _neighbours(edges: Tensor) -> list[dict[int, int]]:
    """The neighbours of each node, with the positions of the edges to them."""
    found: list[dict[int, int]] = [{} for _ in range(nodes_of(edges))]
    for e, (v, w) in enumerate(edges.tolist()):
        found[v][w] = found[w][v] = e
    return found


def _narrow_order(neighbours: list[dict[int, int]]) -> list[int] | None:
    """An order in which few nodes at once wait for others; None: above `_WIDTH`.

    The next node is the one that leaves the fewest waiting, among neighbours of those
    that wait.
    """
    left = [len(around) for around in neighbours]
    order: list[int] = []
    waiting: set[int] = set()
    rest = set(range(len(neighbours)))

    def more(v: int) -> tuple[int, int, int]:
        """How many more wait after v, and v to decide between equals."""
        ended = sum(left[w] == 1 for w in neighbours[v] if w in waiting)
        stays = left[v] > sum(w in waiting for w in neighbours[v])
        return stays - ended, left[v], v

    while rest:
        near = {w for v in waiting for w in neighbours[v]} & rest
        v = min(near or rest, key=more)
        if len(waiting) + 1 > _WIDTH:
            return None
        order.append(v)
        rest.remove(v)
        waiting.add(v)
        for w in neighbours[v]:
            if w in waiting:
                left[v], left[w] = left[v] - 1, left[w] - 1
        waiting = {w for w in waiting if left[w]}
    return order


def girth(edges: Int[Tensor, "e 2"]) -> float:
    """The number of edges of the shortest circle, infinite in a forest.

    >>> girth(torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0]]))
    4
    """
    neighbours, shortest = _neighbours(edges), math.inf
    for start in range(len(neighbours)):
        far, queue = {start: 0}, deque([(start, -1)])
        while queue and shortest > 3:
            v, before = queue.popleft()
            if 2 * far[v] + 1 >= shortest:
                break
            for w in neighbours[v]:
                if w not in far:
                    far[w] = far[v] + 1
                    queue.append((w, v))
                elif w != before:
                    shortest = min(shortest, far[v] + far[w] + 1)
    return shortest


def loss_rates(
    edges: Int[Tensor, "e 2"], busy: Float[Tensor, " e"]
) -> Float[Tensor, " e"]:
    """How often each edge should ring, computed from its neighbourhood (Theorem 5.5).

    `p_vw = min(1 / max_{e' ~ vw} tau'_e', 1 / (2 (max(d_v, d_w) - 1) tau'_vw))`. If the
    clock of each node has the rate `sum_w p_vw / 2`, an edge with free ends rings at
    the rate p_vw.
    """
    longest = most_around(edges, positive("busy", busy, len(edges)))
    crowd = 2 * (degrees(edges)[edges].amax(1) - 1)
    return 1 / torch.maximum(longest, crowd * busy)


def most_around(edges: Tensor, values: Tensor) -> Tensor:
    """For each edge, the largest value of the edges that share a node with it."""
    at = values.new_zeros(nodes_of(edges))
    at.scatter_reduce_(0, edges.flatten(), values.repeat_interleave(2), "amax")
    return at[edges].amax(1)
