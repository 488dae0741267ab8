"""Gradients of pairs of clients, compared without a tensor of all pairs' gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..collaboration.beliefs import of_each, of_pairs
from ..types import Comparison
from .blends import with_own
from .groups import Group
from .samples import Batch

HalfGrads = Callable[[Tensor, tuple[Batch, Batch], Tensor], tuple[Tensor, Tensor]]
"""Gradients at points of both halves of the data of clients at places k."""


def at_home(
    half_grads: HalfGrads, own: Float[Tensor, "a d"], home: Bool[Tensor, " d"]
) -> HalfGrads:
    """The same for shared columns, with personal ones of the clients at places k."""

    def shared(
        points: Tensor, halves: tuple[Batch, Batch], k: Tensor
    ) -> tuple[Tensor, Tensor]:
        a, b = half_grads(with_own(points, own[k], home), halves, k)
        return a[:, ~home], b[:, ~home]

    return shared


class Asked(NamedTuple):
    """Who is compared, and how: the a active clients at hand of m active ones."""

    half_grads: HalfGrads
    halves: tuple[Batch, Batch, Tensor]  # of the clients at hand, and their sizes
    group: Group
    counts: Sequence[int]  # active clients of each process
    chunk: int  # pairs at once


def compared(
    asked: Asked, x: Float[Tensor, "a d"], present: Bool[Tensor, " n"]
) -> Comparison:
    """The comparison of all pairs of active clients.

    Args:
        asked: who is compared.
        x: models of the active clients at hand.
        present: who of all clients is active.
    """
    first, second, used = asked.halves
    group, counts = asked.group, asked.counts
    a, m = len(x), sum(counts)
    here = torch.arange(a, device=x.device)
    grads = asked.half_grads(x, (first, second), here)
    own = [group.join(part, counts) for part in (*grads, used)]
    models, before = group.join(x, counts), sum(counts[: group.rank])
    values = x.new_zeros(3, m * a)
    pairs = torch.arange(m * a, device=x.device)
    # Pair (i, k) is at i a + k; nobody is compared with oneself.
    pairs = pairs[pairs // max(a, 1) != pairs % max(a, 1) + before]
    for some in pairs.split(asked.chunk) if len(pairs) else ():
        i, k = some // a, some % a
        theirs = asked.half_grads(models[i], (first, second), k)
        mine = own[0][i], own[1][i], own[2][i]
        values[:, some] = of_pairs(mine, (*theirs, used[k]))
    columns = values.reshape(3, m, a).permute(2, 0, 1).contiguous()
    values = group.join(columns, counts).permute(1, 2, 0)
    n = len(present)
    known = present[:, None] & present
    filled = x.new_zeros(3, n, n)
    filled[:, known] = values.reshape(3, m * m)
    of_clients = x.new_zeros(4, n)
    alone = of_each((own[0], own[1], own[2]))
    of_clients[:, present] = torch.cat([alone, own[2][None]])
    cross, pooled, noise = filled
    products, norms, variance, sizes = of_clients
    return Comparison(cross, products, pooled, norms, noise, variance, sizes, known)
