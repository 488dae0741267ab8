"""Accelerated gossip SGD: pairs meet at random, and a second vector speeds them up.

Every node has a model x_v and a companion z_v, which mix over time without messages.
Each gradient g_v of the node, taken at an earlier x_v, moves both. Every edge has a
clock. When the clock of the edge {v, w} rings, the two nodes exchange their models:

    dx_v = eta (z_v - x_v) dt,    dz_v = eta (x_v - z_v) dt
    x_v <- x_v - lr g_v,          z_v <- z_v - lr g_v
    x_v <- x_v + (x_w - x_v) / 2, z_v <- z_v + alpha (x_w - x_v), and the same for w

with eta = sqrt(mu / (2 R)) and alpha = 1 / sqrt(2 mu R). Here mu is the eigengap of the
graph, and R the largest effective resistance of an edge. The weight of an edge is the
rate at which its clock rings (`optim.meetings`). On a long graph, differences between
models then shrink at a rate of the order of sqrt(mu). Without z, the rate is of the
order of mu. The code mixes x_v and z_v only at the next event of node v, for all the
time since the last event. With eta = 0 and alpha = 1/2, the method is AGRAF with
`pairs`.

References:
    Nabli, Belilovsky, Oyallon, "A2CiD2: accelerating asynchronous communication in
    decentralized deep learning", NeurIPS 2023, arXiv 2306.08289.
    Even, Berthier, Bach, Flammarion, Hendrikx, Gaillard, Massoulié, Taylor,
    "Continuized accelerations of deterministic and stochastic gradient descents, and of
    gossip algorithms", NeurIPS 2021, arXiv 2106.07644.

Differences: computing a gradient takes time. The gradient is taken at the model that
the node had when the computation began.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from torch import Tensor

from ..checks import number
from ..graphs.matrices import Mixing, linked_pairs
from ..optim.meetings import Companions, companions, meetings
from ..options import Positive, method
from ..types import Algorithm, Arrivals, Flow, Meeting, Task, TaskKind, Tempo

RateOrNone = Annotated[float | None, partial(number, at_least=0, at_most=1e6)]


@dataclass
class State:
    """Models x, their companions z, and how far companions move at a meeting."""

    rows: Companions
    alpha: float = 0.5


@method()
def accelerated_gossip_sgd(
    mixing: Mixing,
    *,
    lr: Positive = 0.1,
    eta: RateOrNone = None,
    alpha: RateOrNone = None,
) -> Algorithm:
    """SGD of nodes that do not wait, with accelerated randomised gossip.

    Args:
        mixing: (N, N) stochastic, sparse or dense; an entry that is not 0 makes two
            nodes neighbours, whose edge may ring.
        lr: step size of a node.
        eta: how fast models and companions mix; None: computed from the rates of edges.
        alpha: how far companions move at a meeting; None: computed from these rates.
    """
    edges = linked_pairs(mixing)

    def init(x: Tensor) -> State:
        return State(companions(x))

    def ringing(state: State, now: Tempo) -> None:
        graph = meetings(now.edges, now.rates)
        state.rows.eta = graph.eta if eta is None else eta
        state.alpha = graph.alpha if alpha is None else alpha

    def arrive(state: State, now: Arrivals) -> list[int]:
        for v, g in zip(now.clients, now.answers[0], strict=True):
            state.rows.move(v, now.time, -lr * g, -lr * g)
        return now.clients

    def meet(state: State, now: Meeting) -> None:
        away = now.sent[1] - now.sent[0]
        for v, sign in zip(now.ends, (1, -1), strict=True):
            dx, dz = sign / 2 * away, sign * state.alpha * away
            state.rows.move(v, now.time, dx, dz)

    flow = Flow(
        init,
        lambda state, client, time: Task((state.rows.at(client, time)[0],)),
        arrive,
        lambda state: state.rows.latest(),
        info=lambda state: {"weights": mixing},
        kinds=(TaskKind(down=(), up=()),),
        together=True,
        messages="instant",
        send=lambda state, client, time: state.rows.at(client, time)[0],
        meet=meet,
        edges=edges,
        ringing=ringing,
    )
    return Algorithm(flow=flow)
