"""FedAvg with control variates, which correct the drift of local steps.

    y_i <- w, then `steps` times  y_i <- y_i - lr (g_i(y_i) - c_i + c)
    d_i = (w - y_i) / (lr steps)                 the mean of these corrected gradients
    w <- w + global_lr sum_i p_i (y_i - w)
    c_i <- c_i - c + d_i                         only for clients of the round
    c <- c + P sum_i p_i (d_i - c)               P is the share of these clients

Sums are over the clients of the round. Their weights p_i sum to 1, in proportion to
sample sizes or uniform. P is the share of these clients in the total weight of all
clients. At the start c and all c_i are 0, so c is always the weighted mean of all c_i.
With a schedule, `lr steps` is the sum of the step sizes of the round.

References:
    Karimireddy, Kale, Mohri, Reddi, Stich, Suresh, "SCAFFOLD: stochastic controlled
    averaging for federated learning", ICML 2020, arXiv 1910.06378.

Differences: c_i follows the paper's option II, which needs no additional gradients. A
client sends only y_i, because the server can compute the mean of d_i - c from all y_i.
The paper also sends the change of c_i. Weights of clients may follow sample sizes;
those of the paper are equal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ..collaboration.rows import (
    compute_once,
    mean_of_all,
    row_for_each,
    share_of_present,
    without_personal,
)
from ..collaboration.weights import shares_of
from ..optim.steps import Descent, Schedule, descend, step_size
from ..options import Count, NotNegative, Positive, Sizes, method
from ..types import Algorithm, Clients, Info, Oracle, Releases, Rows


class State(NamedTuple):
    """The global model, control variates, and the number of gradient steps."""

    w: Rows  # (n, D), the same row for everybody
    c: Rows  # (n, D), the same row for everybody
    c_i: Rows  # (n, D)
    t: int


def corrected_sgd(
    clients: Clients,
    y: Float[Tensor, "n d"],
    correction: Float[Tensor, "n d"],
    *,
    rule: Descent,
    steps: int,
    t: int,
) -> Tensor:
    """A client program: gradient steps from number t, each with the correction."""
    none = y[:, :0]
    for t_local in range(t, t + steps):
        g = clients.grad(y).add_(correction)
        y, _ = descend(rule, y, g, none, t_local)
    return y


@method()
def scaffold(
    sizes: Sizes,
    *,
    lr: Positive = 0.1,
    weight_decay: NotNegative = 0.0,
    schedule: Schedule = "constant",
    steps: Count = 1,
    global_lr: Positive = 1.0,
    weighting: str = "samples",
) -> Algorithm:
    """SCAFFOLD: one global model, whose local steps are corrected for drift.

    A newcomer gets the global model.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of the local steps.
        weight_decay: adds this number times the model to each gradient.
        schedule: `constant`, `step(k, f)`, `inverse(k)` or `cosine(k)`; see `Descent`.
        steps: local gradient steps in one round.
        global_lr: how far the global model moves to the average; 1 puts it there.
        weighting: `samples` or `uniform` weights of clients.
    """
    rule = Descent(lr, 0.0, weight_decay, schedule)
    shares = shares_of(sizes, weighting)

    def init(x: Tensor, oracle: Oracle) -> State:
        nothing = torch.zeros_like(x)
        return State(mean_of_all(oracle, x), nothing[:1].expand_as(x), nothing, 0)

    def step(state: State, oracle: Oracle, rng: torch.Generator) -> tuple[State, Info]:
        w, c, c_i, t = state
        length = sum(step_size(rule, t_local) for t_local in range(t, t + steps))
        correction = without_personal(oracle, c - c_i)
        y = oracle.each(corrected_sgd, w, correction, rule=rule, steps=steps, t=t)[0]
        own = torch.where(oracle.active[:, None], (w - y).div_(length) - c, 0)
        mean = oracle.average(shares[oracle.mine], y)
        present = share_of_present(oracle, shares)
        c = compute_once(
            lambda c, w, mean: c + present * ((w - mean) / length - c), c, w, mean
        )
        w = compute_once(lambda w, mean: w + global_lr * (mean - w), w, mean)
        return State(w, c, c_i + own, t + steps), {}

    def welcome(state: State, oracle: Oracle) -> Tensor:
        return row_for_each(oracle, state.w)

    return Algorithm(
        init,
        step,
        lambda state, oracle: state.w,
        welcome,
        releases=Releases(average=1),
        shared=lambda state: state.w,
    )
