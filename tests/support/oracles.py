"""Oracles of a few lines: tests say what clients answer, and verbs are products."""

from __future__ import annotations

from collections import Counter

import torch

from coterie.clients.traffic import peer_links, server_links
from coterie.types import Transfer, Widths, tensor_of, traffic_of


def with_verbs(cls):
    """The class, whose objects know `active`, with the verbs between clients."""

    def sent(self) -> list[Transfer]:
        return vars(self).setdefault("_sent", [])

    def average(self, shares, rows):
        rows = tensor_of(rows)
        part = shares.to(rows) * self.active
        mean = part / part.sum(-1, keepdim=True) @ rows
        up = server_links(self.active)
        self.sent.append(Transfer("average", rows.shape[1], up))
        self.sent.append(Transfer("average", mean.numel(), up.flip(1)))
        return mean.expand(len(rows), *mean.shape)

    def mix(self, weights, rows, *, exchanges=1, gamma=1.0):
        rows = tensor_of(rows)
        before, now = rows, rows
        for number in range(exchanges):
            self.sent.append(
                Transfer("mix", rows.shape[1], peer_links(weights, self.active))
            )
            mixed = weights.to(rows) @ now
            mixed = mixed if number == 0 else gamma * mixed + (1 - gamma) * before
            before, now = now, mixed
        return now

    def central(self, program, server, *rows, **options):
        who = self.active.nonzero()[:, 0]
        given = [tensor_of(row)[who] for row in rows]
        return program(server, who, *given, **options)

    def grads(self, x):
        raise NotImplementedError

    def each(self, program, *rows, **options):
        raise NotImplementedError

    def blended(self, x, weights):
        raise NotImplementedError

    def compare(self, x, *, samples=None, pairs=None):
        raise NotImplementedError

    for verb in (average, mix, central, grads, each, blended, compare):
        if not hasattr(cls, verb.__name__):
            setattr(cls, verb.__name__, verb)
    if not hasattr(cls, "gradients"):
        cls.gradients = property(lambda self: torch.zeros(len(self.active)))
    cls.sent = property(sent)
    cls.home = None
    cls.widths = Widths(0)
    cls.present = property(lambda self: self.active)
    cls.mine = property(lambda self: slice(0, len(self.active)))
    return cls


@with_verbs
class Everybody:
    """Clients who all take part, and are asked nothing."""

    def __init__(self, n: int) -> None:
        self.active = torch.ones(n, dtype=torch.bool)


def begun(algorithm, x):
    """The first state of an algorithm whose clients are all there."""
    return algorithm.init(x, Everybody(len(x)))


def told(info, oracle):
    """What a round tells, and how many values its verbs sent."""
    return {**info, "sent": traffic_of(oracle.sent).total}


def over_links(sent: list[Transfer]) -> Counter:
    """How many values each verb sent from whom to whom."""
    total: Counter = Counter()
    for one in sent:
        for source, target in one.links.tolist():
            total[one.verb, source, target] += one.values
    return total
