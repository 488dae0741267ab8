"""Blends of gradients: sums of the gradients of several clients at one client's model.

Row i of a blend is sum_k weights[i, k] g_k(x_i). Client i is the reader. The clients k
whose weight is not 0 are its contributors. Row i is also the gradient of one loss over
the samples of all contributors, so one backward pass computes it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from .samples import Batch


class BlendPlan:
    """Groups of readers that need about the same number of contributors.

    A group is a table with a row for each reader and a column for each contributor. The
    number of columns is the largest number of contributors of a reader in the group,
    which is less than twice the smallest. Clients without a column cost nothing. A
    compiled kernel must be compiled again for every new shape. So for a compiled
    kernel, all readers are one group, with a quarter, a half or all of the clients as
    columns.
    """

    def __init__(
        self,
        weights: Float[Tensor, "m n"],
        reading: Bool[Tensor, " m"],
        active: Bool[Tensor, " n"],
        *,
        steady: bool,
    ) -> None:
        """Groups the readers.

        Args:
            weights: the weights of contributors, a row for each reader.
            reading: which readers take part.
            active: which contributors take part.
            steady: whether to use few different shapes, for a compiled kernel.
        """
        self.weights = weights
        self.used = weights * reading[:, None] * active
        present = self.used != 0
        self.readers = (
            present.sum(0).cpu().double()
        )  # (n,) the number of readers of client k
        # Readers (r,); contributors (r, c), or (c,) if they are the same for all
        # readers; and the weights of these contributors (r, c).
        self.groups: list[tuple[Tensor, Tensor, Tensor]] = []
        counts = present.sum(1).tolist()
        order = present.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        n = weights.shape[1]
        for mine in self._groups_of_readers(counts, reading, steady):
            most = max(counts[i] for i in mine)
            if steady:
                most = next(c for c in steady_widths(n) if c >= most)
            readers = torch.tensor(mine, device=weights.device)
            # If most columns are needed, all rows use the same samples.
            if 2 * most > n:
                columns = active if steady else present[readers].any(0)
                columns = columns.nonzero()[:, 0]
                share = self.used[readers[:, None], columns]
            else:
                columns = order[readers, :most]
                share = self.used[readers[:, None], columns]
                # Short rows repeat one of their own contributors with weight zero, so
                # that no other client is asked.
                columns = torch.where(share != 0, columns, columns[:, :1])
            self.groups.append((readers, columns, share))

    @staticmethod
    def _groups_of_readers(
        counts: list[int], reading: Tensor, steady: bool
    ) -> list[list[int]]:
        if steady:
            some = reading.nonzero()[:, 0].tolist()
            return [some] if any(counts) else []
        groups: dict[int, list[int]] = {}
        for i, count in enumerate(counts):
            if count:
                groups.setdefault(count.bit_length(), []).append(i)
        return list(groups.values())


def blend(batch: Batch, columns: Tensor, share: Float[Tensor, "r c"]) -> Batch:
    """The samples of these contributors, weighted by the weights of each reader."""
    index = batch.index[columns].flatten(-2)
    weight = (share[:, :, None] * batch.weight[columns]).flatten(1)
    keys = None if batch.keys is None else batch.keys[columns].flatten(-2)
    return Batch(index, weight, keys)


Release = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Maps gradients (p, D), readers (p,) and contributors (p,) to what is sent, (p, D)."""


def as_it_is(g: Tensor, readers: Tensor, contributors: Tensor) -> Tensor:
    """The gradients, unchanged."""
    return g


def after(first: Release, then: Release) -> Release:
    """The release that applies `first` and then `then`."""

    def both(g: Tensor, readers: Tensor, contributors: Tensor) -> Tensor:
        return then(first(g, readers, contributors), readers, contributors)

    return both


def with_own(
    points: Float[Tensor, "p s"], own: Float[Tensor, "p d"], home: Bool[Tensor, " d"]
) -> Float[Tensor, "p d"]:
    """Models with the shared columns of `points` and the personal columns of `own`."""
    whole = own.clone()
    whole[:, ~home] = points
    return whole


def blended_by_pairs(
    grad: Callable[[Tensor, Batch], Tensor],
    points: Float[Tensor, "m s"],
    used: Float[Tensor, "m n"],
    batch: Batch,
    own: Float[Tensor, "n d"],
    home: Bool[Tensor, " d"] | None,
    chunk: int,
    release: Release,
) -> Float[Tensor, "m s"]:
    """Blends from a separate gradient for every pair of reader and contributor.

    Args:
        grad: gradients of the clients' losses.
        points: the shared columns of the readers.
        used: the weights of contributors, a row for each reader; 0: not used.
        batch: samples of the contributors.
        own: models of the contributors.
        home: the personal columns, taken from the contributors' models (None: none).
        chunk: the number of pairs to compute at once.
        release: maps gradients to the rows that the contributors send.
    """
    blends = torch.zeros_like(points)
    for some in used.nonzero().split(chunk):
        i, k = some.unbind(1)
        if home is None:
            g = grad(points[i], batch[k])
        else:
            g = grad(with_own(points[i], own[k], home), batch[k])[:, ~home]
        blends.index_add_(0, i, used[i, k][:, None] * release(g, i, k))
    return blends


def steady_widths(n: int) -> list[int]:
    """The numbers of columns of compiled blends: a quarter, a half, or all."""
    return [-(-n // 4), -(-n // 2), n]
