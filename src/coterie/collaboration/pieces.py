"""Proposals to divide a group, from the directions of its members' updates.

A coordinator subtracts the mean of the group from the update of each client. It adds up
the columns of the result in a *sketch*, a vector of a few hundred numbers. There are
two proposals:

    sides     two sides, along the direction in which normalised sketches differ most
    pieces    more than two pieces, if a tree of the sketches has a clear gap

The tree joins the two nearest sets of clients again and again (average linkage of
1 - cosine). The height of a join jumps between true groups, and `pieces` cuts the tree
at the largest jump.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..seeds import generator

BUCKETS = 256
"""The most numbers in a sketch."""

_GAP = 0.12
"""The smallest jump that is a clear gap, as a share of the height of the whole tree."""

_FEWEST = 12
"""The smallest group for a tree; a smaller group can only divide into two sides."""

_LARGE = 500
"""The largest number of members in a tree; the others join the nearest piece."""

_ALIKE = 1e-6
"""Below this sum of cubes of a unit vector, the sum's sign may be due to rounding."""


def sketch_rows(v: Float[Tensor, "n d"]) -> Float[Tensor, "n s"]:
    """Sketches of the rows, which nearly keep products and lengths.

    Columns are added up in random buckets, with random signs (Charikar, Chen,
    Farach-Colton, "Finding frequent items in data streams", ICALP, 2002).
    """
    if v.shape[1] <= BUCKETS:
        return v
    bucket, sign = _hashes(v.shape[1])
    found = v.new_zeros(len(v), BUCKETS)
    return found.index_add_(1, bucket.to(v.device), v * sign.to(v))


@functools.lru_cache(maxsize=8)
def _hashes(columns: int) -> tuple[Tensor, Tensor]:
    rng = generator("sketch", columns)
    bucket = torch.randint(BUCKETS, (columns,), generator=rng)
    return bucket, 2.0 * torch.randint(2, (columns,), generator=rng) - 1


def sides(sketch: Float[Tensor, "n s"], member: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    """The two sides of each group, 0 and 1; clients without a direction are on side 0.

    We project normalised rows on the direction in which they differ most. The sign of
    the projection is the side.
    """
    side = torch.zeros_like(member)
    for group in member.unique():
        here = ((member == group) & sketch.any(1)).nonzero()[:, 0]
        apart = sketch[here].double()  # changed in its memory, because it is large
        torch.nn.functional.normalize(apart, out=apart)
        apart -= apart.mean(0)
        wide = len(here) < apart.shape[1]  # the smaller product has the same values
        values, vectors = torch.linalg.eigh(
            apart @ apart.T if wide else apart.T @ apart
        )
        if len(here) < 3 or values[-1] < len(here) * 1e-8:
            continue
        along = vectors[:, -1] if wide else apart @ vectors[:, -1]
        # The sign of an eigenvector is arbitrary, so the sum of cubes decides it. If
        # both sides have the same shape, this sum is 0, and the first large entry
        # decides.
        sign = (along**3).sum() / along.norm() ** 3
        if abs(sign) < _ALIKE:
            entries = apart.T @ along
            sign = entries[(entries.abs() > entries.abs().max() / 2).int().argmax()]
        side[here] = (along * sign > 0).long()
    return side


def pieces(
    sketch: Float[Tensor, "n s"], member: Int[Tensor, " n"], side: Int[Tensor, " n"]
) -> Int[Tensor, " n"] | None:
    """The number of each client's piece; None if no group has more than two pieces.

    A group without a clear gap divides into its two sides.

    Args:
        sketch: directions of all clients.
        member: the group of each client.
        side: the side of each client.
    """
    found, count, deep = torch.zeros_like(member), 0, False
    for group in member.unique():
        here = (member == group).nonzero()[:, 0]
        of_tree = _cut_tree(sketch[here].double())
        deep = deep or of_tree is not None
        part = side[here] if of_tree is None else of_tree
        found[here] = count + part
        count += int(part.max()) + 1
    return found if deep else None


def _cut_tree(sketch: Float[Tensor, "m s"]) -> Int[Tensor, " m"] | None:
    """The pieces of one group, by a cut at the largest gap; None without a clear gap.

    There are more than two pieces, and at most half as many pieces as members. A client
    that has not sent an update has no direction, and so no piece. So there are no
    pieces until all members have sent an update.
    """
    from scipy.cluster.hierarchy import fcluster, linkage

    if len(sketch) < _FEWEST or not bool(sketch.any(1).all()):
        return None
    unit = torch.nn.functional.normalize(sketch)
    some = unit
    if len(unit) > _LARGE:
        order = torch.randperm(len(unit), generator=generator("tree", len(unit)))
        some = unit[order[:_LARGE].to(unit.device)]
    tree = linkage(some.cpu().numpy(), "average", metric="cosine")
    height = torch.from_numpy(tree[:, 2])
    jump = height[1:] - height[:-1]
    count = torch.arange(len(jump) + 1, 1, -1)  # of pieces after a cut there
    jump = torch.where(count <= len(some) / 2, jump, 0)
    at = int(jump.argmax())
    if count[at] <= 2 or jump[at] < _GAP * height[-1]:
        return None
    label = torch.from_numpy(fcluster(tree, int(count[at]), "maxclust")).long() - 1
    centre = [some[(label == k).to(some.device)].mean(0) for k in label.unique()]
    # All members join the nearest piece, also those that are not in the tree.
    nearest = unit @ torch.nn.functional.normalize(torch.stack(centre)).T
    return nearest.argmax(1).unique(return_inverse=True)[1]
