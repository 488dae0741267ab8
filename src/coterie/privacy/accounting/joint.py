"""Bounds on what an observer learns of a client's inputs that are fixed beforehand.

Every client repeatedly adds noisy inputs to its row. Messages are linear in all inputs.
So an observer learns a projection of the vector of all inputs. P is its matrix; rows
and columns are pairs (client, input). If the data of client u change, each of its
inputs s moves by some d_s, at most by its sensitivity. Then

    mu^2 = max over d of sum_{s, s'} P_{(u, s), (u, s')} <d_s, d_s'> / (noise noise')

Let mu_s be the sensitivity of input s divided by its noise, P_uu the part of P for u,
and `G = diag(mu) P_uu diag(mu)`. With T inputs of u, mu^2 is at most the smallest of

    sum_s mu_s^2 lambda_max(P_uu),  T lambda_max(G),  sum_{s, s'} |G_ss'|

and equals the last one if no entry of P_uu is negative.

The bound holds if the inputs of other clients do not depend on the data of u, except
through messages that the observer has seen. **The bound does not hold for
Muffliato-SGD.** There the next step of a client w depends on the model of w, which
holds the row of u. So the next message of w reveals u in a second way, which P does not
count. On a star of 21 clients, an attack reaches an advantage of 0.318, while this
account allows only 0.074 (docs/errata.md). For such methods, `accounts.by_pairs` takes
the total of u.

References:
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, 6.4, hal tel-04877971.
    Bellet, Cyffers, Frey, Gaudel, Lerévérend, Taïani, "Unified privacy guarantees for
    decentralized learning via matrix factorization", ICLR 2026, arXiv 2510.17480.

Differences: (6.12) of the thesis has no leakage across rounds; see docs/errata.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .coefficients import columns_of
from .ledger import Ledger
from .losses import Losses
from .projection import RTOL, Knowledge, Observer, seen_by


def joint_losses(
    ledger: Ledger,
    observers: Sequence[Observer] | None = None,
    *,
    rtol: float = RTOL,
    tau: float = 0.0,
) -> Losses:
    """Upper bounds on what every observer learns of all inputs of every client.

    Inputs must be fixed beforehand, or depend only on messages that the observer has
    seen. The field `unit` is mu if each client sends all its inputs unmixed. The field
    `share` is relative to `unit`. If each client has one input, `share` is exact.

    Args:
        ledger: the ledger of inputs, exchanges and meetings.
        observers: who looks; None: every client by itself.
        rtol: the cut on singular values; see `projection`.
        tau: standard deviation of the noise on messages that an observer reads.
    """
    n, columns = ledger.clients, columns_of(ledger)
    if observers is None:
        observers = [Observer((v,)) for v in range(n)]
    unit = torch.zeros(n, dtype=torch.float64)
    unit.index_add_(0, columns.client, columns.mu.square())
    share = torch.zeros(n, len(observers), dtype=torch.float64)
    places = [(columns.client == u).nonzero()[:, 0] for u in range(n)]
    for j, observer in enumerate(observers):
        seen = seen_by(ledger, observer, rtol=rtol, tau=tau)
        for u in range(n):
            if float(unit[u]) and u not in observer.clients:
                share[u, j] = square_of(seen, places[u]) / float(unit[u])
    return Losses(share.clamp(0, 1), unit.sqrt())


def square_of(seen: Knowledge, place: Tensor) -> float:
    """The bound on mu^2 of one client, whose inputs have these columns."""
    part, mu = seen.basis[:, place], seen.columns.mu[place]
    p = part.T @ (seen.clear[:, None] * part)
    g = mu[:, None] * p * mu
    along = float(torch.linalg.eigvalsh(p)[-1]) * float(mu.square().sum())
    scaled = float(torch.linalg.eigvalsh(g)[-1]) * len(place)
    return max(0.0, min(along, scaled, float(g.abs().sum())))
