"""The thesis's formula for losses of gossip: for its figures, and no guarantee.

    S(u, v) = sum over messages (t, w) that v receives of
              (W_{0:t})_{wu}^2 / |(W_{0:t})_w|^2                              (6.6)

adds the divergences of single messages. All of them share the same noise, and together
they can tell more: on a line u - w - v with weights 1/3 two exchanges tell v all about
u, S = 1, where the formula has 1/3. Over several inputs it adds rounds as if nothing of
an input were left in the rows of later rounds (6.12, 6.13): where neighbours exchange
once in a round, others would learn nothing for ever. Sums over all u are right, since
each message counts 1, and so are mean losses (6.7).

The exact loss is `exact_losses` and, over several inputs, `joint_losses`.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, 6.3, 6.4 and 6.D.1, hal tel-04877971.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import coo_array, csr_array
from torch import Tensor

from coterie.checks import InputError
from coterie.privacy.accounting.coefficients import SentRows, columns_of, sent_rows
from coterie.privacy.accounting.ledger import Ledger
from coterie.privacy.accounting.losses import Losses


def printed_losses(
    ledger: Ledger,
    observers: Sequence[Sequence[int]] | None = None,
    *,
    clients: Sequence[int] | None = None,
    capped: bool = False,
) -> Losses:
    """What (6.6), (6.13) and (6.15) say, which is below the truth for some pairs.

    Args:
        ledger: of inputs, exchanges and meetings.
        observers: clients who share all they know, (6.15); None: each by itself.
        clients: whose losses are wanted, those of others are left at 0; None: all.
        capped: whether the sum over one input is at most 1, as in the figures.
    """
    columns, n = columns_of(ledger), ledger.clients
    if not bool((columns.mu > 0).all()):
        raise InputError("(6.6) knows no inputs of sensitivity 0, but there is one.")
    groups = [(v,) for v in range(n)] if observers is None else observers
    member = torch.zeros(n, len(groups), dtype=torch.bool)
    for place, group in enumerate(groups):
        member[list(group), place] = True
    wanted = torch.ones(n, dtype=torch.bool)
    if clients is not None:
        wanted = torch.isin(torch.arange(n), torch.tensor(list(clients)))
    wanted = wanted[columns.client]
    share = torch.zeros(len(columns.client), len(groups), dtype=torch.float64)
    for message in sent_rows(ledger):
        new = torch.arange(message.newest.start, message.newest.stop)
        some = wanted[new]
        share[new[some]] += _single(message, some, member)
    share = share.clamp(max=1) if capped else share
    square, client = columns.mu.square(), columns.client
    total = torch.zeros(n, len(groups), dtype=torch.float64)
    total.index_add_(0, client, share * square[:, None])
    unit = torch.zeros(n, dtype=torch.float64).index_add_(0, client, square)
    total /= torch.where(unit > 0, unit, 1.0)[:, None]
    return Losses(total.masked_fill(member, 0.0), unit.sqrt())


def _single(message: SentRows, some: Tensor, member: Tensor) -> Tensor:
    """What each group's messages of one moment say, each by itself, (c, groups)."""
    rows = message.rows[:, message.newest].square()
    total = rows.sum(1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    parts = rows[:, some] / total
    sender, receiver = message.links.numpy().T
    there = np.ones(len(sender))
    reaches = coo_array((there, (sender, receiver)), shape=(len(member),) * 2)
    # Who sends something to a group, and is not of it: once, to however many of them.
    told = (reaches @ csr_array(member.numpy(), dtype=float)).tocoo()
    kept = ~member.numpy()[told.row, told.col]
    places, size = (told.col[kept], told.row[kept]), member.T.shape
    heard = coo_array((np.ones(int(kept.sum())), places), shape=size).tocsr()
    return torch.from_numpy(heard @ parts.numpy()).T
