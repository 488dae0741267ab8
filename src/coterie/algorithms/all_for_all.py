"""Every client sends one gradient, taken at its own model, to similar clients.

    x <- x - eta W g(x),   W = Lambda Lambda^T,   g(x) = (g_1(x_1), ..., g_N(x_N))

with known weights Lambda whose rows sum to 1. With x = Lambda y, this is gradient
descent on f(y) = sum_i f_i(sum_k lambda_ik y_k):

    y <- y - eta Lambda^T g(Lambda y),

which is the factored form. Both forms give the same models. In a step, each client
computes one gradient, for any Lambda. In All-for-one, it computes one gradient for each
of its readers (the clients that learn from it).

Without waiting, client i takes its gradient g at the x_i at which it began. When it has
finished,

    x_j <- x_j - eta c w_ji g   for all j,

Then i goes on from the new x_i. The factor c is 1, or smaller for a late gradient. In
the factored form, g changes the y_k of i's partners k in Lambda: y_k <- y_k - eta c
lambda_ik g. The partners send y_k to i before i begins. So the factored form gives the
same models, but uses only the links of Lambda.

References:
    Even, Massoulié, Scaman, "On sample optimality in personalized collaborative and
    federated learning", NeurIPS 2022; report hal-03550407, Algorithm 1.
    Even, "Towards decentralization, asynchrony, privacy and personalization in
    federated learning", PhD thesis, 2024, Algorithm 8.1, hal tel-04877971. Algorithm
    8.1 treats one client at a time; delays are our addition.

Differences: the step is eta = lr / rho(W) unless `safe` is off. The proof says that the
spectral radius rho is 1, but this is not true for every Lambda. Clients begin with x =
Lambda x^0, which has the form Lambda y. If all clients begin with one model, as in the
paper, Lambda x^0 is x^0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..checks import InputError
from ..collaboration.weights import spectral_radius
from ..graphs.matrices import adjacency
from ..optim import delays
from ..optim.delays import Late
from ..optim.steps import Descent, Schedule, descend, velocity
from ..options import (
    BelowOne,
    Count,
    GraphOrNone,
    NotNegative,
    Positive,
    Stochastic,
    method,
)
from ..types import Algorithm, Arrivals, Flow, Info, Oracle, Releases, Task, TaskKind
from .local import State


@method(in_rounds=("steps", "momentum", "weight_decay", "schedule"), in_time=("late",))
def all_for_all(
    weights: Stochastic,
    graph: GraphOrNone = None,
    *,
    lr: Positive = 0.1,
    momentum: BelowOne = 0.0,
    weight_decay: NotNegative = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    form: Literal["direct", "factored"] = "direct",
    safe: bool = True,
    late: Late = "constant",
) -> Algorithm:
    """All-for-all with given weights, where one gradient serves all partners.

    Only active clients compute, but their gradients also move the models of inactive
    clients. A newcomer gets the model that fits its training data best.

    Args:
        weights: (N, N) Lambda; rows sum to 1.
        graph: (N, N) only clients with an entry that is not 0 send each other anything;
            None: all clients may.
        lr: step size; `safe` divides it by rho(W).
        momentum: factor of the running sum of gradients.
        weight_decay: adds this number times the model to each gradient.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: gradients of every client in one round; messages follow each of them.
        form: `direct` sends gradients along the links of W. `factored` sends gradients
            along the links of Lambda, and models back. Both give the same models.
        safe: whether to divide the step size by rho(W). Then every lr that is stable
            for a client alone is stable.
        late: `constant`, `adaptive` to the delay of a gradient, or `heterogeneous`.
    """
    rule = Descent(lr, momentum, weight_decay, schedule)
    if graph is not None and form == "direct":
        _refuse_strangers(weights, adjacency(graph))
    rho = spectral_radius(weights)
    # The decay is part of the gradient that is sent, so that x stays Lambda y.
    decay, size = rule.weight_decay, rule.lr / rho if safe else rule.lr
    move = rule._replace(lr=size, weight_decay=0.0)
    product = weights.double() @ weights.double().T

    def init(x: Tensor, oracle: Oracle) -> State:
        y = x if form == "factored" else oracle.mix(weights, x)
        return State(y, velocity(move, x), 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        x, v, t = state  # in the factored form y stands for x
        lam, active = weights.to(x), oracle.active[:, None]
        if form == "factored" and not bool(oracle.present.all()):
            raise InputError(
                "`form` factored needs every client in every round, but "
                f"{int((~oracle.present).sum())} of {len(oracle.present)} are absent: "
                "use `form` direct."
            )
        sent = lam.T if form == "factored" else product.to(x)
        for t_now in range(t, t + steps):
            here = oracle.mix(lam, x) if form == "factored" else x
            g = oracle.grads(here)
            if decay:
                g = g + decay * here * active
            x, v = descend(move, x, oracle.mix(sent, g), v, t_now)
        info: Info = {"weights": lam, "spectral_radius": rho}
        return State(x, v, t + steps), info

    def personal(state: State, oracle: Oracle) -> Tensor:
        return oracle.mix(weights, state.x) if form == "factored" else state.x

    flow = _flow(weights, product, size, late, factored=form == "factored")
    return Algorithm(init, step, personal, flow=flow, releases=Releases(mix=steps))


def _refuse_strangers(weights: Tensor, near: Tensor) -> None:
    """Refuses W if it sends gradients to clients that are not neighbours."""
    sent = weights.double() @ weights.double().T != 0
    beyond = (sent.fill_diagonal_(False) & ~near.to(sent.device)).nonzero()
    if len(beyond):
        i, k = beyond[0].tolist()
        raise InputError(
            "`form` must be factored on this graph: direct would send a gradient from "
            f"client {k} to client {i}, and they are not neighbours."
        )


@dataclass
class FlowState:
    """The models, and Lambda Lambda^T."""

    x: Tensor  # (N, D)
    product: Tensor  # (N, N)


def _flow(
    weights: Tensor, product: Tensor, size: float, late: str, *, factored: bool
) -> Flow:
    """All-for-all in time: a gradient moves all partners when it arrives."""
    used = (weights.T if factored else product) != 0
    # A gradient goes to all partners. In the factored form, partners send models back.
    messages = ((1 + factored) * (used.sum(0) - used.diagonal().long())).tolist()

    def init(x: Tensor) -> FlowState:
        return FlowState(weights.to(x) @ x, product.to(x))

    def arrive(state: FlowState, now: Arrivals) -> list[int]:
        (g,) = now.answers
        if late != "constant":
            c = [delays.factor(late, len(state.x), tau) for tau in now.delays]
            g = g * torch.tensor(c, dtype=g.dtype, device=g.device)[:, None]
        state.x.addmm_(state.product[:, now.clients], g, alpha=-size)
        now.count_messages(sum(messages[client] for client in now.clients), g[0])
        return now.clients

    return Flow(
        init,
        lambda state, client, time: Task((state.x[client],)),
        arrive,
        info=lambda state: {"weights": weights},
        kinds=(TaskKind(down=(), up=()),),
        together=True,
    )
