"""Accelerated decentralised optimisation: neighbours meet and exchange dual gradients.

    minimise sum_v f_v(x),    f_v 1/lr-smooth and `curvature`-strongly convex

Node v has dual points y_v and z_v, which mix at rate eta over time. The sum of all y_v
and the sum of all z_v are 0. Each edge has a clock. When the clock of the edge e = {v,
w} rings and both nodes are free, each node computes

    x_v = grad f_v^*(y_v) = argmin_x f_v(x) - <y_v, x>

from its own data, and they exchange the results. With g = x_v - x_w,

    y_v <- y_v - s_e g,    z_v <- z_v - gamma' g,    and for w, + in place of -.

The model of a node is its last x_v; at the optimum y_v = z_v = grad f_v(x*). Theorem
2.6 gives the step sizes (`coterie_theory.descent.dual`), for the rates at which pairs
meet. Computing takes time, so pairs meet less often than clocks ring
(`graphs.capacities`).

References:
    Even, Berthier, Bach, Flammarion, Hendrikx, Gaillard, Massoulié, Taylor,
    "Continuized accelerations of deterministic and stochastic gradient descents, and of
    gossip algorithms", NeurIPS 2021, arXiv 2106.07644.

Differences: those listed in `coterie_theory.descent.dual`. In addition, gradient steps
on a node's data only approximate grad f_v^*. A meeting takes time, and both nodes do
nothing else during it. If a clock rings while one of its nodes is busy, nothing
happens.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graphs.capacities import exchange_rates
from ..graphs.matrices import Mixing, linked_pairs
from ..optim.conjugates import ConvexLoss, conjugate_gradient
from ..optim.meetings import Companions, companions, dual_steps
from ..options import Accuracy, NotNegative, Positive, method
from ..types import Algorithm, Arrivals, Flow, Task, TaskKind, Tempo


@dataclass
class State:
    """Models, dual points y and z, and step sizes."""

    x: Tensor  # (N, D)
    duals: Companions
    shares: list[float]  # s_e, by edges
    jump: float = 0.0  # gamma'


@method()
def dual_accelerated(
    mixing: Mixing,
    *,
    lr: Positive = 0.1,
    curvature: Positive = 1.0,
    weight_decay: NotNegative = 0.0,
    accuracy: Accuracy = 0.5,
) -> Algorithm:
    """Accelerated dual descent of neighbours, for strongly convex losses.

    Args:
        mixing: (N, N) stochastic, sparse or dense; an entry that is not 0 makes two
            nodes neighbours, whose edge may ring.
        lr: 1 / smoothness of the losses, including weight decay.
        curvature: strong convexity of the losses, including weight decay.
        weight_decay: adds this number times the model to each gradient.
        accuracy: a computation reduces the distance to its exact result to this share.
    """
    loss = ConvexLoss(lr, curvature, weight_decay)
    edges = linked_pairs(mixing)
    place = {frozenset(pair): e for e, pair in enumerate(edges.tolist())}
    steps = loss.valid().steps(accuracy)

    def init(x: Tensor) -> State:
        return State(x.clone(), companions(torch.zeros_like(x)), [0.0] * len(edges))

    def ringing(state: State, now: Tempo) -> None:
        busy = now.delays + now.lengths[now.edges].amax(1)
        rates = exchange_rates(now.edges, now.rates, busy)
        found = dual_steps(
            now.edges, rates, smoothness=1 / loss.lr, curvature=loss.curvature
        )
        state.duals.eta, state.jump = found.eta, found.jump
        for pair, share in zip(now.edges.tolist(), found.shares.tolist(), strict=True):
            state.shares[place[frozenset(pair)]] = share

    def task(state: State, client: int, time: float) -> Task:
        return Task((state.x[client], state.duals.at(client, time)[0]), work=0.0)

    def arrive(state: State, now: Arrivals) -> list[int]:
        (x,) = now.answers
        state.x[now.clients] = x
        for j in range(0, len(x), 2):
            v, w = now.clients[j : j + 2]
            g, share = x[j] - x[j + 1], state.shares[place[frozenset((v, w))]]
            for node, sign in ((v, -1), (w, 1)):
                dy, dz = sign * share * g, sign * state.jump * g
                state.duals.move(node, now.time, dy, dz)
        return []

    program = functools.partial(conjugate_gradient, loss=loss, steps=steps)
    flow = Flow(
        init,
        task,
        arrive,
        info=lambda state: {"weights": mixing},
        # Dual points stay at their node; the result goes to the other node.
        kinds=(TaskKind(program, "each", down=(), passes=steps),),
        together=True,
        edges=edges,
        ringing=ringing,
        couples=True,
    )
    return Algorithm(flow=flow)
