"""Ditto and FedAvg without waiting: a client's change of the global model, as it comes.

A client begins with the global model w as it is, takes `steps` local steps to w_i, and
as many personal ones, pulled to that w. When it has finished,

    w <- w + c p_i (w_i - the w it began with),

with its share p_i of the average and c as for a late gradient. Tasks that end together
arrive together: without delays this is Ditto, and its global model FedAvg's.

References:
    Li, Hu, Beirami, Smith, "Ditto: fair and robust federated learning through
    personalization", ICML 2021, arXiv 2012.04221; without waiting, it is ours.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..algorithms.ditto import ditto_round
from ..checks import integer, number, positive
from ..collaboration.weights import shares_of
from ..engine.events import Arrivals, Asynchronous, Kind, Task
from ..optim.steps import descent
from . import steps as delays


@dataclass
class State:
    """The global model, that with which each client began, and the personal ones."""

    w: Tensor  # (D,)
    began: Tensor  # (N, D)
    v: Tensor  # (N, D)
    none: Tensor  # (0,) in place of momentum
    floats: float = 0.0  # sent so far


def async_ditto(
    sizes: Tensor,
    *,
    lr: float = 0.1,
    steps: int = 1,
    lam: float = 1.0,
    rule: str = "constant",
    weighting: str = "samples",
    weight_decay: float = 0.0,
) -> Asynchronous:
    """Ditto for clients that work at their own pace.

    Args:
        sizes: (N,) training samples of each client.
        lr: step size of global and personal steps.
        steps: local gradient steps of a task, of each of the two models.
        lam: strength of the pull to the global model.
        rule: `constant`, or `adaptive` to the delay of an answer, or `heterogeneous`.
        weighting: `samples` or `uniform` weights of the average.
        weight_decay: of both kinds of steps.
    """
    settings = descent(
        lr=lr, momentum=0.0, weight_decay=weight_decay, schedule="constant"
    )
    integer("steps", steps, at_least=1)
    number("lam", lam, at_least=0)
    delays.checked(rule)
    shares = shares_of(sizes, weighting).double()
    shares = shares / shares.sum()

    def init(x: Tensor) -> State:
        positive("sizes", sizes, len(x))
        w = x.mean(0)
        return State(w, w.repeat(len(x), 1), x.clone(), x.new_zeros(0))

    def task(state: State, client: int) -> Task:
        state.began[client] = state.w
        state.floats += len(state.w)
        rows = (state.w, state.v[client], state.none, state.none)
        return Task(rows, work=2 * steps)

    def arrive(state: State, now: Arrivals) -> list[int]:
        w_i, v_i = now.answers[:2]
        late = [delays.factor(rule, len(state.v), tau) for tau in now.delays]
        share = (shares[now.clients] * torch.tensor(late, dtype=torch.float64)).to(w_i)
        state.w.add_(share @ (w_i - state.began[now.clients]))
        state.v[now.clients] = v_i
        state.floats += w_i.numel()
        return now.clients

    program = functools.partial(
        ditto_round, steps=steps, t=0, lam=lam, **settings._asdict()
    )
    return Asynchronous(
        init,
        task,
        arrive,
        lambda state: state.v,
        kinds=(Kind(program, "each"),),
        together=True,
    )
