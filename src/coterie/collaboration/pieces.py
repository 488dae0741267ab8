"""How a group might divide, by the directions in which its members would go.

A coordinator adds up the updates of every client, less the mean of its group, in a
sketch of a few hundred numbers. Two proposals come from that:

    sides     two, along the direction in which normalised sketches differ most
    pieces    more than two, where a tree of the sketches has a clear gap

The tree joins the two nearest sets of clients again and again (average linkage of
1 - cosine). Between true groups that height jumps: `pieces` cuts where it jumps most.
"""

from __future__ import annotations

import functools

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..seeds import generator

BUCKETS = 256
"""Numbers by which a coordinator remembers a direction."""

_GAP = 0.12
"""A jump that is a clear gap, as a share of the height of the whole tree."""

_FEWEST = 12
"""Members without which a tree tells too little: two sides are found one by one."""

_LARGE = 500
"""Members that a tree has at most; the others join the nearest piece."""

_ALIKE = 1e-6
"""Sum of cubes of a unit vector below which rounding may have made its sign."""


def sketched(v: Float[Tensor, "n d"]) -> Float[Tensor, "n s"]:
    """Vectors in a few numbers, which nearly keep products and lengths.

    Columns are added up in buckets, with random signs (Charikar, Chen, Farach-Colton,
    "Finding frequent items in data streams", ICALP, 2002).
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

    They are those of the direction in which normalised rows differ most.
    """
    side = torch.zeros_like(member)
    unit = torch.nn.functional.normalize(sketch.double())
    for group in member.unique():
        here = ((member == group) & sketch.any(1)).nonzero()[:, 0]
        apart = unit[here] - unit[here].mean(0)
        wide = len(here) < apart.shape[1]  # the smaller product has the same values
        values, vectors = torch.linalg.eigh(
            apart @ apart.T if wide else apart.T @ apart
        )
        if len(here) < 3 or values[-1] < len(here) * 1e-8:
            continue
        along = vectors[:, -1] if wide else apart @ vectors[:, -1]
        # The sign of an eigenvector means nothing. Where both sides are alike, as those
        # of two clients are, its largest entry decides, and not rounding.
        sign = (along**3).sum() / along.norm() ** 3
        if abs(sign) < _ALIKE:
            entries = apart.T @ along
            sign = entries[(entries.abs() > entries.abs().max() / 2).int().argmax()]
        side[here] = (along * sign > 0).long()
    return side


def pieces(
    sketch: Float[Tensor, "n s"], member: Int[Tensor, " n"], side: Int[Tensor, " n"]
) -> Int[Tensor, " n"] | None:
    """Pieces of all groups, by number; None where no group has more than two.

    Groups without a clear gap are divided into their two sides.

    Args:
        sketch: directions of all clients.
        member: the group of each.
        side: the side of each.
    """
    found, count, deep = torch.zeros_like(member), 0, False
    for group in member.unique():
        here = (member == group).nonzero()[:, 0]
        of_tree = _cut(sketch[here].double())
        deep = deep or of_tree is not None
        part = side[here] if of_tree is None else of_tree
        found[here] = count + part
        count += int(part.max()) + 1
    return found if deep else None


def _cut(sketch: Float[Tensor, "m s"]) -> Int[Tensor, " m"] | None:
    """The pieces of one group, cut at the largest gap; None without a clear one.

    At most half as many pieces as members, and more than two. A client without a
    direction belongs to no piece, so there are none until all were heard.
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
    count = torch.arange(len(jump) + 1, 1, -1)  # pieces, if it is cut there
    jump = torch.where(count <= len(some) / 2, jump, 0)
    at = int(jump.argmax())
    if count[at] <= 2 or jump[at] < _GAP * height[-1]:
        return None
    label = torch.from_numpy(fcluster(tree, int(count[at]), "maxclust")).long() - 1
    centre = [some[(label == k).to(some.device)].mean(0) for k in label.unique()]
    # Of all members, also those who are not in the tree.
    nearest = unit @ torch.nn.functional.normalize(torch.stack(centre)).T
    return nearest.argmax(1).unique(return_inverse=True)[1]
