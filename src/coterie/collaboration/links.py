"""What two neighbours find out about the link between them, and whether they keep it.

The links of a graph are numbered by matchings (`coterie.graphs.colouring`): in the m-th
a client meets one neighbour at most, and `mix` with a permutation brings it that one's
row. Both ends add up the same numbers, and so come to the same end.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..types import Rows
from .evidence import surely_above_zero

MEMORY = 0.8
"""How much of what was said before is kept in a round."""


class Links(NamedTuple):
    """Of each client the links by matching, and what held-out samples said of them."""

    kept: Rows  # (n, M) whether there is a link, and it is kept
    evidence: Rows  # (n, M, 3) samples of both ends, sums of differences and of squares


def all_links(
    partners: Int[Tensor, "m k"], mine: slice, like: Float[Tensor, "n d"]
) -> Links:
    """All links of the clients at hand, and nothing known.

    Args:
        partners: whom every client meets in each matching, or itself.
        mine: the clients at hand.
        like: rows of these, which say of which type and where numbers are.
    """
    own = torch.arange(partners.shape[1])
    kept = (partners != own)[:, mine].T.contiguous().to(like.device)
    return Links(kept, like.new_zeros(*kept.shape, 3))


def exchange(
    partner: Int[Tensor, " n"], n: int, like: Float[Tensor, "n d"]
) -> Float[Tensor, "n k"]:
    """The permutation, sparse, that brings everybody the row of its partner."""
    rows = torch.stack([torch.arange(len(partner), device=like.device), partner])
    ones = like.new_ones(len(partner))
    return torch.sparse_coo_tensor(
        rows, ones, (len(partner), n), check_invariants=True, is_coalesced=True
    )


def running_average(
    old: Float[Tensor, "*n m"], new: Float[Tensor, "*n m"]
) -> Float[Tensor, "*n m"]:
    """The running average of what was said, whose first entry is a number of samples.

    The samples are the same in every round, so that more rounds are not more samples.
    """
    known = old[..., :1] > 0
    return torch.where(known, MEMORY * old + (1 - MEMORY) * new, new)


def judge_link(
    links: Links, m: int, met: Bool[Tensor, " n"], said: Tensor, sure: float
) -> Links:
    """After the m-th matching, in which these clients met and both ends said this.

    A link is dropped where the mean difference is surely above 0: where it does harm.
    """
    evidence, kept = links.evidence.clone(), links.kept.clone()
    new = running_average(evidence[:, m], said)
    evidence[:, m] = torch.where(met[:, None], new, evidence[:, m])
    kept[:, m] &= ~(met & (surely_above_zero(*new.double().unbind(1)) > sure))
    return Links(kept, evidence)


def row_sums(rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """The sum of each row, by halves: the same bits however many rows there are.

    So both ends of a meeting, which may be in two processes, learn the same weight.
    """
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        both = rows[:, :half] + rows[:, half : 2 * half]
        rows = torch.cat([both, rows[:, 2 * half :]], 1)
    return rows[:, 0]
