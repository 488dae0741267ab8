"""All-for-all without waiting: a gradient moves all partners' models when it arrives.

When client i finishes g = g_i(x_i as it was),

    x_j <- x_j - lr c w_ji g   for all j,    W = L L^T,

and i goes on from the new x_i; c is 1, min(1, M / tau) or min(1, M / (2 tau)) for a
gradient that is late by tau answers, by the rule. With x = L y this is asynchronous SGD
on the one vector y, to which client i is a worker with the loss f_i(sum_k l_ik y_k), so
that rules have the meaning they have there: as workers' losses differ, that of Theorem
3.3 is `heterogeneous`. Tasks that end together arrive together: without delays this is
All-for-all, with steps half as long if the rule is `heterogeneous`.

References:
    Even, Massoulié, Scaman, "On sample optimality in personalized collaborative and
    federated learning", NeurIPS 2022: one agent at a time; the delays are ours.
    Mishchenko, Bach, Even, Woodworth, "Asynchronous SGD beats minibatch SGD under
    arbitrary delays", NeurIPS 2022, arXiv 2206.07638: rules.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..checks import number, stochastic
from ..collaboration.weights import spectral_radius
from ..engine.events import Arrivals, Asynchronous, Task
from . import steps


@dataclass
class State:
    """The models, L L^T, and how many values were sent."""

    x: Tensor  # (N, D)
    product: Tensor  # (N, N)
    floats: float = 0.0


def async_all_for_all(
    weights: Tensor, *, lr: float = 0.1, rule: str = "constant", safe: bool = True
) -> Asynchronous:
    """All-for-all with gradients of clients that compute at their own pace.

    Weights for which L L^T is the identity are local training, where nobody waits.

    Args:
        weights: (N, N) L, rows sum to 1.
        lr: step size.
        rule: `constant`, or `adaptive` to the delay of a gradient, or `heterogeneous`.
        safe: divide the step size by the spectral radius of L L^T, which may exceed 1.
    """
    number("lr", lr, above=0)
    steps.checked(rule)
    stochastic("weights", weights, len(weights))
    size = lr / spectral_radius(weights) if safe else lr
    product = weights.double() @ weights.double().T
    partners = ((product != 0).sum(0) - (product.diagonal() != 0).long()).tolist()

    def init(x: Tensor) -> State:
        stochastic("weights", weights, len(x))
        return State(weights.to(x) @ x, product.to(x))

    def task(state: State, client: int) -> Task:
        return Task((state.x[client],))

    def arrive(state: State, now: Arrivals) -> list[int]:
        (g,) = now.answers
        if rule != "constant":
            late = [steps.factor(rule, len(state.x), tau) for tau in now.delays]
            g = g * torch.tensor(late, dtype=g.dtype, device=g.device)[:, None]
        state.x.addmm_(state.product[:, now.clients], g, alpha=-size)
        # A gradient goes to all partners.
        state.floats += sum(partners[client] for client in now.clients) * g.shape[1]
        return now.clients

    return Asynchronous(
        init,
        task,
        arrive,
        lambda state: state.x,
        info=lambda state: {"floats": state.floats, "weights": weights},
        together=True,
    )
