"""DDO, delayed decentralised optimisation: messages and computations take time.

    minimise sum_v f_v(x),    f_v 1/lr-smooth and sigma-strongly convex

Node v has a model x_v, and a dual value y_v of phi_v(x) = f_v(x) - (sigma / 4) |x|^2.
Each edge has a clock. When the clock of the edge {v, w} rings, v and w send each other
their models. When both models have arrived,

    x_v <- x_v - s_e (x_v - x_w)(as sent),    and the opposite for w.

Every node computes g = argmin_x phi_v(x) - <y_v, x> from its data, again and again.
When it has finished, it changes x_v and y_v. In the brackets, x_v is the model at the
start of the computation:

    x_v <- x_v - s_v (x_v - g),    y_v <- y_v + (sigma / 2) s_v (x_v - g).

(sigma / 2) sum_v x_v + sum_v y_v stays 0, and models converge to x*. Steps s = K / 2p
depend on how often, and for how long, the edges and nodes nearby are busy. Equation
(4.27) gives them, as corrected in `coterie_theory.decentralised.descent`.

References:
    Even, Hendrikx, Massoulié, "Asynchronous speedup in decentralized optimization",
    2021, arXiv 2106.03585.
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, chapter 4, hal tel-04877971.

Differences: those listed in `coterie_theory.descent.delayed`. In addition, a node
starts its next computation when the last one ends; in the thesis, a clock starts it.
Step sizes use mean delays, not bounds on delays. Gradient steps on a node's data only
approximate the argmin. Models may begin anywhere, with y_v = -(sigma / 2) x_v.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..graphs.intensities import delayed_shares
from ..graphs.matrices import Mixing, linked_pairs
from ..optim.conjugates import ConvexLoss, conjugate_gradient
from ..options import Accuracy, NotNegative, Positive, method
from ..types import Algorithm, Arrivals, Clients, Flow, Meeting, Task, TaskKind, Tempo

_AT_ONCE = 1e-9  # seconds of a computation that takes no time


@dataclass
class State:
    """Models, dual values, the latest results of nodes, and step sizes."""

    x: Tensor  # (N, D)
    y: Tensor  # (N, D)
    g: Tensor  # (N, D)
    of_edges: list[float]  # s_e
    of_nodes: list[float]  # s_v


def local_optimum(
    clients: Clients, g: Tensor, y: Tensor, x: Tensor, *, loss: ConvexLoss, steps: int
) -> tuple[Tensor, Tensor]:
    """A client program: nearly argmin_x phi(x) - <y, x>, and the unchanged x."""
    return conjugate_gradient(clients, g, y, loss=loss, steps=steps), x


@method(known_optimum={"lr": 1 / 3, "curvature": 2.0})
def ddo(
    mixing: Mixing,
    *,
    lr: Positive = 0.1,
    curvature: Positive = 1.0,
    weight_decay: NotNegative = 0.0,
    accuracy: Accuracy = 0.5,
) -> Algorithm:
    """Delayed decentralised optimisation, for strongly convex losses.

    Args:
        mixing: (N, N) stochastic, sparse or dense; an entry that is not 0 makes two
            nodes neighbours, whose edge may ring.
        lr: 1 / smoothness of the losses, including weight decay.
        curvature: sigma, strong convexity of the losses, including weight decay.
        weight_decay: adds this number times the model to each gradient.
        accuracy: a computation reduces the distance to its exact result to this share.
    """
    loss = ConvexLoss(lr, curvature, weight_decay)
    edges, half = linked_pairs(mixing), loss.valid().curvature / 2
    place = {frozenset(pair): e for e, pair in enumerate(edges.tolist())}
    phi = ConvexLoss(1 / (1 / loss.lr - half), half, loss.weight_decay - half)
    steps = phi.steps(accuracy)

    def init(x: Tensor) -> State:
        still = [0.0] * len(edges), [0.0] * len(x)
        return State(x.clone(), -half * x, x.clone(), *still)

    def ringing(state: State, now: Tempo) -> None:
        # A node that computes is treated like an edge to an additional node.
        n, lengths = len(now.lengths), now.lengths.clamp(min=_AT_ONCE)
        own = torch.stack([torch.arange(n), torch.arange(n, 2 * n)], 1)
        rates, delays = [now.rates, 1 / lengths], [now.delays, lengths]
        found = delayed_shares(
            torch.cat([now.edges, own]), torch.cat(rates), torch.cat(delays)
        ).tolist()
        for pair, share in zip(now.edges.tolist(), found, strict=False):
            state.of_edges[place[frozenset(pair)]] = share
        state.of_nodes[:] = found[len(edges) :]

    def task(state: State, client: int, time: float) -> Task:
        rows = state.g[client], state.y[client], state.x[client]
        return Task(rows, work=0.0, peer=client)

    def arrive(state: State, now: Arrivals) -> list[int]:
        for v, g, x in zip(now.clients, *now.answers, strict=True):
            away = state.of_nodes[v] * (x - g)
            state.x[v] -= away
            state.y[v] += half * away
            state.g[v] = g
        return now.clients

    def meet(state: State, now: Meeting) -> None:
        (v, w), (one, other) = now.ends, now.sent
        away = state.of_edges[place[frozenset((v, w))]] * (one - other)
        state.x[v] -= away
        state.x[w] += away

    flow = Flow(
        init,
        task,
        arrive,
        info=lambda state: {"weights": mixing},
        kinds=(
            TaskKind(
                functools.partial(local_optimum, loss=phi, steps=steps),
                "each",
                down=(),
                up=(),
                passes=steps,
            ),
        ),
        together=True,
        messages="direct",
        send=lambda state, client, time: state.x[client],
        meet=meet,
        edges=edges,
        ringing=ringing,
    )
    return Algorithm(flow=flow)
