"""The formula for privacy losses of gossip in the thesis; it is not a guarantee.

    S(u, v) = sum over messages (t, w) that v receives of
              (W_{0:t})_{wu}^2 / |(W_{0:t})_w|^2                              (6.6)

The formula adds the divergences of single messages; the figures of the thesis use it.
But messages contain the same noise, so together they can reveal more. On a line u - w -
v with weights 1/3, v learns the whole noisy row of u in two exchanges: S = 1, but the
formula gives 1/3.

Over several inputs, the formula adds up rounds. It ignores that later rows contain
earlier inputs (6.12, 6.13). If neighbours exchange once in a round, clients that are
not neighbours would then never learn anything. Sums over all u are right, because each
message adds 1 to such a sum. So mean losses (6.7) are right too. For true losses use
`exact_losses`, and over several inputs `joint_losses`.

References:
    Even, PhD thesis, 2024, 6.3, 6.4 and 6.D.1, tel-04877971.
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
    """The losses by (6.6), (6.13) and (6.15), which are too small for some pairs.

    Args:
        ledger: the ledger of inputs, exchanges and meetings.
        observers: groups that share all that they know (6.15); by default single
            clients.
        clients: the clients whose losses are computed, by default all; for others they
            are 0.
        capped: whether sums over one input are limited to 1, as in the figures.
    """
    columns, n = columns_of(ledger), ledger.clients
    if not bool((columns.mu > 0).all()):
        raise InputError("(6.6) needs inputs of positive sensitivity, got one of 0.")
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
    """(c, groups) the printed losses from the messages that each group gets at once."""
    rows = message.rows[:, message.newest].square()
    total = rows.sum(1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)
    parts = rows[:, some] / total
    sender, receiver = message.links.numpy().T
    there = np.ones(len(sender))
    reaches = coo_array((there, (sender, receiver)), shape=(len(member),) * 2)
    # Senders to a group from outside it. Several receivers in a group count once.
    told = (reaches @ csr_array(member.numpy(), dtype=float)).tocoo()
    kept = ~member.numpy()[told.row, told.col]
    places, size = (told.col[kept], told.row[kept]), member.T.shape
    heard = coo_array((np.ones(int(kept.sum())), places), shape=size).tocsr()
    return torch.from_numpy(heard @ parts.numpy()).T
