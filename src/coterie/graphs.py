"""Who meets whom: random pairs of clients."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor


def matchings(
    active: Bool[Tensor, " n"], meetings: int, rng: torch.Generator
) -> Int[Tensor, "m n"]:
    """Row r names the partner of every client in the r-th of several random matchings.

    A client without a partner is its own. Matchings are rounds of one tournament over
    the active clients in random order, so that no pair meets twice, and each by itself
    is uniform among the matchings that leave at most one client out. From
    `meetings = m - 1` of m active clients on every pair meets exactly once; when m is
    odd that takes m matchings, in each of which another client rests.

    >>> everybody = torch.tensor([True, True, False, True])
    >>> matchings(everybody, 3, torch.Generator().manual_seed(0)).sort(0).values
    tensor([[0, 0, 2, 0],
            [1, 1, 2, 1],
            [3, 3, 2, 3]])
    """
    who = active.nonzero()[:, 0]
    m = len(who)
    order = torch.randperm(m, generator=rng, device=rng.device).to(who.device)
    # On a circle of odd size, places p and q meet in round r when p + q = r modulo its
    # size. One place is left over: it meets the client outside the circle, or rests.
    circle = m - 1 + m % 2
    rounds = torch.randperm(circle, generator=rng, device=rng.device).to(who.device)
    if m == 1 or meetings < m - 1:
        rounds = rounds[: min(meetings, m - 1)]
    place = torch.arange(m, device=who.device).expand(len(rounds), m)
    partner = (rounds[:, None] - place) % circle
    if circle < m:  # the last place is outside
        partner = torch.where(partner == place, circle, partner)
        partner[:, circle] = (partner[:, :circle] == circle).int().argmax(1)
    result = torch.arange(len(active), device=who.device).repeat(len(rounds), 1)
    result[:, who[order]] = who[order][partner]
    return result
