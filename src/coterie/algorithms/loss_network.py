"""SGD on a loss network: neighbours who are both free compute and exchange models.

When the edge {v, w} of the graph rings and neither v nor w is busy, both begin a
gradient at their own models and send these to each other. When both are done,

    x_v <- (x_v + x_w) / 2 - lr g_v(x_v),  x_w <- (x_v + x_w) / 2 - lr g_w(x_w)  (5.7)

with the models as they were, and both are free again. If one of them is busy the ring
is lost, and nobody waits: so messages may take time, nothing is overwritten, and nobody
can block anybody for ever. Edges should ring at the rates of Theorem 5.5
(`coterie.graphs.loss_rates`), for which neighbours need to know of each other
only how long they take.

References:
    Even, Koloskova, Massoulié, "Asynchronous SGD on graphs: a unified framework for
    asynchronous decentralized and federated optimization", AISTATS 2024, arXiv
    2311.00465, section 5.

Differences: samples of a gradient are drawn when an exchange begins, not after the last
one; models are the same at both times.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graphs.matrices import Mixing, joined
from ..options import Positive, method
from ..types import Algorithm, Arrivals, Flow, Task, TaskKind


@dataclass
class State:
    """The models."""

    x: Tensor  # (N, D)


@method()
def loss_network(mixing: Mixing, *, lr: Positive = 0.1) -> Algorithm:
    """SGD of neighbours who are busy while they exchange their models.

    Args:
        mixing: (N, N) stochastic, sparse or dense; an entry that is not 0 makes two
            nodes neighbours, whose edge may ring.
        lr: step size of a node.
    """
    edges = joined(mixing)

    def init(x: Tensor) -> State:
        return State(x.clone())

    def task(state: State, client: int, time: float) -> Task:
        return Task((state.x[client],))

    def arrive(state: State, now: Arrivals) -> list[int]:
        pairs = torch.tensor(now.clients, device=state.x.device).view(-1, 2)
        (g,) = now.answers
        mean = state.x[pairs].mean(1, keepdim=True)  # (P, 1, D)
        state.x[pairs] = mean - lr * g.view(*pairs.shape, -1)
        return []

    flow = Flow(
        init,
        task,
        arrive,
        info=lambda state: {"weights": mixing},
        kinds=(TaskKind(up=()),),
        together=True,
        edges=edges,
        couples=True,
    )
    return Algorithm(flow=flow)
