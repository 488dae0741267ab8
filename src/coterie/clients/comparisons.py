"""Comparisons of the gradients of pairs of clients, for some pairs at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..collaboration.beliefs import own_statistics, pair_statistics
from ..types import Comparison
from .blends import Release, with_own
from .groups import Group, fetch_rows
from .samples import Batch

HalfGrads = Callable[[Tensor, tuple[Batch, Batch], Tensor], tuple[Tensor, Tensor]]
"""Maps points, two halves of data and clients k to gradients on both halves."""


def of_shared_columns(
    half_grads: HalfGrads, own: Float[Tensor, "a d"], home: Bool[Tensor, " d"]
) -> HalfGrads:
    """The function `half_grads`, at points that get the personal columns of clients k.

    The new function returns only the shared columns of gradients.
    """

    def half_grads_shared(
        points: Tensor, halves: tuple[Batch, Batch], k: Tensor
    ) -> tuple[Tensor, Tensor]:
        a, b = half_grads(with_own(points, own[k], home), halves, k)
        return a[:, ~home], b[:, ~home]

    return half_grads_shared


class ComparisonPlan(NamedTuple):
    """How to compare the a active clients at hand with all m active clients."""

    half_grads: HalfGrads
    halves: tuple[Batch, Batch, Tensor]  # of the clients at hand, and their sizes
    group: Group
    counts: Sequence[int]  # active clients of each process
    chunk: int  # pairs to compute at once
    release: tuple[Release, Release]  # of each half, as it leaves


def compare_pairs(
    asked: ComparisonPlan,
    x: Float[Tensor, "a d"],
    present: Bool[Tensor, " n"],
    pairs: Bool[Tensor, "n n"],
) -> Comparison:
    """The comparison of these pairs of active clients.

    Args:
        asked: how to compare them.
        x: models of the active clients at hand.
        present: which clients are active.
        pairs: which pairs of active clients to compare, all (i, i) included.
    """
    first, second, used = asked.halves
    group, counts = asked.group, asked.counts
    a, m = len(x), sum(counts)
    everybody = torch.arange(a, device=x.device)
    here = slice(sum(counts[: group.rank]), sum(counts[: group.rank + 1]))
    who = present.nonzero()[:, 0]
    mine = who[here]  # of all clients
    a_i, b_i = asked.half_grads(x, (first, second), everybody)
    release_a, release_b = asked.release
    own = release_a(a_i, mine, mine), release_b(b_i, mine, mine), used
    # Positions among the m active clients. A client has its own gradients already.
    wanted = pairs[present][:, present].fill_diagonal_(False)
    asks = wanted[:, here]  # (m, a)
    readers, place = (x, *own), everybody
    if group.size > 1:
        readers = _fetched_readers(group, readers, wanted.T, counts)
        place = asks.any(1).cumsum(0) - 1  # of a reader among those who ask
    values = x.new_zeros(3, m, a)
    for some in asks.nonzero().split(asked.chunk) if a else ():
        i, k = some.unbind(1)
        at = place[i]
        point, *reader = (part[at] for part in readers)
        a_k, b_k = asked.half_grads(point, (first, second), k)
        pair = who[i], mine[k]
        answers = release_a(a_k, *pair), release_b(b_k, *pair), used[k]
        values[:, i, k] = pair_statistics((reader[0], reader[1], reader[2]), answers)
    alone = torch.cat([own_statistics(own), used[None].to(x)]).T
    told = torch.cat([values.permute(2, 0, 1).flatten(1), alone], 1)  # (a, 3 m + 4)
    values, alone = group.join(told, counts).split([3 * m, 4], 1)
    values, n = values.unflatten(1, (3, m)).permute(1, 2, 0), len(present)
    both = present[:, None] & present
    filled = x.new_zeros(3, n, n)
    filled[:, both] = values.reshape(3, m * m)
    of_clients = x.new_zeros(4, n)
    of_clients[:, present] = alone.T
    cross, pooled, noise = filled
    products, norms, variance, sizes = of_clients
    known = pairs.clone()
    return Comparison(cross, products, pooled, norms, noise, variance, sizes, known)


def _fetched_readers(
    group: Group,
    own: tuple[Tensor, Tensor, Tensor, Tensor],
    wanted: Tensor,
    counts: Sequence[int],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The readers' models, two gradients and numbers of samples, in one message."""
    x, a, b, used = own
    columns = torch.cat([x, a, b, used[:, None].to(x)], 1)
    d = x.shape[1]
    found = fetch_rows(group, columns, wanted, counts)
    x, a, b, used = found.split([d, d, d, 1], 1)
    return x, a, b, used[:, 0]
