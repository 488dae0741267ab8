"""The exact account of gossip: what an observer learns is a projection.

Messages are linear in noisy inputs, `A (x + eta)`. The rows of A_v are the messages
that observer v reads, in units of the noise. Columns of inputs that v itself knows are
left out. Then

    S(u, v) = [A_v^+ A_v]_uu                          between 0 and 1

is the part of mu^2 that reaches v. v learns as much about input u as if u had sent it
once with noise s / sqrt(S). So S = 1 is local privacy. The sum of S over all u is the
rank of A_v. A singular value of A_v counts as 0 if it is at most `rtol` times the
largest: we assume that observers cannot read such weak directions. A smaller rtol makes
S larger, and with an rtol of 0 rounding errors count too. If an observer reads every
message with fresh noise of standard deviation tau, which enters no later mixture, we
need no cut:

    S = a_u' (A A' + tau^2 I)^{-1} a_u,

where A is A_v, and a_u its column for u. If noise of senders enters later mixtures, the
ledger has it as an `Input` of sensitivity 0.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, 6.3, hal tel-04877971.

Differences: the thesis adds divergences of single messages (6.6). Their sum is not a
bound, because the messages share their noise: see `coterie_theory.privacy.printed` and
docs/errata.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from ... import checks
from ...checks import InputError
from .coefficients import Columns, columns_of, sent_rows
from .ledger import Ledger

RTOL = 1e-9
"""A singular value of a view counts as 0 up to this part of the largest one."""

_DROPPED = 1e-3
"""While a view grows, we drop directions up to this part of rtol."""

ROWS = 512
"""Number of messages that a view gathers before we compress it."""


class Observer(NamedTuple):
    """An observer: clients that share all they know, and links that they overhear."""

    clients: tuple[int, ...] = ()
    links: tuple[tuple[int, int], ...] = ()  # from whom, to whom


class Knowledge(NamedTuple):
    """What an observer knows: directions of inputs, and how clearly it sees each."""

    basis: Float64[Tensor, "r c"]  # orthonormal rows
    clear: Float64[Tensor, " r"]  # 1 without reading noise
    columns: Columns

    @property
    def shares(self) -> Float64[Tensor, " c"]:
        """S of each input, the diagonal of the projection."""
        return (self.clear[:, None] * self.basis.square()).sum(0)


def seen_by(
    ledger: Ledger, observer: Observer, *, rtol: float = RTOL, tau: float = 0.0
) -> Knowledge:
    """What one observer learns of all inputs.

    Args:
        ledger: the ledger of inputs, exchanges and meetings.
        observer: who looks.
        rtol: the cut on singular values.
        tau: standard deviation of the noise on messages that the observer reads.
    """
    return next(seen_by_each(ledger, [observer], rtol=rtol, tau=tau))


def _check_observer(observer: Observer, n: int) -> Observer:
    named = {*observer.clients, *(end for link in observer.links for end in link)}
    if not named or not all(0 <= client < n for client in named):
        raise InputError(
            f"an observer must name clients between 0 and {n - 1}, or links between "
            f"them, got {observer}."
        )
    return observer


def seen_by_each(
    ledger: Ledger, observers: Sequence[Observer], *, rtol: float, tau: float
) -> Iterator[Knowledge]:
    """What each observer learns; reads the ledger once for all of them."""
    observers = [_check_observer(each, ledger.clients) for each in observers]
    checks.number("rtol", rtol, at_least=0, below=1)
    checks.number("tau", tau, at_least=0)
    columns = columns_of(ledger)
    known = [
        torch.isin(columns.client, torch.tensor(each.clients, dtype=torch.long))
        for each in observers
    ]
    drop = rtol * _DROPPED
    views = [_View(each, drop) for each in known]
    who = [torch.tensor(each.clients, dtype=torch.long) for each in observers]
    for links, rows, _ in sent_rows(ledger):
        order = links[:, 1].argsort(stable=True)
        links = links[order]
        for view, observer, clients in zip(views, observers, who, strict=True):
            read = _observed_senders(links, observer, clients, once=not tau)
            if len(read):
                view.add(rows[read])
    while views:
        sizes, basis = views.pop(0).short()
        if tau:
            clear = sizes.square() / (sizes.square() + tau**2)
        else:
            kept = sizes > rtol * sizes.max() if len(sizes) else sizes.bool()
            basis, clear = basis[kept], torch.ones(int(kept.sum())).double()
        yield Knowledge(basis, clear, columns)


def _observed_senders(
    links: Tensor, observer: Observer, clients: Tensor, *, once: bool
) -> Tensor:
    """The senders of messages that an observer reads; links are sorted by receiver."""
    ends = links[:, 1].contiguous()
    low = torch.searchsorted(ends, clients).tolist()
    high = torch.searchsorted(ends, clients, right=True).tolist()
    parts = [links[a:b, 0] for a, b in zip(low, high, strict=True)]
    if len(clients) > 1:
        parts = [part[~torch.isin(part, clients)] for part in parts]
    for start, end in observer.links:
        there = (links[:, 0] == start) & (links[:, 1] == end)
        parts.append(links[there, 0])
    read = torch.cat(parts)
    return read.unique() if once and len(parts) > 1 else read


class _View:
    """Rows that an observer has read, compressed whenever they are many."""

    def __init__(self, known: Tensor, drop: float) -> None:
        self.known, self.drop, self.rows = known, drop, list[Tensor]()
        self.count = self.least = 0

    def add(self, rows: Tensor) -> None:
        """Adds rows without the inputs that the observer knows itself."""
        self.rows.append(rows.masked_fill(self.known, 0.0))
        self.count += len(rows)
        if self.count >= self.least + ROWS:
            sizes, basis = self.short()
            kept = sizes > self.drop * sizes.max()
            self.rows = [sizes[kept, None] * basis[kept]]
            self.count = self.least = int(kept.sum())

    def short(self) -> tuple[Tensor, Tensor]:
        """Singular values of all rows, and their directions."""
        if not self.rows:
            empty = torch.zeros(0, len(self.known), dtype=torch.float64)
            return empty.sum(1), empty
        # After a QR factorisation, the matrix of the SVD is small.
        q, r = torch.linalg.qr(torch.cat(self.rows).T)
        u, sizes, _ = torch.linalg.svd(r, full_matrices=False)
        return sizes, (q @ u).T
