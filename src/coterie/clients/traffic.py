"""What verbs send: over which links, how many values, with a server or between peers.

What `average` and `central` send goes through a server: up from every client that takes
part, and down to it. What `mix`, `blended` and `compare` send goes from peer to peer.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from ..types import SERVER


def upwards(present: Bool[Tensor, " n"]) -> Int[Tensor, "l 2"]:
    """From every client that takes part to the server."""
    who = present.nonzero()
    return torch.cat([who, torch.full_like(who, SERVER)], 1)


def between(
    weights: Tensor, present: Bool[Tensor, " n"], *, readers: bool = False
) -> Int[Tensor, "l 2"]:
    """From contributor k to reader i for every weight [i, k], of those who take part.

    A client needs no link to itself. Contributors who take no part send nothing.

    Args:
        weights: (N, N), sparse or not.
        present: who takes part.
        readers: whether readers who take no part are left out, too.
    """
    if weights.layout == torch.strided:
        i, k = weights.nonzero().unbind(1)
    else:
        coalesced = weights.to_sparse_coo().coalesce()
        i, k = coalesced.indices()[:, coalesced.values() != 0]
    present = present.to(i.device)
    used = (i != k) & present[k]
    if readers:
        used &= present[i]
    return torch.stack([k[used], i[used]], 1)
