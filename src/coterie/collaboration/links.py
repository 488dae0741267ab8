"""Results of tests, by which two neighbours decide whether to keep their link.

Matchings divide the links of a graph (`coterie.graphs.colouring`). In the m-th matching
a client meets at most one neighbour. A `mix` with a permutation gives each client the
row of this neighbour. Both ends of a link (the two clients) add up the same numbers, so
they make the same decision.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..types import Rows
from .evidence import surely_above_zero

MEMORY = 0.8
"""Factor of earlier rounds in a running average."""


class Links(NamedTuple):
    """The links of each client, by matching, and the test results of each."""

    kept: Rows  # (n, M) whether the link exists and is kept
    evidence: Rows  # (n, M, 3) samples of both ends, sums of differences and of squares


def all_links(
    partners: Int[Tensor, "m k"], mine: slice, like: Float[Tensor, "n d"]
) -> Links:
    """All links of the clients at hand, before any test.

    Args:
        partners: the partner of every client in each matching, or the client itself.
        mine: positions of the clients at hand.
        like: rows that set the type and the device.
    """
    own = torch.arange(partners.shape[1])
    kept = (partners != own)[:, mine].T.contiguous().to(like.device)
    return Links(kept, like.new_zeros(*kept.shape, 3))


def exchange(
    partner: Int[Tensor, " n"], n: int, like: Float[Tensor, "n d"]
) -> Float[Tensor, "n k"]:
    """The sparse permutation that gives every client the row of its partner."""
    rows = torch.stack([torch.arange(len(partner), device=like.device), partner])
    ones = like.new_ones(len(partner))
    return torch.sparse_coo_tensor(
        rows, ones, (len(partner), n), check_invariants=True, is_coalesced=True
    )


def running_average(
    old: Float[Tensor, "*n m"], new: Float[Tensor, "*n m"]
) -> Float[Tensor, "*n m"]:
    """The running average of test results; their first entry is a number of samples.

    Every round uses the same samples, so their number is not added up over rounds.
    """
    known = old[..., :1] > 0
    return torch.where(known, MEMORY * old + (1 - MEMORY) * new, new)


def judge_link(
    links: Links, m: int, met: Bool[Tensor, " n"], said: Tensor, sure: float
) -> Links:
    """The links after the m-th matching, without links that surely do harm.

    Args:
        links: the links before the matching.
        m: the number of the matching.
        met: which clients met their partner.
        said: (n, 3) test results of both ends; a mean difference above 0 is harm.
        sure: standard errors by which the mean must be above 0.
    """
    evidence, kept = links.evidence.clone(), links.kept.clone()
    new = running_average(evidence[:, m], said)
    evidence[:, m] = torch.where(met[:, None], new, evidence[:, m])
    kept[:, m] &= ~(met & (surely_above_zero(*new.double().unbind(1)) > sure))
    return Links(kept, evidence)


def row_sums(rows: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
    """The sum of each row, with the same bits for any number of rows.

    The function adds the right half of the columns to the left half, again and again,
    until one column is left. So two clients that meet compute the same weight, even in
    different processes.
    """
    while rows.shape[1] > 1:
        half = rows.shape[1] // 2
        both = rows[:, :half] + rows[:, half : 2 * half]
        rows = torch.cat([both, rows[:, 2 * half :]], 1)
    return rows[:, 0]
