"""When edges ring, and which rings can be computed at the same time.

Every edge e has a Poisson clock of rate p_e. All clocks together are one Poisson
process of rate `I = sum_e p_e`, and each of its points belongs to edge e with
probability p_e / I. We draw rings from this process.

Rings without a node in common may be computed in any order, or at the same time. The
layer of a ring is one more than the highest layer of earlier rings at its two nodes. We
compute all rings of a layer in one vectorised step. Each node does the same operations
in the same order. So the result has the same bits as if rings were computed one after
the other.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from coterie import checks
from coterie.checks import InputError
from coterie.graphs.capacities import RingTimes
from coterie.graphs.families import nodes_of, not_negative


def poisson_rings(
    rates: Float[Tensor, " e"], until: float, rng: torch.Generator
) -> RingTimes:
    """All rings up to a time, for edges with these rates; edges of rate 0 never ring.

    >>> rates = torch.tensor([1.0, 0.0])
    >>> rings = poisson_rings(rates, 5.0, torch.Generator().manual_seed(0))
    >>> rings.which.unique()
    tensor([0])
    """
    checks.number("until", until, at_least=0)
    not_negative("rates", rates, len(rates))
    ends = rates.double().cpu().cumsum(0)
    if not len(rates) or not ends[-1] > 0:
        raise InputError("`rates` must have a positive entry, but all are 0.")
    count = int(torch.poisson(ends[-1] * until, generator=rng))
    # If we know their number, the points of a Poisson process are uniform.
    times = until * torch.rand(count, generator=rng, dtype=torch.float64)
    marks = ends[-1] * torch.rand(count, generator=rng, dtype=torch.float64)
    which = torch.searchsorted(ends, marks, right=True).clamp(max=len(rates) - 1)
    return RingTimes(times.sort().values, which)


def layers(ends: Int[Tensor, "m 2"], nodes: int) -> list[Int[Tensor, " k"]]:
    """Positions of events by layer, ascending in each layer; `ends` has events' nodes.

    >>> layers(torch.tensor([[0, 1], [2, 3], [1, 2], [0, 3], [1, 0]]), 4)
    [tensor([0, 1]), tensor([2, 3]), tensor([4])]
    """
    highest, found = [-1] * nodes, []
    for v, w in zip(*ends.T.tolist(), strict=True):
        one, other = highest[v], highest[w]
        level = one + 1 if one > other else other + 1
        highest[v] = highest[w] = level
        found.append(level)
    return by_level(torch.tensor(found, dtype=torch.long))


def by_level(levels: Int[Tensor, " m"]) -> list[Int[Tensor, " k"]]:
    """The positions of each level, ascending."""
    if not len(levels):
        return []
    return list(levels.argsort(stable=True).split(levels.bincount().tolist()))


def pieces(layer: Int[Tensor, " k"], width: int) -> tuple[Tensor, ...]:
    """A layer in parts so small that torch does not divide them between threads.

    With threads, each of thousands of small products would wait for the slowest thread.

    Args:
        layer: positions.
        width: the number of values that each position moves.
    """
    if not len(layer):
        return ()
    return layer.split(_GRAIN // width or len(layer))


_GRAIN = 32_000
"""The largest size of an operation; from 32,768 on, torch uses several threads."""


# Checks of the arguments of all kinds of gossip.


def rows(x: Float[Tensor, "n d"], edges: Int[Tensor, "e 2"]) -> Float[Tensor, "n d"]:
    """A copy of x; refuses an x that has no columns or lacks a row for a node."""
    if not x.shape[1]:
        raise InputError("`x` must have at least one column, got none.")
    if nodes_of(edges) > len(x):
        raise InputError(
            f"`edges` must join rows 0 to {len(x) - 1} of `x`, but one names "
            f"{int(edges.max())}."
        )
    return checks.finite("x", x).clone()


def until_each(
    edges: Int[Tensor, "e 2"], rings: RingTimes, at: Float64[Tensor, " k"]
) -> Iterator[slice]:
    """For each of these times, the positions of rings since the time before."""
    times, which = rings
    ordered = not (times.diff() < 0).any() and not (at.diff() < 0).any()
    if not ordered or not len(at) or float(at[0]) < 0 or not at.isfinite().all():
        raise InputError(
            "times of `rings` and `at` must be ascending, and `at` must be finite and "
            f"at least 0, got {at.tolist()[:5]}."
        )
    known = (which >= 0) & (which < len(edges))
    if len(times) != len(which) or not known.all():
        raise InputError(
            f"`rings` must name one of edges 0 to {len(edges) - 1} for each time."
        )
    last = 0
    for stop in torch.searchsorted(times, at.to(times), right=True).tolist():
        yield slice(last, stop)
        last = stop
