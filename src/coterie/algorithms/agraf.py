"""AGRAF SGD: every node computes at its own pace, and neighbours mix their models.

When the nodes in the set I have finished gradients g, each taken at an earlier model of
its node,

    x <- W x,  x_v <- x_v - lr g_v for v in I     (`mix_then_step`, as printed)
    x_v <- x_v - lr g_v for v in I,  x <- W x     (`step_then_mix`)

Then the nodes in I go on from their new models. Every gradient g_v moves the mean of
all models by -(lr / n) g_v. There are three ways to mix:

- `matrix`: at every `every`-th gradient, W is the doubly stochastic matrix `mixing`. At
  all other gradients, W is the identity.
- `neighbours`: W averages the models of a node that has finished and its neighbours.
- `pairs`: each edge has a clock, and two neighbours average when it rings.

Special cases are

    mixing J = 11'/n, all together                minibatch SGD     (step_then_mix)
    mixing J                                      asynchronous SGD with step lr / n
    mixing J, every n H                           local SGD with H steps, FedAvg
    mixing J, every B                             buffers of B answers, like FedBuff
    mixing W, all together                        decentralised SGD
    `neighbours`                                  asynchronous decentralised SGD
    `pairs`                                       the same with randomised gossip

References:
    Even, Koloskova, Massoulié, "Asynchronous SGD on graphs: a unified framework for
    asynchronous decentralized and federated optimization", AISTATS 2024, arXiv
    2311.00465.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..checks import InputError
from ..collaboration.weights import count_links
from ..graphs.matrices import DoublyStochastic, linked_pairs, neighbourhoods
from ..optim import delays
from ..optim.delays import Balance
from ..options import Count, Positive, method
from ..types import Algorithm, Arrivals, Flow, Meeting, Task, TaskKind


@dataclass
class State:
    """The models, and the number of gradients that have arrived."""

    x: Tensor  # (N, D)
    answers: list[int]  # of each node
    k: int = 0


@method()
def agraf(
    mixing: DoublyStochastic,
    *,
    lr: Positive = 0.1,
    mix: Literal["matrix", "neighbours", "pairs"] = "matrix",
    every: Count = 1,
    order: Literal["step_then_mix", "mix_then_step"] = "step_then_mix",
    balance: Balance = 0.0,
) -> Algorithm:
    """SGD of nodes that do not wait, on a graph.

    Args:
        mixing: (N, N) doubly stochastic, sparse or dense; for `neighbours` and `pairs`,
            an entry that is not 0 makes two nodes neighbours.
        lr: step size of a node.
        mix: how models mix: `matrix`, `neighbours` or `pairs`, see above.
        every: gradients between two mixings with the matrix.
        order: `step_then_mix` or `mix_then_step`.
        balance: largest factor of the steps of slow nodes. Nodes that finish rarely
            take longer steps, so that all nodes have the same influence; 0 leaves steps
            as they are.
    """
    if every > 1 and mix != "matrix":
        raise InputError(f"`every` must be 1 if `mix` is {mix}, got {every}.")
    edges = linked_pairs(mixing)
    circle = neighbourhoods(edges, len(mixing))
    used = count_links(mixing)

    def init(x: Tensor) -> State:
        return State(x.clone(), [0] * len(x))

    def mix_models(state: State, now: Arrivals) -> None:
        before, state.k = state.k, state.k + len(now.clients)
        if mix == "matrix" and before // every < state.k // every:
            state.x.copy_(mixing.to(state.x) @ state.x)
            now.count_messages(used, state.x[0])
        if mix == "neighbours":
            for v in now.clients:
                state.x[circle[v]] = state.x[circle[v]].mean(0)
                # The neighbours send v their models, and v sends the mean back.
                now.count_messages(2 * (len(circle[v]) - 1), state.x[v])

    def arrive(state: State, now: Arrivals) -> list[int]:
        if order == "mix_then_step":
            mix_models(state, now)
        g = now.answers[0]
        for client in now.clients:
            state.answers[client] += 1
        shares = [delays.balance(balance, state.answers, c) for c in now.clients]
        g = g * torch.tensor(shares, dtype=torch.float64).to(g)[:, None]
        state.x[now.clients] -= lr * g
        if order == "step_then_mix":
            mix_models(state, now)
        return now.clients

    def meet(state: State, now: Meeting) -> None:
        v, w = now.ends
        state.x[v] = state.x[w] = (now.sent[0] + now.sent[1]) / 2

    flow = Flow(
        init,
        lambda state, client, time: Task((state.x[client],)),
        arrive,
        info=lambda state: {"weights": mixing},
        kinds=(TaskKind(down=(), up=()),),
        together=True,
        messages="instant",
        send=(lambda state, client, time: state.x[client]) if mix == "pairs" else None,
        meet=meet if mix == "pairs" else None,
        edges=edges if mix == "pairs" else None,
    )
    return Algorithm(flow=flow)
