"""SGD on a loss network: two free neighbours compute and exchange models.

Each edge has a clock. When the clock of the edge {v, w} rings and neither v nor w is
busy, each of the two begins a gradient at its own model, and sends this model to the
other. When both have finished,

    x_v <- (x_v + x_w) / 2 - lr g_v(x_v),  x_w <- (x_v + x_w) / 2 - lr g_w(x_w)  (5.7)

where the right-hand sides use the models from the start of the exchange. Then both
nodes are free again. If a clock rings while one of its nodes is busy, nothing happens,
and no node waits. So messages may take time, nothing is overwritten, and there is no
deadlock. Clocks should ring at the rates of Theorem 5.5 (`coterie.graphs.loss_rates`).
To compute its rates, a node only needs to know how long its neighbours take.

References:
    Even, Koloskova, Massoulié, "Asynchronous SGD on graphs: a unified framework for
    asynchronous decentralized and federated optimization", AISTATS 2024, arXiv
    2311.00465, section 5.

Differences: we draw the samples of a gradient when an exchange begins. The paper draws
them when the node's last exchange ends. The node's model is the same at both times.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..graphs.matrices import Mixing, linked_pairs
from ..options import Positive, method
from ..types import Algorithm, Arrivals, Flow, Task, TaskKind


@dataclass
class State:
    """The models."""

    x: Tensor  # (N, D)


@method()
def loss_network(mixing: Mixing, *, lr: Positive = 0.1) -> Algorithm:
    """SGD of neighbours that are busy while they exchange models.

    Args:
        mixing: (N, N) stochastic, sparse or dense; an entry that is not 0 makes two
            nodes neighbours, whose edge may ring.
        lr: step size of a node.
    """
    edges = linked_pairs(mixing)

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
