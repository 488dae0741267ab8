"""Clocks whose times are written down, and what a client answers at one of them."""

from __future__ import annotations

import torch

from support.quadratics import REAL, D

EXACT = {"rtol": 1e-12, "atol": 1e-12}  # sums in another order, in float64


class Paces:
    """Client i's task number c takes paces[i] (1 + (7 i + 3 c) mod 5 / 10)."""

    def __init__(self, *paces: float, jitter: float = 1.0) -> None:
        self.paces, self.jitter = paces, jitter

    def durations(self, clients, first, count):
        number = first[:, None] + torch.arange(count)
        wobble = 1 + self.jitter * ((7 * clients[:, None] + 3 * number) % 5) / 10
        return torch.tensor(self.paces, dtype=REAL)[clients][:, None] * wobble

    def ready(self, client, time):
        return time


EQUAL = Paces(*[1.0] * 6, jitter=0.0)


UNEVEN = Paces(1.0, 2.013, 0.717, 3.031, 1.331, 6.17)  # no two at the same time


def question(simulation, client, number, point):
    """A client's gradient number 1, 2, ... by the synchronous oracle, all by itself."""
    who = torch.arange(6) == client
    points = torch.zeros(6, D, dtype=REAL)
    points[client] = point
    return simulation.at(number, who).grads(points)[client]
