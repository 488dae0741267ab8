"""Accelerated decentralised optimisation by dual gradients, when pairs meet.

    minimise sum_v f_v(x),    f_v 1/lr-smooth and `curvature`-strongly convex

Node v has dual points y_v and z_v, which sum to 0 over nodes and mix at rate eta as
time passes. When the edge e = {v, w} rings and both are free, they compute

    x_v = grad f_v^*(y_v) = argmin_x f_v(x) - <y_v, x>

each from its own data, and exchange them; with g = x_v - x_w,

    y_v <- y_v - s_e g,    z_v <- z_v - gamma' g,    and + for w.

The model of a node is its last x_v; at the optimum y_v = z_v = grad f_v(x*). Steps are
those of Theorem 2.6 (`coterie.optim.dual_descent`) for how often pairs meet, which is
less often than edges ring where computing takes time (`graphs.capacities.met`).

References:
    Even, Berthier, Bach, Flammarion, Hendrikx, Gaillard, Massoulié, Taylor,
    "Continuized accelerations of deterministic and stochastic gradient descents, and of
    gossip algorithms", NeurIPS 2021, arXiv 2106.07644.

Differences: as in `coterie.optim.dual_descent`; a node computes nearly grad f_v^*, in
steps on its data; meetings take time, in which both ends do nothing else, and a ring
that finds one of them busy is lost.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graphs.capacities import met
from ..graphs.families import refuse_apart
from ..graphs.matrices import joined
from ..optim.conjugates import Bowl, conjugate_gradient
from ..optim.dual_descent import dual_steps
from ..options import Accuracy, Mixing, NotNegative, Positive, method
from ..types import Algorithm, Arrivals, Flow, Kind, Task, Tempo


@dataclass
class State:
    """Models, and dual points as they were when something last happened to a node."""

    x: Tensor  # (N, D)
    y: Tensor  # (N, D)
    z: Tensor  # (N, D)
    since: list[float]  # when that was
    shares: list[float]  # s_e, by edges
    eta: float = 0.0
    jump: float = 0.0  # gamma'


def _mix(state: State, v: int, time: float) -> tuple[Tensor, Tensor]:
    """A node's dual points at a time, if nothing happens to it until then."""
    share = -math.expm1(-2 * state.eta * (time - state.since[v])) / 2
    move = share * (state.z[v] - state.y[v])
    return state.y[v] + move, state.z[v] - move


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
        lr: 1 / smoothness of the losses, with their decay.
        curvature: strong convexity of the losses, with their decay.
        weight_decay: factor of the model that is added to its gradient.
        accuracy: of a dual gradient: what is left of the distance from the last one.
    """
    edges, bowl = joined(mixing), Bowl(lr, curvature, weight_decay).checked()
    refuse_apart("mixing", edges, len(mixing))
    place = {frozenset(pair): e for e, pair in enumerate(edges.tolist())}
    steps = bowl.steps(accuracy)

    def init(x: Tensor) -> State:
        none = torch.zeros_like(x)
        return State(x.clone(), none, none.clone(), [0.0] * len(x), [0.0] * len(edges))

    def ringing(state: State, now: Tempo) -> None:
        busy = now.delays + now.lengths[now.edges].amax(1)
        rates = met(now.edges, now.rates, busy)
        found = dual_steps(now.edges, rates, smoothness=1 / lr, curvature=curvature)
        state.eta, state.jump = found.eta, found.jump
        for pair, share in zip(now.edges.tolist(), found.shares.tolist(), strict=True):
            state.shares[place[frozenset(pair)]] = share

    def task(state: State, client: int, time: float) -> Task:
        return Task((state.x[client], _mix(state, client, time)[0]), work=0.0)

    def arrive(state: State, now: Arrivals) -> list[int]:
        (x,) = now.answers
        state.x[now.clients] = x
        for j in range(0, len(x), 2):
            v, w = now.clients[j : j + 2]
            g, share = x[j] - x[j + 1], state.shares[place[frozenset((v, w))]]
            for node, sign in ((v, -1), (w, 1)):
                y, z = _mix(state, node, now.time)
                state.y[node] = y + sign * share * g
                state.z[node] = z + sign * state.jump * g
                state.since[node] = now.time
        return []

    program = functools.partial(conjugate_gradient, bowl=bowl, steps=steps)
    flow = Flow(
        init,
        task,
        arrive,
        lambda state: state.x,
        info=lambda state: {"weights": mixing},
        # Dual points stay, and what was computed goes to the other end.
        kinds=(Kind(program, "each", down=(), passes=steps),),
        together=True,
        edges=edges,
        ringing=ringing,
        couples=True,
    )
    return Algorithm(flow=flow)
